"""Pairs of sets of runs whose truth is known, for `statistics.py`.

Runs are those of the embedded engine in virtual time, under four loads. What varies between runs of one build is what varies on
a real one: the traffic (lengths and arrivals, drawn anew for each run) and the machine (every step of a run takes longer or
shorter by a factor of its own, lognormal with a standard deviation of 2 %). A candidate that is 5 % slower is the same engine
with every step 5 % longer: the plan is offered faster by the factor and all times are multiplied by it, which is the same
thing. In a closed loop every latency is then exactly so many times as long, so runs are simulated once and multiplied. In an
open loop the queue grows more, by far more under some traffic than under other: every run is simulated, and the truth is the
ratio of a typical run, the median of candidate / base under the same traffic over all runs of that load.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from longbench_sched.experiment.virtual_run import Origin, Setting, plan_virtual, simulate
from longbench_sched.metrics import distribution, window
from longbench_sched.metrics.columns import Columns
from longbench_sched.metrics.definitions import DISTRIBUTIONS, RATES
from longbench_sched.metrics.rates import Scene
from longbench_sched.plan import compressed
from longbench_sched.run import Run
from longbench_sched.sim.flags import read_flags
from longbench_sched.slo import Slo
from longbench_sched.workload.shape import Workload
from longbench_sched.workload.spec import read_workload

LENGTHS = "isl = { mean = 4000, sd = 1500, min = 500, max = 12000 }\nosl = { mean = 16, sd = 5, min = 6, max = 40 }\n"
COUNT = "requests = 40\nwarmups = 0\n"
LOADS = {
    "closed, vLLM": ("vllm", LENGTHS + "concurrency = 8\n" + COUNT),
    "Poisson, SGLang": ("sglang", LENGTHS + 'arrivals = "poisson"\nrate = 8\n' + COUNT),
    "bursty, vLLM": ("vllm", LENGTHS + 'arrivals = "gamma"\ncv = 2\nrate = 6\n' + COUNT),
    "closed at 24K, SGLang": (
        "sglang",
        "isl = { mean = 24000, sd = 3000, min = 10000, max = 30000 }\nosl = { mean = 16, sd = 5, min = 6, max = 40 }\n"
        "concurrency = 6\nrequests = 32\nwarmups = 0\n",
    ),
}
METRICS = ("ttft", "tpot", "itl", "e2e")
STATISTICS = {"p50": 0.5, "mean": None, "p90": 0.9, "p99": 0.99}
THROUGHPUT = "total_throughput"
FIGURES = (*tuple(f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS), THROUGHPUT)
MACHINE = 0.02  # standard deviation between runs of the logarithm of how long a step takes
SET = 10  # runs; sets of 5 are its halves, sets of 3 the beginnings of the halves
SIZES = (3, 5, 10)
PART = 25  # runs that a process simulates at a time


@dataclass(frozen=True)
class Build:
    """Runs of one build: which traffic they get, how much longer a step takes, and whether the machine varies."""

    traffic: int  # 0 or 1: runs of one number have the same lengths and arrivals, run by run
    slower: float = 1.0
    machine: float = MACHINE


BUILDS = {
    "A": Build(0),
    "A'": Build(1),  # other traffic
    'A"': Build(0),  # the traffic of A on another day
    "B5": Build(0, 1.05),
    "B10": Build(0, 1.10),
    "A, still": Build(0, machine=0),  # "still": a machine that does not vary, as simulated targets of an experiment have it
    "B5, still": Build(0, 1.05, machine=0),
    "B10, still": Build(0, 1.10, machine=0),
}


@dataclass(frozen=True)
class Pairing:
    """Which builds are compared, and how."""

    title: str
    base: str
    candidate: str
    paired: bool = False

    @property
    def slower(self) -> float:
        """The candidate's steps, in steps of the base."""
        return BUILDS[self.candidate].slower

    @property
    def is_still(self) -> bool:
        return BUILDS[self.candidate].machine == 0


PAIRINGS = (
    Pairing("A/A", "A", "A'"),
    Pairing("+5 %", "A'", "B5"),
    Pairing("+10 %", "A'", "B10"),
    Pairing("A/A, paired", "A", 'A"', paired=True),
    Pairing("+5 %, paired", "A", "B5", paired=True),
    Pairing("+10 %, paired", "A", "B10", paired=True),
    Pairing("+5 %, paired, still", "A, still", "B5, still", paired=True),
    Pairing("+10 %, paired, still", "A, still", "B10, still", paired=True),
)

Values = dict[str, float]
Centre = Callable[[Sequence[float]], float]
Runs = Mapping[tuple[str, str], Sequence[Values]]  # by load and build


@dataclass(frozen=True)
class Job:
    """Some runs of one load: seeds of their traffic, and how much longer a step takes in each."""

    load: str
    seeds: tuple[int, ...]
    factors: tuple[float, ...]


def simulate_job(job: Job) -> list[Values]:
    """The run-level figures of each."""
    workload, setting = _read(job.load)
    return [figures(run_once(workload, setting, seed, f)) for seed, f in zip(job.seeds, job.factors, strict=True)]


