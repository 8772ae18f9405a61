"""The metrics that are distributions, each a pure function of the columns.

A function gives samples for the rows where its metric is defined; where it is not, the row is absent, never 0. It looks at
instants and counts only, not at success: who counts (successes, every request sent, failures) stands in `definitions.py`.
"""

from __future__ import annotations

import numpy as np

from longbench_sched.metrics import deadlines
from longbench_sched.metrics.columns import Columns, Ints, Mask, Samples, gap_mask, gaps_ns, sum_rows
from longbench_sched.run import NONE
from longbench_sched.slo import Slo


def _between(columns: Columns, start: Ints, stop: Ints) -> Samples:
    defined = (start != NONE) & (stop != NONE)
    return Samples.one_a_row(columns.seconds(stop - start), defined)


def ttft_s(columns: Columns, slo: Slo) -> Samples:
    """Time to first token, the headline: first token-bearing event - send. A role, comment or usage event is no token."""
    return _between(columns, columns.ints("sent_ns"), columns.first_ns)


def ttft_body_sent_s(columns: Columns, slo: Slo) -> Samples:
    """First token-bearing event - the moment the kernel had taken the last byte of the request: TTFT less the upload."""
    return _between(columns, columns.ints("body_sent_ns"), columns.first_ns)


def ttft_due_s(columns: Columns, slo: Slo) -> Samples:
    """First token-bearing event - planned arrival: queue wait, lateness and TTFT together (no coordinated omission)."""
    return _between(columns, columns.ints("due_ns"), columns.first_ns)


def ttfa_s(columns: Columns, slo: Slo) -> Samples:
    """Time to first answer: first event with answer content - send. Later than TTFT where a model reasons first."""
    return _between(columns, columns.ints("sent_ns"), columns.ints("answer_at_ns"))


def upload_s(columns: Columns, slo: Slo) -> Samples:
    """From send until the kernel had taken the last byte of the request."""
    return _between(columns, columns.ints("sent_ns"), columns.ints("body_sent_ns"))


def first_byte_s(columns: Columns, slo: Slo) -> Samples:
    """First byte of the body, comments and all - send. Says when the server began to answer, not when it had a token."""
    return _between(columns, columns.ints("sent_ns"), columns.ints("first_byte_ns"))


def e2e_s(columns: Columns, slo: Slo) -> Samples:
    """End to end: last token-bearing event - send. What follows it (usage, `[DONE]`) is in `stream_end`."""
    return _between(columns, columns.ints("sent_ns"), columns.last_ns)


def stream_end_s(columns: Columns, slo: Slo) -> Samples:
    """End of the answer by its framing - send."""
    return _between(columns, columns.ints("sent_ns"), columns.ints("end_ns"))


def queue_wait_s(columns: Columns, slo: Slo) -> Samples:
    """Slot - planned arrival: the wait for a place in flight (an in-flight cap of an open loop)."""
    return _between(columns, columns.ints("due_ns"), columns.ints("slot_ns"))


def lateness_s(columns: Columns, slo: Slo) -> Samples:
    """Send - slot: the tool's own delay."""
    return _between(columns, columns.ints("slot_ns"), columns.ints("sent_ns"))


def failed_duration_s(columns: Columns, slo: Slo) -> Samples:
    """End - send of requests that failed or timed out: how long a failure takes."""
    return _between(columns, columns.ints("sent_ns"), columns.ints("end_ns"))


def _decode(columns: Columns) -> tuple[Ints, Mask]:
    """Tokens after the first chunk (N - k, k = 1 where the first chunk's count is unknown), and where TPOT is defined."""
    k = np.where(columns.first_tokens != NONE, columns.first_tokens, 1)
    later = np.where(columns.output_tokens != NONE, columns.output_tokens - k, 0)
    return later, (columns.n_chunks > 1) & (later >= 1)


def tpot_s(columns: Columns, slo: Slo) -> Samples:
    """Time per output token after the first chunk: (last event - first event) / (N - k).

    N is the server's output count (reasoning inside it), k the tokens of the first chunk where they are known, else 1.
    Undefined with a single token-bearing event or if no token came later.
    """
    later, defined = _decode(columns)
    span_s = columns.seconds(columns.last_ns - columns.first_ns)
    return Samples.one_a_row(span_s / np.maximum(later, 1), defined)


def output_speed(columns: Columns, slo: Slo) -> Samples:
    """Output tokens per second and user: 1 / TPOT of each request."""
    tpot = tpot_s(columns, slo)
    defined = tpot.counts > 0
    defined[defined] = tpot.values > 0
    return Samples(1.0 / tpot.values[tpot.values > 0], defined.astype(np.int64))


def icg_s(columns: Columns, slo: Slo) -> Samples:
    """Inter-chunk gap: time between neighbouring token-bearing events of a request, as measured."""
    return icg_of_rows(columns, slo, np.ones(columns.n, dtype=np.bool_))


