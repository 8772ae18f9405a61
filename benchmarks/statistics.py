"""Are the intervals true, are the alarms rare, is a real change seen? Pairs of sets of runs whose truth is known.

    python -m benchmarks.statistics            16,000 simulated runs: some ten minutes of one core
    python -m benchmarks.statistics --sets 10  a quick look

Runs are those of the embedded engine in virtual time, under four loads. What varies between runs of one build is what varies on
a real one with fresh traffic: lengths and arrivals, drawn anew for each run. A candidate that is 5 % slower is the same engine
with every step 5 % longer: the plan is offered 5 % faster and all times are multiplied by 1.05, which is the same thing. In a
closed loop every latency is then exactly 5 % longer; in an open loop the queue grows more, and the truth is the ratio of the
geometric means over all runs of that load.

Pairs of sets of n runs are compared as `compare` and `check` compare them (the same functions), and counted:
coverage   how often the 95 % interval of the ratio holds the truth (A/A: 1)
alarms     how often any rule of the default policy fails, or any figure is called better or worse, though nothing changed
power      how often a change is found
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from longbench_sched.compare.comparison import Side, Wish, compare
from longbench_sched.compare.delta import measure
from longbench_sched.compare.figure import find_figure
from longbench_sched.compare.gate import check
from longbench_sched.compare.point import WHOLE, RunPoint
from longbench_sched.compare.policy import default_policy
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
FIGURES = (*tuple(f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS), "total_throughput")
SLOWER = (1.0, 1.05, 1.10)
SET = 10  # runs; sets of 5 are its halves, sets of 3 the beginnings of the halves
SIZES = (3, 5, 10)


@dataclass(frozen=True)
class Job:
    """Some runs of one load and one build."""

    load: str
    slower: float
    seeds: range


Values = dict[str, float]


def simulate_job(job: Job) -> list[Values]:
    """The run-level figures of each seed."""
    engine, text = LOADS[job.load]
    workload = read_workload(text, "statistics", "statistics.toml", Path())
    setting = Setting(engine, "H200", "Qwen2.5-Coder-7B-Instruct", read_flags(engine, []))
    return [figures(run_once(workload, setting, seed, job.slower)) for seed in job.seeds]


def run_once(workload: Workload, setting: Setting, seed: int, slower: float) -> Run:
    plan = compressed(plan_virtual(workload, seed), slower)
    run = simulate(plan, setting, Origin("statistics", datetime(2026, 1, 1, tzinfo=UTC), {})).run
    return Run(replace(run.meta, time_scale=slower), run.table)


def figures(run: Run) -> Values:
    """As `summarize` computes them, without the intervals inside the run, which are not needed and cost most of its time."""
    columns, slo = Columns.of(run), Slo()
    values: Values = {}
    for metric in METRICS:
        samples = distribution_of(metric, columns, slo)
        ordered = distribution.ordered(samples)
        for statistic, share in STATISTICS.items():
            value = distribution.mean(samples) if share is None else distribution.percentiles(ordered, (share,))[0]
            values[f"{metric}_{statistic}"] = value
    scene = Scene(columns, slo, window.whole(columns), columns.measured, columns.measured, 0)
    throughput = RATES["total_throughput"].compute(scene).value
    assert throughput is not None
    return values | {"total_throughput": throughput}


def distribution_of(metric: str, columns: Columns, slo: Slo):
    return DISTRIBUTIONS[metric].compute(columns, slo).within(columns.ok)


def simulate_all(sets: int, workers: int) -> dict[tuple[str, str], list[Values]]:
    """Runs by load and side: A and A' are the same build with other traffic; B5 and B10 get the traffic of A."""
    n = sets * SET
    jobs: list[tuple[tuple[str, str], Job]] = []
    for number, load in enumerate(LOADS):
        first = 1_000_000 * number
        for side, slower, seeds in (
            ("A", 1.0, range(first, first + n)),
            ("A'", 1.0, range(first + n, first + 2 * n)),
            ("B5", 1.05, range(first, first + n)),
            ("B10", 1.10, range(first, first + n)),
        ):
            jobs += [((load, side), Job(load, slower, seeds[i : i + 25])) for i in range(0, n, 25)]
    runs: dict[tuple[str, str], list[Values]] = defaultdict(list)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done, ((key, _), values) in enumerate(zip(jobs, pool.map(simulate_job, [job for _, job in jobs]), strict=True), 1):
            runs[key] += values
            if not done % 32:
                print(f"{done}/{len(jobs)} parts simulated", file=sys.stderr, flush=True)
    return runs


def sets_of(values: Sequence[Values], size: int) -> Iterator[list[Values]]:
    """Disjoint sets of that size: the whole sets, their halves, or the beginnings of the halves."""
    step = SET if size == SET else SET // 2
    for first in range(0, len(values) - step + 1, step):
        yield list(values[first : first + size])


# What is counted.


