"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from longbench_sched.errors import StoreError
from longbench_sched.store.atomic import cannot_write, check_writable, write_atomically


def put(text: bytes) -> object:
    def write(file: BinaryIO) -> None:
        file.write(text)

    return write


def test_a_file_is_written_and_its_folder_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "x.txt", put(b"hello"))
    assert (tmp_path / "a" / "b" / "x.txt").read_bytes() == b"hello"


def test_a_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x.txt", put(b""))
    (tmp_path / "other").touch()
    assert stat.S_IMODE((tmp_path / "x.txt").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
        with pytest.raises(StoreError, match=r"cannot write .*x.txt: file too large"):
            write_atomically(tmp_path / "x.txt", put(bytes(100_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "x.txt").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_a_folder_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    for attempt in (lambda path: write_atomically(path, put(b"")), check_writable):
        with pytest.raises(StoreError, match="a part of its path is a file"):
            attempt(tmp_path / "results" / "x.parquet")


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "x.parquet")
    assert os.listdir(tmp_path) == []


def test_a_folder_cannot_be_written_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is a folder"):
        check_writable(tmp_path)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on the disk. Free some"),
        (errno.EACCES, "permission denied. Choose a folder"),
        (errno.EROFS, "the file system is read-only. Choose another place"),
        (errno.EIO, "input/output error. Choose another place"),
    ],
    ids=["full", "permission", "read-only", "other"],
)
def test_an_error_of_the_system_names_the_remedy(number: int, words: str) -> None:
    assert words in cannot_write(Path("results/x.parquet"), OSError(number, os.strerror(number)))
