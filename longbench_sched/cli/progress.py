"""The line that tells how far a run is: done/total, in flight, lateness, time left.

It is written by a thread of its own, a few times a second on a terminal and every ten seconds elsewhere: the timed thread only
leaves the newest figures where the writer finds them, so a terminal that is slow or stopped cannot delay a read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from longbench_sched.cli import output

if TYPE_CHECKING:
    from longbench_sched.load.execute import Progress

TERMINAL_EVERY_S = 0.25
PLAIN_EVERY_S = 10.0
BAR_CELLS = 20
CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """Shows the newest Progress on stderr while the block runs."""

    def __init__(self, stream: TextIO | None = None, every_s: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._every_s = every_s or (TERMINAL_EVERY_S if self._live else PLAIN_EVERY_S)
        self._newest: Progress | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write_until_stopped, name="progress", daemon=True)

    def update(self, progress: Progress) -> None:
        """Take the newest figures; costs an assignment."""
        self._newest = progress

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join(timeout=1.0)
        if self._live:
            self._put(CLEAR_LINE)

    def _write_until_stopped(self) -> None:
        while not self._stopped.wait(self._every_s):
            if self._newest is not None:
                line = progress_text(self._newest, with_bar=self._live)
                self._put(f"{CLEAR_LINE}{line[: output.columns(self._stream) - 1]}" if self._live else line + "\n")

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the run is not
            self._stopped.set()


@contextmanager
def standing_line(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """A line that stands on a terminal while the block runs, so that nobody takes the wait for a hang; elsewhere nothing."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    with suppress(OSError, ValueError):
        stream.write(text[: output.columns(stream) - 1])
        stream.flush()
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            stream.write(CLEAR_LINE)
            stream.flush()


def progress_text(progress: Progress, *, with_bar: bool) -> str:
    """The line: ` ━━━━━━━━━━━          143/256 · 64 in flight · late 0.3 ms · 1:34 left`."""
    from longbench_sched.quantity import significant

    if progress.phase == "warmup":
        return f"  warming up · {progress.in_flight} in flight"
    if progress.phase == "drain":  # no bar: all of it must be seen on a narrow terminal
        done = f"{progress.done}/{progress.planned} done"
        return f"  stopping: {progress.in_flight} still in flight · {done} · Ctrl-C again to leave now"
    parts = [f"{progress.done}/{progress.planned}", f"{progress.in_flight} in flight"]
    if progress.done > progress.ok:
        parts.append(f"{progress.done - progress.ok} not ok")
    if progress.lateness_ms is not None:
        parts.append(f"late {significant(progress.lateness_ms, 2)} ms")
    if progress.left_s is not None:
        parts.append(f"{_clock(progress.left_s)} left")
    bar = f"{_bar(progress.done, progress.planned)}  " if with_bar else ""
    return f"  {bar}{' · '.join(parts)}"


def _bar(done: int, planned: int) -> str:
    filled = BAR_CELLS * done // max(planned, 1)
    return "━" * filled + " " * (BAR_CELLS - filled)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
