"""One answer as it came: tokens and their stamps, counts, endings and the verdict."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import orjson
import pytest
from engine_events import (
    DONE,
    JSON,
    STREAM,
    STREAMS,
    Case,
    decode,
    ms,
    request,
    sglang_chat,
    sse,
    trtllm_text,
    usage,
    vllm_chat,
    vllm_role,
    vllm_text,
    vllm_usage,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.engine import ENGINES, make_dialect
from longbench_sched.engine.answer import AnswerDecoder
from longbench_sched.engine.marks import MARKS
from longbench_sched.record import Decoded, Ending, Reason, Status, TokenSource
from longbench_sched.target import Api


def _decode_case(case: Case, pieces: list[tuple[int, bytes]]) -> Decoded:
    decoder = make_dialect(case.engine, case.api).decoder(request(osl=case.osl), keep_text=True)
    decoder.start(200, STREAM)
    for at_ns, piece in pieces:
        decoder.feed(piece, at_ns, 0)
    return decoder.finish(Ending.COMPLETE)


# What the engines send


@pytest.mark.parametrize("case", STREAMS.values(), ids=STREAMS.keys())
def test_the_streams_of_the_engines_are_read(case: Case) -> None:
    decoded = _decode_case(case, [(100 + i, event) for i, event in enumerate(case.events)])
    assert (decoded.status, decoded.reason, decoded.detail) == (Status.OK, None, None)
    assert [at - 100 for at in decoded.chunk_at_ns] == case.at
    assert decoded.chunk_tokens.tolist() == case.tokens
    assert decoded.chunk_token_source == case.chunk_source
    assert (decoded.output_tokens, decoded.output_token_source) == (case.output, case.output_source)
    assert (decoded.prompt_tokens, decoded.cached_tokens) == (case.prompt, case.cached)
    assert decoded.prompt_token_source == (None if case.prompt is None else "usage")
    assert decoded.cached_token_source == (None if case.cached is None else "usage")
    assert decoded.finish_reason == case.finish
    assert decoded.finish_ns == (None if case.finish_at is None else 100 + case.finish_at)
    assert decoded.marks == case.marks
    assert decoded.text == case.text


@given(case=st.sampled_from(list(STREAMS.values())), at=st.lists(st.integers(0, 5000), max_size=40))
def test_the_cut_changes_only_the_stamps(case: Case, at: list[int]) -> None:
    """Every event has the stamp of the read that brought its last byte; nothing else depends on the reads."""
    body = b"".join(case.events)
    edges = [0, *sorted({i % len(body) for i in at}), len(body)]
    reads = [(end, body[start:end]) for start, end in pairwise(edges) if end > start]
    ends = [sum(map(len, case.events[: i + 1])) for i in range(len(case.events))]
    whole = asdict(_decode_case(case, list(zip(ends, case.events, strict=True))))
    cut = asdict(_decode_case(case, reads))

    def stamp(end: int | None) -> int | None:
        return None if end is None else next(read_at for read_at, _ in reads if read_at >= end)

    assert cut["chunk_at_ns"].tolist() == [stamp(end) for end in whole["chunk_at_ns"]]
    assert (cut["finish_ns"], cut["answer_at_ns"]) == (stamp(whole["finish_ns"]), stamp(whole["answer_at_ns"]))
    assert cut["n_shared_reads"] == len(cut["chunk_at_ns"]) - len(set(cut["chunk_at_ns"]))
    for key in ("chunk_at_ns", "finish_ns", "answer_at_ns", "first_byte_ns", "n_shared_reads"):
        del whole[key], cut[key]
    assert cut == whole


def test_lateness_stands_beside_each_stamp() -> None:
    decoder = make_dialect("vllm").decoder(request(osl=2))
    decoder.start(200, STREAM)
    decoder.feed(vllm_text("a"), 10, 3)
    decoder.feed(vllm_text("b") + vllm_text("c", "length"), 20, 5)
    assert decoder.finish(Ending.CANCELLED).chunk_lateness_ns.tolist() == [3, 5, 5]


def test_events_of_one_read_share_its_stamp_and_are_counted() -> None:
    script = [
        (10, vllm_text("a", None, 1) + vllm_text("b", None, 2)),
        (10, vllm_text("c", None, 3)),
        (20, vllm_text("d", "length", 4)),
    ]
    decoded = decode("vllm", [*script, (21, vllm_usage(24, 4) + DONE)])
    assert decoded.chunk_at_ns.tolist() == [ms(10), ms(10), ms(10), ms(20)]
    assert decoded.n_shared_reads == 2


# Pitfalls: what is a token, and when did it come


def test_a01_a_role_event_is_not_the_first_token() -> None:
    script = [(20, vllm_role()), *((400 + 10 * i, vllm_chat({"content": t}, f)) for i, (t, f) in enumerate(_FOUR))]
    decoded = decode("vllm", [*script, (431, vllm_usage(15, 4) + DONE)], api="chat")
    assert decoded.chunk_at_ns.tolist() == [ms(400), ms(410), ms(420), ms(430)]
    assert decoded.first_byte_ns == ms(20)


_FOUR = [("Hi", None), ("a", None), ("b", None), ("c", "length")]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a02_reasoning_counts_for_ttft_and_the_answer_comes_later(name: str) -> None:
    thoughts = [(100 + 20 * i, vllm_chat({name: "Okay"})) for i in range(95)]
    script = [*thoughts, (2000, vllm_chat({"content": "42"}, "stop")), (2001, vllm_usage(15, 96) + DONE)]
    decoded = decode("vllm", script, api="chat", osl=96, keep_text=True)
    assert (decoded.chunk_at_ns[0], decoded.answer_at_ns) == (ms(100), ms(2000))
    assert decoded.text == "Okay" * 95 + "42"


@pytest.mark.parametrize(
    ("field", "status", "reason", "n"),
    [
        ("reasoning_content", Status.OK, None, 500),
        ("reasoning", Status.OK, None, 500),
        ("thought", Status.FAILED, Reason.UNPARSED, 0),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai"])
def test_a03_an_unknown_text_field_is_unparsed_and_never_zero(
    engine: str, field: str, status: Status, reason: Reason | None, n: int
) -> None:
    events = [(i, vllm_chat({field: "x"}, "length" if i == 499 else None)) for i in range(500)]
    decoded = decode(engine, [*events, (501, vllm_usage(15, 500) + DONE)], api="chat", osl=500)
    assert (decoded.status, decoded.reason, len(decoded.chunk_at_ns)) == (status, reason, n)
    assert decoded.output_tokens == 500
    assert decoded.answer_at_ns is None


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "openai"])
def test_a03_text_of_an_unknown_name_before_the_answer_marks_the_row(engine: str) -> None:
    """Two tokens of `thinking`, then two of content: TTFT would be the end of the thinking, and nobody would know."""
    thinking = [(100, sglang_chat({"role": "assistant", "content": ""}))]
    thinking += [(200 + i, sglang_chat({"thinking": "hm"})) for i in range(2)]
    answer = [(900 + i, sglang_chat({"content": "x"}, "stop" if i else None)) for i in range(2)]
    decoded = decode(engine, [*thinking, *answer, (999, vllm_usage(15, 4) + DONE)], api="chat", osl=4)
    assert (decoded.status, decoded.marks) == (Status.OK, ["unknown-field"])
    # Nothing is missing where the server's own count says so.
    whole = decode(engine, [*thinking, *answer, (999, vllm_usage(15, 2) + DONE)], api="chat", osl=2)
    assert (whole.status, whole.marks) == (Status.OK, [])


def test_a03_running_counts_time_text_of_an_unknown_name() -> None:
    events = [
        vllm_role(0),
        *(vllm_chat({"thinking": "hm"}, None, i + 1) for i in range(2)),
        vllm_chat({"content": "x"}, "stop", 3),
    ]
    decoded = decode("vllm", [*((100 * i, event) for i, event in enumerate(events)), (999, DONE)], api="chat", osl=3)
    assert (decoded.status, decoded.marks, decoded.chunk_at_ns.tolist()) == (Status.OK, [], [ms(100), ms(200), ms(300)])


def test_a03_text_of_an_unknown_name_is_named_even_where_nothing_is_counted() -> None:
    decoded = decode("openai", [(1, sglang_chat({"thought": "x"})), (2, sglang_chat({}, "stop")), (3, DONE)], api="chat")
    assert (decoded.reason, decoded.detail) == (Reason.UNPARSED, "no known field held a token; 'thought' held text")


def test_the_arguments_of_a_legacy_function_call_are_tokens() -> None:
    events = [(i, sglang_chat({"function_call": {"arguments": "{"}})) for i in range(3)]
    decoded = decode(
        "openai", [*events, (9, sglang_chat({}, "function_call")), (10, vllm_usage(15, 3) + DONE)], api="chat", osl=3
    )
    assert (decoded.status, len(decoded.chunk_at_ns), decoded.answer_at_ns) == (Status.OK, 3, ms(0))


def test_a04_running_usage_gives_the_tokens_of_each_event() -> None:
    events = [vllm_text("abcd", "length" if i == 24 else None, 4 * (i + 1)) for i in range(25)]
    script = [(200 + 40 * i, event) for i, event in enumerate(events)]
    decoded = decode("vllm", [*script, (1161, vllm_usage(24, 100) + DONE)], osl=100)
    assert decoded.chunk_tokens.tolist() == [4] * 25
    assert decoded.chunk_token_source is TokenSource.USAGE
    assert (decoded.chunk_at_ns[0], decoded.chunk_at_ns[-1]) == (ms(200), ms(1160))
    assert {b - a for a, b in pairwise(decoded.chunk_at_ns)} == {ms(40)}
    assert decoded.marks == ["multi-token-first-chunk"]


def test_a05_output_tokens_are_the_servers_and_not_the_number_of_events() -> None:
    script = [(20 * i, vllm_text("ab", "length" if i == 4095 else None)) for i in range(4096)]
    decoded = decode("vllm", [*script, (81_901, vllm_usage(24, 8192) + DONE)], osl=8192, count="final")
    assert (decoded.output_tokens, decoded.output_token_source) == (8192, TokenSource.USAGE)
    assert (decoded.chunk_tokens.tolist(), decoded.chunk_token_source) == ([-1] * 4096, None)


def test_a06_the_first_event_may_hold_several_tokens() -> None:
    script = [(500 + 10 * i, vllm_text("x", "length" if i == 12 else None, 8 + i)) for i in range(13)]
    decoded = decode("vllm", [*script, (621, vllm_usage(24, 20) + DONE)], osl=20)
    assert decoded.chunk_tokens.tolist() == [8] + [1] * 12
    assert decoded.output_tokens == 20
    assert (decoded.chunk_at_ns[-1] - decoded.chunk_at_ns[0]) / (20 - 8) == ms(10)
    assert decoded.marks == ["multi-token-first-chunk"]


@pytest.mark.parametrize(
    ("details", "reasoning"), [({"completion_tokens_details": {"reasoning_tokens": 474}}, 474), ({}, None)]
)
def test_a08_an_answer_in_one_piece_counts_reasoning(details: dict[str, object], reasoning: int | None) -> None:
    message = {"role": "assistant", "content": "c" * 38, "reasoning_content": "r" * 474}
    body = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    body |= {"usage": usage(15, 512, **details)}
    decoded = decode("vllm", [(900, orjson.dumps(body))], api="chat", osl=512, headers=JSON)
    assert decoded.status is Status.OK
    assert (decoded.output_tokens, decoded.reasoning_tokens) == (512, reasoning)
    assert decoded.marks == ["not-a-stream", "single-chunk", "multi-token-first-chunk"]


@pytest.mark.parametrize(("isl", "counted"), [(1024, 1100), (1024, 1061), (1024, 1024)], ids=["A-14", "A-16", "equal"])
def test_a14_a16_prompt_tokens_are_what_the_server_counted(isl: int, counted: int) -> None:
    decoder = make_dialect("vllm", "chat").decoder(request(isl=isl, osl=1))
    decoder.start(200, STREAM)
    for piece in (vllm_chat({"content": "a"}, "length"), vllm_usage(counted, 1), DONE):
        decoder.feed(piece, 1, 0)
    decoded = decoder.finish(Ending.COMPLETE)
    assert (decoded.prompt_tokens, decoded.prompt_token_source) == (counted, TokenSource.USAGE)


def test_prompt_ids_count_the_prompt_where_no_usage_does() -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "length", "token_ids": [8], "prompt_token_ids": [0, 4, 9]}
    decoded = decode("vllm", [(1, sse({"choices": [choice]})), (2, DONE)], osl=1)
    assert (decoded.prompt_tokens, decoded.prompt_token_source) == (3, TokenSource.IDS)
    assert (decoded.output_tokens, decoded.output_token_source) == (1, TokenSource.IDS)


def test_a19_a_stream_that_stops_early_is_marked() -> None:
    script = [(i, vllm_text("x", "stop" if i == 99 else None, i + 1)) for i in range(100)]
    script = [*script, (100, vllm_usage(24, 100) + DONE)]
    assert decode("vllm", script, osl=1024).marks == ["short-output"]
    assert decode("vllm", script, osl=1024, ignore_eos=False).marks == []  # stopping was allowed
    assert decode("vllm", script, osl=50).marks == ["long-output"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "openai"])
def test_a27_a28_an_empty_stream_is_a_failure_without_tokens(engine: str) -> None:
    decoded = decode(engine, [(5, DONE)], osl=1000)
    assert (decoded.status, decoded.reason) == (Status.FAILED, Reason.EMPTY_STREAM)
    assert (len(decoded.chunk_at_ns), decoded.output_tokens, decoded.finish_ns) == (0, None, None)
    assert decoded.first_byte_ns == ms(5)


def test_a29_all_tokens_in_one_event_are_a_single_chunk() -> None:
    decoded = decode("vllm", [(4000, vllm_text("x" * 500, "length", 500)), (4000, vllm_usage(24, 500) + DONE)], osl=500)
    assert decoded.status is Status.OK
    assert decoded.chunk_at_ns.tolist() == [ms(4000)]
    assert decoded.marks == ["single-chunk", "multi-token-first-chunk"]


def test_one_token_in_one_event_is_no_single_chunk() -> None:
    assert decode("vllm", [(300, vllm_text("x", "length", 1)), (300, vllm_usage(24, 1) + DONE)], osl=1).marks == []


def test_a32_comments_and_empty_frames_are_first_byte_only() -> None:
    keep_alive = [(15 + 1000 * i, b": keep-alive\n\n") for i in range(9)]
    script = [
        *keep_alive[:1],
        (16, vllm_role()),
        (17, b"data: \n\n"),
        *keep_alive[1:],
        (9000, vllm_chat({"content": "Hi"}, "stop")),
    ]
    decoded = decode("vllm", [*script, (9001, vllm_usage(15, 1) + DONE)], api="chat", osl=1)
    assert (decoded.first_byte_ns, decoded.chunk_at_ns.tolist(), decoded.n_comments) == (ms(15), [ms(9000)], 9)


def test_no_token_has_come_while_only_comments_and_roles_have() -> None:
    decoder = make_dialect("vllm", "chat").decoder(request())
    decoder.start(200, STREAM)
    counts = []
    for piece in (b": keep-alive\n\n", vllm_role(), vllm_chat({"content": "a"})):
        decoder.feed(piece, 1, 0)
        counts.append(decoder.n_token_events)
    assert counts == [0, 0, 1]


def test_tool_calls_are_tokens_and_answer() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    script = [(1, vllm_role()), (2, vllm_chat(call)), (3, vllm_chat({"content": "", "tool_calls": []}, "tool_calls"))]
    decoded = decode("openai", [*script, (4, vllm_usage(15, 1) + DONE)], api="chat", osl=1)
    assert (decoded.status, decoded.chunk_at_ns.tolist(), decoded.answer_at_ns) == (Status.OK, [ms(2)], ms(2))


# Counts


def test_a_running_count_that_starts_late_counts_from_there() -> None:
    script = [(1, vllm_text("a")), (2, vllm_text("b", None, 2)), (3, vllm_text("c", None, 3)), (4, vllm_text("d", "length", 5))]
    decoded = decode("vllm", [*script, (5, vllm_usage(24, 5) + DONE)], osl=5)
    assert decoded.chunk_tokens.tolist() == [-1, -1, 1, 2]
    assert decoded.chunk_token_source is TokenSource.USAGE
    assert decoded.marks == []


def test_what_one_event_does_not_say_is_not_made_up_beside_events_that_do() -> None:
    decoded = decode("vllm", [(1, vllm_text("ab", None, None, [8, 9])), (2, vllm_text("c", "length")), (3, DONE)], osl=3)
    assert (decoded.chunk_tokens.tolist(), decoded.chunk_token_source) == ([2, -1], TokenSource.IDS)
    assert (decoded.output_tokens, decoded.output_token_source) == (None, None)
    assert decoded.marks == ["multi-token-first-chunk", "no-usage"]


def test_single_counts_that_do_not_add_up_are_marked() -> None:
    script = [(1, vllm_text("a", None, None, [8])), (2, vllm_text("b", "length", None, [9])), (3, vllm_usage(24, 3) + DONE)]
    decoded = decode("vllm", script, osl=3)
    assert (decoded.output_tokens, decoded.marks) == (3, ["count-mismatch"])


def test_text_that_comes_after_its_tokens_were_counted_is_an_event_of_none() -> None:
    script = [(1, vllm_text("", None, 2)), (2, vllm_text("ab", "length", 2)), (3, vllm_usage(24, 2) + DONE)]
    decoded = decode("vllm", script, osl=2)
    assert (decoded.chunk_tokens.tolist(), decoded.chunk_at_ns.tolist()) == ([2, 0], [ms(1), ms(2)])
    assert decoded.answer_at_ns == ms(2)


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 16_000}}, 16_000),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"cached_tokens": 3}, 3),
        ({}, None),
    ],
)
def test_cached_tokens_are_null_where_the_server_does_not_say(details: dict[str, object], cached: int | None) -> None:
    decoded = decode("vllm", [(1, vllm_text("a", "length", 1)), (2, vllm_usage(24, 1, **details) + DONE)], osl=1)
    assert decoded.cached_tokens == cached


@pytest.mark.parametrize(
    "counts",
    [{"completion_tokens": "4"}, {"completion_tokens": True}, {"completion_tokens": -1}, {"completion_tokens": 2**31}, {}],
)
def test_counts_that_are_no_counts_are_left_out(counts: dict[str, object]) -> None:
    event = sse({"choices": [], "usage": counts})
    decoded = decode("vllm", [(1, vllm_text("a", "length")), (2, event + DONE)], osl=1)
    assert (decoded.output_tokens, decoded.output_token_source) == (1, TokenSource.INFERRED)


# Verdicts


def _tokens(n: int) -> list[tuple[float, bytes]]:
    return [(10 * i, vllm_text("x", None, i + 1)) for i in range(n)]


def test_b05_an_error_event_fails_the_request_and_keeps_its_tokens() -> None:
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
    decoded = decode("vllm", [*_tokens(37), (400, sse(error)), (401, DONE)], osl=500)
    assert (decoded.status, decoded.reason, decoded.error_code) == (Status.FAILED, Reason.IN_BAND_ERROR, 500)
    assert decoded.detail == "InternalServerError: EngineCore died"
    assert (len(decoded.chunk_at_ns), decoded.output_tokens) == (37, 37)
    assert decoded.marks == []


@pytest.mark.parametrize(
    ("body", "headers", "reason", "detail"),
    [
        pytest.param(b'{"error":{"message":"no"}}', JSON, Reason.IN_BAND_ERROR, "no", id="nested error"),
        pytest.param(b'{"error":"Unauthorized"}', JSON, Reason.IN_BAND_ERROR, "Unauthorized", id="error as a text"),
        pytest.param(b'{"object":"error","message":"no","code":400}', JSON, Reason.IN_BAND_ERROR, "no", id="flat error"),
        pytest.param(b'{"detail":"Not Found"}', JSON, Reason.IN_BAND_ERROR, "Not Found", id="detail"),
        pytest.param(
            b"<html>\n<b>gateway</b>" + b"x" * 600, {"content-type": "text/html"}, Reason.NOT_JSON,
            "<html> <b>gateway</b>" + "x" * 476 + "…", id="a gateway's page, 500 bytes of it",
        ),
        pytest.param(b"[1]", JSON, Reason.NOT_JSON, "[1]", id="JSON that is no object"),
        pytest.param(b'{"a":1}', JSON, Reason.EMPTY_STREAM, "no event held a token", id="JSON that says nothing"),
        pytest.param(b'{"error":{"message":"no"}}', STREAM, Reason.IN_BAND_ERROR, "no", id="JSON under the wrong label"),
        pytest.param(b'{\n "error": {"message": "no"}\n}', {}, Reason.IN_BAND_ERROR, "no", id="JSON without a label"),
        pytest.param(b": hello\n\n", STREAM, Reason.EMPTY_STREAM, "no event held a token", id="comments only"),
        pytest.param(b"", STREAM, Reason.EMPTY_STREAM, "no event held a token", id="nothing"),
        pytest.param(
            b"\x1f\x8b\x08\x00data", STREAM | {"content-encoding": "GZIP"}, Reason.MALFORMED,
            "content coding gzip, which was not asked for", id="compressed",
        ),
    ],
)  # fmt: skip
def test_b06_a_200_that_is_no_answer_fails(body: bytes, headers: dict[str, str], reason: Reason, detail: str) -> None:
    for pieces in ([body], [body[i : i + 7] for i in range(0, len(body), 7)]):
        decoded = decode("vllm", [(i, piece) for i, piece in enumerate(pieces)], headers=headers)
        assert (decoded.status, decoded.reason, decoded.detail) == (Status.FAILED, reason, detail)
        assert decoded.output_tokens is None


@pytest.mark.parametrize("engine", list(ENGINES))
def test_b07_an_error_in_the_stream_keeps_its_code(engine: str) -> None:
    error = {"error": {"message": "upstream timed out", "type": "GatewayTimeout", "code": "504"}}
    decoded = decode(engine, [(5, sse(error))])
    assert (decoded.status, decoded.reason, decoded.error_code) == (Status.FAILED, Reason.IN_BAND_ERROR, 504)
    assert (len(decoded.chunk_at_ns), decoded.output_tokens) == (0, None)


def test_a_named_error_event_is_an_error() -> None:
    decoded = decode("openai", [(1, vllm_text("a")), (2, b"event: error\ndata: out of memory\n\n")])
    assert (decoded.reason, decoded.detail) == (Reason.IN_BAND_ERROR, "out of memory")


def test_an_error_beside_a_choice_is_an_error() -> None:
    """As gateways send it: the last choice, with the error of the server behind them."""
    event = {
        "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
        "error": {"code": 502, "message": "upstream gone"},
    }
    for piece in (sse(event), sse(event) + DONE):
        decoded = decode("openai", [(1, vllm_chat({"content": "a"})), (2, piece)], api="chat")
        assert (decoded.reason, decoded.error_code, decoded.detail) == (Reason.IN_BAND_ERROR, 502, "upstream gone")


def test_an_error_that_is_null_is_none() -> None:
    event = {"choices": [{"text": "a", "finish_reason": "stop"}], "error": None}
    assert decode("openai", [(1, sse(event))], osl=1).status is Status.OK


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason", "detail"),
    [
        (
            500,
            JSON,
            b'{"error":{"message":"boom","type":"InternalServerError"}}',
            Reason.HTTP_STATUS,
            "InternalServerError: boom",
        ),
        (
            400,
            JSON,
            b'{"message":"Unsupported","type":"Bad Request","code":400}',
            Reason.HTTP_STATUS,
            "Bad Request: Unsupported",
        ),
        (
            502,
            {"content-type": "text/html"},
            b"<h1>\x1b[31mBad\x1b[0m gateway</h1>",
            Reason.HTTP_STATUS,
            "<h1>Bad gateway</h1>",
        ),
        (503, {}, b"", Reason.HTTP_STATUS, None),
        (204, {}, b"", Reason.HTTP_STATUS, None),
        (307, {"location": "http://me:secret@other/v1"}, b"", Reason.REDIRECT, "to http://***@other/v1"),
        (302, {}, b"moved", Reason.HTTP_STATUS, "moved"),
    ],
)
def test_b10_any_answer_but_200_fails_with_the_servers_words(
    status: int, headers: dict[str, str], body: bytes, reason: Reason, detail: str | None
) -> None:
    for ending in (Ending.COMPLETE, Ending.EOF, Ending.RESET):
        decoded = decode("vllm", [(1, body)], status=status, headers=headers | {"content-length": "9"}, ending=ending)
        assert (decoded.status, decoded.reason, decoded.detail) == (Status.FAILED, reason, detail)
        assert decoded.error_code is None


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        (Ending.REFUSED, Status.FAILED, Reason.CONNECT_REFUSED),
        (Ending.CONNECT_FAILED, Status.FAILED, Reason.CONNECT_FAILED),
        (Ending.TLS, Status.FAILED, Reason.TLS),
        (Ending.RESET, Status.FAILED, Reason.RESET),
        (Ending.EOF, Status.FAILED, Reason.RESET),
        (Ending.TIMEOUT_CONNECT, Status.TIMEOUT, Reason.TIMEOUT_CONNECT),
        (Ending.TIMEOUT_FIRST_TOKEN, Status.TIMEOUT, Reason.TIMEOUT_FIRST_TOKEN),
        (Ending.CANCELLED, Status.CANCELLED, Reason.INTERRUPTED),
    ],
)
def test_b08_a_request_without_an_answer_has_no_instants_and_no_counts(ending: Ending, status: Status, reason: Reason) -> None:
    decoded = make_dialect("vllm").decoder(request()).finish(ending, "port 9: refused")
    assert (decoded.status, decoded.reason) == (status, reason)
    assert len(decoded.chunk_at_ns) == len(decoded.chunk_tokens) == len(decoded.chunk_lateness_ns) == 0
    nulls = (decoded.first_byte_ns, decoded.answer_at_ns, decoded.finish_ns, decoded.output_tokens, decoded.prompt_tokens)
    assert nulls == (None,) * 5
    assert decoded.marks == []


def test_the_transports_words_are_kept_where_the_server_said_nothing() -> None:
    decoded = make_dialect("vllm").decoder(request()).finish(Ending.TLS, "self-signed certificate")
    assert decoded.detail == "self-signed certificate"


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        (Ending.EOF, Status.FAILED, Reason.CUT),
        (Ending.RESET, Status.FAILED, Reason.RESET),
        (Ending.MALFORMED, Status.FAILED, Reason.MALFORMED),
        (Ending.TOO_LARGE, Status.FAILED, Reason.TOO_LARGE),
        (Ending.TIMEOUT_IDLE, Status.TIMEOUT, Reason.TIMEOUT_IDLE),
        (Ending.TIMEOUT_TOTAL, Status.TIMEOUT, Reason.TIMEOUT_TOTAL),
        (Ending.CANCELLED, Status.CANCELLED, Reason.INTERRUPTED),
    ],
)
def test_tokens_that_came_are_kept_whatever_the_end(ending: Ending, status: Status, reason: Reason) -> None:
    decoded = decode("vllm", _tokens(3), ending=ending)
    assert (decoded.status, decoded.reason) == (status, reason)
    assert decoded.chunk_at_ns.tolist() == [ms(0), ms(10), ms(20)]
    assert (decoded.output_tokens, decoded.prompt_tokens) == (3, 24)


def test_even_a_finished_stream_fails_if_its_body_does_not_end_well() -> None:
    script = [(1, vllm_text("a", "length", 1)), (2, vllm_usage(24, 1) + DONE)]
    assert decode("vllm", script, osl=1, ending=Ending.EOF).reason is Reason.CUT


def test_eof_is_a_good_end_where_nothing_else_frames_the_body() -> None:
    script = [(1, vllm_text("a", "length", 1)), (2, vllm_usage(24, 1) + DONE)]
    headers = {"content-type": "text/event-stream"}
    assert decode("vllm", script, osl=1, ending=Ending.EOF, headers=headers).status is Status.OK
    assert decode("vllm", script[:1], osl=1, ending=Ending.EOF, headers=headers).reason is Reason.CUT  # no [DONE]


@pytest.mark.parametrize(
    ("engine", "api", "reason"),
    [
        ("vllm", "completions", Reason.CUT),
        ("sglang", "completions", Reason.CUT),
        ("trtllm", "completions", Reason.CUT),
        ("openai", "completions", Reason.NO_FINISH),
        ("triton", "generate", Reason.EMPTY_STREAM),
    ],
)
def test_a_stream_that_just_ends_was_cut_where_a_terminator_is_due(engine: str, api: Api, reason: Reason) -> None:
    decoded = decode(engine, [(1, trtllm_text("a")), (2, trtllm_text("b"))], api=api)
    assert (decoded.status, decoded.reason) == (Status.FAILED, reason)


def test_a_stream_without_a_finish_reason_fails() -> None:
    assert decode("vllm", [(1, vllm_text("a")), (2, DONE)]).reason is Reason.NO_FINISH


@pytest.mark.parametrize("finish", ["abort", "error", "repetition", "content_filter"])
def test_a_bad_finish_reason_fails_even_without_tokens(finish: str) -> None:
    for delta in ({"content": "a"}, {}):
        decoded = decode("sglang", [(1, sglang_chat(delta, finish)), (2, DONE)], api="chat")
        assert (decoded.reason, decoded.detail) == (Reason.BAD_FINISH, f"finish_reason {finish}")


def test_a_model_that_stops_at_once_gives_an_empty_stream() -> None:
    script = [
        (1, sglang_chat({"role": "assistant", "content": ""})),
        (2, sglang_chat({}, "stop")),
        (3, vllm_usage(15, 1) + DONE),
    ]
    decoded = decode("sglang", script, api="chat")
    assert (decoded.reason, decoded.output_tokens) == (Reason.EMPTY_STREAM, 1)


def test_an_event_that_is_no_json_fails_the_request() -> None:
    decoded = decode(
        "vllm", [(1, vllm_text("a", None, 1)), (2, b"data: {oops}\n\n"), (3, vllm_text("b", "length", 2)), (4, DONE)]
    )
    assert (decoded.status, decoded.reason) == (Status.FAILED, Reason.MALFORMED)
    assert decoded.detail == "an event that is no JSON object: {oops}"
    assert len(decoded.chunk_at_ns) == 2


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_a_line_end_inside_an_event_ends_its_line_however_it_is_cut(end: bytes) -> None:
    """JSON would allow it between tokens; the framing does not."""
    event = vllm_text("a", "length", 1).replace(b'"choices":', b'"choices":' + end)
    for size in (1, len(event)):
        body = [event[i : i + size] for i in range(0, len(event), size)]
        decoded = decode("vllm", [(0, b": hello\n\n"), *((1, piece) for piece in body), (2, DONE)])
        assert (decoded.status, decoded.reason) == (Status.FAILED, Reason.MALFORMED)


@pytest.mark.parametrize(("engine", "api"), [("vllm", "completions"), ("vllm", "chat"), ("sglang", "generate")])
def test_a_finish_reason_that_is_no_word_is_kept_short_and_safe(engine: str, api: Api) -> None:
    for said in ("[" * 900 + "]" * 900, '"\\u001b[31mred' + "x" * 900 + '"'):
        body = b'{"choices":[{"text":"a","delta":{"content":"a"},"finish_reason":%s}]}'
        if api == "generate":
            body = b'{"text":"a","meta_info":{"completion_tokens":1,"finish_reason":%s}}'
        decoded = decode(engine, [(1, b"data: " + body % said.encode() + b"\n\n" + DONE)], api=api)
        assert (decoded.status, decoded.reason) == (Status.FAILED, Reason.BAD_FINISH)
        assert decoded.finish_reason is not None
        assert len(decoded.finish_reason.encode()) <= 80
        assert decoded.finish_reason.startswith(("[[[", "redxxx"))


def test_half_of_a_surrogate_pair_and_nan_are_let_through() -> None:
    event = b'data: {"choices":[{"index":0,"text":"\\ud83d","logprobs":NaN,"finish_reason":"length"}]}\n\n'
    decoded = decode("vllm", [(1, event), (2, DONE)], osl=1)
    assert (decoded.status, len(decoded.chunk_at_ns)) == (Status.OK, 1)


def test_b03_bytes_that_are_no_character_cost_no_answer() -> None:
    """The standard has such bytes read as U+FFFD; half a character at a server's own cut must not fail a whole request."""
    event = vllm_text("@", "length", 1).replace(b"@", b"\xe4\xb8")
    for pieces in ([event], [event[i : i + 1] for i in range(len(event))]):
        decoded = decode("vllm", [*((1, piece) for piece in pieces), (2, DONE)], osl=1, keep_text=True)
        assert (decoded.status, len(decoded.chunk_at_ns), decoded.text) == (Status.OK, 1, "\ufffd")


