"""Parameters of the cost model: named, sourced, read back as written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.sim.calibration import CALIBRATIONS, PARAMETERS, Calibration, from_json, to_json

efficiency = st.none() | st.floats(0.01, 1.0)
seconds = st.floats(0, 1)


@given(
    st.builds(
        Calibration,
        attention_eff=efficiency,
        kv_bandwidth_eff=efficiency,
        host_step_s=seconds,
        chunk_penalty_s=seconds,
        is_host_overlapped=st.booleans(),
        tile_tokens=st.integers(1, 256),
    )
)
def test_a_calibration_is_read_back_as_it_was_written(calibration: Calibration) -> None:
    written = json.loads(json.dumps(to_json(calibration, residuals=[1, 2])))
    read = from_json(written, "c.json")
    assert read.values() == calibration.values()
    assert all(read.source(name) == calibration.source(name) for name in PARAMETERS)


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_every_parameter_names_its_source(name: str) -> None:
    for parameter in PARAMETERS:
        assert len(CALIBRATIONS[name].source(parameter)) > 5


def test_the_default_was_fitted_on_no_run_of_an_engine() -> None:
    assert Calibration().sources == {}
    assert Calibration().attention_eff is None


def test_a_value_takes_its_source_with_it() -> None:
    one = Calibration().with_values("our run of May", attention_eff=0.5)
    assert (one.source("attention_eff"), one.attention_eff) == ("our run of May", 0.5)
    assert one.source("host_step_s") == Calibration().source("host_step_s")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        pytest.param({"attention_ef": {"value": 0.5}}, "Did you mean attention_eff", id="a name that is none"),
        pytest.param({"attention_eff": {"value": 1.2}}, "above 0 and at most 1", id="an efficiency above 1"),
        pytest.param({"attention_eff": {"value": 0}}, "above 0", id="an efficiency of 0"),
        pytest.param({"host_step_s": {"value": -1}}, "0 or more", id="a negative time"),
        pytest.param({"host_step_s": {"value": float("nan")}}, "0 or more", id="no number"),
        pytest.param({"host_step_s": {"value": None}}, "0 or more", id="nothing where a time must be"),
        pytest.param({"host_step_s": {"value": True}}, "0 or more", id="true where a time must be"),
        pytest.param({"is_host_overlapped": {"value": 1}}, "true or false", id="a number where true or false must be"),
        pytest.param({"tile_tokens": {"value": 1.5}}, "whole number", id="half a token"),
        pytest.param({"attention_eff": 0.5}, "value and source", id="a bare number"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(parameters: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        from_json({"format": "longbench-calibration/1", "parameters": parameters}, "c.json")
    assert str(caught.value).startswith("c.json")


@pytest.mark.parametrize("data", [None, [], {}, {"format": "other", "parameters": {}}, {"format": "longbench-calibration/1"}])
def test_another_file_is_not_taken_for_a_calibration(data: object) -> None:
    with pytest.raises(UsageError, match="no calibration of this tool"):
        from_json(data, "c.json")
