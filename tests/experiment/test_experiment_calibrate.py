"""Fits find what was hidden, say what they cannot find, and are stored with their residuals."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.experiment.calibrate import RANGES, Fit, fit
from longbench_sched.experiment.observation import (
    EngineSetting,
    Observation,
    benchmark_arrivals,
    observe_run,
    read_observation,
    with_measured,
    write_observation,
)
from longbench_sched.experiment.virtual_run import Origin, Setting, plan_virtual, simulate
from longbench_sched.metrics.summary import summarize
from longbench_sched.sim.calibration import Calibration, from_json
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.replay import Arrival
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.spec import load_workload

VLLM = EngineSetting("vllm", "H200", "Qwen2.5-Coder-7B")
HIDDEN = Calibration().with_values(
    "hidden", attention_eff=0.5, kv_bandwidth_eff=0.6, host_step_s=0.006, host_per_layer_s=0.0, is_host_overlapped=False
)
START = Calibration().with_values("stated", host_per_layer_s=0.0, is_host_overlapped=False)
PROMPT_ALONE = (Arrival(0.0, 30_000, 2),)
BIG_DECODE = tuple(Arrival(0.0, 8000, 120) for _ in range(24))
DECODE_ALONE = (Arrival(0.0, 100, 100),)


def observed(name: str, arrivals: tuple[Arrival, ...], *measures: str) -> Observation:
    """What an engine with the hidden parameters would have shown."""
    blank = Observation(name, VLLM, arrivals, dict.fromkeys(measures, 1.0), "made up")
    return with_measured(blank, blank.predict(HIDDEN))


THREE = (
    observed("one long prompt", PROMPT_ALONE, "ttft_mean_s"),
    observed("decodes of a large batch", BIG_DECODE, "tpot_mean_s", "total_tok_s"),
    observed("a decode alone", DECODE_ALONE, "tpot_mean_s"),
)


@pytest.fixture(scope="module")
def three() -> Fit:
    return fit(THREE, start=START)


def test_three_runs_give_back_the_three_hidden_parameters(three: Fit) -> None:
    found = three
    values = {one.name: one.value for one in found.parameters}
    assert values == pytest.approx({"attention_eff": 0.5, "kv_bandwidth_eff": 0.6, "host_step_s": 0.006}, rel=0.01)
    assert found.worst < 0.002
    assert found.n_spare == 1
    assert all(one.standard_error is not None for one in found.parameters)


def test_each_parameter_moves_what_it_should(three: Fit) -> None:
    """Before the fit the long prompt is too fast by attention, the decode alone by the host."""
    by = {(one.observation, one.measure): one for one in three.residuals}
    assert by["one long prompt", "ttft_mean_s"].deviation_before < -0.1
    assert by["a decode alone", "tpot_mean_s"].deviation_before < -0.5
    assert abs(by["a decode alone", "tpot_mean_s"].deviation) < 0.01


def test_a_parameter_that_nothing_depends_on_is_said_to_be_unknown() -> None:
    """One prompt says nothing of decode bandwidth."""
    found = fit([THREE[0]], ["attention_eff", "kv_bandwidth_eff"], START.with_values("known", host_step_s=0.006))
    by_name = {one.name: one for one in found.parameters}
    assert by_name["attention_eff"].value == pytest.approx(0.5, rel=0.01)
    assert by_name["kv_bandwidth_eff"].value is None
    assert found.calibration.kv_bandwidth_eff is None
    assert found.n_spare == 0
    assert by_name["attention_eff"].standard_error is None, "one number for one parameter leaves nothing to judge by"


def test_a_host_that_was_hidden_at_the_start_is_found_and_what_it_hides_is_said_to_be_unknown() -> None:
    """The host plans ahead: at the start its time shows nowhere, at 8 ms a step it is all that decodes show."""
    hidden = Calibration().with_values("hidden", attention_eff=0.5, kv_bandwidth_eff=0.8, host_step_s=0.008)
    found = fit([with_measured(one, one.predict(hidden)) for one in THREE])
    values = {one.name: one.value for one in found.parameters}
    assert values["attention_eff"] == pytest.approx(0.5, rel=0.01)
    assert values["host_step_s"] == pytest.approx(0.008, rel=0.01)
    assert values["kv_bandwidth_eff"] is None
    assert found.worst < 0.005


def test_a_measurement_out_of_reach_ends_at_a_bound_and_says_so() -> None:
    impossible = Observation("too fast", VLLM, PROMPT_ALONE, {"ttft_mean_s": 0.01}, "made up")
    found = fit([impossible], ["attention_eff"], START)
    assert found.parameters[0].is_at_bound
    assert found.parameters[0].value == pytest.approx(RANGES["attention_eff"].high)
    assert found.worst > 1


def test_the_file_is_read_back_and_holds_residuals_and_sources() -> None:
    found = fit([THREE[0]], ["attention_eff"], START)
    stored = json.loads(json.dumps(found.as_json()))
    assert from_json(stored, "c.json").values() == found.calibration.values()
    assert stored["parameters"]["attention_eff"]["source"] == "fitted on one long prompt"
    assert stored["parameters"]["host_per_layer_s"]["source"] == "stated"
    assert stored["residuals"][0]["measure"] == "ttft_mean_s"
    assert stored["observations"] == [{"name": "one long prompt", "source": "made up"}]


def test_a_stored_run_is_an_observation() -> None:
    """A run simulated with the hidden parameters, through driver and records, gives them back."""
    workload = load_workload("30k-500-r1", Overrides(num_prompts=6, osl="60"))
    plan = plan_virtual(workload, seed=3)
    setting = Setting("vllm", "H200", "Qwen2.5-Coder-7B", read_flags("vllm", []), HIDDEN)
    run = simulate(plan, setting, Origin("r", datetime(2026, 1, 1, tzinfo=UTC), {})).run
    observation = observe_run(run, summarize(run), VLLM)
    assert len(observation.arrivals) == 6
    assert observation.arrivals[0].at_s == 0.0
    assert {(one.isl, one.osl) for one in observation.arrivals} == {(30_000, 60)}
    for measure, value in observation.predict(HIDDEN).items():
        assert value == pytest.approx(observation.measured[measure], rel=1e-3), measure
    found = fit(
        [observation], ["attention_eff", "host_step_s"], HIDDEN.with_values("start", attention_eff=0.7, host_step_s=0.001)
    )
    assert found.calibration.attention_eff == pytest.approx(0.5, rel=0.02)
    assert found.calibration.host_step_s == pytest.approx(0.006, rel=0.05)


def test_the_arrivals_of_the_published_benchmarks() -> None:
    """numpy's legacy generator with seed 1: the gaps that the client of 2025-02 drew."""
    arrivals = benchmark_arrivals(64, 1.0, 30_000, 500)
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    assert gaps[:5] == pytest.approx([0.5396, 1.2741, 0.0001, 0.3600, 0.1587], abs=6e-5)
    assert arrivals[0].at_s == 0.0
    assert arrivals[-1].at_s == pytest.approx(54.1694, abs=1e-4)
    assert benchmark_arrivals(64, 2.0, 30_000, 500)[-1].at_s == pytest.approx(54.1694 / 2, abs=1e-4)


