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

    name = os.fspath(path)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return path.open("rb")
    return pa.OSFile(name)  # type: ignore[no-any-return]
