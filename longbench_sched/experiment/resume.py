"""What an experiment has done so far: a file of JSON lines that outlives a crash at any moment.

The first line is the experiment itself with the command that started it; then a line when a cell begins and one when it has
ended. A cell counts as finished if its line says so, or if its run is there and complete (the tool may have died between the
two). What was begun and not finished is run again, with prompts of its own: the server may remember those of the first
attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from longbench_sched.errors import StoreError
from longbench_sched.experiment.matrix import Experiment, decode_experiment, encode_experiment
from longbench_sched.store import catalogue, schema
from longbench_sched.store.atomic import cannot_write, lock
from longbench_sched.store.meta import read_meta

ENDING = ".experiment.jsonl"
SCHEMA_VERSION = 1
LATEST = catalogue.LATEST

Ended = Literal["done", "failed", "interrupted"]


@dataclass(slots=True)
class Ledger:
    """The file of one experiment."""

    id: str
    folder: Path
    experiment: Experiment
    flags: Mapping[str, Any]  # of the command that started it
    attempts: dict[str, list[str]] = field(default_factory=dict)  # cell key -> run ids, in the order of the attempts
    ended: dict[str, str] = field(default_factory=dict)  # run id -> done, failed, interrupted
    is_cut: bool = False  # whether the file ends within a line: the tool was killed while it wrote

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / f"{self.id}{ENDING}"

    def create(self) -> None:
        """Write the first line. Raises StoreError, also where another experiment has this id."""
        head = {
            "schema_version": SCHEMA_VERSION,
            "id": self.id,
            "experiment": encode_experiment(self.experiment),
            "flags": dict(self.flags),
        }
        self._append(head, mode="xb")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs this experiment within the block. Raises StoreError if somebody does."""
        try:
            file = self.path.open("ab")
        except OSError as error:
            raise StoreError(cannot_write(self.path, error)) from None
        with file:
            if not lock(file):
                raise StoreError(f"{self.id} is being run by another process. Wait for its end, or stop it.")
            yield

    def begin(self, key: str) -> tuple[str, int]:
        """Note that a cell begins; its run id and which attempt it is (1 = the first). Raises StoreError."""
        attempt = len(self.attempts.get(key, ())) + 1
        run_id = f"{self.id}.{key}" + (f"-{attempt}" if attempt > 1 else "")
        self.attempts.setdefault(key, []).append(run_id)
        self._append({"begin": key, "run_id": run_id})
        return run_id, attempt

    def end(self, run_id: str, how: Ended, detail: str | None = None) -> None:
        """Note how a cell ended. Raises StoreError."""
        self.ended[run_id] = how
        self._append({"end": run_id, "how": how, **({"detail": detail} if detail else {})})

    def finished(self, key: str) -> str | None:
        """The run of a cell that is finished, or None."""
        for run_id in self.attempts.get(key, ()):
            if self.ended.get(run_id) == "done" or (run_id not in self.ended and self._is_stored(run_id)):
                return run_id
        return None

    def _is_stored(self, run_id: str) -> bool:
        path = self.folder / f"{run_id}{schema.ENDING}"
        return path.is_file() and read_meta(path).complete

    def _append(self, line: Mapping[str, Any], mode: Literal["ab", "xb"] = "ab") -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write((b"\n" if self.is_cut else b"") + json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self.is_cut = False
        except FileExistsError:
            raise StoreError(f"{self.path} exists: another experiment began in the same moment. Start again.") from None
        except OSError as error:
            raise StoreError(cannot_write(self.path, error)) from None


def read_ledger(name: str, folder: Path) -> Ledger:
    """The ledger of an experiment: by id, a part of it, or `latest`. Raises StoreError."""
    path = _find(name, folder)
    data = path.read_bytes()
    lines = [_line(line) for line in data.splitlines()]
    head = lines[0] if lines else None
    try:
        if head is None or head["schema_version"] > SCHEMA_VERSION:
            raise StoreError(
                f"{path} was written by a newer longbench-sched, or is damaged. Upgrade, or restore it from a copy."
            )
        ledger = Ledger(head["id"], folder, decode_experiment(head["experiment"]), head["flags"])
        ledger.is_cut = not data.endswith(b"\n")
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: it is no experiment ({error}). Restore it from a copy.") from None
    for line in lines[1:]:
        if line is not None and "begin" in line:
            ledger.attempts.setdefault(line["begin"], []).append(line["run_id"])
        elif line is not None and "end" in line:
            ledger.ended[line["end"]] = line["how"]
    return ledger


def _line(raw: bytes) -> dict[str, Any] | None:
    """One line; None for the last one of a file that was cut."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _find(name: str, folder: Path) -> Path:
    if os.path.isfile(name) and name.endswith(ENDING):
        return Path(name)
    paths = sorted(folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime_ns)
    found = paths[-1:] if name == LATEST else [path for path in paths if path.name == f"{name}{ENDING}"]
    found = found or [path for path in paths if name in path.name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(path.name.removesuffix(ENDING) for path in paths[-5:]) or "none"
    raise StoreError(f"--resume {name}: {len(found) or 'no'} experiments of that name in {folder}. Known: {known}.")
