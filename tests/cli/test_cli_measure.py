"""Where a run goes when it is over and the disk does not take it."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripted_server import Received, ScriptedServer, Send, Steps, models, ok_stream, routes

from longbench_sched.cli.app import main
from longbench_sched.cli.measure import store
from longbench_sched.load import execute as execute_module
from longbench_sched.store.journal import Journal
from longbench_sched.store.parquet import read_run

OK = [Send(ok_stream(3, 32))]


@contextmanager
def _limits_restored() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _let_no_file_grow() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _run(tmp_path: Path, answer: Callable[[Received], Steps]) -> int:
    (tmp_path / "tiny.toml").write_text("isl = 32\nosl = 3\nconcurrency = 2\nrequests = 8\nwarmups = 0\n")
    table = {"GET /v1/models": [Send(models("m"))], "POST /v1/completions": answer}
    flags = ["--engine", "vllm", "--output-dir", str(tmp_path / "results")]
    with ScriptedServer(routes(table)) as server:
        return main(["run", str(tmp_path / "tiny.toml"), "--base-url", server.url, *flags])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_disk_that_fills_during_a_run_costs_neither_the_page_nor_what_was_written(
    tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Received) -> Steps:
        if request.headers["x-request-id"].endswith("-r3"):
            _let_no_file_grow()
        return OK

    with _limits_restored():
        assert _run(tmp_path, answer) == 2
    printed = capsys.readouterr()
    assert "8 ok" in printed.out
    assert printed.err.count("Error: ") == 1
    [left] = (tmp_path / "results").iterdir()
    assert f"only a part of the run is stored: {left}" in printed.err
    assert main(["show", str(left)]) == 0
    assert not list(temporary.iterdir())


def test_a_run_that_neither_its_file_nor_its_journal_can_hold_goes_into_the_temporary_folder(
    tmp_path: Path, temporary: Path
) -> None:
    assert _run(tmp_path, lambda _: OK) == 0
    [path] = (tmp_path / "results").iterdir()
    run = read_run(path)
    (tmp_path / "a file").touch()
    with _limits_restored(), Journal(tmp_path / "full.journal", run.meta) as log:
        _let_no_file_grow()
        log.note_meta(run.meta)
        log.close()
    assert log.failure is not None
    measured = store(run, tmp_path / "a file" / "full.parquet", log)
    assert read_run(measured.path).table.n == 8
    assert str(measured.path).startswith(str(temporary))
    assert measured.failure is not None
    assert f"stored as {measured.path} instead" in measured.failure
    assert not (tmp_path / "full.journal").exists()


def test_b13_an_interrupt_after_the_last_answer_tells_where_the_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the load, which has its own way with signals, and the storing, which holds them off."""

    def give_back_and_be_interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execute_module, "give_memory_back", give_back_and_be_interrupted)
    assert _run(tmp_path, lambda _: OK) == 130
    [left] = (tmp_path / "results").iterdir()
    assert f"Interrupted. What was measured is in {left}. To see it: `longbench-sched show {left}`." in capsys.readouterr().err
    assert main(["show", str(left)]) == 0
    assert "8 ok" in capsys.readouterr().out
