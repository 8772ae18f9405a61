"""Conventions: our events under the definitions of other tools, so that their numbers and ours can be reconciled.

The same words mean other things elsewhere, and so does success: tools fail answers that are good, and take some that are not.
Each tool here is a function from the columns of a run to the figures that it would print of the same events, of the measured
phase only. What is written here was compared with the code of each tool itself, fed the same events
(`python -m benchmarks.reconcile`, docs/reconcile.md): vLLM 0.32.0, SGLang 0.5.23, GuideLLM 0.8.1, AIPerf 0.13.0.

What a tool takes from its own tokenizer (token counts) is the server's count here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from longbench_sched.errors import UsageError
from longbench_sched.metrics import latency
from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask, equals
from longbench_sched.record import Reason
from longbench_sched.run import NONE, Run
from longbench_sched.slo import Slo

SHARES = (0.5, 0.9, 0.95, 0.99)
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Foreign:
    """One figure as a tool defines it: a distribution, or a single value (`mean`, with the others None)."""

    name: str  # as the tool prints it
    unit: str
    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    ours: str  # which figure of ours it is, or how it differs


@dataclass(frozen=True, slots=True)
class Converted:
    """A run as a tool would print it."""

    tool: str
    figures: tuple[Foreign, ...]
    notes: tuple[str, ...]


def convert(run: Run, tool: str) -> Converted:
    """The figures of a run under a tool's definitions. Raises UsageError for a tool that is not known."""
    if tool not in TOOLS:
        raise UsageError(f"--as {tool}: not a tool whose definitions are known. Known: {', '.join(TOOLS)}.")
    return TOOLS[tool](Columns.of(run), str(run.meta.target.get("api") or ""))


@dataclass(frozen=True, slots=True)
class _Events:
    """The answers that a tool counts as successes, one entry each. Instants in ns, NONE where there is none."""

    columns: Columns
    rows: Mask
    sent_ns: Ints
    role_ns: Ints  # an event that only says who speaks, before the first token
    first_ns: Ints
    last_ns: Ints
    finish_ns: Ints  # the event with the finish reason, be it in one of its own or with the last token
    end_ns: Ints  # end of the answer
    n_tokens: Ints  # by the server's count; NONE where it gave none
    n_chunks: Ints
    total_s: float  # first send to last end, failures included

    @classmethod
    def of(cls, columns: Columns, rows: Mask, api: str) -> _Events:
        sent, end, early = (columns.ints(name) for name in ("sent_ns", "end_ns", "first_byte_ns"))
        was_sent = columns.measured & (sent != NONE)
        ended = was_sent & (end != NONE)
        total_ns = int(end[ended].max() - sent[was_sent].min()) if ended.any() else 0
        # Where a chat begins before its first token, it does so with a role event, or with a comment, which is counted.
        is_role = (early != NONE) & ((early < columns.first_ns) | (columns.first_ns == NONE))
        is_role &= (columns.ints("n_comments") <= 0) & (api == "chat")
        rows = rows & (sent != NONE)
        return cls(
            columns=columns,
            rows=rows,
            sent_ns=sent[rows],
            role_ns=np.where(is_role, early, NONE)[rows],
            first_ns=columns.first_ns[rows],
            last_ns=columns.last_ns[rows],
            finish_ns=columns.ints("finish_ns")[rows],
            end_ns=np.maximum(columns.last_ns, end)[rows],
            n_tokens=columns.output_tokens[rows],
            n_chunks=columns.n_chunks[rows],
            total_s=total_ns * columns.scale_s,
        )

    def ints(self, name: str) -> Ints:
        """A column of these answers."""
        return self.columns.ints(name)[self.rows]

    def since_send(self, at_ns: Ints) -> Floats:
        """Seconds of engine time from each send."""
        return self.columns.seconds(at_ns - self.sent_ns)

    def gaps_s(self) -> Floats:
        """Gaps between token-bearing events."""
        return latency.icg_of_rows(self.columns, Slo(), self.rows).values

    def steps_s(self, from_ns: Ints, to_ns: Ints) -> Floats:
        """Steps from one instant to a later one, of the answers that have both."""
        both = (from_ns != NONE) & (to_ns > from_ns)
        return self.columns.seconds((to_ns - from_ns)[both])


def _taken(columns: Columns, reasons: Iterable[Reason], *, comments: bool) -> Mask:
    """Successes, and the failures that a tool does not see as such; `comments`: whether it can read answers with comments."""
    taken = columns.ok.copy()
    for reason in reasons:
        taken |= columns.failed & equals(columns.texts("reason"), reason, columns.n)
    return taken if comments else taken & (columns.ints("n_comments") <= 0)


def _per_token(events: _Events, from_s: Floats, to_s: Floats, n_tokens: Ints) -> Floats:
    """(to - from) / (tokens - 1) of answers with more than one token."""
    several = n_tokens > 1
    return (to_s - from_s)[several] / (n_tokens[several] - 1)