@dataclass
class Count:
    """Yes of all."""

    yes: int = 0
    n: int = 0

    def add(self, is_so: bool) -> None:
        self.yes += is_so
        self.n += 1

    @property
    def share(self) -> float:
        return self.yes / self.n if self.n else math.nan

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} %" if self.n else "-"


def truths(runs: dict[tuple[str, str], list[Values]], side: str) -> dict[tuple[str, str], float]:
    """The true ratio of each load and figure: 1 for A', else that of geometric means over all runs with the traffic of A."""
    found = {}
    for load in LOADS:
        for key in FIGURES:
            ours, theirs = (math.fsum(math.log(v[key]) for v in runs[load, s]) / len(runs[load, s]) for s in ("A", side))
            found[load, key] = 1.0 if side == "A'" else math.exp(theirs - ours)
    return found


Coverage = dict[tuple[str, int, str, str], Count]  # (pairs, size, figure, load)


def count_coverage(runs: dict[tuple[str, str], list[Values]]) -> Coverage:
    """A/A: A against A'. A/B: A' against B, other traffic. Paired: A against B, the same traffic run by run."""
    counts: Coverage = defaultdict(Count)
    plans = (("A/A", "A", "A'", False), ("A/B", "A'", "B5", False), ("A/B", "A'", "B10", False))
    plans += (("paired", "A", "B5", True), ("paired", "A", "B10", True))
    for name, base, candidate, paired in plans:
        truth = truths(runs, candidate)
        for load, size in itertools.product(LOADS, SIZES):
            for ours, theirs in zip(sets_of(runs[load, base], size), sets_of(runs[load, candidate], size), strict=True):
                for key in FIGURES:
                    delta = measure(find_figure(key), [v[key] for v in ours], [v[key] for v in theirs], paired=paired)
                    assert delta.low is not None
                    assert delta.high is not None
                    slack = 1e-9  # a closed loop scales exactly: intervals of paired runs are a point, rounded
                    holds = delta.low * (1 - slack) <= truth[load, key] <= delta.high * (1 + slack)
                    counts[name, size, key, load].add(holds)
    return counts


def side_of(name: str, values: Sequence[Values], load: str) -> Side:
    return Side(name, tuple(point_of(value, load, i) for i, value in enumerate(values)))


def point_of(values: Values, load: str, number: int) -> RunPoint:
    return RunPoint(
        run_id=str(number), started_at="2026-01-01T00:00:00Z", workload=load, schedule="drawn anew", engine="vllm", target="a",
        cell=load, params={}, experiment=None, block=None, simulated=True, complete=True, marks=(), facts={}, machine={},
        attempted=48, ok=48, isl_mean=None, osl_mean=None, osl_share=1.0, cached_share=0.0, shared_prefix=0,
        tokens_per_chunk=1.0, duration_s=1.0, gpus=None, dollars_per_hour=None, values={WHOLE: values},
    )  # fmt: skip


Verdicts = dict[tuple[str, str, int, str], Count]  # (what, side, size, load)


def count_verdicts(runs: dict[tuple[str, str], list[Values]]) -> Verdicts:
    """A against A', B5 and B10 (other traffic than A' has): what the default policy and a page of `compare` say."""
    policy, counts = default_policy(), defaultdict(Count)  # type: ignore[var-annotated]
    wish = Wish(tuple(rule.figure.key for rule in policy.rules if not rule.is_on_value and rule.figure.key in FIGURES))
    policy = replace(policy, rules=tuple(r for r in policy.rules if r.figure.key in wish.figures))
    for side, (load, size) in itertools.product(("A'", "B5", "B10"), itertools.product(LOADS, SIZES)):
        base = "A" if side == "A'" else "A'"
        for ours, theirs in zip(sets_of(runs[load, base], size), sets_of(runs[load, side], size), strict=True):
            one, other = side_of("base", ours, load), side_of("candidate", theirs, load)
            verdict = check(one, other, policy)
            for status in ("fail", "pass", "inconclusive"):
                counts[status, side, size, load].add(verdict.status == status)
            (match,) = compare(one, [other], wish).matches
            counts["called", side, size, load].add(any(delta.call in ("better", "worse") for delta in match.deltas))
            for delta in match.deltas:
                counts[delta.figure.key, side, size, load].add(delta.call == "worse")
    return counts


# What is printed.