@lru_cache
def _read(load: str) -> tuple[Workload, Setting]:
    engine, text = LOADS[load]
    workload = read_workload(text, "statistics", "statistics.toml", Path())
    return workload, Setting(engine, "H200", "Qwen2.5-Coder-7B-Instruct", read_flags(engine, []))


def run_once(workload: Workload, setting: Setting, seed: int, slower: float) -> Run:
    plan = compressed(plan_virtual(workload, seed), slower)
    run = simulate(plan, setting, Origin("statistics", datetime(2026, 1, 1, tzinfo=UTC), {})).run
    return Run(replace(run.meta, time_scale=slower), run.table)


def figures(run: Run) -> Values:
    """As `summarize` computes them, without the intervals inside the run, which are not needed and cost most of its time."""
    columns, slo = Columns.of(run), Slo()
    values: Values = {}
    for metric in METRICS:
        samples = DISTRIBUTIONS[metric].compute(columns, slo).within(columns.ok)
        ordered = distribution.ordered(samples)
        for statistic, share in STATISTICS.items():
            value = distribution.mean(samples) if share is None else distribution.percentiles(ordered, (share,))[0]
            values[f"{metric}_{statistic}"] = value
    scene = Scene(columns, slo, window.whole(columns), columns.measured, columns.measured, 0)
    throughput = RATES[THROUGHPUT].compute(scene).value
    assert throughput is not None
    return values | {THROUGHPUT: throughput}


def stretched(values: Values, factor: float) -> Values:
    """The figures of the same closed loop with steps longer by a factor."""
    return {key: value / factor if key == THROUGHPUT else value * factor for key, value in values.items()}


def is_closed(load: str) -> bool:
    return "concurrency" in LOADS[load][1]


def seeds_of(load: str, traffic: int, n: int) -> list[int]:
    """Seeds of the traffic of `n` runs: other ones for each load and each traffic."""
    first = 100_000_000 * list(LOADS).index(load) + 10_000_000 * traffic
    return list(range(first, first + n))


def factors_of(load: str, name: str, n: int) -> list[float]:
    """How long a step takes in each run of a build."""
    build, rng = BUILDS[name], random.Random(f"{load} {name}")
    return [build.slower * math.exp(rng.gauss(0, build.machine) if build.machine else 0.0) for _ in range(n)]


def simulate_all(pairs: int, workers: int) -> dict[tuple[str, str], list[Values]]:
    """All runs that `pairs` pairs of 5 runs a side and kind take."""
    n = SET * math.ceil(pairs / len(LOADS) / (SET // 5))
    jobs: list[tuple[tuple[str, str], Job]] = []
    for load in LOADS:
        if is_closed(load):
            wanted = [((load, f"traffic {t}"), seeds_of(load, t, n), [1.0] * n) for t in (0, 1)]
        else:
            wanted = [((load, name), seeds_of(load, b.traffic, n), factors_of(load, name, n)) for name, b in BUILDS.items()]
        for key, seeds, factors in wanted:
            parts = [slice(i, i + PART) for i in range(0, len(seeds), PART)]
            jobs += [(key, Job(load, tuple(seeds[part]), tuple(factors[part]))) for part in parts]
    found: dict[tuple[str, str], list[Values]] = defaultdict(list)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done, ((key, _), values) in enumerate(zip(jobs, pool.map(simulate_job, [job for _, job in jobs]), strict=True), 1):
            found[key] += values
            if not done % 32:
                print(f"{done}/{len(jobs)} parts simulated", file=sys.stderr, flush=True)
    for load in filter(is_closed, LOADS):
        for name, build in BUILDS.items():
            base = found[load, f"traffic {build.traffic}"]
            found[load, name] = [stretched(v, f) for v, f in zip(base, factors_of(load, name, n), strict=True)]
    return found


def sets_of(values: Sequence[Values], size: int) -> Iterator[list[Values]]:
    """Disjoint sets of that size: the whole sets, their halves, or the beginnings of the halves."""
    step = SET if size == SET else SET // 2
    for first in range(0, len(values) - step + 1, step):
        yield list(values[first : first + size])


def pairs_of(runs: Runs) -> Iterator[tuple[Pairing, int, str, list[Values], list[Values]]]:
    """Every pair of sets."""
    for pairing, load, size in itertools.product(PAIRINGS, LOADS, SIZES):
        if not (pairing.is_still and is_closed(load)):  # there the ratio is the same in every block
            sides = (sets_of(runs[load, name], size) for name in (pairing.base, pairing.candidate))
            for ours, theirs in zip(*sides, strict=True):
                yield pairing, size, load, ours, theirs


def typical(logs: Sequence[float]) -> float:
    """The median: half of all runs are beyond it."""
    return statistics.median(logs)


def mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs)


def truth(runs: Runs, load: str, pairing: Pairing, key: str, centre: Centre) -> float:
    """The true ratio: known for A/A and in a closed loop, else the centre of the ratios of all runs, in logarithms.

    Each ratio is of two runs under the same traffic.
    """
    if pairing.slower == 1 or is_closed(load):
        return pairing.slower
    bases = runs[load, "A, still" if pairing.is_still else "A"]
    return math.exp(centre([math.log(b[key] / a[key]) for a, b in zip(bases, runs[load, pairing.candidate], strict=True)]))
