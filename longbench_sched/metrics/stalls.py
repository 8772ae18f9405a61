"""Stalls: moments at which running answers stood still, and what other requests did then.

A gap between two tokens of an answer is long if it is more than `FACTOR` times the pace of the run: the median gap, or where
most tokens arrive packed, the median of those gaps that lie between deliveries. Long gaps of several
answers that have an instant in common are one stall: a step of the engine that took long, seen by all that were decoding. The
usual reason is a prompt that was prefilled in that step, so each stall names the requests that were before their first token:
those that arrived while it lasted, and the one whose first token came next, at the end of the stall or, where its prompt took
several steps, some stalls later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from longbench_sched.metrics.columns import Columns, Ints, gap_mask
from longbench_sched.run import NONE

FACTOR = 4.0  # times the pace; the ratio at which a tail of ITL is warned of
DELIVERY_S = 0.5e-3  # chunks closer than this came together: no engine takes so little for a step
MAX_LISTED = 20  # stalls, the longest first
MAX_NAMED = 4  # requests of one stall


@dataclass(frozen=True, slots=True)
class Stall:
    """One stall. Times are engine time, from the start of the measured phase."""

    from_s: float
    to_s: float
    size_s: float  # median of its gaps
    n_streams: int  # answers that stood still
    n_decoding: int  # answers between their first and last token then, these included
    n_prefilling: int  # requests sent and before their first token at some time of it
    arrived: tuple[str, ...]  # of these, sent while it lasted
    next_id: str | None  # of these, the one whose first token came first
    next_after_s: float | None  # that token, after the end of the stall; 0 if it came with it


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Long gaps, by their start."""

    from_ns: Ints
    to_ns: Ints
    n: int  # gaps of all sizes
    total_ns: int  # of all sizes


def pace_s(columns: Columns, median_s: float | None) -> float | None:
    """The gap that a token usually has: the median, or that of the gaps between deliveries if tokens come in packs.

    `median_s` is the median gap of successes. None without gaps that tell.
    """
    if median_s is None or median_s >= DELIVERY_S:
        return median_s
    apart = [gaps[gaps >= DELIVERY_S / columns.scale_s] for _, _, gaps, _ in _all_gaps(columns)]
    between = np.concatenate(apart) if apart else np.zeros(0, np.int64)
    return float(np.median(between)) * columns.scale_s if len(between) else None


def find_stalls(columns: Columns, usual_s: float | None, measured_from_ns: int) -> dict[str, Any] | None:
    """What `Summary.facts` says under `stalls`; None without a gap. `usual_s` is the pace of the run."""
    if not usual_s:
        return None
    gaps = _long_gaps(columns, usual_s)
    first = _first_of_stalls(gaps)
    stalls = _Stalls(columns, gaps, first, measured_from_ns)
    last_ns = np.minimum.reduceat(gaps.to_ns, first) if len(first) else gaps.to_ns
    n_prefilling = stalls.prefilling(gaps.from_ns[first], last_ns)
    sizes_ns = np.maximum.reduceat(gaps.to_ns - gaps.from_ns, first) if len(first) else gaps.to_ns
    longest = np.argsort(-sizes_ns, kind="stable")[:MAX_LISTED]
    long_ns = int((gaps.to_ns - gaps.from_ns).sum())
    return {
        "factor": FACTOR,
        "median_gap_s": usual_s,
        "n_gaps": gaps.n,
        "n_long": len(gaps.from_ns),
        "share": len(gaps.from_ns) / gaps.n if gaps.n else None,
        "time_share": long_ns / gaps.total_ns if gaps.total_ns else None,
        "n_stalls": len(first),
        "n_with_prefill": int((n_prefilling > 0).sum()),
        "longest": [asdict(stalls.describe(int(place))) for place in np.sort(longest)],
    }


def _all_gaps(columns: Columns) -> Iterator[tuple[Ints, Ints, Ints, int]]:
    """Of each block: begins, ends, gaps (0 where there is none), their number; of measured requests whatever became of them."""
    for rows, chunks in columns.blocks():
        counts, at_ns = columns.n_chunks[rows], columns.chunk_at_ns[chunks]
        wanted = (np.repeat(columns.measured[rows], counts) & gap_mask(counts))[1:]
        yield at_ns[:-1], at_ns[1:], np.where(wanted, np.diff(at_ns), 0), int(np.count_nonzero(wanted))