def pooled(counts: dict, *pattern: object) -> Count:
    """All counts whose key agrees with the pattern (None: anything)."""
    total = Count()
    for key, count in counts.items():
        if all(
            want is None or want == have or (callable(want) and want(have)) for want, have in zip(pattern, key, strict=True)
        ):
            total.yes, total.n = total.yes + count.yes, total.n + count.n
    return total


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def report(runs: dict[tuple[str, str], list[Values]], coverage: Coverage, verdicts: Verdicts) -> str:
    n_runs = sum(map(len, runs.values()))
    by_size = {size: pooled(coverage, "A/A", size, "ttft_p50", None).n for size in SIZES}
    pairs = {size: 3 * n for size, n in by_size.items()}
    parts = [
        f"{n_runs} runs of the embedded engine under {len(LOADS)} loads ({'; '.join(LOADS)}). "
        f"{by_size[5]} A/A and {2 * by_size[5]} A/B pairs of 5 runs a side, {by_size[10]} and {2 * by_size[10]} of 10 "
        f"({pairs[5] + pairs[10]} pairs in all, those of 3 not counted).",
        "### Coverage of the 95 % intervals",
        "Pooled over TTFT, TPOT, ITL and E2E and all loads; in brackets the lowest and the highest of any single metric.",
        table(
            ["pairs", "runs a side", "median", "mean", "p90", "p99"],
            [
                [name, size, *(_coverage_cell(coverage, name, size, statistic) for statistic in STATISTICS)]
                for name in ("A/A", "A/B", "paired")
                for size in SIZES
            ],
        ),
        "### False alarms and power",
        "`check` with the default policy (fails), and `compare` with the same figures (anything called better or worse). A/A: "
        "no difference, so both are false alarms; limit 5 %. +5 %, +10 %: every step of the engine that much longer.",
        table(
            ["truth", "runs a side", "check fails", "passes", "does not know", "compare calls"],
            [
                [name, size, *(pooled(verdicts, what, side, size, None) for what in ("fail", "pass", "inconclusive", "called"))]
                for name, side in (("A/A", "A'"), ("+5 %", "B5"), ("+10 %", "B10"))
                for size in SIZES
            ],
        ),
        "Called worse by `compare`, figure by figure (after correction for all six):",
        table(
            ["truth", "runs a side", *(find_figure(key).title for key in _judged(verdicts))],
            [
                [name, size, *(pooled(verdicts, key, side, size, None) for key in _judged(verdicts))]
                for name, side in (("A/A", "A'"), ("+5 %", "B5"), ("+10 %", "B10"))
                for size in SIZES
            ],
        ),
        "The same by load, 5 runs a side: false alarms of `check`, its power at +10 %, and how much a run differs from the "
        "next (coefficient of variation).",
        table(
            ["load", "A/A fails", "+10 % fails", "CV TTFT p50", "CV TTFT p99", "CV E2E p99"],
            [
                [
                    load,
                    pooled(verdicts, "fail", "A'", 5, load),
                    pooled(verdicts, "fail", "B10", 5, load),
                    *(f"{100 * _cv(runs[load, 'A'], key):.1f} %" for key in ("ttft_p50", "ttft_p99", "e2e_p99")),
                ]
                for load in LOADS
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _judged(verdicts: Verdicts) -> list[str]:
    return [key for key in dict.fromkeys(what for what, *_ in verdicts) if key in FIGURES]


def _coverage_cell(coverage: Coverage, name: str, size: int, statistic: str) -> str:
    each = [pooled(coverage, name, size, f"{metric}_{statistic}", None).share for metric in METRICS]
    total = pooled(coverage, name, size, lambda key: str(key).endswith(f"_{statistic}"), None)
    return f"{total} ({100 * min(each):.1f}-{100 * max(each):.1f})"


def _cv(values: Sequence[Values], key: str) -> float:
    logs = [math.log(value[key]) for value in values]
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))


def missed(coverage: Coverage, verdicts: Verdicts) -> list[str]:
    """Goals that were not reached: coverage 93-97 % at 5 and 10 runs a side (median, mean, p90), false alarms at most 5 %."""
    found = []
    for size, statistic in itertools.product((5, 10), ("p50", "mean", "p90")):
        for name in ("A/A", "A/B"):
            count = pooled(coverage, name, size, lambda key, s=statistic: str(key).endswith(f"_{s}"), None)
            if not 0.93 <= count.share <= 0.97:
                found.append(f"coverage of {statistic}, {name}, {size} a side: {count}")
    for size, what in itertools.product(SIZES, ("fail", "called")):
        count = pooled(verdicts, what, "A'", size, None)
        if count.share > 0.05:
            found.append(f"false alarms ({what}), {size} a side: {count}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=100, help="sets of 10 runs for each load and side (default 100)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="also put the tables between the markers of this document")
    arguments = parser.parse_args()
    began = time.monotonic()
    runs = simulate_all(arguments.sets, arguments.workers)
    print(f"simulated {sum(map(len, runs.values()))} runs in {time.monotonic() - began:.0f} s", file=sys.stderr)
    coverage, verdicts = count_coverage(runs), count_verdicts(runs)
    text = report(runs, coverage, verdicts)
    print(text)
    if arguments.write is not None:
        begin, end = "<!-- begin: python -m benchmarks.statistics -->", "<!-- end -->"
        head, _, rest = arguments.write.read_text().partition(begin)
        arguments.write.write_text(f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}")
    for line in missed(coverage, verdicts):
        print(f"MISSED: {line}")
    return 1 if missed(coverage, verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
