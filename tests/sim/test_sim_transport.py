"""The driver over the engine in virtual time, with steps that all take 100 ms: every stamp is worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from checked_engine import sglang, trtllm, vllm
from virtual_loop import MS, S, closed_lane, make_plan, open_lane

from longbench_sched.errors import TargetError
from longbench_sched.load.driver import Driver
from longbench_sched.plan import Plan, Request
from longbench_sched.record import Reason, Status, StreamRecord
from longbench_sched.sim.clock import EPOCH_NS, VirtualClock, VirtualLoop, run_virtually
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.step import StepPlan
from longbench_sched.sim.transport import SimTransport

T0 = EPOCH_NS
STEP_S = 0.1


class Counted(VirtualLoop):
    """A loop that counts its jumps."""

    n_jumps = 0

    def jump(self) -> None:
        self.n_jumps += 1
        super().jump()


def fixed(engine: Engine, seconds: float = STEP_S) -> Engine:
    """The engine with steps that all take as long."""

    def cost(plan: StepPlan) -> float:
        return seconds

    engine.cost = cost  # type: ignore[assignment]
    return engine


def requests(*due_ms: float | None, isl: int = 100, osl: int = 3) -> list[Request]:
    return [Request(i, "measured", 0, "", isl, osl, None if due is None else due / 1e3) for i, due in enumerate(due_ms)]


def drive(engine: Engine, plan: Plan, loop: VirtualLoop | None = None, cancel_at_ns: int | None = None) -> list[StreamRecord]:
    """Send a plan from T0 on; the records in the order in which they ended."""
    loop = loop or VirtualLoop()
    records: list[StreamRecord] = []

    async def main() -> None:
        transport = SimTransport(engine, loop, lambda request: "lane")
        clock = VirtualClock(loop)
        driver = Driver(transport, clock, lambda ended: records.append(ended.record()))
        running = asyncio.ensure_future(driver.run(plan, T0))
        if cancel_at_ns is not None:
            await clock.sleep_until(cancel_at_ns)
            driver.stop()
            transport.cancel_all()
        await running
        await transport.aclose()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    return records


def stamps(record: StreamRecord) -> list[float]:
    """When its tokens came, in ms from T0."""
    return [(at - T0) / MS for at in record.decoded.chunk_at_ns]


def by_index(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    return sorted(records, key=lambda record: record.index)


def test_a_request_alone_has_its_prompt_in_one_step_and_a_token_a_step() -> None:
    (record,) = drive(fixed(vllm()), make_plan(open_lane(requests(50))))
    assert stamps(record) == [150, 250, 350]
    assert (record.due_ns, record.slot_ns, record.sent_ns) == (T0 + 50 * MS,) * 3
    assert record.end_ns == record.decoded.finish_ns == T0 + 350 * MS
    assert record.decoded.first_byte_ns == T0 + 150 * MS
    assert list(record.decoded.chunk_tokens) == [1, 1, 1]
    assert (record.decoded.prompt_tokens, record.decoded.output_tokens) == (100, 3)
    assert (record.status, record.decoded.finish_reason, record.clock) == (Status.OK, "length", "virtual")


@pytest.mark.parametrize(
    ("due_ms", "first_ms"),
    [
        pytest.param(99.999999, 200, id="a ns before a step begins: in it"),
        pytest.param(100, 200, id="at the instant a step begins: in it"),
        pytest.param(100.000001, 300, id="a ns later: in the next"),
    ],
)
def test_a_step_sees_all_that_arrived_until_it_begins(due_ms: float, first_ms: float) -> None:
    records = by_index(drive(fixed(vllm()), make_plan(open_lane(requests(0, due_ms)))))
    assert stamps(records[0]) == [100, 200, 300]
    assert stamps(records[1])[0] == first_ms


def test_an_engine_that_was_idle_begins_at_the_arrival() -> None:
    records = by_index(drive(fixed(vllm()), make_plan(open_lane(requests(0, 1000)))))
    assert stamps(records[1]) == [1100, 1200, 1300]


def test_in_a_closed_loop_the_next_request_comes_at_the_instant_at_which_one_ended() -> None:
    records = by_index(drive(fixed(vllm()), make_plan(closed_lane(requests(None, None, None), (0, 1)))))
    assert [(r.sent_ns or 0) - T0 for r in records] == [0, 300 * MS, 600 * MS]
    assert [r.end_ns for r in records] == [T0 + ms * MS for ms in (300, 600, 900)]


def test_places_that_become_free_together_are_filled_before_the_next_step() -> None:
    """Two end at 300 ms; both successors are in the step that begins there."""
    records = by_index(drive(fixed(vllm()), make_plan(closed_lane(requests(*[None] * 4), (0, 2)))))
    assert [stamps(r) for r in records] == [[100, 200, 300]] * 2 + [[400, 500, 600]] * 2


def test_sglang_lets_decodes_stand_still_while_a_prompt_is_computed() -> None:
    """A's tokens at 100 and 200; the step from 200 is B's prompt alone, so A's next is at 400."""
    records = by_index(drive(fixed(sglang()), make_plan(open_lane(requests(0, 150, osl=4)))))
    assert stamps(records[0]) == [100, 200, 400, 500]
    assert stamps(records[1]) == [300, 400, 500, 600]