def _long_gaps(columns: Columns, usual_s: float) -> _Gaps:
    """Gaps above the limit."""
    limit_ns = FACTOR * usual_s / columns.scale_s
    begins, ends, n, total_ns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0, 0
    for begin, end, gaps, n_gaps in _all_gaps(columns):
        long = np.flatnonzero(gaps > limit_ns)
        begins.append(begin[long])
        ends.append(end[long])
        n, total_ns = n + n_gaps, total_ns + int(gaps.sum())
    begin_ns, end_ns = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin_ns, kind="stable")
    return _Gaps(begin_ns[order], end_ns[order], n, total_ns)


def _first_of_stalls(gaps: _Gaps) -> Ints:
    """Where in the gaps each stall begins: a gap belongs to the one before as long as all of them share an instant."""
    first: list[int] = []
    earliest_end = -1
    for place, (begin, end) in enumerate(zip(gaps.from_ns.tolist(), gaps.to_ns.tolist(), strict=True)):
        if begin >= earliest_end or not first:
            first.append(place)
            earliest_end = end
        elif end < earliest_end:
            earliest_end = end
    return np.array(first, dtype=np.int64)


class _Stalls:
    """Describes stalls by the requests of the run."""

    def __init__(self, columns: Columns, gaps: _Gaps, first: Ints, origin_ns: int) -> None:
        self._columns, self._gaps, self._origin_ns = columns, gaps, origin_ns
        self._bounds = np.append(first, len(gaps.from_ns))
        sent, end = columns.ints("sent_ns"), columns.ints("end_ns")
        self._rows = np.flatnonzero(sent != NONE)
        rows = self._rows
        self._sent = sent[rows]
        # A request that never had a token is before its first one until its end.
        self._first = np.where(columns.first_ns[rows] != NONE, columns.first_ns[rows], np.maximum(end[rows], self._sent))
        self._last = np.where(columns.last_ns[rows] != NONE, columns.last_ns[rows], self._first)
        self._sorted_sent, self._sorted_first = np.sort(self._sent), np.sort(self._first)

    def prefilling(self, from_ns: Ints, to_ns: Ints) -> Ints:
        """How many requests were sent before `to` and had no token yet at `from`."""
        n: Ints = np.searchsorted(self._sorted_sent, to_ns) - np.searchsorted(self._sorted_first, from_ns, side="right")
        return n

    def describe(self, place: int) -> Stall:
        """One stall, by its place in time."""
        inside = slice(int(self._bounds[place]), int(self._bounds[place + 1]))
        begins, ends = self._gaps.from_ns[inside], self._gaps.to_ns[inside]
        from_ns, to_ns = int(begins.min()), int(ends.max())
        waiting = np.flatnonzero((self._sent < to_ns) & (self._first > from_ns))
        waiting = waiting[np.argsort(self._sent[waiting], kind="stable")]
        slack_ns = (to_ns - from_ns) // 10  # a prompt that comes a moment before the stall is its cause as well
        arrived = waiting[self._sent[waiting] >= from_ns - slack_ns]
        after = waiting[np.argsort(self._first[waiting], kind="stable")[:1]]
        scale_s = self._columns.scale_s
        return Stall(
            from_s=(from_ns - self._origin_ns) * scale_s,
            to_s=(to_ns - self._origin_ns) * scale_s,
            size_s=float(np.median(ends - begins)) * scale_s,
            n_streams=len(begins),
            n_decoding=int(((self._first <= from_ns) & (self._last > from_ns)).sum()),
            n_prefilling=len(waiting),
            arrived=self._names(arrived),
            next_id=next(iter(self._names(after)), None),
            next_after_s=max(0, int(self._first[after[0]]) - to_ns) * scale_s if len(after) else None,
        )

    def _names(self, places: Ints) -> tuple[str, ...]:
        ids = self._columns.texts("request_id")
        return tuple(ids[int(self._rows[place])] or "" for place in places[:MAX_NAMED])
