"""Files appear whole or not at all: written beside their place, synced, then renamed.

A reader never meets half a file, and a full disk never costs the file that was there before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from longbench_sched.errors import StoreError


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Call `write` with an open file that becomes `path` when it returns. Raises StoreError if the file cannot be written."""
    draft: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
        draft = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(draft, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(cannot_write(path, error)) from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise StoreError now, before anything is measured, if `path` could not be written later; leaves nothing behind."""
    if path.is_dir():
        raise StoreError(f"cannot write {path}: it is a folder. Name a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".longbench-sched-", suffix=".probe") as file:
            file.write(b"x")
    except OSError as error:
        raise StoreError(cannot_write(path, error)) from None


def lock(file: BinaryIO) -> bool:
    """Take the file's lock, which ends with the process that holds it. False if another holds it.

    True as well where the system has no such locks: then a run that is going on is not told from one that was killed.
    """
    try:
        import fcntl
    except ImportError:
        return True
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def wait_for_lock(descriptor: int) -> None:
    """Take the lock of an open file or folder, which ends when it is closed; waits while another holds it.

    Does nothing where the system has no such locks.
    """
    try:
        import fcntl
    except ImportError:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def cannot_write(path: Path, error: OSError) -> str:
    """One line on a file that could not be written, with what to do."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            because, remedy = "no space left on the disk", "Free some, or choose another place with --output-dir."
        case errno.EACCES | errno.EPERM:
            because, remedy = "permission denied", "Choose a folder you may write to with --output-dir."
        case errno.EROFS:
            because, remedy = "the file system is read-only", "Choose another place with --output-dir."
        case errno.ENOTDIR | errno.EEXIST:
            because, remedy = "a part of its path is a file, not a folder", "Choose another place with --output-dir."
        case _:
            because, remedy = (error.strerror or str(error)).lower(), "Choose another place with --output-dir."
    return f"cannot write {path}: {because}. {remedy}"


def _umask() -> int:
    """The process's file mode mask, read from /proc where that is possible: os.umask can only be read by setting it."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the file itself is synced
    finally:
        os.close(descriptor)
