"""The catalogue of metrics: what each one is, of what, in which unit, which way is better, and how it is computed.

Tables, exports and gates read this catalogue; a new metric is one function in `latency.py` or `rates.py` and one entry here.
docs/metrics.md is the same catalogue for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from longbench_sched.metrics import latency, rates
from longbench_sched.metrics.columns import Columns, Mask, Samples
from longbench_sched.metrics.rates import Figure, Scene
from longbench_sched.slo import Slo

Better = Literal["lower", "higher"]
Over = Literal["ok", "sent", "failed"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric with a distribution over requests, tokens or gaps."""

    name: str
    title: str
    unit: str
    better: Better | None
    scope: Literal["request", "token", "gap"]
    compute: Callable[[Columns, Slo], Samples]
    over: Over = "ok"  # whose values count: successes, every request that was sent, failures
    is_adjusted: bool = False  # error-adjusted percentiles are given
    bound_from: str | None = None  # a timeout's value is at least its end less this column
    compute_rows: Callable[[Columns, Slo, Mask], Samples] | None = None  # of some rows alone, where a row has many values

    def of_rows(self, columns: Columns, slo: Slo, rows: Mask) -> Samples:
        """Its values in these rows."""
        if self.compute_rows is not None:
            return self.compute_rows(columns, slo, rows)
        return self.compute(columns, slo).within(rows)


@dataclass(frozen=True, slots=True)
class RateDefinition:
    """A metric that is one figure of a window."""

    name: str
    title: str
    unit: str
    better: Better | None
    compute: Callable[[Scene], Figure]
    scope: Literal["run"] = "run"


_ALL = (
    Definition("ttft", "TTFT", "s", "lower", "request", latency.ttft_s, bound_from="sent_ns", is_adjusted=True),
    Definition(
        "ttft_due", "TTFT from arrival", "s", "lower", "request", latency.ttft_due_s, bound_from="due_ns", is_adjusted=True
    ),
    Definition(
        "ttft_body_sent",
        "TTFT from body sent",
        "s",
        "lower",
        "request",
        latency.ttft_body_sent_s,
        bound_from="body_sent_ns",
        is_adjusted=True,
    ),
    Definition("ttfa", "TTFA", "s", "lower", "request", latency.ttfa_s, bound_from="sent_ns", is_adjusted=True),
    Definition("tpot", "TPOT", "s", "lower", "request", latency.tpot_s, is_adjusted=True),
    Definition("itl", "ITL", "s", "lower", "token", latency.itl_s, compute_rows=latency.itl_of_rows),
    Definition("icg", "ICG", "s", "lower", "gap", latency.icg_s, compute_rows=latency.icg_of_rows),
    Definition("e2e", "E2E", "s", "lower", "request", latency.e2e_s, bound_from="sent_ns", is_adjusted=True),
    Definition("normalised_latency", "Latency/token", "s", "lower", "request", latency.normalised_latency_s, is_adjusted=True),
    Definition("stream_end", "Stream end", "s", "lower", "request", latency.stream_end_s),
    Definition("first_byte", "First byte", "s", "lower", "request", latency.first_byte_s),
    Definition("upload", "Upload", "s", "lower", "request", latency.upload_s),
    Definition("queue_wait", "Queue wait", "s", "lower", "request", latency.queue_wait_s, over="sent"),
    Definition("lateness", "Lateness", "s", "lower", "request", latency.lateness_s, over="sent"),
    Definition("failed_duration", "Failed after", "s", None, "request", latency.failed_duration_s, over="failed"),
    Definition("output_speed", "Output/user", "tok/s", "higher", "request", latency.output_speed),
    Definition("prefill_rate", "Prefill rate", "tok/s", "higher", "request", latency.prefill_rate),
    Definition("tokens_per_chunk", "Tokens/chunk", "1", None, "request", latency.tokens_per_chunk),
    Definition("fluidity", "Fluidity", "1", "higher", "request", latency.fluidity),
    Definition("isl", "ISL", "tok", None, "request", latency.isl),
    Definition("osl", "OSL", "tok", None, "request", latency.osl),
)

DISTRIBUTIONS: dict[str, Definition] = {definition.name: definition for definition in _ALL}

_RATES = (
    RateDefinition("input_throughput", "Input", "tok/s", "higher", rates.input_throughput),
    RateDefinition("output_throughput", "Output", "tok/s", "higher", rates.output_throughput),
    RateDefinition("total_throughput", "Input + output", "tok/s", "higher", rates.total_throughput),
    RateDefinition("output_throughput_all", "Output, all attempts", "tok/s", None, rates.output_throughput_all),
    RateDefinition("request_rate", "Requests", "1/s", "higher", rates.request_rate),
    RateDefinition("completion_rate", "Requests, first to last end", "1/s", "higher", rates.completion_rate),
    RateDefinition("goodput", "Goodput", "1/s", "higher", rates.goodput),
    RateDefinition("good_share", "Good requests", "1", "higher", rates.good_share),
    RateDefinition("deadline_misses", "Deadline misses", "1", "lower", rates.deadline_misses),
    RateDefinition("success_rate", "Success", "1", "higher", rates.success_rate),
)

RATES: dict[str, RateDefinition] = {definition.name: definition for definition in _RATES}

CATALOGUE: dict[str, Definition | RateDefinition] = {**DISTRIBUTIONS, **RATES}
