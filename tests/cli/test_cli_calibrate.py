"""`calibrate` as a user meets it, and calibrations as other commands take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longbench_sched.cli.app import main
from longbench_sched.cli.calibrations import read_calibration, with_settings
from longbench_sched.cli.model_flag import read_model
from longbench_sched.errors import UsageError
from longbench_sched.sim.calibration import CALIBRATIONS, Calibration, from_json, to_json
from longbench_sched.sim.models import MODELS

ROW = {
    "format": "longbench-observation/1", "name": "one prompt", "source": "made up", "engine": "vllm", "gpu": "H200",
    "model": "Qwen2.5-Coder-7B", "arrivals": {"at_s": [0.0], "isl": 30000, "osl": 2}, "measured": {"ttft_mean_s": 0.92},
}  # fmt: skip


@pytest.fixture
def row(tmp_path: Path) -> str:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(ROW))
    return str(path)


def test_a_run_made_with_hidden_parameters_gives_them_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden, found = tmp_path / "hidden.json", tmp_path / "found.json"
    hidden.write_text(json.dumps(to_json(Calibration().with_values("made up", attention_eff=0.5))))
    simulate = ["simulate", "30k-500-r1", "--engine", "vllm", "--num-prompts", "4", "--osl", "20", "--num-warmups", "0"]
    results = ["--output-dir", str(tmp_path)]
    assert main([*simulate, *results, "--calibration", str(hidden)]) == 0
    capsys.readouterr()
    assert main(["calibrate", "latest", *results, "--fit", "attention_eff", "--output", str(found)]) == 0
    printed = capsys.readouterr().out
    assert from_json(json.loads(found.read_text()), "found").attention_eff == pytest.approx(0.5, rel=0.01)
    assert "simulated" in printed
    assert max(len(line) for line in printed.splitlines() if str(tmp_path) not in line) <= 80
    assert [line.split()[:3] for line in printed.splitlines() if "attention_eff" in line] == [
        ["attention_eff", "0.700", "0.500"]
    ]
    # What was fitted is taken by the simulator: its run is then the one that was measured.
    assert main([*simulate, *results, "--calibration", str(found)]) == 0


def test_a_published_row_is_fitted_and_an_exact_fit_is_called_one(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "c.json"
    assert main(["calibrate", row, "--fit", "attention_eff", "--output", str(found)]) == 0
    stored = json.loads(found.read_text())
    assert stored["parameters"]["attention_eff"]["value"] == pytest.approx(0.465, abs=0.01)
    assert stored["residuals"][0]["deviation"] == pytest.approx(0, abs=1e-3)
    assert stored["observations"] == [{"name": "one prompt", "source": "made up"}]
    assert "FIT-EXACT" in capsys.readouterr().out


def test_a_fit_begins_where_it_is_told_and_holds_what_is_set(row: str, tmp_path: Path) -> None:
    found = tmp_path / "c.json"
    settings = ["--set", "is_host_overlapped=false", "--set", "host_step_s=0.1", "--calibration", "vllm-0.7.2"]
    assert main(["calibrate", row, "--fit", "attention_eff", *settings, "--output", str(found)]) == 0
    stored = json.loads(found.read_text())["parameters"]
    assert stored["host_step_s"] == {"value": 0.1, "source": "set on the command line"}
    assert stored["attention_eff"]["value"] > 0.5, "0.1 s of the 0.92 s is now the host's"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param(["--fit", "speed"], "--fit speed: cannot be fitted", id="no such parameter"),
        pytest.param(["--set", "attention_eff"], "is not NAME=VALUE", id="no value"),
        pytest.param(["--set", "attention_eff=fast"], "neither a number", id="no number"),
        pytest.param(["--set", "attention_eff=2"], "above 0 and at most 1", id="out of range"),
        pytest.param(["--set", "speed=2"], "no parameter named 'speed'", id="no such setting"),
        pytest.param(["--calibration", "none.json"], "no such file, and no set of that name", id="no such file"),
    ],
)
def test_a_mistake_is_wrong_usage_with_a_remedy(
    row: str, tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", row, *more, "--output", str(tmp_path / "c.json")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("text", ["{}", "not json", "[]", '{"format": "longbench-observation/1"}'])
def test_a_file_that_is_no_row_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "row.json").write_text(text)
    assert main(["calibrate", str(tmp_path / "row.json"), "--output", str(tmp_path / "c.json")]) == 2
    assert "row.json" in capsys.readouterr().err


def test_sets_are_taken_by_name_and_files_by_path(tmp_path: Path) -> None:
    for name, calibration in CALIBRATIONS.items():
        assert read_calibration(name) is calibration
    (tmp_path / "c.json").write_text(json.dumps(to_json(CALIBRATIONS["vllm-0.7.2"])))
    assert read_calibration(str(tmp_path / "c.json")).values() == CALIBRATIONS["vllm-0.7.2"].values()
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        read_calibration(str(tmp_path / "c.json"))


def test_a_setting_names_the_command_line_as_its_source() -> None:
    one = with_settings(Calibration(), ["tile_tokens=64", "is_host_overlapped=false"])
    assert (one.tile_tokens, one.is_host_overlapped) == (64, False)
    assert one.source("tile_tokens") == "set on the command line"


def test_a_model_may_be_a_config_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    config = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert read_model(str(folder)) == read_model(str(folder / "config.json"))
    assert (read_model(str(folder)).name, read_model(str(folder)).layers) == ("tiny-model", 2)
    assert read_model("Qwen3-8B") is MODELS["Qwen3-8B"]


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "no model configuration")])
def test_a_config_that_is_none_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("way", ["dynamo-like", "none"])
def test_a_run_of_several_engines_is_refused(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ["--output-dir", str(tmp_path)]
    simulate = ["simulate", "smoke", "--num-prompts", "4", "--disaggregation", way, "--decode-engines", "2"]
    assert main([*simulate, *results]) == 0
    assert main(["calibrate", "latest", *results, "--output", str(tmp_path / "c.json")]) == 2
    assert "served by several engines" in capsys.readouterr().err


def test_a_run_over_several_gpus_gives_its_parameters_back(tmp_path: Path) -> None:
    """Stages and tensor parallelism are among the flags that a simulated run tells, so the fit simulates the same engine."""
    hidden, found = tmp_path / "hidden.json", tmp_path / "found.json"
    hidden.write_text(json.dumps(to_json(Calibration().with_values("made up", attention_eff=0.5))))
    simulate = ["simulate", "30k-500-r1", "--engine", "sglang", "--num-prompts", "3", "--osl", "20", "--num-warmups", "0"]
    results = ["--output-dir", str(tmp_path)]
    assert main([*simulate, *results, "-tp", "2", "-pp", "2", "--calibration", str(hidden)]) == 0
    assert main(["calibrate", "latest", *results, "--fit", "attention_eff", "--output", str(found)]) == 0
    assert from_json(json.loads(found.read_text()), "found").attention_eff == pytest.approx(0.5, rel=0.01)
