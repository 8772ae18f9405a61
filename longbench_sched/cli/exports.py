"""Files that a result is exported to: format from the suffix, opened before anything is measured.

A run of an hour must not end in "no such folder". A file is opened without touching what it holds; its old content goes only
when the new one is there to replace it, and a file made by us is removed again if there is nothing to put into it. One that
cannot be written costs none of the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TypeVar

from longbench_sched.cli import output
from longbench_sched.errors import LongbenchError, StoreError, UsageError
from longbench_sched.report import FORMATS, Format, find_format

STDOUT = "-"
_REMEDY = " Runs that are stored stay so: export again to another place."

_T = TypeVar("_T")


@dataclass(slots=True)
class Export:
    """One opened place to write to; `file` is None for stdout."""

    name: str
    format: Format
    file: FileIO | None
    is_new: bool = False
    is_written: bool = False
    beside: list[Path] = field(default_factory=list)  # pictures that were written with it

    def write(self, content: str | bytes) -> None:
        """Replace what the file holds by this. Raises StoreError (disk full)."""
        if self.file is None:
            assert isinstance(content, str)  # a format in bytes is refused for stdout
            output.emit(content)
            return
        try:
            if Path(self.name).is_file():
                self.file.truncate(0)
            # Unbuffered: a disk that is full says so here and not a second time when the file is closed.
            rest = memoryview(content.encode() if isinstance(content, str) else content)
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise StoreError(f"cannot write {self.name}: {error.strerror}.{_REMEDY}") from None
        self.is_written = True


def shows_curves(exports: Sequence[Export]) -> bool:
    """Whether what is written holds charts."""
    return any(export.format.name == "html" for export in exports)


def uses_stdout(names: Sequence[str]) -> bool:
    """Whether an export takes stdout: the page for the terminal then goes nowhere."""
    return any(_is_stdout(name) for name in names)


@contextmanager
def open_exports(names: Sequence[str], formats: Mapping[str, Format] = FORMATS) -> Iterator[list[Export]]:
    """Open every file now. Raises UsageError for an unknown suffix, StoreError for what cannot be written: all of it."""
    with ExitStack() as opened:
        exports: list[Export] = []
        _each(names, lambda name: exports.append(opened.enter_context(_opened(name, formats))), "cannot be written")
        yield exports


def write_each(exports: Sequence[Export], write: Callable[[Export], None]) -> None:
    """Write every export that can be written. Raises, after all of them, one StoreError that names each that could not."""
    _each(exports, write, "were not written")


def _each(items: Sequence[_T], do: Callable[[_T], None], how: str) -> None:
    failed: list[LongbenchError] = []
    for item in items:
        try:
            do(item)
        except LongbenchError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        said = [str(error) for error in failed]
        remedy = f"\n{_REMEDY.strip()}" if any(text.endswith(_REMEDY) for text in said) else ""
        lines = "\n".join(text.removesuffix(_REMEDY) for text in said)
        raise StoreError(f"{len(failed)} of {len(items)} exports {how}.\n{lines}{remedy}")


@contextmanager
def _opened(name: str, formats: Mapping[str, Format]) -> Iterator[Export]:
    export = _open(name, formats)
    try:
        yield export
    finally:
        _close(export)


def _open(name: str, formats: Mapping[str, Format]) -> Export:
    form = _format(name, formats)
    if form.name == "html":
        check_drawing()
    if _is_stdout(name):
        if form.name == "parquet":
            raise UsageError(f"--export {name}: Parquet cannot go to stdout. Name a file, for example summary.parquet.")
        return Export(name, form, None)
    is_new = not os.path.exists(name)
    try:
        # Appending: opens for writing without emptying a file that an earlier run left.
        return Export(name, form, Path(name).open("ab", buffering=0), is_new)
    except OSError as error:
        raise StoreError(
            f"--export {name}: cannot be written ({error.strerror}). Name another place; nothing was done."
        ) from None


def check_charts(form: str, names: Sequence[str]) -> None:
    """Raise UsageError unless charts of that form can be drawn beside a Markdown file."""
    if form not in ("svg", "png"):
        raise UsageError(f"--charts {form}: not a form of picture. Known: svg, png.")
    if not any(Path(name).suffix.lower() == ".md" and not _is_stdout(name) for name in names):
        raise UsageError("--charts draws beside a Markdown file. Name one: --export out.md --charts svg.")
    check_drawing()


def check_drawing() -> None:
    """Raise UsageError unless charts can be drawn."""
    from longbench_sched.report.drawing import MISSING, is_available

    if not is_available():
        raise UsageError(MISSING)


def _close(export: Export) -> None:
    if export.file is None:
        return
    export.file.close()
    if export.is_new and not export.is_written:
        Path(export.name).unlink(missing_ok=True)


def _is_stdout(name: str) -> bool:
    return name == STDOUT or Path(name).stem == STDOUT


def _format(name: str, formats: Mapping[str, Format]) -> Format:
    try:
        return find_format(name, formats)
    except UsageError as error:
        raise UsageError(f"--export {error} - is Markdown on stdout, -.csv and -.json the others.") from None