def test_a_row_is_read_back_as_it_was_written() -> None:
    row = THREE[0]
    assert read_observation(json.loads(json.dumps(write_observation(row))), "row.json") == row


ROW = {
    "format": "longbench-observation/1", "name": "r", "source": "s", "engine": "vllm", "gpu": "H200", "model": "Qwen3-8B",
    "arrivals": {"requests": 4, "rate_per_s": 1, "isl": 100, "osl": 10}, "measured": {"ttft_mean_s": 1.0},
}  # fmt: skip


def test_a_row_states_the_arrivals_of_a_benchmark() -> None:
    assert read_observation(ROW, "r.json").arrivals == benchmark_arrivals(4, 1.0, 100, 10)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param([], "is no observation", id="no object"),
        pytest.param({"format": "x"}, "is no observation", id="another format"),
        pytest.param({key: value for key, value in ROW.items() if key != "source"}, "'source' is missing", id="no source"),
        pytest.param(ROW | {"measured": {"ttft": 1.0}}, "no measure named 'ttft'", id="unknown measure"),
        pytest.param(ROW | {"measured": {"ttft_mean_s": 0}}, "above 0", id="zero"),
        pytest.param(ROW | {"measured": {}}, "nothing that could be compared", id="nothing measured"),
        pytest.param(ROW | {"arrivals": {"isl": 1, "osl": 1}}, "'requests' is missing", id="no arrivals"),
        pytest.param(ROW | {"arrivals": {"isl": "many", "osl": 1}}, "wrong kind", id="text"),
        pytest.param(ROW | {"measured": 3}, "wrong kind", id="a number"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(row: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_observation(row, "r.json")


@pytest.mark.parametrize(
    ("observations", "parameters", "words"),
    [
        pytest.param([], ["attention_eff"], "nothing to fit", id="no runs"),
        pytest.param([THREE[0]], ["tile_tokens"], "cannot be fitted. Known: attention_eff", id="no such parameter"),
        pytest.param([THREE[0]], ["kv_bandwidth_eff"], "none of kv_bandwidth_eff changes", id="nothing to go by"),
    ],
)
def test_what_cannot_be_fitted_is_refused(observations: list, parameters: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit(observations, parameters, START)


def test_a_model_may_be_a_shape() -> None:
    setting = EngineSetting("vllm", "H200", MODELS["Qwen3-8B"])
    assert Observation("x", setting, PROMPT_ALONE, {"ttft_mean_s": 1.0}, "s").predict(Calibration())["ttft_mean_s"] > 0.5
