"""`run` with several targets, loads and repeats: against scripted servers and simulated engines, to the exit code."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_server import Received, ScriptedServer, Send, Silence, Step, models, ok_stream, stream_head

from longbench_sched.cli.app import main
from longbench_sched.experiment.resume import read_ledger
from longbench_sched.store.parquet import read_run

ISL, OSL = 32, 3
WORKLOAD = f'title = "Tiny"\nisl = {ISL}\nosl = {OSL}\nconcurrency = 2\nrequests = 8\nwarmups = 0\n'
OK = ok_stream(OSL, ISL)
QUICK = ["--cool-down", "0s", "--no-preflight"]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(WORKLOAD)
    return str(path)


class Script:
    """Answers well, but for the completions with these numbers (0 = the first), which never end."""

    def __init__(self, silent: range | tuple[int, ...] = ()) -> None:
        self._silent = silent
        self._numbers = itertools.count()

    def __call__(self, request: Received) -> list[Step]:
        if request.method == "GET":
            return [Send(models("m"))]
        if next(self._numbers) in self._silent:
            return [Send(stream_head()), Silence()]
        return [Send(OK)]


def measuring(workload: object, server: ScriptedServer, runs: int) -> list[str]:
    """The command for so many runs against that server."""
    words = ["run", str(workload), "--engine", "vllm", "--base-url", server.url, "--model", "m", "--num-runs", str(runs)]
    return [*words, *QUICK]


def statuses(path: Path) -> list[str | None]:
    return list(read_run(path).table.texts["status"])


def runs_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_b11_a_stream_that_never_ends_costs_its_cell_one_timeout_and_no_other_cell(tmp_path: Path) -> None:
    """Five cells of 64 requests; in cell 2 one of them never ends."""
    path = tmp_path / "wide.toml"
    path.write_text(WORKLOAD.replace("concurrency = 2", "concurrency = 64").replace("requests = 8", "requests = 64"))
    with ScriptedServer(Script(silent=(70,))) as server:
        code = main(
            [
                "run",
                str(path),
                "--engine",
                "vllm",
                "--base-url",
                server.url,
                "--model",
                "m",
                "--num-runs",
                "5",
                *QUICK,
                "--timeout-first-token",
                "1s",
                "--output-dir",
                str(tmp_path / "r"),
            ]
        )
    assert code == 0
    found = [statuses(run) for run in runs_of(tmp_path / "r")]
    assert [(len(rows), rows.count("timeout"), rows.count("ok")) for rows in found] == [
        (64, 0, 64), (64, 1, 63), (64, 0, 64), (64, 0, 64), (64, 0, 64),
    ]  # fmt: skip


def test_b11_a_cell_that_hangs_is_ended_at_its_deadline_and_the_rest_go_on(
    tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(Script(silent=(4, 5))) as server:
        code = main(
            [
                "run",
                workload,
                "--engine",
                "vllm",
                "--base-url",
                server.url,
                "--model",
                "m",
                "--num-runs",
                "2",
                *QUICK,
                "--deadline",
                "1s",
                "--output-dir",
                str(tmp_path / "r"),
            ]
        )
    assert code == 4
    printed = capsys.readouterr().err
    assert "deadline" in printed
    assert "1 of 2 runs are missing. To run them: `longbench-sched run --resume" in printed
    first, second = runs_of(tmp_path / "r")
    assert statuses(first).count("cancelled") == 2
    assert not read_run(first).meta.complete
    assert statuses(second) == ["ok"] * 8


def test_b12_after_kill_9_in_the_fourth_cell_three_are_readable_and_resume_runs_only_4_and_5(
    tmp_path: Path, workload: str
) -> None:
    folder = tmp_path / "r"
    with ScriptedServer(Script(silent=range(24, 26))) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "longbench_sched", *measuring(workload, server, 5), "--output-dir", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            server.wait_for(lambda s: sum(r.method == "POST" for r in s.requests) >= 26, timeout_s=60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert [statuses(run) for run in runs_of(folder)] == [["ok"] * 8] * 3
        assert main(["run", "--resume", "latest", "--output-dir", str(folder)]) == 0
        ends = [json.loads(line) for line in read_ledger("latest", folder).path.read_text().splitlines()]
        assert sum(request.method == "POST" for request in server.requests) == 24 + 2 + 16
    assert [line["end"].rpartition(".")[2] for line in ends if "end" in line] == ["1", "2", "3", "4-2", "5"]


def test_a11_a_cell_served_from_a_warm_cache_is_marked(
    tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = itertools.count()

    def script(request: Received) -> list[Step]:
        if request.method == "GET":
            return [Send(models("m"))]
        from scripted_server import DONE, chunked, token, usage

        cached = 31 if next(numbers) >= 8 else 0
        return [Send(stream_head() + chunked(token(), token(), token(finish="length"), usage(ISL, OSL, cached), DONE))]

    with ScriptedServer(script) as server:
        code = main(
            [
                "run",
                workload,
                "--engine",
                "vllm",
                "--base-url",
                server.url,
                "--model",
                "m",
                "--num-runs",
                "2",
                *QUICK,
                "--output-dir",
                str(tmp_path / "r"),
            ]
        )
    assert code == 0
    printed = capsys.readouterr().out
    assert "2 runs of tiny together, " in printed
    assert "cache-assisted" in printed
    assert "Warning CACHE-ASSISTED: " in printed


TARGETS = [
    "--target", "plain=simulated,engine=vllm",
    "--target", "chunked=simulated,engine=vllm,set.max_num_batched_tokens=512",
]  # fmt: skip


@pytest.fixture
def longer(tmp_path: Path) -> str:
    path = tmp_path / "longer.toml"
    path.write_text(WORKLOAD.replace(f"isl = {ISL}", "isl = { min = 1000, max = 3000 }").replace(f"osl = {OSL}", "osl = 20"))
    return str(path)


def test_simulated_targets_are_targets_like_any_other(tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]) -> None:
    exports = ["--export", str(tmp_path / "out.md"), "--export", str(tmp_path / "out.csv")]
    assert main(["run", longer, *TARGETS, "--num-runs", "3", "--output-dir", str(tmp_path / "r"), *exports]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("plain against chunked (simulated)")
    assert "paired by block" in printed.out
    assert "6/6 chunked" in printed.err or "6/6 plain" in printed.err
    metas = [read_run(path).meta for path in runs_of(tmp_path / "r")]
    assert sorted((meta.experiment["target"], meta.experiment["block"]) for meta in metas) == [
        (target, block) for target in ("chunked", "plain") for block in range(3)
    ]
    schedules = {(meta.experiment["block"], meta.plan["extra"]["schedule_digest"]) for meta in metas}
    assert len(schedules) == 3  # one a block, the same for both targets
    assert main(["check", "chunked", "--baseline", "plain", "--output-dir", str(tmp_path / "r")]) in (0, 1, 3)


def test_simulated_targets_may_be_several_engines(tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two engines that do both against a prefill engine and two for decode: throughput is compared a GPU."""
    together = "together=simulated,engine=vllm,set.disaggregation=none,set.decode_engines=1"
    apart = "apart=simulated,engine=vllm,set.disaggregation=dynamo-like,set.decode_engines=2,set.prefill_flags=-tp 2"
    folder = ["--output-dir", str(tmp_path / "r")]
    assert main(["run", longer, "--target", together, "--target", apart, "--num-runs", "2", *folder]) == 0
    assert "tok/s/GPU" in capsys.readouterr().out
    gpus = {
        meta.experiment["target"]: meta.engine_facts["gpus"] for meta in (read_run(p).meta for p in runs_of(tmp_path / "r"))
    }
    assert gpus == {"together": 2, "apart": 4}
    alone = "alone=simulated,engine=vllm,set.decode_engines=2"
    assert main(["run", longer, "--target", together, "--target", alone, *folder]) == 2
    assert "Say which way" in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_run_and_leaves_nothing(
    tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", longer, *TARGETS, "--num-runs", "2", "--dry-run", "--output-dir", str(tmp_path / "r")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "targets 2 x loads 1 x blocks 2 = 4 runs, order abba, blocks differ in schedule"
    assert [line.split()[3] for line in lines[1:5]] == ["plain", "chunked", "chunked", "plain"]
    assert lines[-1].endswith("Nothing was sent.")
    assert not (tmp_path / "r").exists()


def test_an_experiment_of_a_file_is_run_and_finished_cells_are_kept(
    tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chunks.toml"
    path.write_text(
        f'repeats = 2\n[[load]]\nuse = "{longer}"\nconcurrency = [1, 4]\n'
        '[[target]]\nname = "a"\nengine = "vllm"\nsimulated = true\n'
        '[[target]]\nname = "b"\nengine = "sglang"\nsimulated = true\n'
    )
    folder = str(tmp_path / "r")
    assert main(["run", str(path), "--output-dir", folder]) == 0
    assert "change over concurrency" in capsys.readouterr().out
    before = {run: run.stat().st_mtime_ns for run in runs_of(tmp_path / "r")}
    assert len(before) == 8
    assert main(["run", "--resume", "latest", "--output-dir", folder]) == 0
    assert {run: run.stat().st_mtime_ns for run in runs_of(tmp_path / "r")} == before
    assert "0 of 8 runs left" in capsys.readouterr().err


@pytest.fixture
def no_collector_callbacks() -> Iterator[None]:
    """An alarm that falls into one of hypothesis' is lost, with a warning."""
    kept = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = kept


@pytest.mark.usefixtures("no_collector_callbacks")
def test_b11_a_simulation_that_takes_too_long_is_ended_at_its_deadline_and_the_rest_go_on(
    tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first load would take minutes to simulate."""
    path = tmp_path / "sizes.toml"
    path.write_text(
        f'repeats = 1\ndeadline = "2s"\n[[load]]\nuse = "{longer}"\nnum_prompts = [300000, 8]\n'
        '[[target]]\nname = "a"\nengine = "vllm"\nsimulated = true\n'
    )
    assert main(["run", str(path), "--output-dir", str(tmp_path / "r")]) == 4
    printed = capsys.readouterr().err
    assert "its deadline of 2.00 s passed. The other runs go on." in printed.replace("\u00a0", " ")
    assert "1 of 2 runs are missing" in printed
    (run,) = runs_of(tmp_path / "r")
    assert statuses(run) == ["ok"] * 8


def test_a_target_that_cannot_be_reached_costs_only_its_own_cells(
    tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(Script()) as server:
        targets = ["--target", "gone=http://127.0.0.1:9,engine=vllm", "--target", f"here={server.url},engine=vllm"]
        code = main(["run", workload, *targets, "--num-runs", "2", "--cool-down", "0s", "--output-dir", str(tmp_path / "r")])
    assert code == 4
    assert [path.name.split(".")[1] for path in runs_of(tmp_path / "r")] == ["here", "here"]
    assert capsys.readouterr().err.count("failed: cannot reach vllm") == 2


@pytest.mark.parametrize("has_another", [True, False], ids=["another is good", "none is"])
def test_a_target_that_fails_its_requests_costs_no_other_and_no_export(
    tmp_path: Path, workload: str, has_another: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every second request of `bad` is refused: it is left out by name, and what can be compared is."""
    numbers = itertools.count()

    def bad(request: Received) -> list[Step]:
        if request.method == "POST" and next(numbers) % 2:
            return [Send(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}")]
        return Script()(request)

    out = tmp_path / "out.md"
    with ScriptedServer(Script()) as server, ScriptedServer(bad) as failing, ScriptedServer(Script()) as other:
        servers = {"good": server, "bad": failing, **({"also": other} if has_another else {})}
        targets = [word for name, one in servers.items() for word in ("--target", f"{name}={one.url},engine=vllm,model=m")]
        words = ["run", workload, *targets, "--num-runs", "2", *QUICK, "--output-dir", str(tmp_path / "r")]
        assert main([*words, "--export", str(out)]) == 4
    printed = capsys.readouterr()
    if has_another:
        assert "bad, tiny is left out." in out.read_text()
        assert "tiny, also, " in printed.out
    else:
        assert "bad cannot be compared with the base (failures)" in printed.err
        assert "bad block 2" in out.read_text()


def test_a_seed_of_0_stands_over_that_of_the_file(tmp_path: Path, longer: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seeded.toml"
    path.write_text(
        f'repeats = 1\nseed = 7\nworkload = "{longer}"\n[[target]]\nname = "a"\nengine = "vllm"\nsimulated = true\n'
    )

    def plan(*words: str) -> str:
        assert main(["run", str(path), "--dry-run", *words]) == 0
        return capsys.readouterr().out

    assert plan("--seed", "7") == plan() != plan("--seed", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which workload?"),
        (["--resume", "latest"], "no experiments of that name"),
        (
            ["WORKLOAD", "--target", "a=simulated,engine=vllm", "--engine", "vllm"],
            "--engine: --target says which engines are measured",
        ),
        (["WORKLOAD", "--target", "a=simulated,engine=vlm"], "Did you mean vllm"),
        (["WORKLOAD", "--target", "a=simulated,engine=vllm,set.max_num_batched_token=5"], "Did you mean"),
        (["WORKLOAD", "--target", "a=simulated,engine=vllm,gpu=H201"], "H201"),
        (["WORKLOAD", "--target", "a=embedded,engine=vllm", "--time-scale", "5"], "--time-scale: --target says which"),
        (["WORKLOAD", "--target", "a=http://x,engine=vllm", "--api-key-env", "KEY"], "--api-key-env: --target says which"),
        (["--resume", "latest", "--num-runs", "9"], "--num-runs: --resume goes on as the experiment began"),
        (["WORKLOAD", "--target", "a=http://me:hunter2@x,engine=vllm"], "target a: its address holds a password"),
        (
            ["WORKLOAD", "--num-runs", "2", "--engine", "vllm", "--base-url", "http://me:hunter2@x"],
            "its address holds a password",
        ),
        (["WORKLOAD", "--resume", "latest"], "the workload: --resume goes on"),
        (
            ["WORKLOAD", "--target", "a=simulated,engine=vllm", "--target", "b=simulated,engine=vllm,set.block_size=x"],
            "target b: --block_size",
        ),
        (["WORKLOAD", "--num-runs", "2", "--order", "sorted"], "Known: abba, random"),
        (["nothing", "--num-runs", "2"], "no workload named"),
        (["WORKLOAD", "--num-runs", "2", "--base-url", "http://x"], "--base-url needs --engine"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is_sent(
    tmp_path: Path, workload: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [workload if word == "WORKLOAD" else word for word in words]
    assert main(["run", *words, "--output-dir", str(tmp_path / "r")]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "hunter2" not in printed
    assert runs_of(tmp_path / "r") == []
    assert not list(tmp_path.rglob("*.jsonl"))
