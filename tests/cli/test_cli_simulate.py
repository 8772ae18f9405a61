"""`simulate` as a user meets it."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from longbench_sched.cli.app import main

TINY = 'title = "Tiny"\nisl = 300\nosl = 5\nconcurrency = 2\nrequests = 8\nwarmups = 0\n'


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def test_a_simulated_run_is_printed_stored_and_shown_again(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "results")
    assert main(["simulate", workload, "--engine", "sglang", "--output-dir", folder, "--chunked-prefill-size", "128"]) == 0
    printed = capsys.readouterr()
    assert "tiny on sglang 0.5.23+simulated (simulated)" in printed.out
    assert "token budget 128" in printed.out
    assert "virtual stamps" in printed.out
    assert "8 ok" in printed.out
    assert "steps, simulated in" in printed.err
    assert max(len(line) for line in printed.out.splitlines() if str(tmp_path) not in line) <= 80
    assert main(["show", "latest", "--output-dir", folder]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[:12] == printed.out.splitlines()[:12]


def test_flags_of_the_load_are_those_of_run(workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--isl", "1k", "--osl", "3", "--num-prompts", "5", "--request-rate", "20", "--seed", "3", "--export", str(out)]
    assert main(["simulate", workload, "--output-dir", str(tmp_path / "r"), *flags]) == 0
    meta = json.loads(out.read_text())["runs"][0]["meta"]
    assert (meta["plan"]["isl"]["mean"], meta["plan"]["osl"]["mean"], meta["plan"]["requests"]) == (1000, 3, 5)
    assert (meta["seed"], meta["plan"]["lanes"][0]["loop"], meta["simulated"]) == (3, "open", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--chunked-prefil-size", "2048"], "Did you mean", id="an engine's flag, mistyped"),
        pytest.param(["--gpu", "H201"], "H201", id="a GPU nobody knows"),
        pytest.param(["--engine", "vlm"], "vlm", id="an engine nobody knows"),
        pytest.param(["--acceptance-length", "2Ki"], "CONTEXT:TOKENS", id="a table without tokens"),
        pytest.param(["--acceptance-rate", "0.5"], "are of speculation, and nothing", id="a wish about drafts, and no drafts"),
        pytest.param(["--speculative-algorithm", "HYDRA"], "Known: EAGLE", id="a drafter nobody knows"),
    ],
)
def test_wrong_usage_is_said_in_one_line(
    arguments: list[str], said: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = [] if "--engine" in arguments else ["--engine", "sglang"]
    assert main(["simulate", workload, "--output-dir", str(tmp_path), *engine, *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet"))


def test_the_workload_comes_before_the_flags_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--chunked-prefill-size", "2048", "smoke"]) == 2
    assert "the workload comes first" in capsys.readouterr().err


def test_requests_that_the_scheduler_refuses_fail_the_run(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", workload, "--engine", "trtllm", "--max_num_tokens", "64", "--output-dir", str(tmp_path)]) == 4
    assert "8 x HTTP 400" in capsys.readouterr().out


def test_a_sweep_is_stored_cell_by_cell_and_shown_in_one_table(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    sweep = ["--sweep", "chunked_prefill_size=64,128", "--sweep", "concurrency=1,2", "--workers", "1"]
    assert main(["simulate", workload, "--engine", "sglang", "--output-dir", str(folder), *sweep]) == 0
    printed = capsys.readouterr().out
    assert "4 runs of tiny (simulated)" in printed
    rows = [line.split()[:2] for line in printed.splitlines() if line.split()[:1] in (["64"], ["128"])]
    assert rows == [["64", "1"], ["64", "2"], ["128", "1"], ["128", "2"]]
    names = sorted(path.stem.partition("sglang-")[2] for path in folder.glob("*.parquet"))
    assert names == [f"tiny-chunked_prefill_size-{chunk}-concurrency-{n}" for chunk in (128, 64) for n in (1, 2)]
    assert main(["show", *sorted(map(str, folder.glob("*.parquet")))]) == 0
    assert "4 runs of tiny (simulated)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("n_stored", "shown", "others"),
    [
        pytest.param(0, [], "chunked_prefill_size=64,128 --sweep concurrency=1,2", id="none"),
        pytest.param(1, ["64-concurrency-1.parquet"], "chunked_prefill_size=64,128 --sweep concurrency=2,1", id="one"),
        pytest.param(2, ["64-concurrency-*"], "chunked_prefill_size=128 --sweep concurrency=1,2", id="a row"),
        pytest.param(4, ["*"], None, id="all, and no page yet"),
    ],
)
def test_b13_an_interrupted_sweep_says_which_cells_are_stored_and_how_to_go_on(
    n_stored: int,
    shown: list[str],
    others: str | None,
    workload: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, page = tmp_path / "results", tmp_path / "page.md"
    put = os.replace
    n_put = 0

    def interrupted(draft: str, path: Path) -> None:
        """Ctrl-C when so many files are in their place."""
        nonlocal n_put
        if n_put < n_stored:
            put(draft, path)
            n_put += 1
        if n_put == n_stored:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    sweep = ["--sweep", "chunked_prefill_size=64,128", "--sweep", "concurrency=1,2", "--workers", "1"]
    arguments = ["simulate", workload, "--engine", "sglang", "--output-dir", str(folder), "--export", str(page), *sweep]
    assert main(arguments) == 130
    monkeypatch.undo()
    first, *rest = capsys.readouterr().err.splitlines()
    stem = str(min(folder.iterdir(), default=folder)).partition("chunked_prefill_size")[0] + "chunked_prefill_size-"
    names = [stem + name for name in shown]
    see = f" To see {'it' if n_stored == 1 else 'them'}: `{shlex.join(['longbench-sched', 'show', *names])}`." if shown else ""
    assert first == f"Interrupted. {n_stored} of 4 cells are stored in {folder}.{see}"
    wanted = [f"  To simulate the others: the same command with `--sweep {others}`."] if others else []
    if shown:
        report = shlex.join(["longbench-sched", "report", *names, "--export", str(page)])
        wanted.append(f"  To write {page}: `{report}`.")
        assert main(["show", *names]) == 0
    assert rest == wanted


def test_a_cell_that_cannot_run_is_said_after_the_table(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", workload, "--output-dir", str(tmp_path), "--sweep", "isl=300,40k", "--workers", "1"]
    assert main(arguments) == 4
    printed = capsys.readouterr()
    assert "1 runs in" not in printed.err
    assert "300" in printed.out
    assert "isl=40k: the simulated vllm accepts 32768 tokens" in printed.err


def test_a_calibration_file_is_read_and_stored_with_the_run(workload: str, tmp_path: Path) -> None:
    from longbench_sched.sim.calibration import Calibration, to_json

    fitted = tmp_path / "fit.json"
    fitted.write_text(json.dumps(to_json(Calibration().with_values("mine", attention_eff=0.33))))
    out = tmp_path / "out.json"
    arguments = ["--calibration", str(fitted), "--output-dir", str(tmp_path / "r"), "--export", str(out)]
    assert main(["simulate", workload, *arguments]) == 0
    assert json.loads(out.read_text())["runs"][0]["meta"]["engine_facts"]["calibration"]["attention_eff"] == 0.33


@pytest.mark.parametrize("content", [None, "{", "{}"], ids=["missing", "no JSON", "no calibration"])
def test_a_file_that_is_no_calibration_is_wrong_usage(
    content: str | None, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fit.json"
    if content is not None:
        path.write_text(content)
    assert main(["simulate", workload, "--calibration", str(path), "--output-dir", str(tmp_path)]) == 2
    assert "fit.json" in capsys.readouterr().err


def test_a_trace_is_stored_shown_with_its_run_and_drawn(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, trace, picture = tmp_path / "results", tmp_path / "results" / "mine.steps.parquet", tmp_path / "steps.svg"
    assert main(["simulate", workload, "--engine", "sglang", "--output-dir", str(folder), "--trace", str(trace)]) == 0
    assert "Steps by phase" in capsys.readouterr().out
    assert main(["show", "latest", "--output-dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "Steps by phase" in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    assert main(["report", "latest", "--output-dir", str(folder), "--timeline", str(picture)]) == 0
    assert not capsys.readouterr().out
    assert picture.read_text().startswith("<svg ")
    assert main(["report", "latest", "--output-dir", str(folder), "--timeline", str(picture), "--export", "-"]) == 0
    assert "### Steps by phase" in capsys.readouterr().out
    assert main(["report", "latest", "--output-dir", str(folder), "--timeline", str(picture), "--from", "1h"]) == 2
    assert "--from 3600s lies after the last step, at " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "title", "rows"),
    [
        pytest.param(["-pp", "2"], "Steps by stage and phase", ["stage 0", "stage 1"], id="stages"),
        pytest.param(
            ["--disaggregation", "mooncake-like", "--prefill-engines", "2"],
            "Steps by pool and phase",
            ["prefill 0", "prefill 1", "decode"],
            id="pools",
        ),
        pytest.param(
            ["--disaggregation", "none", "--prefill-engines", "1", "-pp", "2"],
            "Steps by stage and phase",
            ["engine 0 stage 0", "engine 0 stage 1", "engine 1 stage 0", "engine 1 stage 1"],
            id="engines of stages side by side",
        ),
    ],
)
def test_a_trace_of_what_goes_on_at_once_is_shown_and_drawn(
    arguments: list[str], title: str, rows: list[str], workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, trace, picture = tmp_path / "results", tmp_path / "results" / "mine.steps.parquet", tmp_path / "steps.svg"
    assert main(["simulate", workload, *arguments, "--output-dir", str(folder), "--trace", str(trace)]) == 0
    capsys.readouterr()
    assert main(["show", "latest", "--output-dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert title in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    assert main(["report", "latest", "--output-dir", str(folder), "--timeline", str(picture)]) == 0
    assert all(f">{row}<" in picture.read_text() for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--timeline", "x.png"], "Let the name end in .svg", id="another format"),
        pytest.param(["--from", "1s"], "Give --timeline", id="a part of nothing"),
        pytest.param(["--timeline", "x.svg", "--from", "2s", "--to", "1s"], "is not before", id="backwards"),
        pytest.param(["--timeline", "x.svg"], "there is no step trace", id="no trace"),
        pytest.param(["--trace", "nothing.parquet"], "no such file", id="a trace that is not there"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_wrong_usage(
    arguments: list[str],
    said: str,
    workload: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", workload]) == 0
    capsys.readouterr()
    assert main(["report", "latest", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_may_not_look_like_a_run(workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", workload, "--output-dir", str(tmp_path), "--trace", str(tmp_path / "x.parquet")]) == 2
    assert "must not look like one" in capsys.readouterr().err
    assert main(["simulate", workload, "--trace", "steps.parquet", "--sweep", "isl=10,20"]) == 2
    assert "--trace is of one run" in capsys.readouterr().err


def test_speculation_is_simulated_with_several_tokens_a_chunk(workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}', "--acceptance-rate", "1"]
    arguments = ["--osl", "9", "--output-dir", str(tmp_path / "r"), "--export", str(out), *flags]
    assert main(["simulate", workload, *arguments]) == 0
    run = json.loads(out.read_text())["runs"][0]
    assert run["meta"]["engine_facts"]["speculator"]["method"] == "eagle3"
    # 9 tokens: one with the prompt, then four and four.
    assert run["facts"]["packing"]["mean"] == 3.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--engine", "vllm", "-tp", "2"], "2 GPUs · TP 2", id="vLLM's short flag"),
        pytest.param(
            ["--engine", "sglang", "--pp-size", "4", "--enable-dynamic-chunking"], "4 GPUs · PP 4", id="SGLang stages"
        ),
        pytest.param(["--engine", "trtllm", "--tp_size=2", "--pp_size=2"], "4 GPUs · TP 2 · PP 2", id="TensorRT-LLM, both"),
        pytest.param(
            ["--engine", "sglang", "--disaggregation", "mooncake-like", "--prefill-engines", "2", "--decode-engines", "2"],
            "role 2 prefill + 2 decode, mooncake-like · 4 GPUs",
            id="pools",
        ),
    ],
)
def test_engines_over_several_gpus_are_named_with_them(
    arguments: list[str], said: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "results")
    assert main(["simulate", workload, "--output-dir", folder, *arguments]) == 0
    printed = capsys.readouterr().out
    assert said in " ".join(printed.split())
    assert "8 ok" in printed
    assert max(len(line) for line in printed.splitlines() if str(tmp_path) not in line) <= 80
    assert main(["simulate", workload, "--output-dir", folder, *arguments, "--seed", "1"]) == 0
    runs = sorted(str(path) for path in Path(folder).glob("*.parquet"))
    assert main(["show", "--output-dir", folder, *runs]) == 0
    assert "2 runs of" in capsys.readouterr().out
    assert main(["report", runs[0], "--output-dir", folder]) == 0
    assert said in " ".join(capsys.readouterr().out.replace("&nbsp;", " ").split())
    assert main(["compare", *runs, "--output-dir", folder]) in (0, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["-tp", "8"], "a tensor-parallel size of 8 does not divide them", id="heads"),
        pytest.param(["-pp", "99"], "99 pipeline stages are more than that", id="layers"),
        pytest.param(["-tp", "0"], "--tp: 0 is too small", id="no GPU"),
        pytest.param(["--decode-engines", "2"], "Say which way", id="pools without a way"),
        pytest.param(["--disaggregation", "dynamo"], "Did you mean dynamo-like?", id="a way nobody knows"),
        pytest.param(["--disaggregation", "dynamo-like", "-pp", "2"], "pipeline stages are not played", id="pools of stages"),
    ],
)
def test_what_cannot_be_spread_over_gpus_is_said_in_one_error(
    arguments: list[str],
    said: str,
    workload: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", workload, "--output-dir", str(tmp_path / "results"), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("Error:") == 1
    assert "Traceback" not in error
