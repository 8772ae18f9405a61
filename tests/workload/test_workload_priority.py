"""Lanes whose requests carry a priority: in the plan, in its digest, and on the wire of each engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longbench_sched.engine import make_dialect
from longbench_sched.errors import PromptError, WorkloadError
from longbench_sched.plan import Plan
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.prompt import PromptMaker
from longbench_sched.workload.spec import read_workload

TWO_LANES = """
[[lane]]
name = "chat"
isl = 64
osl = 8
rate = "4/s"
requests = 3
{chat}

[[lane]]
name = "batch"
isl = 128
osl = 8
rate = "4/s"
requests = 3
priority = -7
"""


def plan_of(chat: str) -> Plan:
    return build_plan(read_workload(TWO_LANES.format(chat=chat), "two", "two.toml", Path()), 0, PromptMaker())


def test_each_request_of_a_lane_carries_its_priority_and_the_digests_tell() -> None:
    plain, urgent = plan_of(""), plan_of("priority = 3")
    assert [[request.priority for request in lane.requests] for lane in urgent.lanes] == [[3] * 3, [-7] * 3]
    assert all(request.priority == 0 for request in urgent.warmups)
    assert plain.digest == plan_of("priority = 0").digest
    assert (plain.digest == urgent.digest, plain.extra["schedule_digest"] == urgent.extra["schedule_digest"]) == (False, False)


@pytest.mark.parametrize(("engine", "api"), [("vllm", "completions"), ("sglang", "generate"), ("openai", "completions")])
def test_it_is_sent_where_it_is_not_zero(engine: str, api: str) -> None:
    dialect = make_dialect(engine, api)  # type: ignore[arg-type]
    first, other = (lane.requests[0] for lane in plan_of("").lanes)
    assert "priority" not in json.loads(dialect.encode(first, "m").body)
    assert json.loads(dialect.encode(other, "m").body)["priority"] == -7


def test_an_engine_that_takes_none_says_so() -> None:
    with pytest.raises(PromptError, match="--engine trtllm takes no priorities"):
        make_dialect("trtllm").encode(plan_of("").lanes[1].requests[0], "m")


@pytest.mark.parametrize("value", ["1.5", '"high"', "true", str(1 << 70)])
def test_what_is_no_priority_is_refused(value: str) -> None:
    with pytest.raises(WorkloadError, match="priority"):
        plan_of(f"priority = {value}")
