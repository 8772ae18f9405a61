"""Columns: a run's records as numpy arrays, one entry a request, and ragged operations over their chunks.

The arrays are views of the record table wherever its buffers allow. Rows keep the order of the table (order of completion);
`due_order` is how statistics that care about time walk through them. Integer columns hold `run.NONE` where nothing is known;
every function here goes through a mask, so that NONE never becomes a number.

Nothing loops over rows or tokens in Python: a million requests of a hundred chunks must be readable in a minute. What looks at
every chunk takes some whole rows at a time (`blocks`), so that what it makes on the way stays in the processor's cache and a
hundred million chunks need little memory beside their stamps. What several figures need is worked out `once`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from longbench_sched.record import UNKNOWN_TOKENS, Status
from longbench_sched.run import NONE, RecordTable, Run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
T = TypeVar("T")

_BLOCK = 1 << 18  # chunks; a few arrays of them fit in a core's cache


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows of a run. `scale_s` is the engine time, in seconds, of one measured nanosecond."""

    n: int
    scale_s: float
    table: RecordTable
    measured: Mask  # warm-ups out
    ok: Mask  # measured and successful
    failed: Mask  # measured, and failed or timed out
    timeout: Mask
    offsets: Ints  # shape (n + 1,)
    chunk_at_ns: Ints
    chunk_tokens: NDArray[Any]  # of any integer type; UNKNOWN_TOKENS where unknown
    n_chunks: Ints
    first_ns: Ints  # first token-bearing event, NONE without one
    last_ns: Ints
    first_tokens: Ints  # tokens in the first chunk, NONE where unknown
    shown_tokens: Ints  # tokens over all chunks, NONE if any chunk's count is unknown or there is no chunk
    output_tokens: Ints  # the server's count, else shown_tokens; never what was asked
    prompt_tokens: Ints  # the server's count, else the planned length
    due_order: Ints  # row numbers in due order; ties by send, then by index
    is_unpacked: bool  # every chunk after a row's first holds one token: gaps between chunks are gaps between tokens
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)  # see `once`

    @classmethod
    def of(cls, run: Run) -> Columns:
        """Read a run."""
        table = run.table
        n = table.n
        status = table.texts["status"]
        measured = equals(table.texts["phase"], "measured", n)
        timeout = measured & equals(status, Status.TIMEOUT, n)
        offsets = as_ints(table.offsets)
        chunk_at_ns, chunk_tokens = as_ints(table.lists["chunk_at_ns"]), np.asarray(table.lists["chunk_tokens"])
        n_chunks = np.diff(offsets)
        has = n_chunks > 0
        first_ns, last_ns, first_tokens = np.full(n, NONE), np.full(n, NONE), np.full(n, NONE)
        first_ns[has] = chunk_at_ns[offsets[:-1][has]]
        last_ns[has] = chunk_at_ns[offsets[1:][has] - 1]
        first_tokens[has] = chunk_tokens[offsets[:-1][has]]
        n_not_one = int(np.count_nonzero(chunk_tokens != 1)) - int(np.count_nonzero(first_tokens[has] != 1))
        first_tokens[first_tokens == UNKNOWN_TOKENS] = NONE
        complete = has & (sum_rows(chunk_tokens == UNKNOWN_TOKENS, n_chunks) == 0)
        shown = np.where(complete, sum_rows(chunk_tokens, n_chunks), NONE)
        served, planned = as_ints(table.ints["prompt_tokens"]), as_ints(table.ints["isl"])
        counted = as_ints(table.ints["output_tokens"])
        due, sent, index = (as_ints(table.ints[name]) for name in ("due_ns", "sent_ns", "index"))
        return cls(
            n=n,
            scale_s=run.meta.time_scale * 1e-9,
            table=table,
            measured=measured,
            ok=measured & equals(status, Status.OK, n),
            failed=timeout | (measured & equals(status, Status.FAILED, n)),
            timeout=timeout,
            offsets=offsets,
            chunk_at_ns=chunk_at_ns,
            chunk_tokens=chunk_tokens,
            n_chunks=n_chunks,
            first_ns=first_ns,
            last_ns=last_ns,
            first_tokens=first_tokens,
            shown_tokens=shown,
            output_tokens=np.where(counted != NONE, counted, shown),
            prompt_tokens=np.where(served != NONE, served, planned),
            due_order=np.lexsort((index, sent, due)),
            is_unpacked=n_not_one == 0,
        )

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gives, worked out the first time that it is asked for."""
        if key not in self.known:
            self.known[key] = compute()
        value: T = self.known[key]
        return value

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Some whole rows at a time, with their chunks: (rows, chunks)."""
        first = 0
        while first < self.n:
            reached = int(np.searchsorted(self.offsets, self.offsets[first] + _BLOCK, side="right")) - 1
            last = min(max(reached, first + 1), self.n)
            yield slice(first, last), slice(int(self.offsets[first]), int(self.offsets[last]))
            first = last

    @property
    def disordered(self) -> Mask:
        """Rows whose chunks are not in the order of time: an impossible run."""
        return self.once("disordered", self._find_disordered)

    def _find_disordered(self) -> Mask:
        found = np.zeros(self.n, dtype=np.bool_)
        for rows, chunks in self.blocks():
            counts = self.n_chunks[rows]
            gaps, _ = gaps_ns(self.chunk_at_ns[chunks], counts)
            if len(gaps) and gaps.min() < 0:
                found[rows] = sum_rows(gaps < 0, np.maximum(counts - 1, 0)) > 0
        return found

    def ints(self, name: str) -> Ints:
        """An integer column, NONE where null."""
        return as_ints(self.table.ints[name])

    def seconds(self, ns: Ints) -> Floats:
        """Engine time in seconds."""
        return np.multiply(ns, self.scale_s, dtype=np.float64)

    def texts(self, name: str) -> Sequence[str | None]:
        """A text column."""
        return self.table.texts[name]


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of a metric, each belonging to a row: `counts[i]` of them to row i, in row order.

    A row where the metric is not defined has a count of 0. With `weights`, a value counts so many times (an ITL counts once for
    each token that took the gap).
    """

    values: Floats
    counts: Ints
    weights: Ints | None = None

    @classmethod
    def one_a_row(cls, values: Floats, defined: Mask) -> Samples:
        """A metric with at most one value a row; `values` outside `defined` are ignored."""
        return cls(values[defined], defined.astype(np.int64))

    def within(self, rows: Mask) -> Samples:
        """Only the values of these rows."""
        keep = np.repeat(rows, self.counts)
        weights = None if self.weights is None else self.weights[keep]
        return Samples(self.values[keep], np.where(rows, self.counts, 0), weights)

    @property
    def n(self) -> int:
        """How many values there are, each as often as it counts."""
        return len(self.values) if self.weights is None else int(self.weights.sum())


def as_ints(values: Sequence[int]) -> Ints:
    """A view of a buffer of int64 (a copy only if it is a plain list)."""
    return np.asarray(values, dtype=np.int64)


def equals(texts: Sequence[str | None], wanted: str, n: int) -> Mask:
    """Which texts are the wanted one."""
    return np.fromiter(map(operator.eq, texts, itertools.repeat(wanted)), dtype=np.bool_, count=n)


def sum_rows(values: NDArray[np.generic], counts: Ints) -> Ints:
    """Sum of each row's integers or booleans; 0 for a row without any. `counts` says how many each row has."""
    sums = np.zeros(len(counts), dtype=np.int64)
    _reduce(values, counts, sums)
    return sums


