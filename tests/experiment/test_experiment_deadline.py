"""The alarm that ends a simulation, and leaves no trace of itself."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading

import pytest

from longbench_sched.experiment.deadline import DeadlinePassed, deadline


def test_work_without_end_is_ended_and_the_next_block_has_its_own_time() -> None:
    with pytest.raises(DeadlinePassed), deadline(0.05):
        for _ in itertools.count():
            pass
    with deadline(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_callback_of_an_event_loop_does_not_swallow_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(DeadlinePassed), deadline(0.05):
        asyncio.run(main())


def test_an_alarm_that_falls_into_a_destructor_is_lost_and_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda lost_one: lost.append(lost_one.exc_type))

    class Slow:
        def __del__(self) -> None:
            signal.pause()

    def work() -> None:
        Slow()  # ends here, in its pause
        signal.pause()

    with pytest.raises(DeadlinePassed), deadline(0.05):
        work()
    assert lost == [DeadlinePassed]


def test_outside_the_main_thread_there_is_none() -> None:
    said: list[str] = []

    def work() -> None:
        with deadline(0.001):
            said.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == ["done"]