def test_what_follows_done_is_no_part_of_the_answer() -> None:
    script = [(1, vllm_text("a", "length", 1)), (2, DONE), (3, vllm_text("b")), (4, sse({"error": "late"}))]
    decoded = decode("vllm", script, osl=1)
    assert (decoded.status, decoded.chunk_at_ns.tolist()) == (Status.OK, [ms(1)])


def test_an_event_left_unfinished_is_dropped_and_marked() -> None:
    script = [(1, vllm_text("a", "length", 1)), (2, vllm_usage(24, 1) + DONE), (3, vllm_text("b")[:40])]
    decoded = decode("vllm", script, osl=1)
    assert (decoded.status, decoded.marks, len(decoded.chunk_at_ns)) == (Status.OK, ["unfinished-event"], 1)


@pytest.mark.parametrize("size", [300_000, 5_000_000])
def test_b01_an_event_of_megabytes_is_read(size: int) -> None:
    choice = {"index": 0, "text": "x" * size, "finish_reason": "length"}
    body = sse({"choices": [choice], "usage": usage(24, 4)}) + DONE
    pieces = [(i, body[i : i + 1448]) for i in range(0, len(body), 1448)]
    decoded = decode("vllm", pieces, keep_text=True)
    assert (decoded.status, len(decoded.text or ""), decoded.output_tokens) == (Status.OK, size, 4)


