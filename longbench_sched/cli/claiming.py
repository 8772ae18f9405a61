"""The claims that were asked for -> answers -> text."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longbench_sched.cli import output
from longbench_sched.cli.engine_flags import one_of
from longbench_sched.cli.exports import STDOUT, Export, write_each
from longbench_sched.errors import UsageError
from longbench_sched.experiment.claims import Answered, Claim, Grid, choose
from longbench_sched.experiment.claims_answered import answer_claim
from longbench_sched.experiment.tables import TABLES
from longbench_sched.report import markdown
from longbench_sched.report.claims import build_claims_page, render_grids, render_json, render_lines


@dataclass(frozen=True, slots=True)
class Wish:
    """What to answer."""

    claims: tuple[Claim, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The answers."""

    answered: tuple[Answered, ...]
    tables: Mapping[str, Grid]


def read_wish(ids: Sequence[str], tables: Sequence[str]) -> Wish:
    """Claims and tables by name; with a table alone no claim is answered. Raises UsageError."""
    names = list(TABLES) if "all" in tables else [one_of(name, list(TABLES), "--table") for name in tables]
    return Wish(() if tables and not ids else tuple(choose(ids)), tuple(dict.fromkeys(names)))


def check_exports(names: Sequence[str]) -> Sequence[str]:
    """Raises UsageError for a format that answers have not."""
    for name in names:
        if name != STDOUT and Path(name).suffix.lower() not in (".md", ".json"):
            raise UsageError(f"--export {name}: answers are written as .md or .json.")
    return names


def answer(wish: Wish) -> Result:
    """Run the experiments, with a moving line on a terminal."""
    shown = sys.stderr.isatty()
    answered = []
    for number, claim in enumerate(wish.claims, 1):
        if shown:
            sys.stderr.write(f"\r{number}/{len(wish.claims)} {claim.id} {claim.name:<24}")
            sys.stderr.flush()
        answered.append(answer_claim(claim))
    if shown and wish.claims:
        sys.stderr.write("\r" + " " * 40 + "\r")
    return Result(tuple(answered), {name: TABLES[name]() for name in wish.tables})


def show(result: Result, *, explain: bool, figures: bool) -> None:
    """Print lines and tables."""
    columns = output.columns(sys.stdout)
    if result.answered:
        output.emit(render_lines(result.answered, columns=columns, explain=explain))
    grids = [grid for one in result.answered for grid in one.answer.grids] if figures else []
    grids += result.tables.values()
    if grids:
        output.emit(("\n" if result.answered else "") + render_grids(grids, columns=columns))


def write(result: Result, exports: Sequence[Export]) -> None:
    """Write everything to every opened place. Raises StoreError."""

    def write_one(export: Export) -> None:
        if export.format.name == "json":
            export.write(render_json(result.answered, result.tables))
        else:
            export.write(markdown.render(build_claims_page(result.answered, result.tables)))

    write_each(exports, write_one)