def _spread(name: str, values: Floats, ours: str, unit: str = "s") -> Foreign:
    """Mean and percentiles by numpy's linear rule."""
    if not len(values):
        return Foreign(name, unit, 0, None, None, None, None, None, ours)
    p50, p90, p95, p99 = (float(value) for value in np.quantile(values, SHARES))
    return Foreign(name, unit, len(values), float(values.mean()), p50, p90, p95, p99, ours)


def _weighted(name: str, values: Floats, weights: Ints, ours: str) -> Foreign:
    """Each value as often as its weight; a percentile is the lowest value that so many are at or below."""
    distinct, place = np.unique(values[weights > 0], return_inverse=True)
    if not len(distinct):
        return Foreign(name, "s", 0, None, None, None, None, None, ours)
    shares = np.bincount(place, weights[weights > 0].astype(np.float64)) / weights.sum()
    found = np.minimum(np.searchsorted(np.cumsum(shares), SHARES), len(distinct) - 1)
    p50, p90, p95, p99 = (float(value) for value in distinct[found])
    return Foreign(name, "s", int(weights.sum()), float((distinct * shares).sum()), p50, p90, p95, p99, ours)


def _single(name: str, unit: str, value: float | None, n: int, ours: str) -> Foreign:
    return Foreign(name, unit, n, value, None, None, None, None, ours)


def _known(amount: Ints) -> float:
    return float(amount[amount != NONE].sum())


def _rates(names: Iterable[str], events: _Events, n_tokens: Ints, prompts: Ints, over_s: float, over: str) -> list[Foreign]:
    """Requests, output tokens and all tokens a second; a name that is empty leaves its figure out."""
    amounts = (float(len(n_tokens)), _known(n_tokens), _known(n_tokens) + _known(prompts))
    ours = ("request_rate", "output_throughput", "total_throughput")
    return [
        _single(
            name,
            unit,
            amount / over_s if over_s > 0 else None,
            len(n_tokens),
            f"over {over}; {figure} here ends with the last token",
        )
        for name, unit, amount, figure in zip(names, ("1/s", "tok/s", "tok/s"), amounts, ours, strict=True)
        if name
    ]


def _in_flight(name: str, latency_s: Floats, events: _Events) -> Foreign:
    value = float(latency_s.sum()) / events.total_s if events.total_s > 0 else None
    return _single(name, "1", value, len(latency_s), "mean in flight, of successes")


_WHOLE = "first send to last end"
_PHASE = "its whole phase, some ms more than first send to last end"
_NAMES = ("Request throughput (req/s)", "Output token throughput (tok/s)", "Total token throughput (tok/s)")


def _notes(events: _Events, taken: Mask, *more: str) -> tuple[str, ...]:
    """What a reader must know of these answers."""
    columns, notes = events.columns, []
    n = int(((events.n_tokens == NONE) & (events.n_chunks > 0)).sum())
    if n:
        notes.append(f"{n} answers have no token count from the server; the tool would tokenize their text.")
    n = int((taken & ~columns.ok).sum())
    if n:
        notes.append(
            f"{n} answers that failed here are successes to the tool: HTTP 200 and a stream that ends are enough for it."
        )
    n = int((columns.ok & ~taken).sum())
    if n:
        notes.append(f"{n} answers have SSE comments in them. The tool cannot read those answers, and they are failures to it.")
    return (*notes, *more)


# Of a stream that came to its end. (`cut` has streams without [DONE] in it, which some tools take, and broken connections.)
_UNSEEN = (Reason.IN_BAND_ERROR, Reason.NO_FINISH, Reason.BAD_FINISH, Reason.EMPTY_STREAM, Reason.UNPARSED)


def _vllm(columns: Columns, api: str) -> Converted:
    taken = _taken(columns, _UNSEEN, comments=False)
    # Every event with a choice counts, the role event of a chat and a finish reason by itself too; one is enough to succeed.
    taken &= (columns.n_chunks > 0) | (columns.ints("finish_ns") != NONE)
    events = _Events.of(columns, taken, api)
    starts = (events.role_ns, events.first_ns, events.finish_ns)
    first = np.minimum.reduce([np.where(at_ns == NONE, NEVER, at_ns) for at_ns in starts])
    last = np.maximum.reduce((*starts, events.last_ns))  # NONE is below every instant
    ttft, e2e = events.since_send(first), events.since_send(last)
    apart = np.where(events.n_chunks > 0, events.last_ns, events.role_ns)
    gaps = (events.gaps_s(), events.steps_s(events.role_ns, events.first_ns), events.steps_s(apart, events.finish_ns))
    return Converted(
        "vllm",
        (
            _spread("TTFT", ttft, "ttft; on the chat route to the role event, if that comes before the first token"),
            _spread("TPOT", _per_token(events, ttft, e2e, events.n_tokens), "tpot, but always one token in the first event"),
            _spread("ITL", np.concatenate(gaps), "icg: gaps between events, role and finish events too, whatever is in each"),
            _spread("E2EL", e2e, "e2e, or later if the finish reason comes by itself"),
            *_rates(_NAMES, events, events.n_tokens, columns.prompt_tokens[events.rows], events.total_s, _WHOLE),
        ),
        _notes(events, taken, "Failures are in no figure; with no success at all the tool prints 0 where this table has none."),
    )


