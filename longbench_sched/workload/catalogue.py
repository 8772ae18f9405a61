"""The workloads at hand: those shipped with the package, and those in ./workloads of the current directory."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longbench_sched.errors import WorkloadError
from longbench_sched.workload.strict import did_you_mean

HERE = Path("workloads")
MAX_LISTED = 8  # files in an error


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload that can be run by its name."""

    name: str
    title: str
    path: Path
    origin: Literal["shipped", "here"]


@dataclass(frozen=True, slots=True)
class Found:
    """Where a workload was found, and what the reader should know about that."""

    name: str
    path: Path
    shown: str  # how errors name the file
    note: str | None = None


def shipped_folder() -> Path:
    """The folder of the shipped workloads: inside the package, or beside it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "workloads"
    return inside if inside.is_dir() else package.parent / "workloads"


def list_workloads(here: Path = HERE, shipped: Path | None = None) -> list[Entry]:
    """Every workload that has a name, by name. One in ./workloads stands before a shipped one of the same name."""
    shipped = shipped or shipped_folder()
    entries = {path.stem: Entry(path.stem, _title(path), path, "shipped") for path in _files(shipped)}
    if here.is_dir() and here.resolve() != shipped.resolve():
        entries |= {path.stem: Entry(path.stem, _title(path), path, "here") for path in _files(here)}
    return [entries[name] for name in sorted(entries)]


def find_workload(name_or_path: str, here: Path = HERE, shipped: Path | None = None) -> Found:
    """The file meant by a name or a path. Raises WorkloadError that lists the names."""
    path = Path(name_or_path)
    is_path = name_or_path.endswith(".toml") or path.name != name_or_path
    if is_path:
        if os.path.isdir(path):
            raise WorkloadError(f"{name_or_path} is a folder, and a workload is a file. {_inside(path, here, shipped)}")
        if not os.path.isfile(path):  # False as well for a name that is too long for a file
            raise WorkloadError(
                f"{name_or_path}: no such file. Give the path of a workload file, or a name: {_names(here, shipped)}."
            )
        return Found(path.stem, path, name_or_path)
    entries = {entry.name: entry for entry in list_workloads(here, shipped)}
    entry = entries.get(name_or_path)
    if entry is None:
        raise WorkloadError(
            f"no workload named {name_or_path!r}. {did_you_mean(name_or_path, entries)}"
            f"Known: {', '.join(entries) or 'none'}; or give the path of a TOML file."
        )
    note = None
    original = (shipped or shipped_folder()) / f"{entry.name}.toml"
    if entry.origin == "here" and original.is_file() and original.read_bytes() != entry.path.read_bytes():
        note = f"{entry.path} was used, which differs from the shipped workload of that name"
    return Found(entry.name, entry.path, str(entry.path) if entry.origin == "here" else entry.path.name, note)


def _names(here: Path, shipped: Path | None) -> str:
    return ", ".join(entry.name for entry in list_workloads(here, shipped))


def _inside(folder: Path, here: Path, shipped: Path | None) -> str:
    """Which files of a folder can be meant, or what to do where there is none."""
    if found := _files(folder):
        shown = ", ".join(map(str, found[:MAX_LISTED]))
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        return f"Name one of those in it: {shown}{more}."
    return f"It holds no .toml file. Give the path of one, or a name: {_names(here, shipped)}."


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def _title(path: Path) -> str:
    """The title, or why there is none: a listing shows broken files too."""
    try:
        title = tomllib.loads(path.read_text("utf-8-sig")).get("title")
    except (OSError, ValueError) as error:
        return f"(cannot be read: {type(error).__name__})"
    return title if isinstance(title, str) else path.stem
