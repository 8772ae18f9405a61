"""A plan on a compressed clock is sent faster and is still the same plan."""

from __future__ import annotations

from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, OpenLoop, Plan, Request, compressed


def plan_of(*lanes: Lane) -> Plan:
    facts = LengthFacts(8, 8, 8, 8)
    return Plan(workload="w", seed=0, lanes=lanes, warmups=(), digest="d", isl=facts, osl=facts)


def request(index: int, due_s: float | None) -> Request:
    return Request(index, "measured", 0, "text", isl=8, osl=8, due_s=due_s)


def test_what_is_due_at_6_s_of_engine_time_is_sent_at_1_s() -> None:
    plan = plan_of(Lane("open", OpenLoop("constant", 0.5), [request(0, 0.0), request(1, 6.0)], duration_s=12.0))
    faster = compressed(plan, 6.0)
    assert [r.due_s for r in faster.lanes[0].requests] == [0.0, 1.0]
    assert faster.lanes[0].duration_s == 2.0
    assert faster.digest == "d"
    assert faster.lanes[0].loop == OpenLoop("constant", 0.5)  # what the reader is told stays in engine time


def test_a_ramp_is_compressed_and_a_closed_loop_keeps_its_requests() -> None:
    loop = ClosedLoop((ConcurrencyStep(0.0, 2), ConcurrencyStep(30.0, 4)))
    plan = plan_of(Lane("closed", loop, [request(0, None)]))
    faster = compressed(plan, 6.0)
    assert faster.lanes[0].loop == ClosedLoop((ConcurrencyStep(0.0, 2), ConcurrencyStep(5.0, 4)))
    assert list(faster.lanes[0].requests) == [request(0, None)]
    assert compressed(plan, 1.0) is plan
