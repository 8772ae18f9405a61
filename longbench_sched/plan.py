"""What will be sent, and when: a plan is decided in full before the first byte leaves.

A workload and a seed give the same plan on any machine (`Plan.digest`). A plan holds one or more lanes that run side by side
(most workloads have one; an interference workload has a closed loop of short decodes beside an open loop of long prompts).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from longbench_sched.slo import Slo

Phase = Literal["warmup", "measured"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings sent with each request; every one is stated, so that no server default decides the load."""

    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = True  # run to `osl` exactly; each dialect asks for it in its own way
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a plan."""

    index: int  # unique in the plan, warm-ups included; order of due time within a lane
    phase: Phase
    lane: int  # index into Plan.lanes; -1 for warm-ups
    prompt: array[int] | str  # token ids (typecode 'I'), or text; empty where only lengths matter (a simulated run)
    isl: int  # prompt tokens as planned: what the server must count (in chat: of the content alone)
    osl: int  # output tokens asked for
    due_s: float | None = None  # from the start of the measured phase; None in a closed loop
    sampling: Sampling = Sampling()
    session: str | None = None
    shared_prefix: int = 0  # tokens that all requests of the lane begin with
    priority: int = 0  # sent where it is not 0; vLLM serves low ones first, SGLang high ones

    @property
    def id(self) -> str:
        """A short name, unique in the plan: `w3` for a warm-up, `r12` for a measured request."""
        return f"{'w' if self.phase == 'warmup' else 'r'}{self.index}"


@dataclass(frozen=True, slots=True)
class ConcurrencyStep:
    """From `from_s` on (seconds after the start), `concurrency` requests are kept in flight."""

    from_s: float
    concurrency: int


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of requests in flight; the next is due when one ends. More than one step makes a ramp."""

    steps: tuple[ConcurrencyStep, ...]

    @property
    def concurrency(self) -> int:
        """The most that is ever in flight."""
        return max(step.concurrency for step in self.steps)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at planned moments, whatever the server does. `max_in_flight` holds sends back; the wait is recorded."""

    process: str  # constant, poisson, gamma, burst: for the headline
    rate_per_s: float | None
    max_in_flight: int | None = None


Loop = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of requests with its own loop."""

    name: str
    loop: Loop
    requests: Sequence[Request]
    duration_s: float | None = None  # send nothing after this; None = until the requests are used up


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """The nominal length of a workload beside what the plan really holds."""

    nominal_mean: float
    mean: float
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will send."""

    workload: str
    seed: int
    lanes: tuple[Lane, ...]
    warmups: tuple[Request, ...]
    digest: str  # sha256 hex over lengths, due times, prompts and loops; independent of the machine
    isl: LengthFacts  # over measured requests
    osl: LengthFacts
    slo: Slo | None = None
    prompt_source: str = "synthetic"  # synthetic, stdlib, or the name of a text file
    shared_prefix_tokens: int = 0
    warmup_concurrency: int = 1
    notes: tuple[str, ...] = ()  # things the reader should know: "realised mean 10 % under nominal", ...
    workload_text: str = ""  # the TOML it was built from, with overrides below it as comments
    extra: dict[str, str] = field(default_factory=dict)  # e.g. tokenizer name and source of the lengths

    @property
    def requests(self) -> list[Request]:
        """The measured requests of all lanes, lane by lane."""
        return [request for lane in self.lanes for request in lane.requests]

    @property
    def peak_in_flight(self) -> int:
        """The most requests that can be in flight at once."""
        total = 0
        for lane in self.lanes:
            if isinstance(lane.loop, ClosedLoop):
                total += min(lane.loop.concurrency, len(lane.requests))
            else:
                total += min(lane.loop.max_in_flight or len(lane.requests), len(lane.requests))
        return total


def compressed(plan: Plan, time_scale: float) -> Plan:
    """The plan for an engine whose clock runs `time_scale` times as fast: what is due at 6 s of its time is sent at 1 s.

    Lengths, prompts and digest are those of the plan; only the instants of sending change.
    """
    if time_scale == 1:
        return plan
    return replace(plan, lanes=tuple(_compressed_lane(lane, time_scale) for lane in plan.lanes))


def _compressed_lane(lane: Lane, time_scale: float) -> Lane:
    loop: Loop = lane.loop
    if isinstance(loop, ClosedLoop):
        loop = ClosedLoop(tuple(replace(step, from_s=step.from_s / time_scale) for step in loop.steps))
    return Lane(
        name=lane.name,
        loop=loop,
        requests=[r if r.due_s is None else replace(r, due_s=r.due_s / time_scale) for r in lane.requests],
        duration_s=None if lane.duration_s is None else lane.duration_s / time_scale,
    )
