"""Columns: a run's records as numpy arrays, one entry a request, and ragged operations over their chunks.

The arrays are views of the record table wherever its buffers allow. Rows keep the order of the table (order of completion);
`due_order` is how statistics that care about time walk through them. Integer columns hold `run.NONE` where nothing is known;
every function here goes through a mask, so that NONE never becomes a number.

Nothing loops over rows or tokens in Python: a million requests of a hundred chunks must be readable in a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longbench_sched.record import UNKNOWN_TOKENS, Status
from longbench_sched.run import NONE, RecordTable, Run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


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
    chunk_tokens: Ints  # UNKNOWN_TOKENS where unknown
    n_chunks: Ints
    first_ns: Ints  # first token-bearing event, NONE without one
    last_ns: Ints
    first_tokens: Ints  # tokens in the first chunk, NONE where unknown
    shown_tokens: Ints  # tokens over all chunks, NONE if any chunk's count is unknown or there is no chunk
    output_tokens: Ints  # the server's count, else shown_tokens; never what was asked
    prompt_tokens: Ints  # the server's count, else the planned length
    due_order: Ints  # row numbers in due order; ties by send, then by index

    @classmethod
    def of(cls, run: Run) -> Columns:
        """Read a run."""
        table = run.table
        n = table.n
        status = table.texts["status"]
        measured = equals(table.texts["phase"], "measured", n)
        timeout = measured & equals(status, Status.TIMEOUT, n)
        offsets = as_ints(table.offsets)
        chunk_at_ns, chunk_tokens = as_ints(table.lists["chunk_at_ns"]), as_ints(table.lists["chunk_tokens"])
        n_chunks = np.diff(offsets)
        has = n_chunks > 0
        first_ns, last_ns, first_tokens = np.full(n, NONE), np.full(n, NONE), np.full(n, NONE)
        first_ns[has] = chunk_at_ns[offsets[:-1][has]]
        last_ns[has] = chunk_at_ns[offsets[1:][has] - 1]
        first_tokens[has] = chunk_tokens[offsets[:-1][has]]
        first_tokens[first_tokens == UNKNOWN_TOKENS] = NONE
        sums = sum_rows(chunk_tokens, n_chunks)
        complete = has & (sum_rows(chunk_tokens == UNKNOWN_TOKENS, n_chunks) == 0)
        shown = np.where(complete, sums, NONE)
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
        )

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
    return np.fromiter((text == wanted for text in texts), dtype=np.bool_, count=n)


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
    filled = counts > 0
    if filled.any():
        starts = np.cumsum(counts) - counts
        into[filled] = np.add.reduceat(values, starts[filled], dtype=into.dtype)


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
