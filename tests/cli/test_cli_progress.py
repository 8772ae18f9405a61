"""The progress line: what it says, and that it never reaches a place where nobody watches."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import replace

import pytest

from longbench_sched.cli.progress import ProgressLine, progress_text, standing_line
from longbench_sched.load.execute import Progress

NOW = Progress(
    "measured", planned=256, sent=207, done=143, ok=143, in_flight=64, lateness_ms=0.314, elapsed_s=119.0, left_s=94.2
)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (NOW, "  143/256 · 64 in flight · late 0.31 ms · 1:34 left"),
        (replace(NOW, ok=141), "  143/256 · 64 in flight · 2 not ok · late 0.31 ms · 1:34 left"),
        (replace(NOW, lateness_ms=None, left_s=None), "  143/256 · 64 in flight"),
        (replace(NOW, left_s=3_725.0), "  143/256 · 64 in flight · late 0.31 ms · 1:02:05 left"),
        (replace(NOW, phase="warmup", in_flight=3), "  warming up · 3 in flight"),
        (
            replace(NOW, phase="drain"),
            "  stopping: 64 still in flight · 143/256 done · Ctrl-C again to leave now",
        ),
    ],
    ids=["running", "failures", "unknown", "hours", "warm-up", "drain"],
)
def test_the_line_says_how_far_the_run_is(progress: Progress, text: str) -> None:
    assert progress_text(progress, with_bar=False) == text


def test_the_bar_is_as_full_as_the_run() -> None:
    bars = [progress_text(replace(NOW, done=done), with_bar=True)[2:22] for done in (0, 128, 256)]
    assert bars == [" " * 20, "━" * 10 + " " * 10, "━" * 20]


class Terminal(io.StringIO):
    """A stream that says whether it is a terminal, and when something was written to it."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.was_written = threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        n = super().write(text)
        self.was_written.set()
        return n


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_a_terminal_gets_one_line_that_moves_and_a_file_plain_lines(is_terminal: bool) -> None:
    stream = Terminal(is_terminal)
    with ProgressLine(stream, every_s=0.001) as line:
        line.update(NOW)
        assert stream.was_written.wait(10)
    text = stream.getvalue()
    assert "143/256 · 64 in flight" in text
    if is_terminal:
        assert "\n" not in text
        assert text.endswith("\r\x1b[K")  # nothing is left of it when the result comes
        assert max(len(part) for part in re.split("\r\x1b\\[K", text)) < 80
    else:
        assert "\x1b" not in text
        assert "\r" not in text
        assert text.endswith("left\n")


def test_a_terminal_that_is_gone_does_not_end_the_run() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            super().write(text)
            raise OSError(5, "Input/output error")

    stream = Gone(True)
    with ProgressLine(stream, every_s=0.001) as line:
        line.update(NOW)
        assert stream.was_written.wait(10)


def test_nothing_is_shown_before_there_is_anything_to_say() -> None:
    stream = Terminal(False)
    with ProgressLine(stream, every_s=0.001):
        pass
    assert stream.getvalue() == ""


def test_a_line_stands_on_a_terminal_while_something_lasts_and_is_gone_after_it() -> None:
    terminal, file = Terminal(True), Terminal(False)
    with standing_line("  preflight: one request", terminal), standing_line("  preflight: one request", file):
        assert terminal.getvalue() == "  preflight: one request"
    assert (terminal.getvalue(), file.getvalue()) == ("  preflight: one request\r\x1b[K", "")


def test_a_line_does_not_stay_behind_an_error() -> None:
    terminal = Terminal(True)
    with pytest.raises(KeyboardInterrupt), standing_line("  preflight: one request", terminal):
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\r\x1b[K")