def test_b02_lines_over_the_limits_of_libraries_are_one_event_each() -> None:
    events = [vllm_text("x" * (size - len(vllm_text("")) + 2)) for size in (131_073, 524_289)]
    assert [event.index(b"\n") for event in events] == [131_073, 524_289]
    body = b"".join(events) + vllm_text("", "length") + vllm_usage(24, 3) + DONE
    decoded = decode("vllm", [(i, body[i : i + 1448]) for i in range(0, len(body), 1448)], osl=3)
    assert (decoded.status, len(decoded.chunk_at_ns)) == (Status.OK, 3)


def test_b03_a_character_split_over_two_reads_has_the_stamp_of_the_second() -> None:
    event = vllm_text("中", "length", 1)
    at = event.index(b"\xb8\xad")
    decoded = decode("vllm", [(100, event[:at]), (150, event[at:]), (151, vllm_usage(24, 1) + DONE)], osl=1, keep_text=True)
    assert (decoded.text, decoded.chunk_at_ns.tolist()) == ("中", [ms(150)])


def test_b04_comments_and_crlf_between_frames_do_no_harm() -> None:
    a, b = (vllm_text(t, f, n)[6:-2] for t, f, n in [("a", None, 1), ("b", "length", 2)])
    body = b":\n\n: keep-alive\r\n\r\ndata:" + a + b"\r\n\r\n:\n\nevent: message\nid: 3\nretry: 5\ndata: " + b + b"\n\n" + DONE
    for pieces in ([body], [body[i : i + 1] for i in range(len(body))]):
        decoded = decode("vllm", [(i, piece) for i, piece in enumerate(pieces)], osl=2, keep_text=True)
        assert (decoded.status, decoded.n_comments, decoded.text) == (Status.OK, 3, "ab")


