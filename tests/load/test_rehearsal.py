"""A first request against a scripted server: lengths that are not honoured, templates, and what streams hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import scripted_server as scripted
from scripted_server import DONE, Received, ScriptedServer, Send, Steps, chunked, ok_stream, stream_head, token

from longbench_sched.engine import make_dialect
from longbench_sched.errors import EXIT_NOT_MEASURED, TargetError
from longbench_sched.load.probe import Preflight
from longbench_sched.load.rehearsal import choose_request, rehearse, turned
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, Lane, LengthFacts, Plan, Request
from longbench_sched.target import Api, Endpoint, Target


def make_request(isl: int = 4, osl: int = 3, prompt: array[int] | str | None = None, index: int = 0) -> Request:
    ids = array("I", range(isl))
    return Request(index=index, phase="warmup", lane=-1, prompt=ids if prompt is None else prompt, isl=isl, osl=osl)


def run(script: Any, requests: Sequence[Request], engine: str = "vllm", api: Api = "completions", **options: Any) -> Preflight:
    with ScriptedServer(script) as server:
        target = Target(engine=engine, endpoint=Endpoint.parse(server.url), model="m", api=api)
        return rehearse(Preflight("m"), target, make_dialect(engine, api), requests, **options)


def ids_of(found: Preflight) -> list[str]:
    return [finding["id"] for finding in found.findings]


def test_an_endpoint_that_does_as_asked_gives_no_finding() -> None:
    found = run([Send(ok_stream(3, prompt_tokens=4))], [make_request(4, 3)])
    assert found.findings == ()
    assert found.capability["length_control"] == "ignore_eos"


def test_a20_an_endpoint_that_ignores_the_length_asked_for_is_named_with_both_numbers() -> None:
    found = run([Send(ok_stream(371, finish="stop"))], [make_request(4, 2048)])
    assert ids_of(found) == ["LENGTH-CONTROL"]
    assert found.findings[0]["text"] == "POST /v1/completions was asked for 2048 tokens and made 371 (finish reason stop)."
    assert found.findings[0]["cause"] == "The endpoint does not honour ignore_eos."
    assert found.capability["length_control"] == "none"
    assert found.capability["finish_reason"] == "stop"


def test_a_servers_own_full_stop_is_not_doubled() -> None:
    with pytest.raises(TargetError, match=r"\(http-status 400\): too long\.\nMend that"):
        run([Send(scripted.json_answer({"error": {"message": "too long."}}, 400))], [make_request()])


def test_a20_a_dialect_without_such_a_field_is_not_said_to_be_dishonoured() -> None:
    found = run([Send(ok_stream(5, finish="stop"))], [make_request(4, 32)], engine="openai")
    assert ids_of(found) == ["LENGTH-CONTROL"]
    assert "no field that forbids it" in found.findings[0]["cause"]


def test_a20_more_tokens_than_asked_for_are_a_finding_too() -> None:
    assert ids_of(run([Send(ok_stream(9))], [make_request(4, 8)])) == ["LENGTH-CONTROL"]


def test_a15_a_prompt_that_the_server_counts_otherwise_is_a_finding() -> None:
    found = run([Send(ok_stream(3, prompt_tokens=5_827))], [make_request(10_000, 3)])
    assert ids_of(found) == ["ISL-MISMATCH"]
    assert found.findings[0]["text"] == "The server counted 5827 prompt tokens where 10000 were planned (limit 2 %)."


@pytest.mark.parametrize(("counted", "is_found"), [(1_000, False), (1_020, False), (1_021, True), (980, False), (979, True)])
def test_a15_two_percent_are_let_pass(counted: int, is_found: bool) -> None:
    assert bool(run([Send(ok_stream(3, prompt_tokens=counted))], [make_request(1_000, 3)]).findings) is is_found


def _chat_stream(n_tokens: int, prompt_tokens: int) -> bytes:
    events = [scripted.chat_token(f" t{i}", "length" if i == n_tokens - 1 else None) for i in range(n_tokens)]
    return stream_head() + chunked(scripted.ROLE, *events, scripted.usage(prompt_tokens, n_tokens), DONE)


def test_a16_the_overhead_of_a_chat_template_is_measured() -> None:
    found = run([Send(_chat_stream(3, 1061))], [make_request(1024, 3, "text")], api="chat")
    assert (found.template_overhead, found.findings) == (37, ())


def test_a16_the_overhead_of_the_shortest_request_is_expected_of_the_others() -> None:
    def script(request: Received) -> Steps:
        return [Send(_chat_stream(3, 137 if request.index == 0 else 1_900))]

    found = run(script, [make_request(100, 3, "short"), make_request(2_000, 3, "long", index=1)], api="chat")
    assert found.template_overhead == 37
    assert [finding["text"] for finding in found.findings] == [
        "The server counted 1900 prompt tokens where 2037 were planned (limit 2 %)."
    ]


@pytest.mark.parametrize(("counted", "ids"), [(1_280, []), (1_281, ["TEMPLATE-OVERHEAD"])])
def test_a_template_that_is_very_long_may_be_another_tokenizer(counted: int, ids: list[str]) -> None:
    assert ids_of(run([Send(_chat_stream(3, counted))], [make_request(1_024, 3, "text")], api="chat")) == ids


def test_completions_have_no_template() -> None:
    assert run([Send(ok_stream(3, prompt_tokens=4))], [make_request(4, 3)]).template_overhead is None


# What stops a run.


def test_an_endpoint_that_is_not_there_is_another_dialect() -> None:
    with pytest.raises(TargetError) as error:
        run(scripted.routes({}), [make_request()])
    assert "answers 404 to POST /v1/completions: Not Found" in str(error.value)
    assert "Check --engine, --api and --model. No measured request was sent." in str(error.value)
    assert error.value.exit_code == EXIT_NOT_MEASURED


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (scripted.json_answer({"error": {"message": "too long"}}, 400), "failed (http-status 400): too long"),
        (scripted.json_answer({"error": {"message": "no"}}), "failed (in-band-error): no"),
        (scripted.head(200, ("Content-Type", "text/html"), ("Content-Length", "6")) + b"<html>", "failed (not-json): <html>"),
        (stream_head() + chunked(DONE), "failed (empty-stream)"),
    ],
    ids=["400", "in-band", "html", "empty"],
)
def test_a_first_request_that_fails_stops_the_run_with_the_servers_words(answer: bytes, words: str) -> None:
    with pytest.raises(TargetError) as error:
        run([Send(answer)], [make_request()])
    assert words in str(error.value)
    assert "--no-preflight" in str(error.value)


def test_limits_hold_for_the_first_request_too() -> None:
    with pytest.raises(TargetError, match="timeout-first-token"):
        run([scripted.Silence()], [make_request()], timeouts=Timeouts(first_token_s=0.2))


# The capability record.


def test_the_record_of_a_full_stream() -> None:
    events = [token(f" t{i}", "length" if i == 1 else None, scripted.usage_fields(4, i + 1), token_ids=[7]) for i in range(2)]
    stream = stream_head() + chunked(scripted.COMMENT, *events, scripted.usage(4, 2, cached=0), DONE)
    found = run([Send(stream)], [make_request(4, 2)])
    shown = {key: found.capability[key] for key in found.capability if not key.endswith("_ms")}
    assert shown == {
        "role_chunk": False,
        "usage": True,
        "usage_per_chunk": True,
        "token_ids": True,
        "cumulative": None,
        "done": True,
        "comments": 1,
        "token_events": 2,
        "tokens_per_event_max": 1,
        "prompt_tokens": 4,
        "output_tokens": 2,
        "cached_tokens": 0,
        "finish_reason": "length",
        "length_control": "ignore_eos",
    }
    header_ms, first_ms = found.capability["header_ms"], found.capability["first_token_ms"]
    assert isinstance(header_ms, float)
    assert isinstance(first_ms, float)
    assert 0 < header_ms <= first_ms


def test_the_record_of_a_chat_shows_its_role_chunk() -> None:
    found = run([Send(_chat_stream(3, 1061))], [make_request(1024, 3, "text")], api="chat")
    assert (found.capability["role_chunk"], found.capability["usage_per_chunk"], found.capability["token_ids"]) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize(("texts", "is_cumulative"), [((" a", " a b"), True), ((" a", " b"), False)], ids=["whole", "new"])
def test_the_record_of_a_native_stream_says_whether_text_is_repeated(texts: Sequence[str], is_cumulative: bool) -> None:
    events = [
        scripted.event(
            {
                "text": text,
                "output_ids": [1] * (i + 1),
                "meta_info": {
                    "prompt_tokens": 4,
                    "completion_tokens": i + 1,
                    "finish_reason": {"type": "length", "length": 2} if i else None,
                },
            }
        )
        for i, text in enumerate(texts)
    ]
    found = run([Send(stream_head() + chunked(*events, DONE))], [make_request(4, 2)], engine="sglang", api="generate")
    assert (found.capability["cumulative"], found.capability["token_ids"]) == (is_cumulative, True)


def test_findings_of_the_probe_are_kept() -> None:
    with ScriptedServer([Send(ok_stream(9))]) as server:
        target = Target(engine="vllm", endpoint=Endpoint.parse(server.url), model="m")
        before = Preflight("m", findings=({"id": "OTHER-ENGINE", "text": "?"},))
        found = rehearse(before, target, make_dialect("vllm"), [make_request(4, 8)])
    assert ids_of(found) == ["OTHER-ENGINE", "LENGTH-CONTROL"]


def test_through_a_proxy_the_request_goes_through_it_too() -> None:
    with ScriptedServer([Send(ok_stream(3))]) as proxy:
        target = Target(engine="vllm", endpoint=Endpoint.parse("http://engine.test:8000"), model="m")
        rehearse(Preflight("m"), target, make_dialect("vllm"), [make_request()], proxy=proxy.url)
    assert proxy.requests[0].path == "http://engine.test:8000/v1/completions"


# Which request is sent.


def make_plan(requests: Sequence[Request], warmups: Sequence[Request] = ()) -> Plan:
    lengths = LengthFacts(1.0, 1.0, 1, 1)
    lane = Lane("main", ClosedLoop((ConcurrencyStep(0.0, 1),)), requests)
    return Plan("w", 0, (lane,), tuple(warmups), "d", lengths, lengths)


def test_the_shortest_prompt_is_sent_with_another_beginning() -> None:
    plan = make_plan([make_request(8, 500), make_request(6, 400, index=1)])
    chosen = choose_request(plan)
    assert (list(chosen.prompt), chosen.isl, chosen.osl, chosen.phase) == ([3, 4, 5, 0, 1, 2], 6, 400, "warmup")


def test_an_answer_shorter_than_the_probes_stays_as_short() -> None:
    assert choose_request(make_plan([make_request(6, 5)])).osl == 5


@pytest.mark.parametrize("prompt", [None, "measured text"])
def test_a20_a_model_that_ends_its_answers_after_hundreds_of_tokens_is_found_out(prompt: str | None) -> None:
    """2,048 asked of an endpoint that stops at 371: a probe of a few tokens, or of a warm-up's, would come back whole."""
    plan = make_plan([make_request(8, 2048, prompt)], [] if prompt is None else [make_request(7, 16, "warm-up text")])
    chosen = choose_request(plan)
    found = run([Send(ok_stream(min(371, chosen.osl), finish="stop", prompt_tokens=chosen.isl))], [chosen])
    assert found.findings[0]["text"] == "POST /v1/completions was asked for 2048 tokens and made 371 (finish reason stop)."


def test_a_text_of_a_warm_up_is_sent_as_it_is_since_its_length_is_exact() -> None:
    plan = make_plan([make_request(8, 9, "measured text")], [make_request(7, 9, "warm-up text")])
    assert (choose_request(plan).prompt, choose_request(plan).isl) == ("warm-up text", 7)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("one two three four", " fourone two three"), ("nospace", "pacenos"), ("ab cd", " cdab"), ("", "")],
)
def test_a_text_is_turned_at_a_space(prompt: str, expected: str) -> None:
    assert turned(prompt) == expected
