"""`check --measure-noise`: the candidate's experiment once more, against whatever kind of target it had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_server import Received, ScriptedServer, Send, Step, models, ok_stream

from longbench_sched.cli.app import main
from longbench_sched.store.catalogue import list_runs
from longbench_sched.store.meta import read_meta

WORKLOAD = 'title = "Tiny"\nisl = { min = 1000, max = 3000 }\nosl = 20\nconcurrency = 2\nrequests = 8\nwarmups = 0\n'
TARGETS = ["--target", "old=simulated,engine=vllm", "--target", "new=simulated,engine=vllm,set.max_num_batched_tokens=512"]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(WORKLOAD)
    return str(path)


def test_the_candidate_alone_is_measured_again_and_the_floor_is_shown(
    tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    assert main(["run", workload, *TARGETS, "--num-runs", "3", "--output-dir", str(folder)]) == 0
    before = list_runs(folder)
    capsys.readouterr()
    code = main(["check", "new", "--baseline", "old", "--measure-noise", "4", "--output-dir", str(folder)])
    printed = capsys.readouterr()
    assert code in (1, 3)
    assert "Noise floor" in printed.out
    assert list_runs(folder) == before  # so that `latest` is still the build
    metas = [read_meta(path) for path in list_runs(folder / "noise")]
    assert [meta.experiment["target"] for meta in metas] == ["new"] * 4
    assert {meta.seed for meta in metas}.isdisjoint(read_meta(path).seed for path in before)
    (again,) = [line.partition("--noise-floor ")[2].strip("'") for line in printed.err.splitlines() if "read it again" in line]
    assert main(["check", "new", "--baseline", "old", "--noise-floor", again, "--output-dir", str(folder)]) == code
    assert capsys.readouterr().out == printed.out


def test_a11_a_server_gets_prompts_that_it_has_not_seen_and_the_header_that_is_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(WORKLOAD.replace("{ min = 1000, max = 3000 }", "32").replace("osl = 20", "osl = 3"))
    folder = tmp_path / "r"
    bodies: list[bytes] = []

    def script(request: Received) -> list[Step]:
        if request.method == "GET":
            return [Send(models("m"))]
        bodies.append(request.body)
        return [Send(ok_stream(3, 32))]

    with ScriptedServer(script) as server:
        words = ["run", str(path), "--engine", "vllm", "--base-url", server.url, "--model", "m", "--num-runs", "2"]
        assert main([*words, "--cool-down", "0s", "--no-preflight", "--output-dir", str(folder)]) == 0
        check = ["check", "latest", "--baseline", "latest", "--measure-noise", "2", "--header", "x-team:secret-word"]
        assert main([*check, "--output-dir", str(folder)]) == 3  # two runs a side are too few to judge
    prompts = [json.dumps(json.loads(body)["prompt"]) for body in bodies]
    assert len(prompts) == 4 * 8
    assert len(set(prompts)) == len(prompts)
    sent = [b"x-team: secret-word" in request.head.lower() for request in server.requests if request.method == "POST"]
    assert sent == [False] * 16 + [True] * 16
    assert not [file for file in folder.rglob("*") if file.is_file() and b"secret-word" in file.read_bytes()]
    capsys.readouterr()
    assert main([*check, "--output-dir", str(folder)]) == 4
    assert "Is the candidate's engine still up?" in capsys.readouterr().err


def test_runs_of_no_experiment_say_how_to_measure_the_floor(
    tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", workload, "--output-dir", str(tmp_path)]) == 0
    check = ["check", "latest", "--baseline", "latest", "--output-dir", str(tmp_path), "--measure-noise", "3"]
    assert main(check) == 2
    assert "--num-runs 10" in capsys.readouterr().err
    assert main([*check, "--noise-floor", "latest"]) == 2
    assert "Give one of the two" in capsys.readouterr().err
