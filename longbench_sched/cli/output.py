"""Where words go: the result to stdout, everything else to stderr, and never a traceback because of a pipe or a locale.

A reader that closes the pipe early (`show | head`) has seen what it wanted: the rest is dropped quietly and the exit code stays
that of the command. Characters that the terminal's encoding lacks become `?`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TextIO

from longbench_sched.cli.prose import fold
from longbench_sched.errors import StoreError

MAX_COLUMNS = 80


def prepare_streams() -> None:
    """Make both streams take any character, whatever the locale, and stand in for one that the caller has closed.

    A number below 3 that is free would go to the next file or socket opened, which a child would take for its own stdout.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write a part of the result. Raises StoreError where it cannot be written (disk full)."""
    try:
        _write(sys.stdout, text)
    except OSError as error:
        _discard(sys.stdout)
        raise StoreError(f"cannot write to stdout: {error.strerror}. What was measured is stored.") from None


def say(text: str) -> None:
    """Write a line that is not the result: progress, where files went, a warning."""
    try:
        _write(sys.stderr, text)
    except OSError:  # there is nowhere left to say so
        _discard(sys.stderr)


def explain(text: str) -> None:
    """Write sentences: an error, a warning. Folded for a terminal; elsewhere each stays a line of its own, for scripts."""
    say(fold(text, columns(sys.stderr)) if sys.stderr.isatty() else text)


def columns(stream: TextIO) -> int:
    """How wide to write: the terminal's width, at most 80; 80 where there is no terminal."""
    if not stream.isatty():
        return MAX_COLUMNS
    return max(40, min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns))


def wants_colour(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Colour only on a terminal that can show it, and not where NO_COLOR is set (https://no-color.org)."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()
    except BrokenPipeError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Send what else is written there nowhere, the flush at exit included."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)
