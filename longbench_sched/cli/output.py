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

MAX_COLUMNS = 80


def prepare_streams() -> None:
    """Make both streams take any character, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write a part of the result."""
    _write(sys.stdout, text)


def say(text: str) -> None:
    """Write a line that is not the result: progress, where files went, a warning."""
    _write(sys.stderr, text)


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
