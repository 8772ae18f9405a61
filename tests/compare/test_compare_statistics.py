"""Intervals and alarms on run-level values whose truth is known; `benchmarks/statistics.py` does the same on simulated runs."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from handmade_points import make_side

from benchmarks.pairs import FIGURES, LOADS, figures, run_once, stretched
from longbench_sched.compare.delta import measure
from longbench_sched.compare.figure import find_figure, values_of
from longbench_sched.compare.gate import check
from longbench_sched.compare.policy import read_policy
from longbench_sched.experiment.virtual_run import Setting
from longbench_sched.metrics.summary import summarize
from longbench_sched.sim.flags import read_flags
from longbench_sched.workload.spec import read_workload

TTFT = find_figure("ttft_p50")
PAIRS = 1500


def runs(rng: random.Random, n: int, centre: float = 1.0, cv: float = 0.05) -> list[float]:
    return [centre * math.exp(rng.gauss(0, cv)) for _ in range(n)]


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
@pytest.mark.parametrize("n", [5, 10])
def test_95_percent_intervals_hold_the_truth_in_95_percent(n: int, paired: bool) -> None:
    rng = random.Random(n)
    held = 0
    for _ in range(PAIRS):
        base = runs(rng, n)
        candidate = [1.07 * value * math.exp(rng.gauss(0, 0.02)) for value in base] if paired else runs(rng, n, 1.07)
        delta = measure(TTFT, base, candidate, paired=paired)
        assert delta.low is not None
        assert delta.high is not None
        held += delta.low <= 1.07 <= delta.high
    assert 0.93 <= held / PAIRS <= 0.97  # standard error 0.6 points


def test_a_whole_check_of_one_build_against_itself_fails_in_at_most_5_percent() -> None:
    """Four independent rules whose limit is far below the noise: the worst case for false alarms."""
    keys = ("ttft_p50", "tpot_p50", "e2e_p50", "itl_p50")
    policy = read_policy("".join(f'[[rule]]\nmetric = "{key}"\nrelative = "0.1%"\n' for key in keys), "gate.toml")
    rng = random.Random(1)
    failed = 0
    for _ in range(200):
        sides = [make_side(name, {key: runs(rng, 5) for key in keys}) for name in ("a", "b")]
        failed += check(sides[0], sides[1], policy).status == "fail"
    assert failed / 200 <= 0.05 + 0.031  # two standard errors


def test_the_benchmarks_figures_are_those_of_the_summary() -> None:
    engine, text = LOADS["closed, vLLM"]
    workload = read_workload(text, "w", "w.toml", Path())
    run = run_once(workload, Setting(engine, "H200", "Qwen2.5-Coder-7B-Instruct", read_flags(engine, [])), 3, 1.0)
    values = values_of(summarize(run).whole)
    assert figures(run) == {key: pytest.approx(values[key]) for key in FIGURES}


def test_an_engine_slower_by_10_percent_takes_10_percent_longer_in_a_closed_loop() -> None:
    engine, text = LOADS["closed, vLLM"]
    workload = read_workload(text, "w", "w.toml", Path())
    setting = Setting(engine, "H200", "Qwen2.5-Coder-7B-Instruct", read_flags(engine, []))
    one, slower = (figures(run_once(workload, setting, 3, factor)) for factor in (1.0, 1.1))
    assert slower["ttft_p90"] == pytest.approx(1.1 * one["ttft_p90"], rel=1e-6)
    assert slower["total_throughput"] == pytest.approx(one["total_throughput"] / 1.1, rel=1e-6)
    assert stretched(one, 1.1) == {key: pytest.approx(value, rel=1e-6) for key, value in slower.items()}
