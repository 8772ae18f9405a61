"""The backlog decodes ended streams in short slices, in order, and never while a read waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from longbench_sched.load import backlog as backlog_module
from longbench_sched.load.backlog import Backlog
from longbench_sched.record import StreamRecord


@dataclass
class Stream:
    """An ended stream that is decoded after so many steps, and forgets what it held when it is."""

    index: int
    steps: int = 1
    n_undecoded_bytes: int = 10
    ended_ns: int = 0
    n_done: int = field(default=0, init=False)

    def step(self, until_ns: int) -> bool:
        self.n_done += 1
        return self.n_done >= self.steps

    def record(self) -> StreamRecord:
        assert self.n_done >= self.steps
        self.n_undecoded_bytes = 0
        return StreamRecord(f"r{self.index}", self.index, "measured", "main", 0, 0, 1, 1)


def _run(scenario: Callable[[Backlog], object], sink: Callable[[StreamRecord], None], waiting: Callable[[], bool]) -> None:
    async def main() -> None:
        backlog = Backlog(sink, waiting)
        await scenario(backlog)  # type: ignore[misc]

    asyncio.run(asyncio.wait_for(main(), 20))


def test_records_are_handed_on_in_the_order_of_ending() -> None:
    seen: list[int] = []

    async def scenario(backlog: Backlog) -> None:
        for i in range(50):
            backlog.add(Stream(i, steps=1 + i % 3))
        await backlog.drained()
        assert seen == list(range(50))
        await backlog.drained()
        backlog.add(Stream(50))
        await backlog.drained()

    _run(scenario, lambda r: seen.append(r.index), lambda: False)
    assert seen == list(range(51))


def test_nothing_is_decoded_while_a_read_waits() -> None:
    asked: list[bool] = []
    streams = [Stream(0, steps=2)]

    def is_read_waiting() -> bool:
        asked.append(len(asked) < 30)
        assert not asked[-1] or not streams[0].n_done
        return asked[-1]

    async def scenario(backlog: Backlog) -> None:
        backlog.add(streams[0])
        await backlog.drained()

    _run(scenario, lambda _: None, is_read_waiting)
    assert asked[:31] == [True] * 30 + [False]


def test_a_stream_rests_before_it_is_decoded() -> None:
    """While the run goes on nothing is decoded at once; the end of the run does not wait for the rest."""
    seen: list[int] = []

    async def scenario(backlog: Backlog) -> None:
        backlog.add(Stream(0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not seen
        await backlog.drained()

    _run(scenario, lambda r: seen.append(r.index), lambda: False)
    assert seen == [0]


def test_when_much_has_piled_up_nothing_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "LOOK_EVERY_S", 0.001)
    seen: list[int] = []

    async def scenario(backlog: Backlog) -> None:
        for i in range(5):
            backlog.add(Stream(i, n_undecoded_bytes=backlog_module.MAX_RESTING_BYTES // 4))
        while len(seen) < 1:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == [0]  # the other four are no longer too much

    _run(scenario, lambda r: seen.append(r.index), lambda: False)


def test_bytes_that_were_spooled_meanwhile_do_not_count_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added with much in memory, decoded with nothing in memory: what rests afterwards may rest."""
    monkeypatch.setattr(backlog_module, "LOOK_EVERY_S", 0.001)
    seen: list[int] = []

    async def scenario(backlog: Backlog) -> None:
        spooled = Stream(0, n_undecoded_bytes=2 * backlog_module.MAX_RESTING_BYTES)
        backlog.add(spooled)
        spooled.n_undecoded_bytes = 0
        while not seen:
            await asyncio.sleep(0.001)
        backlog.add(Stream(1))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert seen == [0]

    _run(scenario, lambda r: seen.append(r.index), lambda: False)


@pytest.mark.parametrize("is_waiting_already", [True, False])
def test_a_record_that_cannot_be_taken_ends_the_run_instead_of_hanging_it(is_waiting_already: bool) -> None:
    def full(_: StreamRecord) -> None:
        raise OSError(28, "No space left on device")

    async def scenario(backlog: Backlog) -> None:
        backlog.add(Stream(0, n_undecoded_bytes=2 * backlog_module.MAX_RESTING_BYTES))  # so that it does not rest
        if is_waiting_already:
            with pytest.raises(OSError, match="No space"):
                await backlog.drained()
        else:
            for _ in range(3):
                await asyncio.sleep(0)
        with pytest.raises(OSError, match="No space"):
            backlog.add(Stream(1))
        with pytest.raises(OSError, match="No space"):
            await backlog.drained()

    _run(scenario, full, lambda: False)


def test_garbage_is_collected_between_streams_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "COLLECT_EVERY_NS", 0)
    counts: list[int] = []

    async def scenario(backlog: Backlog) -> None:
        for i in range(4):
            backlog.add(Stream(i))
        await backlog.drained()
        counts.append(backlog.gc_pauses)
        assert backlog.gc_pause_max_ns > 0

    _run(scenario, lambda _: None, lambda: False)
    assert counts == [4]
