"""Baselines by name: `results/baselines/NAME.json`. What is in them is not this room's business."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from longbench_sched.errors import StoreError, UsageError
from longbench_sched.store.atomic import cannot_write, wait_for_lock, write_atomically
from longbench_sched.store.catalogue import LATEST

FOLDER = "baselines"
ENDING = ".json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")


def baseline_path(name: str, folder: Path) -> Path:
    """Where a baseline of that name lies. Raises UsageError for a name that is no file name."""
    if name == LATEST:
        raise UsageError(f"a baseline cannot be called {LATEST}: that is the newest run. Choose another name.")
    if not _is_name(name) or name.endswith(ENDING):
        raise UsageError(f"{name!r} is no name for a baseline. Use letters, digits and ._+- (main, release-1.2).")
    return folder / FOLDER / f"{name}{ENDING}"


def has_baseline(name: str, folder: Path) -> bool:
    """Whether there is a baseline of that name."""
    return _is_name(name) and (folder / FOLDER / f"{name}{ENDING}").is_file()


def _is_name(name: str) -> bool:
    return name != LATEST and _NAME.fullmatch(name) is not None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nobody else saves or promotes within the block: what is read there is what is replaced. Raises StoreError."""
    place = folder / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDONLY)
    except OSError as error:
        raise StoreError(cannot_write(place, error)) from None
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def list_baselines(folder: Path) -> list[Path]:
    """The files of all baselines, by name."""
    return sorted((folder / FOLDER).glob(f"*{ENDING}"))


def known_text(folder: Path) -> str:
    """Which baselines there are, for an error that missed one."""
    names = [found.stem for found in list_baselines(folder)]
    if not names:
        return "There is no baseline yet: `baseline save NAME RUN... --reason ...` makes one."
    return f"Known baselines: {', '.join(names)}."


def read_baseline(name: str, folder: Path) -> tuple[bytes, str]:
    """The content of a baseline, and how errors name its file. Raises StoreError that lists the others."""
    path = baseline_path(name, folder)
    try:
        return path.read_bytes(), str(path)
    except FileNotFoundError:
        names = [found.stem for found in list_baselines(folder)]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise StoreError(f"no baseline {name!r} in {path.parent}. {hint}{known_text(folder)}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def write_baseline(name: str, folder: Path, data: bytes) -> Path:
    """Store a baseline; the file appears whole or not at all. Raises StoreError."""
    path = baseline_path(name, folder)

    def write(file: BinaryIO) -> None:
        file.write(data)

    write_atomically(path, write)
    return path
