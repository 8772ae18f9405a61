"""Arrivals through an engine, nothing else: the shortest way from a list of requests to the times of their tokens.

`transport.py` does the same under the load driver and gives a run that is stored and reported; this is for experiments that
need hundreds of small runs, or several engines side by side. Times are seconds of virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longbench_sched.sim.deployment import AnyEngine
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.step import Sequence as Inside
from longbench_sched.sim.step import StepPlan

OnStep = Callable[[StepPlan, float, float], None]  # plan, when it begins, how long it takes


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    at_s: float
    isl: int
    osl: int


@dataclass(slots=True)
class Served:
    """What became of it."""

    arrival: Arrival
    token_at_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.token_at_s[0] - self.arrival.at_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 for a single token."""
        n = len(self.token_at_s) - 1
        return (self.token_at_s[-1] - self.token_at_s[0]) / n if n else 0.0

    @property
    def longest_gap_s(self) -> float:
        """The largest time between two tokens."""
        return max((later - earlier for earlier, later in zip(self.token_at_s, self.token_at_s[1:], strict=False)), default=0.0)


def replay(engine: AnyEngine, arrivals: Sequence[Arrival], on_step: OnStep | None = None) -> list[Served]:
    """Serve them all on an idle engine; in the order given, which is that of arrival."""
    served = [Served(arrival) for arrival in arrivals]
    by_sequence: dict[Inside, Served] = {}
    now_s, n_in = 0.0, 0
    while True:
        while n_in < len(arrivals) and arrivals[n_in].at_s <= now_s:
            arrival = arrivals[n_in]
            by_sequence[engine.submit(arrival.isl, arrival.osl, now_s)] = served[n_in]
            n_in += 1
        step_s = engine.begin(now_s)
        if step_s is None:
            assert n_in < len(arrivals) or all(len(one.token_at_s) == one.arrival.osl for one in served), "a request is stuck"
            if n_in == len(arrivals):
                return served
            now_s = arrivals[n_in].at_s
            continue
        if on_step is not None and isinstance(engine, Engine) and engine.step is not None:
            on_step(engine.step, now_s, step_s)
        if engine.is_concurrent and n_in < len(arrivals) and arrivals[n_in].at_s < now_s + step_s:
            now_s = arrivals[n_in].at_s  # it need not wait for what goes on
            continue
        now_s += step_s
        for sequence in engine.end(now_s):
            one = by_sequence[sequence]
            one.token_at_s += [now_s] * (sequence.generated - len(one.token_at_s))


def total_tokens_per_s(served: Sequence[Served]) -> float:
    """Input and output tokens a second, from the first arrival to the last token."""
    tokens = sum(one.arrival.isl + one.arrival.osl for one in served)
    return tokens / (max(one.token_at_s[-1] for one in served) - min(one.arrival.at_s for one in served))


def mean_ttft_s(served: Sequence[Served]) -> float:
    """Mean time to the first token."""
    return sum(one.ttft_s for one in served) / len(served)
