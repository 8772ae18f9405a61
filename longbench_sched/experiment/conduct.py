"""Conduct: makes the runs of an experiment, one after the other, and loses none that is made.

A cell that fails is noted, and the rest go on; Ctrl-C ends the whole after the run in progress has been stored. What it takes
to make one run (a server, a simulation, a progress line) is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from longbench_sched.errors import LongbenchError
from longbench_sched.experiment.order import Cell
from longbench_sched.experiment.resume import Ended, Ledger


@dataclass(frozen=True, slots=True)
class Made:
    """How making one run went."""

    is_complete: bool
    stops: bool = False  # the user wants an end
    detail: str | None = None  # why it is not complete


@dataclass(frozen=True, slots=True)
class Turn:
    """One cell's turn."""

    cell: Cell
    run_id: str
    attempt: int
    number: int  # 1 = the first of those to be run now
    total: int
    left_s: float | None  # an estimate for this cell and all after it


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a cell."""

    cell: Cell
    run_id: str
    how: Ended
    error: LongbenchError | None = None
    detail: str | None = None


class Maker(Protocol):
    """Makes one run and stores it."""

    def __call__(self, turn: Turn) -> Made:
        """Raises LongbenchError if it cannot be made."""
        ...


def open_cells(cells: Sequence[Cell], ledger: Ledger) -> list[Cell]:
    """The cells that are not finished."""
    return [cell for cell in cells if ledger.finished(cell.key) is None]


def conduct(
    cells: Sequence[Cell],
    ledger: Ledger,
    make: Maker,
    *,
    now_s: Callable[[], float],
    pause: Callable[[float], None],
    on_end: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Make every cell that is not finished; what became of them. Raises StoreError if the ledger cannot be written."""
    left = open_cells(cells, ledger)
    results: list[Result] = []
    took_s: list[float] = []
    for number, cell in enumerate(left, 1):
        if took_s and ledger.experiment.cool_down_s:
            pause(ledger.experiment.cool_down_s)
        run_id, attempt = ledger.begin(cell.key)
        turn = Turn(cell, run_id, attempt, number, len(left), _left_s(took_s, len(left) - number + 1, ledger))
        began_s = now_s()
        result = _make(turn, make)
        if result.how == "done":
            took_s.append(now_s() - began_s)
        ledger.end(run_id, result.how, str(result.error) if result.error else result.detail)
        results.append(result)
        on_end(result)
        if result.how == "interrupted":
            break
    return results


def _make(turn: Turn, make: Maker) -> Result:
    try:
        made = make(turn)
    except LongbenchError as error:
        return Result(turn.cell, turn.run_id, "failed", error)
    how: Ended = "interrupted" if made.stops else "done" if made.is_complete else "failed"
    return Result(turn.cell, turn.run_id, how, detail=made.detail)


def _left_s(took_s: Sequence[float], n_left: int, ledger: Ledger) -> float | None:
    """Time for `n_left` cells at the mean pace so far, cool-downs included; None before the first."""
    if not took_s:
        return None
    return n_left * (sum(took_s) / len(took_s)) + (n_left - 1) * ledger.experiment.cool_down_s
