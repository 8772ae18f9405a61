"""Files opened for Arrow to read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


def open_for_arrow(path: Path) -> AbstractContextManager[Any]:
    """Open a file as Arrow's own. Raises OSError.

    Arrow's threads let go of what they read some time later. If that is an object of Python's and the interpreter is just
    ending, it ends in an abort (exit code -6) or never. Arrow takes every path for UTF-8, so other names need Python's file.
    """
    import pyarrow as pa

    return pa.OSFile(os.fspath(path)) if _is_utf_8(path) else path.open("rb")


def _is_utf_8(path: Path) -> bool:
    """Whether the name's bytes on disk are the ones that Arrow makes of it."""
    try:
        return os.fsencode(path) == str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
