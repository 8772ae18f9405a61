"""Where words go when there is nowhere to write them: closed streams, full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from longbench_sched.cli import output
from longbench_sched.errors import StoreError

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_as_good_as_one_that_nobody_reads(closed: str) -> None:
    ran = subprocess.run(
        ["sh", "-c", f'"$0" -m longbench_sched workloads {closed}', sys.executable],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_file_opened_later_does_not_become_the_closed_stdout(tmp_path: Path) -> None:
    program = (
        "import os, sys; from longbench_sched.cli import output; output.prepare_streams();"
        f"file = open({str(tmp_path / 'mine')!r}, 'w'); output.emit('lost'); assert file.fileno() > 2"
    )
    subprocess.run(["sh", "-c", '"$0" -c "$1" >&-', sys.executable, program], timeout=60, check=True)
    assert (tmp_path / "mine").read_text() == ""


@needs_full
def test_a_result_that_does_not_fit_is_one_error_and_what_follows_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(StoreError, match="cannot write to stdout: No space left on device"):
            output.emit("the page")
        output.emit("more")


@needs_full
def test_words_for_stderr_never_fail_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        output.say("a warning")
        output.say("another")
