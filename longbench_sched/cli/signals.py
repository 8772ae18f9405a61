"""What a signal means to a command: SIGTERM ends it with the same words as Ctrl-C, and neither costs a run that is put away.

While requests are sent, `load` has its own way with both.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM. A KeyboardInterrupt, so that whoever tells what an interrupt leaves behind tells it here too."""


@contextmanager
def termination_told() -> Iterator[None]:
    """SIGTERM raises Terminated in the block, where it would have ended the process without a word."""
    if not _is_ours() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def signals_held() -> Iterator[None]:
    """While a run is put away a signal changes nothing: all it could do is lose the run, and it ends by itself at once."""
    if not _is_ours():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ours() -> bool:
    """Whether this thread may say what a signal does."""
    return threading.current_thread() is threading.main_thread()


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated
