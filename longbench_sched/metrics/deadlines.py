"""Token deadlines: how many tokens come too late for a reader who takes them at a steady pace.

Fluidity-index (Etalon, arXiv 2507.09019, algorithm 1; first as Metron, arXiv 2407.07000). The first token is due D_p after
the send, each later one D_d after the one before. A token that comes early leaves its slack to those after it. One that comes
late by x costs floor(x / D_d) + 1 missed deadlines (a stall of many periods is many misses) and the clock starts anew from
its arrival. Fluidity is 1 - missed / (missed + met). Here D_p is the TTFT limit and D_d the TPOT limit (the ITL limit, if
only that is set); the paper predicts D_p from the prompt's length instead.

The recurrence deadline[i] = max(deadline[i-1], at[i-1]) + D_d has the closed form
deadline[i] - i D_d = max(D_p + sent, max over j < i of (at[j] - j D_d)), a running maximum, so no loop over tokens is
needed. The tokens of one chunk arrive together; only the first of them can be late.
"""

from __future__ import annotations

import numpy as np

from longbench_sched.metrics.columns import Columns, Ints, gap_mask, sum_rows
from longbench_sched.run import NONE
from longbench_sched.slo import Slo


def count(columns: Columns, slo: Slo) -> tuple[Ints, Ints]:
    """Missed and total deadlines of each row; total 0 where undefined (no limits, no tokens, unknown counts)."""
    return columns.once(("deadlines", slo), lambda: _count(columns, slo))


def _count(columns: Columns, slo: Slo) -> tuple[Ints, Ints]:
    missed, total = np.zeros(columns.n, dtype=np.int64), np.zeros(columns.n, dtype=np.int64)
    pace_s = slo.tpot_s if slo.tpot_s is not None else slo.itl_s
    sent_ns = columns.ints("sent_ns")
    defined = (columns.shown_tokens != NONE) & (sent_ns != NONE)
    if slo.ttft_s is None or pace_s is None or not defined.any():
        return missed, total
    pace_ns = max(1, round(pace_s / columns.scale_s))
    first_due_ns = round(slo.ttft_s / columns.scale_s)
    for rows, chunks in columns.blocks():
        judged = defined[rows]
        keep = np.repeat(judged, columns.n_chunks[rows])
        counts = np.where(judged, columns.n_chunks[rows], 0)
        # Everything is relative to the first deadline of the row: small numbers, and the row's own start is 0.
        start_ns = np.repeat(sent_ns[rows][judged] + first_due_ns, counts[judged])
        after_ns = columns.chunk_at_ns[chunks][keep] - start_ns
        missed[rows], total[rows] = _count_rows(after_ns, columns.chunk_tokens[chunks][keep], counts, pace_ns)
    return missed, total


def _count_rows(after_ns: Ints, tokens: Ints, counts: Ints, pace_ns: int) -> tuple[Ints, Ints]:
    """Missed and total deadlines of rows whose chunks came so long after their first deadline."""
    advance_ns = after_ns - _running_number(tokens, counts) * pace_ns
    late_ns = advance_ns - _greatest_before(advance_ns, counts)
    is_late = late_ns > 0
    missed = sum_rows(np.where(is_late, late_ns // pace_ns + 1, 0), counts)
    return missed, missed + sum_rows(tokens, counts) - sum_rows(is_late, counts)


def _running_number(tokens: Ints, counts: Ints) -> Ints:
    """The number of tokens of the row that came in chunks before this one."""
    before: Ints = np.cumsum(tokens, dtype=np.int64) - tokens
    filled = counts > 0
    starts = (np.cumsum(counts) - counts)[filled]
    result: Ints = before - np.repeat(before[starts], counts[filled])
    return result


def _greatest_before(values: Ints, counts: Ints) -> Ints:
    """For each chunk: the greatest of 0 and the values of the row's earlier chunks.

    One running maximum over all rows: each row is lifted above all that the rows before it can reach. Rows are taken in parts
    so that the lift stays inside int64.
    """
    result = np.zeros(len(values), dtype=np.int64)
    if not len(values):
        return result
    floor = np.maximum(values, 0)
    height = int(floor.max()) + 1
    filled = counts[counts > 0]
    ends = np.cumsum(filled)
    rows_a_part = max(1, 2**62 // height)
    for row in range(0, len(filled), rows_a_part):
        stop = min(row + rows_a_part, len(filled))
        part = slice(int(ends[row] - filled[row]), int(ends[stop - 1]))
        lift = np.repeat(np.arange(stop - row) * height, filled[row:stop])
        reached = np.maximum.accumulate(floor[part] + lift) - lift
        before = np.zeros_like(reached)
        before[1:] = reached[:-1]
        result[part] = before
    result[~gap_mask(counts)] = 0
    return result