def icg_of_rows(columns: Columns, slo: Slo, rows: Mask) -> Samples:
    """ICG of these rows alone: nothing is made for the others."""
    n_gaps = np.where(rows, np.maximum(columns.n_chunks - 1, 0), 0)
    values = np.empty(int(n_gaps.sum()))
    filled = 0
    for block, chunks in columns.blocks():
        counts = columns.n_chunks[block]
        wanted = (np.repeat(rows[block], counts) & gap_mask(counts))[1:]
        gaps = np.diff(columns.chunk_at_ns[chunks])[wanted]
        np.multiply(gaps, columns.scale_s, out=values[filled : filled + len(gaps)])
        filled += len(gaps)
    return Samples(values, n_gaps)


def itl_s(columns: Columns, slo: Slo) -> Samples:
    """Inter-token latency: the gap before a chunk spread over its k tokens, gap / k counted k times.

    The k tokens took that gap together; one real gap and k - 1 zeros would halve the median and keep the tail. Gaps before
    chunks of unknown count are absent. A chunk known to hold no token passes its time on to the next one.
    """
    return itl_of_rows(columns, slo, np.ones(columns.n, dtype=np.bool_))


def itl_of_rows(columns: Columns, slo: Slo, rows: Mask) -> Samples:
    """ITL of these rows alone: nothing is made for the others."""
    if columns.is_unpacked:
        return icg_of_rows(columns, slo, rows)
    n_values, values, weights = np.zeros(columns.n, dtype=np.int64), [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for block, chunks in columns.blocks():
        kept = np.repeat(rows[block], columns.n_chunks[block])
        at_ns, tokens = columns.chunk_at_ns[chunks][kept], columns.chunk_tokens[chunks][kept].astype(np.int64)
        spread_ns, k, n_values[block] = _spread_gaps(at_ns, tokens, np.where(rows[block], columns.n_chunks[block], 0))
        values.append(columns.seconds(spread_ns) / k)
        weights.append(k)
    return Samples(np.concatenate(values), n_values, np.concatenate(weights))


def _spread_gaps(at_ns: Ints, tokens: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Gaps before the chunks whose tokens are known, how many tokens took each, and how many such chunks a row has."""
    if (tokens == 0).any():
        keep = (tokens != 0) | ~gap_mask(counts)
        at_ns, tokens, counts = at_ns[keep], tokens[keep], sum_rows(keep, counts)
    gaps, has_gap = gaps_ns(at_ns, counts)
    k = tokens[has_gap]
    known = k > 0
    return gaps[known], k[known], sum_rows(known, np.maximum(counts - 1, 0))


def normalised_latency_s(columns: Columns, slo: Slo) -> Samples:
    """E2E / output tokens (Orca, OSDI 2022, section 6; also the vLLM paper, SOSP 2023): seconds per token, all told."""
    n = columns.output_tokens
    sent = columns.ints("sent_ns")
    defined = (columns.n_chunks > 0) & (n > 0) & (sent != NONE)
    return Samples.one_a_row(columns.seconds(columns.last_ns - sent) / np.maximum(n, 1), defined)


def prefill_rate(columns: Columns, slo: Slo) -> Samples:
    """Prompt tokens / TTFT: what one request sees of prefill, its wait in the queue included."""
    sent = columns.ints("sent_ns")
    span_ns = columns.first_ns - sent
    defined = (columns.first_ns != NONE) & (sent != NONE) & (span_ns > 0) & (columns.prompt_tokens > 0)
    return Samples.one_a_row(columns.prompt_tokens / columns.seconds(np.where(defined, span_ns, 1)), defined)


def tokens_per_chunk(columns: Columns, slo: Slo) -> Samples:
    """Tokens of all chunks / token-bearing events of a request (packing: speculative decoding, stream intervals, parsers).

    Defined where the tokens of every chunk are known.
    """
    defined = (columns.n_chunks > 0) & (columns.shown_tokens > 0)
    return Samples.one_a_row(columns.shown_tokens / np.maximum(columns.n_chunks, 1), defined)


def isl(columns: Columns, slo: Slo) -> Samples:
    """Prompt tokens: the server's count, else the planned length."""
    return Samples.one_a_row(columns.prompt_tokens.astype(np.float64), columns.prompt_tokens != NONE)


def osl(columns: Columns, slo: Slo) -> Samples:
    """Output tokens: the server's count, else the tokens that its events showed; never what was asked."""
    return Samples.one_a_row(columns.output_tokens.astype(np.float64), columns.output_tokens != NONE)


def fluidity(columns: Columns, slo: Slo) -> Samples:
    """Share of token deadlines that are met (fluidity-index, arXiv 2507.09019, algorithm 1); see `deadlines.py`."""
    missed, total = deadlines.count(columns, slo)
    return Samples.one_a_row(1.0 - missed / np.maximum(total, 1), total > 0)
