"""Goodput of small runs: the highest rate at which requests keep their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.replay import Arrival, Served, replay


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count."""

    ttft_s: float
    tpot_s: float

    def share_met(self, served: Sequence[Served]) -> float:
        """Requests that keep both."""
        return sum(one.ttft_s <= self.ttft_s and one.tpot_s <= self.tpot_s for one in served) / len(served)


def poisson_arrivals(rate_per_s: float, n: int, isl: int, osl: int, seed: int) -> list[Arrival]:
    """The same gaps for every rate, stretched: two rates differ in nothing else."""
    rng = Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(n):
        arrivals.append(Arrival(at_s / rate_per_s, isl, osl))
        at_s += rng.expovariate(1.0)
    return arrivals


def serve_side_by_side(engines: Sequence[Engine], arrivals: Sequence[Arrival]) -> list[Served]:
    """Co-located engines, requests dealt out in turn."""
    served: list[Served] = []
    for i, engine in enumerate(engines):
        served += replay(engine, arrivals[i :: len(engines)])
    return served


def goodput_per_s(
    serve: Callable[[float], Sequence[Served]], limits: Limits, highest_per_s: float, share: float = 0.9, steps: int = 9
) -> float:
    """The highest rate at which at least `share` of the requests keep the limits, by bisection; 0 if there is none."""
    low, high = 0.0, highest_per_s
    for _ in range(steps):
        rate = (low + high) / 2
        low, high = (rate, high) if limits.share_met(serve(rate)) >= share else (low, rate)
    return low
