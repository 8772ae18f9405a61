"""Files opened for Arrow to read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from longbench_sched.store.schema import ENDING


def open_for_arrow(path: Path) -> AbstractContextManager[Any]:
    """Open a file as Arrow's own. Raises OSError.

    Arrow's threads let go of what they read some time later. If that is an object of Python's and the interpreter is just
    ending, it ends in an abort (exit code -6) or never. Arrow takes every path for UTF-8, so other names need Python's file.
    """
    import pyarrow as pa

    return pa.OSFile(os.fspath(path)) if _is_utf_8(path) else path.open("rb")


def remedy(path: Path) -> str:
    """What to do about a file that Arrow cannot read."""
    if path.suffix == ENDING:
        return "Restore it from a copy."
    return f"A stored run ends in {ENDING}: give its path, or the run's id."


def _is_utf_8(path: Path) -> bool:
    """Whether the name's bytes on disk are the ones that Arrow makes of it."""
    try:
        return os.fsencode(path) == str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