def _sglang(columns: Columns, api: str) -> Converted:
    by_token = api == "generate"
    unseen = [reason for reason in _UNSEEN if api in ("generate", "chat") or reason is not Reason.IN_BAND_ERROR]
    taken = _taken(columns, unseen, comments=False)
    events = _Events.of(columns, taken, api)
    # Without a token TTFT is 0. On the routes of OpenAI the client asks for no usage, and an answer has what was asked for.
    has = events.n_chunks > 0
    ttft = np.where(has, events.since_send(events.first_ns), 0.0)
    n_tokens = np.where(has, events.n_tokens, events.ints("osl")) if by_token else events.ints("osl")
    end = events.since_send(events.end_ns)
    spread = latency.itl_of_rows(columns, Slo(), events.rows)
    itls = spread.values if spread.weights is None else np.repeat(spread.values, spread.weights)
    return Converted(
        "sglang",
        (
            _spread("TTFT", ttft, "ttft"),
            _spread(
                "TPOT",
                _per_token(events, ttft, end, n_tokens),
                "tpot, but to the end of the answer, one token in the first chunk",
            ),
            _spread(
                "ITL", itls if by_token else events.gaps_s(), "itl" if by_token else "icg: on this route gaps are not spread"
            ),
            _spread("E2E Latency", end, "stream_end: usage and [DONE] included"),
            *_rates(_NAMES, events, n_tokens, events.ints("isl"), events.total_s, _WHOLE),
            _in_flight("Concurrency", end, events),
        ),
        _notes(
            events,
            taken,
            *([] if by_token else ["Answers have the tokens that were asked for: on this route it asks for no count."]),
        ),
    )


def _guidellm(columns: Columns, api: str) -> Converted:
    taken = _taken(columns, (Reason.NO_FINISH, Reason.BAD_FINISH, Reason.UNPARSED), comments=True)
    events = _Events.of(columns, taken, api)
    has, n_tokens = events.n_chunks > 0, np.where(events.n_tokens == NONE, events.n_chunks, events.n_tokens)
    # With no event that holds a token, an answer with a count has its end for its last token, and an ITL of 0.
    first = events.since_send(np.where(has, events.first_ns, events.end_ns))
    last = events.since_send(np.where(has, events.last_ns, events.end_ns))
    latency_s = events.since_send(events.end_ns)
    ones = np.ones(len(has), dtype=np.int64)
    return Converted(
        "guidellm",
        (
            _weighted("Time to First Token", first[has], ones[has], "ttft"),
            _weighted(
                "Time Per Output Token",
                last / np.maximum(n_tokens, 1),
                n_tokens,
                "normalised_latency: the first token is in it; an answer counts as often as it has tokens",
            ),
            _weighted(
                "Inter Token Latency",
                (last - first) / np.maximum(n_tokens - 1, 1),
                n_tokens - 1,
                "tpot, but always one token in the first chunk; an answer counts as often as it has tokens after that",
            ),
            _weighted("Request Latency", latency_s, ones, "stream_end"),
            *_rates(
                ("Requests Per Second", "Output Tokens Per Second", ""), events, n_tokens, n_tokens, events.total_s, _WHOLE
            ),
            _in_flight("Request Concurrency", latency_s, events),
        ),
        _notes(
            events,
            taken,
            "Percentiles are values of the run, not interpolated. Rates are means over the whole run, warm-up windows not set.",
        ),
    )


def _aiperf(columns: Columns, api: str) -> Converted:
    taken = _taken(columns, (Reason.IN_BAND_ERROR, Reason.NO_FINISH, Reason.BAD_FINISH), comments=True) & (columns.n_chunks > 0)
    events = _Events.of(columns, taken, api)
    ttft, last = events.since_send(events.first_ns), events.since_send(events.last_ns)
    itl = _per_token(events, ttft, last, events.n_tokens)
    several = events.n_chunks > 1
    starts = columns.offsets[:-1][events.rows][several]
    second = columns.seconds(columns.chunk_at_ns[starts + 1] - columns.chunk_at_ns[starts])
    return Converted(
        "aiperf",
        (
            _spread("Time to First Token", ttft, "ttft"),
            _spread("Time to Second Token", second, "the first gap of each request"),
            _spread(
                "Inter Token Latency", itl, "tpot, but one token in the first chunk, and 0 for an answer in a single chunk"
            ),
            _spread("Inter Chunk Latency", events.gaps_s(), "icg"),
            _spread("Output Token Throughput Per User", 1 / itl[itl > 0], "output_speed", "tok/s"),
            _spread("Request Latency", last, "e2e"),
            *_rates(
                ("Request Throughput", "Output Token Throughput", ""),
                events,
                events.n_tokens,
                events.n_tokens,
                events.total_s,
                _PHASE,
            ),
        ),
        _notes(
            events,
            taken,
            "The tool counts tokens with its own tokenizer unless told --use-server-token-count; here they are the server's. "
            "With --per-chunk-usage it knows how many the first chunk holds, and its ITL is our tpot.",
        ),
    )


TOOLS: dict[str, Callable[[Columns, str], Converted]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "guidellm": _guidellm,
    "aiperf": _aiperf,
}