def test_tasks_wake_once_a_request_and_not_once_a_token() -> None:
    loop = Counted()
    records = drive(fixed(vllm()), make_plan(closed_lane(requests(*[None] * 8, osl=500), (0, 2))), loop)
    assert sum(len(r.decoded.chunk_at_ns) for r in records) == 4000
    assert loop.n_jumps <= 2 * len(records)


@pytest.mark.parametrize(
    ("engine", "status", "reason"),
    [
        pytest.param(lambda: vllm(max_num_queued_reqs=2), 503, Reason.HTTP_STATUS, id="vllm, requests"),
        pytest.param(lambda: vllm(max_num_queued_tokens=200), 503, Reason.HTTP_STATUS, id="vllm, tokens"),
        pytest.param(lambda: sglang(max_queued_requests=2), 200, Reason.IN_BAND_ERROR, id="sglang, in its first event"),
    ],
)
def test_a_full_queue_refuses_as_the_server_does(engine: Callable[[], Engine], status: int, reason: Reason) -> None:
    """Three come at once: two wait for the first step, the third finds no place. One that comes later does."""
    records = by_index(drive(fixed(engine()), make_plan(open_lane(requests(0, 0, 0, 50)))))
    assert [record.status for record in records] == [Status.OK, Status.OK, Status.FAILED, Status.OK]
    assert (records[2].http_status, records[2].decoded.reason, records[2].end_ns) == (status, reason, T0)


def test_a_request_that_the_scheduler_refuses_is_a_record_and_costs_no_time() -> None:
    """TensorRT-LLM without chunked prefill: a prompt above max_num_tokens can never run."""
    refused, served = by_index(
        drive(fixed(trtllm(max_num_tokens=64)), make_plan(open_lane([*requests(0), Request(1, "measured", 0, "", 64, 1, 0.0)])))
    )
    assert (refused.status, refused.decoded.reason, refused.http_status) == (Status.FAILED, Reason.HTTP_STATUS, 400)
    assert refused.end_ns == refused.sent_ns == T0
    assert refused.decoded.detail
    assert stamps(served) == [100]


def test_cancelled_requests_end_now_with_the_tokens_they_had() -> None:
    """The step from 200 to 300 is under way; its token is never sent."""
    (record,) = drive(fixed(vllm()), make_plan(open_lane(requests(0))), cancel_at_ns=T0 + 250 * MS)
    assert (record.status, record.decoded.reason) == (Status.CANCELLED, Reason.INTERRUPTED)
    assert stamps(record) == [100, 200]
    assert record.end_ns == T0 + 250 * MS
    assert record.decoded.finish_reason is None


def test_an_engine_that_can_never_go_on_is_an_error_with_a_remedy() -> None:
    engine = fixed(vllm(kv_tokens=64))
    with pytest.raises(TargetError, match="can never go on: 1 requests wait, 0 are in progress, the longest has 103 tokens"):
        drive(engine, make_plan(open_lane(requests(0))))


def test_a_preempted_request_is_marked() -> None:
    """80 tokens of KV, two requests of 32 + 16: at 41 tokens each a third block is needed, and there are only 5."""
    records = by_index(drive(fixed(vllm(kv_tokens=80)), make_plan(open_lane(requests(0, 0, isl=32, osl=16)))))
    assert [r.decoded.marks for r in records] == [[], ["preempted"]]
    assert [len(r.decoded.chunk_at_ns) for r in records] == [16, 16]


def test_times_are_whole_nanoseconds_and_do_not_drift() -> None:
    """A third of a second is 333,333,333 ns each time: the next step begins where the last one ended."""
    (record,) = drive(fixed(vllm(), 1 / 3), make_plan(open_lane(requests(0, osl=4))))
    assert [at - T0 for at in record.decoded.chunk_at_ns] == [333_333_333 * k for k in (1, 2, 3, 4)]


def test_the_loop_is_left_without_a_source() -> None:
    async def scenario(loop: VirtualLoop) -> object:
        transport = SimTransport(vllm(), loop, lambda request: "lane")
        await transport.warm(4)
        assert not transport.is_read_waiting()
        await transport.aclose()
        await VirtualClock(loop).sleep_until(2 * S)
        return loop.source

    assert run_virtually(scenario) is None
