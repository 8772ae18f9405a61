"""Runs by name: ids, and the files that they stand for.

A run id is when, which engine, which workload: `2026-11-30T1012-vllm-30k-500-c64`. It is made from our own words only, never
from what a server says, since it is a file name. A run that was killed has no Parquet file but a journal, and is found all
the same.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from longbench_sched.errors import StoreError
from longbench_sched.run import Run
from longbench_sched.store import journal, schema, trace

DEFAULT_FOLDER = Path("results")
LATEST = "latest"

_MAX_WORD = 60
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{4}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+]+")


def make_run_id(started: datetime, engine: str, workload: str, is_taken: Callable[[str], bool] = lambda run_id: False) -> str:
    """The id of a run that starts now; a number is added while `is_taken` says that there is such a run."""
    stem = f"{started.astimezone(UTC):%Y-%m-%dT%H%M}-{_word(engine)}-{_word(workload)}"
    run_id, again = stem, 2
    while is_taken(run_id):
        run_id, again = f"{stem}-{again}", again + 1
    return run_id


def is_taken(folder: Path, run_id: str) -> bool:
    """Whether the folder holds a run of this id, finished or not."""
    return any((folder / f"{run_id}{ending}").exists() for ending in (schema.ENDING, journal.ENDING))


def list_runs(folder: Path = DEFAULT_FOLDER) -> list[Path]:
    """The runs of a folder, oldest first; a journal stands for a run that has no Parquet file."""
    found: dict[str, Path] = {}
    for ending in (journal.ENDING, schema.ENDING):  # in this order: a Parquet file takes the place of its journal
        found |= {path.stem: path for path in folder.glob(f"*{ending}") if path.is_file() and _may_be_run(path.name)}
    return sorted(found.values(), key=_age)


def find_run(name: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """The file of a run: by path, by id, by an unambiguous beginning or part of an id, or `latest`. Raises StoreError."""
    if os.path.isfile(name):  # False as well for a name that is too long for a file
        return Path(name)
    if Path(name).suffix in (schema.ENDING, journal.ENDING) and len(Path(name).parts) > 1:
        raise StoreError(f"{name}: no such file.{_nearby(Path(name))}")
    if not folder.is_dir():
        raise StoreError(
            f"no run {name!r}: there is no folder {folder}. Measure something first, or name another --output-dir."
        )
    runs = list_runs(folder)
    if not runs:
        raise StoreError(f"no run {name!r}: {folder} holds none. Measure something first, or name another --output-dir.")
    if name == LATEST:
        return runs[-1]
    wanted = name.removesuffix(schema.ENDING).removesuffix(journal.ENDING)
    return _by_id(wanted, runs, folder)


def read_stored(path: Path, *, with_lateness: bool = True) -> Run:
    """Read a run from its Parquet file (see `read_run`), or recover it from its journal. Raises StoreError."""
    from longbench_sched.store.parquet import read_run

    return journal.recover(path) if path.suffix == journal.ENDING else read_run(path, with_lateness=with_lateness)


def _by_id(wanted: str, runs: list[Path], folder: Path) -> Path:
    exact = [path for path in runs if path.stem == wanted]
    begin = [path for path in runs if path.stem.startswith(wanted)]
    parts = [path for path in runs if wanted in path.stem]
    for matches in (exact, begin, parts):
        if len(matches) == 1:
            return matches[0]
        if len(matches) > 1:
            shown = "".join(f"\n  {path.stem}" for path in matches[-5:])
            raise StoreError(f"{wanted!r} stands for {len(matches)} runs in {folder}. Write more of the id:{shown}")
    near = difflib.get_close_matches(wanted, [path.stem for path in runs], n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]}?" if near else f"The latest is {runs[-1].stem}."
    raise StoreError(f"no run {wanted!r} in {folder}. {hint}")


def _nearby(path: Path) -> str:
    near = difflib.get_close_matches(path.name, [run.name for run in list_runs(path.parent)], n=1, cutoff=0.4)
    return f" Did you mean {path.parent / near[0]}?" if near else ""


def _age(path: Path) -> tuple[str, int, str]:
    """When a run began, by its id; files that were given other names are placed by when they were written."""
    written_ns = path.stat().st_mtime_ns
    stamp = _STAMP.match(path.stem)
    began = stamp[0] if stamp else f"{datetime.fromtimestamp(written_ns / 1e9, UTC):%Y-%m-%dT%H%M}"
    return began, written_ns, path.stem


def _may_be_run(name: str) -> bool:
    """Not a file that is being written, and not a step trace."""
    return not name.startswith(".") and not name.endswith(trace.ENDING)


def _word(text: str) -> str:
    """A part of a file name: letters, digits and `._+-`, without a leading dot or dash."""
    return _UNSAFE.sub("-", text)[:_MAX_WORD].strip("-.") or "x"
