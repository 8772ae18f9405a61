"""`baseline`: runs kept under a name, with the reason why these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longbench_sched.cli.plain_help import PlainCommand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from longbench_sched.compare.point import RunPoint

_SAVE = "  longbench-sched baseline save main latest --reason 'vLLM 0.33.0 before the upgrade'"
_LIST = "  longbench-sched baseline list"
_PROMOTE = "  longbench-sched baseline promote main latest --reason 'faster prefill, reviewed'"


def _examples(*lines: str) -> str:
    return "\n\n".join(("Example:" if len(lines) == 1 else "Examples:", *lines))


EXAMPLES = _examples(_SAVE, _LIST, _PROMOTE)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

_Name = Annotated[str, typer.Argument(help="Name of the baseline: main, release-1.2.")]
_Runs = Annotated[list[str], typer.Argument(help="Runs: ids, a target of an experiment, a folder, `latest`.")]
_Reason = Annotated[str, typer.Option("--reason", help="Why these runs; read by whoever wonders in a year.")]
_Folder = Annotated[str, typer.Option("--output-dir", help="Folder of runs; baselines lie in baselines/ below it.")]


@app.callback()
def _about() -> None:
    """Which runs is a build held against? Saves, lists and replaces named sets of runs."""


@app.command("save", cls=PlainCommand, epilog=_examples(_SAVE))
def save(name: _Name, runs: _Runs, reason: _Reason, results: _Folder = "results") -> int:
    """How do I keep these runs as a baseline? Saves them under a new name."""
    from longbench_sched.compare.baseline import encode_baseline, make_baseline
    from longbench_sched.errors import EXIT_OK, UsageError
    from longbench_sched.store import baselines

    folder, points = _points(runs, results)
    baselines.baseline_path(name, folder)
    with baselines.held(folder):
        if baselines.has_baseline(name, folder):
            raise UsageError(
                f"there is a baseline {name!r} already. Use `baseline promote {name} ...` to put new runs in its place."
            )
        baseline = make_baseline(name, points, reason, _now())
        _say_written(baselines.write_baseline(name, folder, encode_baseline(baseline)), points)
    return EXIT_OK


@app.command("promote", cls=PlainCommand, epilog=_examples(_PROMOTE))
def promote(name: _Name, runs: _Runs, reason: _Reason, results: _Folder = "results") -> int:
    """How do I make these runs the new baseline? Replaces it; what was there stays in its history."""
    from longbench_sched.compare import baseline
    from longbench_sched.errors import EXIT_OK
    from longbench_sched.store import baselines

    folder, points = _points(runs, results)
    baselines.read_baseline(name, folder)
    with baselines.held(folder):
        before = baseline.decode_baseline(*baselines.read_baseline(name, folder))
        after = baseline.promote(before, points, reason, _now())
        _say_written(baselines.write_baseline(name, folder, baseline.encode_baseline(after)), points)
    return EXIT_OK


@app.command("list", cls=PlainCommand, epilog=_examples(_LIST))
def list_(results: _Folder = "results") -> int:
    """Which baselines are there? Lists them with their reasons, machines and ages."""
    from pathlib import Path

    from longbench_sched.cli import output
    from longbench_sched.compare.baseline import decode_baseline
    from longbench_sched.errors import EXIT_OK, StoreError
    from longbench_sched.report.untrusted import clean
    from longbench_sched.store import baselines

    found = baselines.list_baselines(Path(results))
    if not found:
        output.explain(f"No baselines in {results}. `baseline save NAME RUN... --reason ...` makes one.")
    damaged: list[StoreError] = []
    for path in found:
        try:
            kept = decode_baseline(path.read_bytes(), str(path))
        except StoreError as error:
            damaged.append(error)
            continue
        cells = ", ".join(dict.fromkeys(point.cell for point in kept.points))
        cpu, cores = kept.entry.machine.get("cpu"), kept.entry.machine.get("cores")
        machine = (
            "simulated"
            if all(point.simulated for point in kept.points) and not cpu
            else f"measured from {cpu or 'unknown CPU'} x {cores or '?'}"
        )
        output.emit(f"{clean(kept.name)}  {len(kept.points)} runs of {clean(cells)} · saved {clean(kept.entry.saved_at[:10])}")
        output.emit(f"  {clean(kept.entry.reason, 300)}")
        output.emit(f"  {clean(machine)}" + (f" · {len(kept.history)} before it" if kept.history else ""))
    if damaged:
        raise StoreError("\n".join(map(str, damaged)))
    return EXIT_OK


def _points(runs: list[str], results: str) -> tuple[Path, tuple[RunPoint, ...]]:
    from pathlib import Path

    from longbench_sched.cli.selection import select_side

    folder = Path(results)
    return folder, select_side(",".join(runs) if len(runs) > 1 else runs[0], folder).points


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds")


def _say_written(path: Path, points: Sequence[RunPoint]) -> None:
    from longbench_sched.cli import output
    from longbench_sched.compare.baseline import flaws

    output.emit(f"{path}: {len(points)} runs")
    for flaw in flaws(points):
        output.explain(f"Warning: no check against it will decide anything. {flaw.text} {flaw.next_step}")
