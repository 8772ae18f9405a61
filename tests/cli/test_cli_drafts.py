"""How drafts are played, as a user asks for it: `--draft-method` and its neighbours, from the flag to `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longbench_sched.cli.app import main
from longbench_sched.cli.embedded import Settings, check_embedded, split_knobs
from longbench_sched.errors import UsageError
from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer
from longbench_sched.load.probe import probe
from longbench_sched.store.parquet import read_run
from longbench_sched.target import Endpoint, Target

LONG = 'title = "Long"\nisl = 16384\nosl = 200\nconcurrency = 2\nrequests = 4\nwarmups = 0\n'
EAGLE3 = ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}']


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "long.toml"
    path.write_text(LONG)
    return str(path)


def test_c19_a_claimed_maximum_is_called_so_on_the_page_in_the_run_and_beside_what_it_is_compared_with(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(tmp_path / "r"), tmp_path / "out.json"
    assert main(["simulate", workload, "--output-dir", folder, *EAGLE3]) == 0
    assert "drafts eagle3" in capsys.readouterr().out.replace("\u00a0", " ")
    claimed = [*EAGLE3, "--draft-method", "eagle3.1", "--export", str(out)]
    assert main(["simulate", workload, "--output-dir", folder, *claimed]) == 0
    assert "drafts eagle3.1, claimed maximum" in " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())
    (run,) = json.loads(out.read_text())["runs"]
    assert run["meta"]["engine_facts"]["drafter"] == "eagle3.1, claimed maximum"
    old, new = sorted(str(path) for path in Path(folder).glob("*.parquet"))
    main(["compare", old, new, "--anyway", "--output-dir", folder])
    said = " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())
    assert "drafter" in said
    assert "eagle3.1, claimed maximum" in said


def test_the_method_is_a_knob_of_a_sweep(workload: str, tmp_path: Path) -> None:
    sweep = ["--sweep", "draft_method=eagle3,eagle3.1", "--workers", "1"]
    assert main(["simulate", workload, "--output-dir", str(tmp_path / "r"), *EAGLE3, *sweep]) == 0
    runs = [read_run(path) for path in sorted((tmp_path / "r").glob("*.parquet"))]
    assert {run.meta.engine_facts["drafter"] for run in runs} == {"eagle3", "eagle3.1, claimed maximum"}


def test_the_share_of_layers_that_draft_is_a_flag_and_needs_an_acceptance(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--engine",
        "sglang",
        "--speculative-algorithm",
        "STANDALONE",
        "--draft-method",
        "self",
        "--output-dir",
        str(tmp_path),
    ]
    assert main(["simulate", workload, *flags, "--acceptance-rate", "0.6"]) == 0
    assert main(["simulate", workload, *flags, "--acceptance-rate", "0.6", "--draft-layer-share", "0.25"]) == 0
    runs = [read_run(path) for path in sorted(tmp_path.glob("*.parquet"))]
    assert {run.meta.engine_facts["drafter"] for run in runs} == {
        "self, acceptance 0.6",
        "self, layer share 0.25, acceptance 0.6",
    }
    half, quarter = sorted(runs, key=lambda run: len(run.meta.engine_facts["drafter"]))
    assert quarter.meta.measured_to_ns - quarter.meta.measured_from_ns < half.meta.measured_to_ns - half.meta.measured_from_ns
    capsys.readouterr()
    assert main(["simulate", workload, *flags, "--draft-layer-share", "0.25"]) == 2
    assert "Give --acceptance-rate or --acceptance-length beside" in " ".join(capsys.readouterr().err.split())


def test_drafts_of_a_simulated_target_are_knobs_like_its_flags(workload: str, tmp_path: Path) -> None:
    target = "a=simulated,engine=trtllm,set.enable_chunked_prefill=true,set.num_speculative_tokens=3,set.draft_method=self"
    assert main(["run", workload, "--target", target, "--num-runs", "1", "--output-dir", str(tmp_path / "r")]) == 0
    (path,) = (tmp_path / "r").glob("*.parquet")
    run = read_run(path)
    assert run.meta.engine_facts["speculator"]["method"] == "self"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("a=simulated,engine=vllm,set.draft_method=self", "nothing turns it on"),
        ("a=simulated,engine=vllm,set.num_speculative_tokens=3,set.draft_method=self", "Give draft_model there"),
    ],
)
def test_a_target_whose_drafts_nobody_makes_is_wrong_usage(
    target: str, said: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", workload, "--target", target, "--output-dir", str(tmp_path / "r")]) == 2
    assert said in capsys.readouterr().err


def test_the_embedded_engine_is_asked_before_it_is_started() -> None:
    check_embedded(Settings("sglang", knobs=("speculative_algorithm=STANDALONE", "draft-method=self")))
    with pytest.raises(UsageError, match="Give STANDALONE there"):
        check_embedded(Settings("sglang", knobs=("speculative_algorithm=EAGLE3", "draft_method=self")))
    with pytest.raises(UsageError, match="nothing turns it on"):
        check_embedded(Settings("vllm", knobs=("acceptance_rate=0.5",)))
    assert split_knobs(["a=1", "draft-method=self"], ["draft_method"]) == ({"draft_method": "self"}, ["a=1"])


def test_a_served_engine_tells_what_it_plays() -> None:
    flags = ("--num-speculative-tokens=3", "--draft-method=eagle3.1")
    with EmbeddedServer(EmbeddedOptions(engine="trtllm", flags=flags)) as server:
        found = probe(Target(engine="trtllm", endpoint=Endpoint.parse(server.base_url), model=None))
    assert found.announcement["drafter"] == "eagle3.1, claimed maximum"


def test_an_engine_that_does_not_speculate_has_no_drafts_to_play(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", workload, "--engine", "orca", "--draft-method", "self"]) == 2
    assert "nothing turns it on" in capsys.readouterr().err
