"""The events that other tools are given: each at the instant that the run has for it."""

from __future__ import annotations

import json

import pytest
from handmade import run_of

from benchmarks.reconcile.awkward import ANSWERS, PATHS, Answer, Event, events_of, render, token
from longbench_sched.record import Decoded, StreamRecord
from longbench_sched.run import Run


def run(api: str, answer: Answer) -> tuple[Run, dict[str, Answer]]:
    """A run of one answer: bytes from 100 ns on, tokens at 200 and 300, the finish reason at 350, the end at 400."""
    decoded = Decoded(first_byte_ns=100, finish_ns=350)
    decoded.chunk_at_ns.extend([200, 300])
    decoded.chunk_tokens.extend([1, 1])
    decoded.chunk_lateness_ns.extend([0, 0])
    record = StreamRecord("r", 0, "measured", "main", 50, 50, 24, 6, sent_ns=50, end_ns=400, http_status=200, decoded=decoded)
    return run_of([record], target={"engine": "vllm", "api": api}), {"r": answer}


@pytest.mark.parametrize(
    ("api", "at_ns"),
    [("chat", [50, 150, 250, 300, 350, 350]), ("completions", [150, 250, 300, 350, 350]), ("generate", [150, 250, 300, 350])],
)
def test_each_event_has_the_stamp_that_was_stored_for_it(api: str, at_ns: list[int]) -> None:
    events = (Event("role"), token(), token(), Event("finish"), Event("usage"), Event("done"))
    stored, given = run(api, Answer("a", events))
    (request,) = events_of(stored, api, given)["requests"]
    assert [round(at_s * 1e9) for at_s, _ in request["events"]] == at_ns
    assert request["events"][-1][1] == "data: [DONE]\n\n"
    assert (request["status"], request["is_broken"], request["osl"]) == (200, False, 6)


def test_a_role_event_behind_a_comment_comes_with_the_token_that_follows() -> None:
    stored, given = run("chat", Answer("a", (Event("comment"), Event("role"), token(), token(), Event("done"))))
    (request,) = events_of(stored, "chat", given)["requests"]
    assert [round(at_s * 1e9) for at_s, _ in request["events"]] == [50, 150, 150, 250, 350]


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)
def test_every_event_is_a_whole_one_of_its_route(api: str, answer: Answer) -> None:
    n_tokens = 0
    for event in answer.events:
        n_tokens += event.tokens
        data = render(event, api, n_tokens)
        assert not data or data.endswith(b"\n\n")
        if data.startswith(b"data: {"):
            value = json.loads(data[6:])
            assert {"error", "choices", "meta_info"} & value.keys()
