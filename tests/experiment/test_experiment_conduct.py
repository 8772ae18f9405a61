"""Runs one after the other: failures cost no other run, and what is finished is not run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longbench_sched.errors import StoreError, TargetError
from longbench_sched.experiment.conduct import Made, Result, Turn, conduct, open_cells
from longbench_sched.experiment.matrix import Experiment, LoadSpec, TargetSpec
from longbench_sched.experiment.order import make_cells
from longbench_sched.experiment.resume import ENDING, Ledger, read_ledger

FIVE = Experiment("x", "x", (TargetSpec("a", "vllm", "url", "http://a:1"),), (LoadSpec("w"),), repeats=5, cool_down_s=2.0)
DONE = Made(is_complete=True)


def ledger_in(folder: Path) -> Ledger:
    ledger = Ledger("exp", folder, FIVE, {"seed": 0})
    ledger.create()
    return ledger


def run_all(ledger: Ledger, make: Callable[[Turn], Made]) -> tuple[list[Result], list[float], list[Turn]]:
    """Each run takes ten seconds; what came of them, the pauses, and the turns."""
    pauses: list[float] = []
    turns: list[Turn] = []
    clock = [0.0]

    def timed(turn: Turn) -> Made:
        turns.append(turn)
        clock[0] += 10.0
        return make(turn)

    results = conduct(make_cells(FIVE), ledger, timed, now_s=lambda: clock[0], pause=pauses.append)
    return results, pauses, turns


def test_every_cell_is_run_once_with_a_pause_between(tmp_path: Path) -> None:
    results, pauses, turns = run_all(ledger_in(tmp_path), lambda turn: DONE)
    assert [(result.run_id, result.how) for result in results] == [(f"exp.{i}", "done") for i in range(1, 6)]
    assert pauses == [2.0] * 4
    # Ten seconds a run and two seconds between runs.
    assert [turn.left_s for turn in turns] == [None, 46.0, 34.0, 22.0, 10.0]


def test_b12_a_cell_that_fails_is_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    def make(turn: Turn) -> Made:
        if turn.cell.block == 1:
            raise TargetError("cannot reach vllm")
        return Made(is_complete=False, detail="too late") if turn.cell.block == 3 else DONE

    ledger = ledger_in(tmp_path)
    results, _, _ = run_all(ledger, make)
    assert [result.how for result in results] == ["done", "failed", "done", "failed", "done"]
    again = read_ledger("exp", tmp_path)
    assert [cell.block for cell in open_cells(make_cells(FIVE), again)] == [1, 3]
    assert '"cannot reach vllm"' in ledger.path.read_text()


def test_b12_after_a_crash_only_what_is_missing_is_run(tmp_path: Path) -> None:
    """Killed in the fourth of five: the ledger says that it began, and nothing of its end."""

    def make(turn: Turn) -> Made:
        if turn.number == 4:
            raise KeyboardInterrupt
        return DONE

    with pytest.raises(KeyboardInterrupt):
        run_all(ledger_in(tmp_path), make)
    results, _, turns = run_all(read_ledger("latest", tmp_path), lambda turn: DONE)
    assert [(result.run_id, turn.attempt) for result, turn in zip(results, turns, strict=True)] == [
        ("exp.4-2", 2),
        ("exp.5", 1),
    ]
    assert open_cells(make_cells(FIVE), read_ledger("exp", tmp_path)) == []


def test_an_interrupt_ends_the_whole(tmp_path: Path) -> None:
    results, _, _ = run_all(
        ledger_in(tmp_path), lambda turn: Made(is_complete=False, stops=turn.number == 2) if turn.number == 2 else DONE
    )
    assert [result.how for result in results] == ["done", "interrupted"]
    assert [cell.block for cell in open_cells(make_cells(FIVE), read_ledger("exp", tmp_path))] == [1, 2, 3, 4]


def test_a_bug_is_not_taken_for_a_cell_that_failed(tmp_path: Path) -> None:
    def make(turn: Turn) -> Made:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all(ledger_in(tmp_path), make)


def test_a_ledger_that_was_cut_in_its_last_line_is_read(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    run_all(ledger, lambda turn: DONE)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-20])
    again = read_ledger("exp", tmp_path)
    assert [cell.block for cell in open_cells(make_cells(FIVE), again)] == [4]
    assert again.flags == {"seed": 0}


def test_b12_what_is_noted_after_a_cut_line_is_not_lost(tmp_path: Path) -> None:
    """Killed within the line that says that cell 4 begins: what resuming notes must not be glued to it."""
    ledger = ledger_in(tmp_path)
    run_all(ledger, lambda turn: DONE)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:7]) + lines[7][:12])
    results, _, _ = run_all(read_ledger("exp", tmp_path), lambda turn: DONE)
    assert [result.run_id for result in results] == ["exp.4", "exp.5"]
    assert open_cells(make_cells(FIVE), read_ledger("exp", tmp_path)) == []


def test_two_experiments_of_one_id_are_not_written_into_one_ledger(tmp_path: Path) -> None:
    ledger_in(tmp_path)
    with pytest.raises(StoreError, match="another experiment began in the same moment"):
        ledger_in(tmp_path)


def test_an_experiment_that_is_being_run_is_not_run_by_another(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    again = read_ledger("exp", tmp_path)
    with ledger.held(), pytest.raises(StoreError, match="being run by another process"), again.held():
        pass
    with read_ledger("exp", tmp_path).held():
        pass


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no experiments of that name"):
        read_ledger("latest", tmp_path)
    path = tmp_path / f"x{ENDING}"
    for text, message in (
        ("", "damaged"),
        ("[]\n", "damaged"),
        ('{"schema_version": 9}\n', "newer"),
        ('{"schema_version": 1}\n', "is no experiment"),
    ):
        path.write_text(text)
        with pytest.raises(StoreError, match=message):
            read_ledger("x", tmp_path)
