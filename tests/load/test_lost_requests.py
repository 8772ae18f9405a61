"""What was in flight is known outside the process before its answer is: a kill leaves it as lost, not unheard of."""

from __future__ import annotations

from array import array

from scripted_server import Gate, ScriptedServer, Send, Wait, chunk, ok_stream, stream_head, token

from longbench_sched.engine import make_dialect
from longbench_sched.load.execute import LoadOptions, execute
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, Plan, Request
from longbench_sched.record import Status, StreamRecord
from longbench_sched.target import Endpoint, Target


def plan_of(n_requests: int) -> Plan:
    requests = [Request(i, "measured", 0, array("I", [7, 8, 9]), 3, 2) for i in range(n_requests)]
    loop = ClosedLoop((ConcurrencyStep(0.0, n_requests),))
    three, two = LengthFacts(3, 3, 3, 3), LengthFacts(2, 2, 2, 2)
    return Plan("lost", 0, (Lane("main", loop, requests),), (), "0" * 64, three, two)


def test_a_request_in_flight_is_handed_on_before_its_answer_ends() -> None:
    answer = Gate()
    heard: list[StreamRecord] = []
    ended: list[StreamRecord] = []

    def on_sent(record: StreamRecord) -> None:
        assert not ended, "nothing can have ended: the server waits for us"
        heard.append(record)
        if len(heard) == 2:
            answer.open()

    rest = ok_stream(n_tokens=2)[len(stream_head()) :]
    with ScriptedServer([Send(stream_head()), Send(chunk(token("a"))), Wait(answer), Send(rest)]) as server:
        target = Target("vllm", Endpoint.parse(server.url), "m")
        options = LoadOptions(run_id="run7", model="m")
        execute(plan_of(2), target, make_dialect("vllm"), options, ended.append, on_sent=on_sent)

    assert {record.request_id for record in heard} == {"run7-r0", "run7-r1"}
    assert {record.status for record in heard} == {Status.LOST}
    assert all(record.sent_ns is not None and record.end_ns is None for record in heard)
    assert len(ended) == 2