def add_rows(values: NDArray[np.generic], counts: Ints) -> Floats:
    """As `sum_rows`, in floating point."""
    sums = np.zeros(len(counts), dtype=np.float64)
    _reduce(values, counts, sums)
    return sums


def _reduce(values: NDArray[np.generic], counts: Ints, into: NDArray[np.int64] | NDArray[np.float64]) -> None:
    # reduceat gives the next row's first value for an empty row, so empty rows must not be asked for.
    filled = np.flatnonzero(counts > 0)
    starts = (np.cumsum(counts) - counts)[filled]
    first = 0
    while first < len(filled):  # in parts: a change of type inside reduceat costs far more than one before it
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + _BLOCK)))
        end = int(starts[last]) if last < len(filled) else len(values)
        part = values[starts[first] : end].astype(into.dtype, copy=False)
        into[filled[first:last]] = np.add.reduceat(part, starts[first:last] - starts[first])
        first = last


def gap_mask(counts: Ints) -> Mask:
    """Over flat chunks: False at the first chunk of each row, True where a gap to the chunk before exists."""
    mask = np.ones(int(counts.sum()), dtype=np.bool_)
    starts = np.cumsum(counts) - counts
    mask[starts[counts > 0]] = False
    return mask


def gaps_ns(at_ns: Ints, counts: Ints) -> tuple[Ints, Mask]:
    """Gaps between neighbouring chunks of a row, flat, and the mask over chunks of those that have a gap before them."""
    mask = gap_mask(counts)
    before = mask[1:]
    return (at_ns[1:][before] - at_ns[:-1][before]) if len(at_ns) else at_ns, mask