def test_an_event_over_the_bound_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_dialect("vllm").decoder(request())
    assert isinstance(decoder, AnswerDecoder)
    monkeypatch.setattr(decoder._splitter, "_max_bytes", 1000)  # 64 MiB would only take time
    decoder.start(200, STREAM)
    for piece in (vllm_text("a"), vllm_text("x" * 1000)[:-1], b"\n", vllm_text("b")):
        decoder.feed(piece, 1, 0)
    decoded = decoder.finish(Ending.COMPLETE)
    assert (decoded.status, decoded.reason, len(decoded.chunk_at_ns)) == (Status.FAILED, Reason.TOO_LARGE, 1)


def test_text_is_kept_only_where_it_is_asked_for() -> None:
    script = [(1, vllm_text("a", "length", 1)), (2, vllm_usage(24, 1) + DONE)]
    assert decode("vllm", script, osl=1).text is None
    assert decode("vllm", script, osl=1, keep_text=True).text == "a"


_NAMES = ("content", "role", "message", "type", "completion_tokens", "prompt_tokens", "cached_tokens", "finish_reason")
_ATOMS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([2**31, 2**63 - 1, "length", "a"])
_VALUES = st.recursive(
    _ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner), max_leaves=6
)
_KEYS = (
    "choices",
    "usage",
    "error",
    "text",
    "meta_info",
    "text_output",
    "num_output_tokens",
    "output_ids",
    "message",
    "detail",
)
_CHOICE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("text", "delta", "message", "finish_reason", "token_ids", "prompt_token_ids"), _VALUES),
)
_EVENTS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(_KEYS, _VALUES) | {"choices": st.lists(_CHOICE | _VALUES, max_size=2)}
)


@settings(max_examples=200)
@given(
    engine=st.sampled_from([(entry.name, api) for entry in ENGINES.values() for api in entry.apis]),
    events=st.lists(_EVENTS, max_size=4),
    label=st.sampled_from([STREAM, JSON]),
    ending=st.sampled_from(list(Ending)),
)
def test_no_answer_breaks_a_decoder(
    engine: tuple[str, Api], events: list[dict[str, object]], label: dict[str, str], ending: Ending
) -> None:
    pieces = [sse(event) for event in events] if label is STREAM else [orjson.dumps(event) for event in events[:1]]
    decoded = decode(
        engine[0], [(i, piece) for i, piece in enumerate(pieces)], api=engine[1], ending=ending, headers=label, keep_text=True
    )
    assert len(decoded.chunk_at_ns) == len(decoded.chunk_tokens) == len(decoded.chunk_lateness_ns)
    assert (decoded.status is Status.OK) == (decoded.reason is None)
    assert decoded.status is not Status.OK or (decoded.chunk_at_ns and ending is Ending.COMPLETE)
    assert set(decoded.marks) <= set(MARKS)
