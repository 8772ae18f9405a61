"""Deadline: an end to work that does not look at a clock by itself, such as a simulation.

A run over the network ends itself at its deadline and keeps what was measured. A simulation lives in virtual time and knows no
other: the system's alarm ends it wherever it is, in its plan, in a step or in the summary. Half a simulation is worth nothing,
so nothing of it is kept.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DeadlinePassed(KeyboardInterrupt):
    """The time is up. A KeyboardInterrupt, since an event loop logs any other exception of a callback and goes on."""


AGAIN_S = 0.5  # an exception that falls into a destructor or a callback of the collector is lost: raised until the block ends


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlinePassed inside the block after so many seconds of wall time.

    Signals reach the main thread alone, and not every system has this alarm: elsewhere the block has no deadline.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise DeadlinePassed
