"""Runs by name: ids, and the files that they stand for.

A run id is when, which engine, which workload: `2026-11-30T1012-vllm-30k-500-c64`. It is made from our own words only, never
from what a server says, since it is a file name. A run that was killed has no Parquet file but a journal, and is found all
the same.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from longbench_sched.errors import StoreError
from longbench_sched.run import Run
from longbench_sched.store import journal, schema, trace
from longbench_sched.store.meta import read_meta

DEFAULT_FOLDER = Path("results")
LATEST = "latest"
MAX_LISTED = 8  # runs in an error

_ENDINGS = (schema.ENDING, journal.ENDING)
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


def find_runs(name: str, folder: Path = DEFAULT_FOLDER) -> list[Path]:
    """Every run that a name means, oldest first. Nothing is guessed: a name that could mean several things is an error.

    A name is, and the first that fits is meant: a run's id; `latest`, the newest run with all of its experiment; a target (of
    the newest experiment that has it); an experiment, or a target of one (`EXPERIMENT.TARGET`); a folder, a file, a pattern;
    the beginning of one id; an id without its date and time. Several may be joined by commas, and `DIR/NAME` looks in another
    folder. Raises StoreError that lists what was meant or is near.
    """
    if "," in name and not os.path.exists(name):
        found = dict.fromkeys(path for part in name.split(",") if part for path in find_runs(part, folder))
        if not found:
            raise StoreError(f"{name!r} names no run. Name runs by id, with commas between them.")
        return list(found)
    path = Path(name)
    if "/" not in name:
        names = _Names(folder)
        if path.suffix in _ENDINGS and os.path.isfile(name):  # False as well for a name that is too long for a file
            return [path]
        # Names come before a folder that is called like one.
        return names.exactly(name) or _at(path) or names.loosely(name)
    if path.suffix in _ENDINGS and not os.path.exists(name) and not _is_pattern(path.name):
        raise StoreError(f"{name}: no such file.{_nearby(path)}")
    names = _Names(path.parent)
    return _at(path) or names.exactly(path.name) or names.loosely(path.name)


def find_run(name: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """The one run that a name means, see `find_runs`; `latest` is the newest run alone. Raises StoreError."""
    if name == LATEST and (runs := list_runs(folder)):
        return runs[-1]
    found = find_runs(name, folder)
    if len(found) > 1:
        ids = [path.stem for path in found]
        raise StoreError(f"{name!r} means {len(found)} runs, and one is wanted here. Name one of them:{_listed(ids)}")
    return found[0]


def read_stored(path: Path, *, with_lateness: bool = True) -> Run:
    """Read a run from its Parquet file (see `read_run`), or recover it from its journal. Raises StoreError."""
    from longbench_sched.store.parquet import read_run

    return journal.recover(path) if path.suffix == journal.ENDING else read_run(path, with_lateness=with_lateness)


class _Names:
    """The names that a folder's runs go by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = list_runs(folder)

    def exactly(self, name: str) -> list[Path]:
        """What has this very name: a run, the latest, a target, an experiment or a target of one; else none."""
        word = _bare(name)
        if found := [path for path in self._runs if path.stem == word]:
            return found
        if not self._runs or not word:
            return []
        return self._latest() if name == LATEST else self._of_target(word) or self._of_experiment(word)

    def loosely(self, name: str) -> list[Path]:
        """What a pattern matches, or the one run or experiment whose id the name begins or ends. Raises StoreError."""
        if not self._runs:
            there = self._folder.exists()
            what = "holds none" if self._folder.is_dir() else "is no folder" if there else "is not there"
            raise StoreError(f"no run {name!r}: {self._folder} {what}. Measure something first, or name another --output-dir.")
        word = _bare(name)
        found: list[Path] = []
        if _is_pattern(name):
            found = [path for path in self._runs if path.match(name) or path.match(f"{name}.*")]
        elif word:
            found = self._one_thing(word, str.startswith) or self._one_thing(word, _is_without_stamp)
        if found:
            return found
        raise StoreError(f"no run {name!r} in {self._folder}. {self._hint(word)}")

    @cached_property
    def _places(self) -> dict[Path, Mapping[str, Any]]:
        """Where each run stands in its experiment."""
        return {path: _place(path) for path in self._runs}

    def _latest(self) -> list[Path]:
        """The newest run and all of its experiment."""
        newest = self._runs[-1]
        wanted = read_meta(newest).experiment.get("id")
        return [newest] if wanted is None else [path for path, place in self._places.items() if place.get("id") == wanted]

    def _of_target(self, word: str) -> list[Path]:
        found = [(path, place.get("id")) for path, place in self._places.items() if place.get("target") == word]
        return [path for path, id_ in found if id_ == found[-1][1]]

    def _of_experiment(self, word: str) -> list[Path]:
        within = {path: place.get("id") for path, place in self._places.items() if path.stem.startswith(f"{word}.")}
        ids = set(within.values())
        return list(within) if len(ids) == 1 and ids != {None} else []

    def _one_thing(self, word: str, means: Callable[[str, str], bool]) -> list[Path]:
        things: dict[str, list[Path]] = {}
        for path, place in self._places.items():
            experiment = place.get("id")
            id_ = experiment if isinstance(experiment, str) and means(experiment, word) else path.stem
            if means(id_, word):
                things.setdefault(id_, []).append(path)
        if len(things) > 1:
            raise StoreError(
                f"{word!r} could be any of {len(things)} in {self._folder}. Write more of the id, or a pattern for several "
                f"('{word}*'):{_listed(list(things))}"
            )
        return next(iter(things.values()), [])

    def _hint(self, word: str) -> str:
        ids = [path.stem for path in self._runs]
        if parts := [id_ for id_ in ids if word and word in id_]:
            return f"It is only a part of {'an id' if len(parts) == 1 else f'{len(parts)} ids'}; write the id:{_listed(parts)}"
        near = difflib.get_close_matches(word, ids, n=1, cutoff=0.4)
        return f"Did you mean {near[0]}?" if near else f"The latest is {ids[-1]}."


