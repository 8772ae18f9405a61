"""Are the intervals true, are the alarms rare, is a real change seen? Pairs of sets of runs whose truth is known.

    python -m benchmarks.statistics --write docs/statistics.md   2,000 pairs of each kind: some minutes of all cores
    python -m benchmarks.statistics --pairs 160 --workers 1      a quick look

Where the runs come from, and what is true of them, is in `pairs.py`. Pairs of sets of n runs are compared as `compare` and
`check` compare them (the same functions), and counted:
coverage   how often the 95 % interval of the ratio holds the truth (A/A: 1)
alarms     how often any rule of the default policy fails, or any figure is called better or worse, though nothing changed
power      how often a change is found
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pairs import (
    BUILDS,
    FIGURES,
    LOADS,
    METRICS,
    PAIRINGS,
    SIZES,
    STATISTICS,
    Centre,
    Pairing,
    Runs,
    Values,
    is_closed,
    mean,
    pairs_of,
    simulate_all,
    truth,
    typical,
)
from longbench_sched.compare.comparison import Side, Wish, compare
from longbench_sched.compare.delta import measure
from longbench_sched.compare.figure import find_figure
from longbench_sched.compare.gate import check
from longbench_sched.compare.point import WHOLE, RunPoint
from longbench_sched.compare.policy import default_policy

WIDTH = 128  # of the lines of the document

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


Key = tuple[str, Pairing, int, str]  # what (a figure, a status), pairs of what, size, load
Counts = dict[Key, Count]


def count_coverage(runs: Runs, centre: Centre) -> Counts:
    counts: Counts = defaultdict(Count)
    loads = {pairing: [load for load in LOADS if not (pairing.is_still and is_closed(load))] for pairing in PAIRINGS}
    truths = {(load, p, key): truth(runs, load, p, key, centre) for p in PAIRINGS for load in loads[p] for key in FIGURES}
    for pairing, size, load, ours, theirs in pairs_of(runs):
        for key in FIGURES:
            delta = measure(find_figure(key), [v[key] for v in ours], [v[key] for v in theirs], paired=pairing.paired)
            assert delta.low is not None
            assert delta.high is not None
            counts[key, pairing, size, load].add(delta.low <= truths[load, pairing, key] <= delta.high)
    return counts


def side_of(name: str, values: Sequence[Values], load: str, experiment: str | None) -> Side:
    return Side(name, tuple(point_of(value, load, i, experiment) for i, value in enumerate(values)))


def point_of(values: Values, load: str, number: int, experiment: str | None) -> RunPoint:
    return RunPoint(
        run_id=str(number), started_at="2026-01-01T00:00:00Z", workload=load, schedule="drawn anew", engine="vllm", target="a",
        cell=load, params={}, experiment=experiment, block=None if experiment is None else number, simulated=True,
        complete=True, marks=(), facts={}, machine={}, attempted=48, ok=48, isl_mean=None, osl_mean=None, osl_share=1.0,
        cached_share=0.0, shared_prefix=0, tokens_per_chunk=1.0, duration_s=1.0, gpus=None, dollars_per_hour=None,
        values={WHOLE: values},
    )  # fmt: skip


def count_verdicts(runs: Runs) -> Counts:
    """What the default policy and a page of `compare` say."""
    policy, counts = default_policy(), defaultdict(Count)  # type: ignore[var-annotated]
    wish = Wish(tuple(rule.figure.key for rule in policy.rules if not rule.is_on_value and rule.figure.key in FIGURES))
    policy = replace(policy, rules=tuple(r for r in policy.rules if r.figure.key in wish.figures))
    for pairing, size, load, ours, theirs in pairs_of(runs):
        experiment = "x" if pairing.paired else None
        one, other = side_of("base", ours, load, experiment), side_of("candidate", theirs, load, experiment)
        verdict = check(one, other, policy)
        for status in ("fail", "pass", "inconclusive"):
            counts[status, pairing, size, load].add(verdict.status == status)
        (match,) = compare(one, [other], wish).matches
        counts["called", pairing, size, load].add(any(delta.call in ("better", "worse") for delta in match.deltas))
        for delta in match.deltas:
            counts[delta.figure.key, pairing, size, load].add(delta.call == "worse")
    return counts


# What is printed.


def pooled(counts: Counts, kinds: Sequence[str], pairings: Sequence[Pairing], size: int, load: str | None = None) -> Count:
    """Counts added up; over all loads, unless one is given."""
    total = Count()
    for what, pairing, one in itertools.product(kinds, pairings, LOADS if load is None else [load]):
        count = counts.get((what, pairing, size, one), Count())
        total.yes, total.n = total.yes + count.yes, total.n + count.n
    return total


def groups() -> dict[str, list[Pairing]]:
    """Pairings by whether anything changed and how they are compared: rows of the table of coverage."""
    found: dict[str, list[Pairing]] = defaultdict(list)
    for pairing in PAIRINGS:
        name = "A/A" if pairing.slower == 1 else "A/B"
        found[name + (", paired" if pairing.paired else "") + (", still" if pairing.is_still else "")].append(pairing)
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def report(runs: Runs, coverage: Counts, of_mean: Counts, verdicts: Counts) -> str:
    judged = [key for key in FIGURES if any(what == key for what, *_ in verdicts)]
    n_pairs = {size: [pooled(coverage, ["ttft_p50"], group, size).n for group in groups().values()] for size in SIZES}
    shown = [pairing for pairing in PAIRINGS if not pairing.is_still]
    slower = next(pairing for pairing in shown if pairing.title == "+5 %")
    parts = [
        f"{sum(len(values) for (load, name), values in runs.items() if not is_closed(load) or name not in BUILDS)} runs of the "
        f"embedded engine under {len(LOADS)} loads ({'; '.join(LOADS)}).",
        table(
            ["pairs", *(f"{size} runs a side" for size in SIZES)],
            [[name, *(n_pairs[size][place] for size in SIZES)] for place, name in enumerate(groups())],
        ),
        "A/B: +5 % and +10 %, half of the pairs each. Paired: both sides have the same traffic, block by block. Still: an open "
        "loop on a machine that does not vary, which is what blocks of simulated targets are.",
        "### Coverage of the 95 % intervals",
        "How often they hold the ratio of a typical run. Pooled over TTFT, TPOT, ITL and E2E and all loads; in brackets the "
        "lowest and the highest of any single metric.",
        _coverage_table(coverage, list(groups())),
        "How often they hold the mean ratio instead (of logarithms, over all traffic there is), which a few runs decide in an "
        "open loop:",
        _coverage_table(of_mean, [name for name in groups() if name.startswith("A/B")]),
        "### False alarms and power",
        "`check` with the default policy (fails), and `compare` with the same figures (anything called better or worse). A/A: "
        "no difference, so both are false alarms; limit 5 %. +5 %, +10 %: every step of the engine that much longer.",
        table(
            ["truth", "runs a side", "check fails", "passes", "does not know", "compare calls"],
            [
                [
                    pairing.title,
                    size,
                    *(pooled(verdicts, [w], [pairing], size) for w in ("fail", "pass", "inconclusive", "called")),
                ]
                for pairing in shown
                for size in SIZES
            ],
        ),
        f"Called worse by `compare`, figure by figure (after correction for all {len(judged)}), 5 runs a side:",
        table(
            ["truth", *(find_figure(key).title for key in judged)],
            [[pairing.title, *(pooled(verdicts, [key], [pairing], 5) for key in judged)] for pairing in shown],
        ),
        "By load, 5 runs a side: checks that fail; how much a run differs from the next (coefficient of variation); and the "
        "true change of E2E p99 where steps are 5 % longer, of a typical run and in the mean.",
        table(
            ["load", *(pairing.title for pairing in shown), "CV TTFT p50", "CV TTFT p99", "CV E2E p99", "typical", "mean"],
            [
                [
                    load,
                    *(pooled(verdicts, ["fail"], [pairing], 5, load) for pairing in shown),
                    *(f"{100 * _cv(runs[load, 'A'], key):.1f} %" for key in ("ttft_p50", "ttft_p99", "e2e_p99")),
                    *(f"{100 * (truth(runs, load, slower, 'e2e_p99', centre) - 1):+.1f} %" for centre in (typical, mean)),
                ]
                for load in LOADS
            ],
        ),
    ]
    return "\n\n".join(part if part.startswith(("|", "#")) else textwrap.fill(part, WIDTH) for part in parts) + "\n"


def _coverage_table(coverage: Counts, names: Sequence[str]) -> str:
    rows = [
        [name, size, *(_coverage_cell(coverage, groups()[name], size, statistic) for statistic in STATISTICS)]
        for name in names
        for size in SIZES
    ]
    return table(["pairs", "runs a side", "median", "mean", "p90", "p99"], rows)


def _coverage_cell(coverage: Counts, group: Sequence[Pairing], size: int, statistic: str) -> str:
    keys = [f"{metric}_{statistic}" for metric in METRICS]
    each = [pooled(coverage, [key], group, size).share for key in keys]
    return f"{pooled(coverage, keys, group, size)} ({100 * min(each):.1f}-{100 * max(each):.1f})"


def _cv(values: Sequence[Values], key: str) -> float:
    logs = [math.log(value[key]) for value in values]
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))


def missed(coverage: Counts, verdicts: Counts) -> list[str]:
    """Goals that were not reached: coverage 93-97 % at 5 and 10 runs a side (median, mean, p90), false alarms at most 5 %."""
    found = []
    for (name, group), size, statistic in itertools.product(groups().items(), (5, 10), ("p50", "mean", "p90")):
        count = pooled(coverage, [f"{metric}_{statistic}" for metric in METRICS], group, size)
        if not name.endswith("still") and not 0.93 <= count.share <= 0.97:
            found.append(f"coverage of {statistic}, {name}, {size} a side: {count}")
    for pairing, size, what in itertools.product(PAIRINGS, SIZES, ("fail", "called")):
        count = pooled(verdicts, [what], [pairing], size)
        if pairing.slower == 1 and count.share > 0.05:
            found.append(f"false alarms ({what}), {pairing.title}, {size} a side: {count}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of 5 runs a side, of each kind (default 2000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--runs", type=Path, help="keep what was simulated in this file, and take it from there if it is there")
    parser.add_argument("--write", type=Path, help="also put the tables between the markers of this document")
    arguments = parser.parse_args()
    runs = _kept(arguments.runs) or simulate_all(arguments.pairs, arguments.workers)
    if arguments.runs is not None:
        arguments.runs.write_text(json.dumps([[*key, values] for key, values in runs.items()]))
    coverage, of_mean = count_coverage(runs, typical), count_coverage(runs, mean)
    verdicts = count_verdicts(runs)
    text = report(runs, coverage, of_mean, verdicts)
    print(text)
    if arguments.write is not None:
        begin, end = "<!-- begin: python -m benchmarks.statistics -->", "<!-- end -->"
        head, _, rest = arguments.write.read_text().partition(begin)
        arguments.write.write_text(f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}")
    for line in missed(coverage, verdicts):
        print(f"MISSED: {line}")
    return 1 if missed(coverage, verdicts) else 0


def _kept(path: Path | None) -> dict[tuple[str, str], list[Values]]:
    if path is None or not path.exists():
        return {}
    return {(load, name): values for load, name, values in json.loads(path.read_text())}


if __name__ == "__main__":
    sys.exit(main())
