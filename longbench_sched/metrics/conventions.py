"""Conventions: our events under the definitions of other tools, so that their numbers and ours can be reconciled.

The same words mean other things elsewhere. Each tool here is a function from the columns of a run to the figures that it would
print of the same events, successes of the measured phase only. Read in these sources (2026-11):

- vllm: `vllm/benchmarks/serve.py` and `lib/endpoint_request_func.py`, vLLM 0.32.0
- sglang: `sglang/benchmark/serving.py`, SGLang 0.5.23
- guidellm: `src/guidellm/schemas/request_stats.py`, commit 06cef291
- aiperf: `docs/metrics_reference.md`, commit 25f81175

What a tool takes from its own tokenizer (token counts) is the server's count here. All percentiles are numpy's, linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from longbench_sched.errors import UsageError
from longbench_sched.metrics import latency
from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask
from longbench_sched.run import NONE, Run
from longbench_sched.slo import Slo

SHARES = (0.5, 0.9, 0.95, 0.99)


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
    events = _Events.of(Columns.of(run), str(run.meta.target.get("api") or ""))
    return TOOLS[tool](events)


@dataclass(frozen=True, slots=True)
class _Events:
    """Successes with at least one token, one entry a request; seconds of engine time."""

    columns: Columns
    rows: Mask
    api: str
    ttft_s: Floats
    last_s: Floats  # from send to the last token-bearing event
    finish_s: Floats  # from send to the last event with a choice: a finish reason may come in one of its own
    end_s: Floats  # from send to the end of the answer
    n_tokens: Ints  # NONE where the server gave none
    n_chunks: Ints
    prompt_tokens: Ints
    total_s: float  # first send to last end, failures included

    @classmethod
    def of(cls, columns: Columns, api: str) -> _Events:
        sent, end, finish = (columns.ints(name) for name in ("sent_ns", "end_ns", "finish_ns"))
        rows = columns.ok & (columns.n_chunks > 0) & (sent != NONE)
        was_sent = columns.measured & (sent != NONE)
        ended = was_sent & (end != NONE)
        total_ns = int(end[ended].max() - sent[was_sent].min()) if ended.any() else 0

        def since_send(at_ns: Ints) -> Floats:
            return columns.seconds((at_ns - sent)[rows])

        last = columns.last_ns
        return cls(
            columns=columns,
            rows=rows,
            api=api,
            ttft_s=since_send(columns.first_ns),
            last_s=since_send(last),
            finish_s=since_send(np.maximum(last, finish)),  # NONE is below every instant
            end_s=since_send(np.maximum(last, end)),
            n_tokens=columns.output_tokens[rows],
            n_chunks=columns.n_chunks[rows],
            prompt_tokens=columns.prompt_tokens[rows],
            total_s=total_ns * columns.scale_s,
        )

    def decode_s(self, until_s: Floats, at_least: Mask | None = None) -> Floats:
        """(until - first token) / (tokens - 1) of requests with more than one token."""
        several = self.n_tokens > 1
        if at_least is not None:
            several &= at_least
        return ((until_s - self.ttft_s)[several]) / (self.n_tokens[several] - 1)

    def gaps_s(self) -> Floats:
        """Gaps between token-bearing events."""
        return latency.icg_of_rows(self.columns, Slo(), self.rows).values

    def per_second(self, amount: Ints) -> float | None:
        """The sum of what is known, per second of the whole run."""
        return float(amount[amount != NONE].sum()) / self.total_s if self.total_s > 0 else None


def _spread(name: str, values: Floats, ours: str, unit: str = "s") -> Foreign:
    if not len(values):
        return Foreign(name, unit, 0, None, None, None, None, None, ours)
    p50, p90, p95, p99 = (float(value) for value in np.quantile(values, SHARES))
    return Foreign(name, unit, len(values), float(values.mean()), p50, p90, p95, p99, ours)


def _single(name: str, unit: str, value: float | None, n: int, ours: str) -> Foreign:
    return Foreign(name, unit, n, value, None, None, None, None, ours)


def _rates(events: _Events, names: tuple[str, str, str]) -> list[Foreign]:
    """Requests, output and all tokens a second, over first send to last end."""
    n, out, prompt = len(events.n_tokens), events.per_second(events.n_tokens), events.per_second(events.prompt_tokens)
    requests = n / events.total_s if events.total_s > 0 else None
    both = out + prompt if out is not None and prompt is not None else None
    ours = "over first send to last end; {} here ends with the last token"
    return [
        _single(names[0], "1/s", requests, n, ours.format("request_rate")),
        _single(names[1], "tok/s", out, n, ours.format("output_throughput")),
        *([_single(names[2], "tok/s", both, n, ours.format("total_throughput"))] if names[2] else []),
    ]


def _uncounted(events: _Events) -> tuple[str, ...]:
    n = int((events.n_tokens == NONE).sum())
    return (f"{n} answers have no token count from the server; the tool would tokenize their text.",) if n else ()


def _vllm(events: _Events) -> Converted:
    # A finish reason in an event of its own holds a choice, and so is a gap and the end of the answer.
    extra = (events.finish_s - events.last_s)[events.finish_s > events.last_s]
    return Converted(
        "vllm",
        (
            _spread("TTFT", events.ttft_s, "ttft, if the server sends no event with a choice before the first token"),
            _spread("TPOT", events.decode_s(events.finish_s), "tpot, but always one token in the first chunk"),
            _spread("ITL", np.concatenate([events.gaps_s(), extra]), "icg: gaps between events, however many tokens in each"),
            _spread("E2EL", events.finish_s, "e2e, or later if the finish reason comes by itself"),
            *_rates(
                events, ("Request throughput (req/s)", "Output token throughput (tok/s)", "Total token throughput (tok/s)")
            ),
        ),
        (*_uncounted(events), "Failures are in no figure; with no success at all the tool prints 0 where this table has none."),
    )


def _sglang(events: _Events) -> Converted:
    spread = latency.itl_of_rows(events.columns, Slo(), events.rows)
    by_token = events.api == "generate"
    itls = spread.values if spread.weights is None else np.repeat(spread.values, spread.weights)
    return Converted(
        "sglang",
        (
            _spread("TTFT", events.ttft_s, "ttft"),
            _spread("TPOT", events.decode_s(events.end_s), "tpot, but to the end of the answer, one token in the first chunk"),
            _spread(
                "ITL", itls if by_token else events.gaps_s(), "itl" if by_token else "icg: on this route gaps are not spread"
            ),
            _spread("E2E Latency", events.end_s, "stream_end: usage and [DONE] included"),
            *_rates(
                events, ("Request throughput (req/s)", "Output token throughput (tok/s)", "Total token throughput (tok/s)")
            ),
            _single(
                "Concurrency",
                "1",
                float(events.end_s.sum()) / events.total_s if events.total_s > 0 else None,
                len(events.end_s),
                "mean in flight, of successes",
            ),
        ),
        _uncounted(events),
    )


def _guidellm(events: _Events) -> Converted:
    counted = events.n_tokens > 0
    return Converted(
        "guidellm",
        (
            _spread("Time to First Token", events.ttft_s, "ttft"),
            _spread(
                "Time Per Output Token",
                events.last_s[counted] / events.n_tokens[counted],
                "normalised_latency: the first token is in it",
            ),
            _spread("Inter Token Latency", events.decode_s(events.last_s), "tpot, but always one token in the first chunk"),
            _spread("Request Latency", events.end_s, "stream_end"),
        ),
        (*_uncounted(events), "Its rates are taken over its own windows and are not given here."),
    )


def _aiperf(events: _Events) -> Converted:
    several = events.n_chunks > 1
    itl = events.decode_s(events.last_s, several)
    starts = events.columns.offsets[:-1][events.rows][several]
    second = events.columns.seconds(events.columns.chunk_at_ns[starts + 1] - events.columns.chunk_at_ns[starts])
    return Converted(
        "aiperf",
        (
            _spread("Time to First Token", events.ttft_s, "ttft"),
            _spread("Time to Second Token", second, "the first gap of each request"),
            _spread("Inter Token Latency", itl, "tpot, but always one token in the first chunk"),
            _spread("Inter Chunk Latency", events.gaps_s(), "icg"),
            _spread("Output Token Throughput Per User", 1 / itl[itl > 0], "output_speed", "tok/s"),
            _spread("Request Latency", events.last_s, "e2e"),
            *_rates(events, ("Request Throughput", "Output Token Throughput", "")),
        ),
        (*_uncounted(events), "The tool counts tokens with its own tokenizer; here they are the server's."),
    )


TOOLS: dict[str, Callable[[_Events], Converted]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "guidellm": _guidellm,
    "aiperf": _aiperf,
}