def _at(path: Path) -> list[Path]:
    """The run file of a path, or the runs of a folder; none where nothing lies there. Raises StoreError for an empty folder."""
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        return []
    if runs := list_runs(path):
        return runs
    inside = sorted(path.iterdir())
    below = [f"{one} ({n})" for one in inside if one.is_dir() and (n := len(list_runs(one)))]
    if below:
        raise StoreError(f"{path} is a folder without runs of its own; folders in it hold some. Name one:{_listed(below)}")
    shown = ", ".join(one.name for one in inside[:3]) + (", ..." if len(inside) > 3 else "")
    raise StoreError(
        f"{path} is a folder without a run ({f'it holds {shown}' if inside else 'it is empty'}).\n"
        f"A run is a file that ends in {schema.ENDING}; `run` and `simulate` write it to their --output-dir. Name that folder."
    )


def _is_without_stamp(id_: str, word: str) -> bool:
    """Whether this is the id but for its date and time."""
    stamp = _STAMP.match(id_)
    return stamp is not None and id_[stamp.end() :].removeprefix("-") == word


def _place(path: Path) -> Mapping[str, Any]:
    """Where a run stands in its experiment; nowhere, if the file is no run that can be read: it was not asked for."""
    try:
        return read_meta(path).experiment
    except StoreError:
        return {}


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _bare(name: str) -> str:
    return name.removesuffix(schema.ENDING).removesuffix(journal.ENDING)


def _listed(names: Sequence[str]) -> str:
    """The last of some names, a line each, and how many there are besides."""
    more = len(names) - MAX_LISTED
    return "".join(f"\n  {name}" for name in names[-MAX_LISTED:]) + (f"\n  and {more} more" if more > 0 else "")


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
