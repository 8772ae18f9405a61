"""Preflight against a scripted server: what stops a run, what is only found, and what is learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scripted_server as scripted
from scripted_server import Close, Received, ScriptedServer, Segments, Send, Silence, Steps, json_answer, models, routes

from longbench_sched.errors import EXIT_NOT_MEASURED, TargetError, UsageError
from longbench_sched.load.probe import (
    Preflight,
    ProbeOptions,
    check_context,
    open_server_tokenizer,
    probe,
    read_server_lateness_ms,
)
from longbench_sched.target import Endpoint, Target


def make_target(url: str, engine: str = "vllm", model: str | None = None, **fields: Any) -> Target:
    return Target(engine=engine, endpoint=Endpoint.parse(url), model=model, **fields)


def answers(table: dict[str, bytes]) -> Any:
    return routes({path: [Send(answer)] for path, answer in table.items()})


VLLM = {"GET /v1/models": models("tiny", "other"), "GET /version": json_answer({"version": "0.32.0"})}


def test_the_first_listed_model_is_measured_if_none_is_named() -> None:
    with ScriptedServer(answers(VLLM)) as server:
        found = probe(make_target(server.url))
    assert (found.model, found.models, found.max_model_len) == ("tiny", ("tiny", "other"), 65536)
    assert found.facts["version"] == "0.32.0"
    assert found.facts["engine"] == "vllm"
    assert (found.findings, found.is_simulated, found.time_scale) == ((), False, 1.0)
    assert all(request.method == "GET" for request in server.requests)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions/", "/v1/models", "/generate"])
def test_the_path_of_a_request_is_no_base_url(path: str) -> None:
    with pytest.raises(UsageError, match=r"Give what stands before it: http://gpu7:8000/llm;"):
        Endpoint.parse(f"http://gpu7:8000/llm{path}")


def test_the_base_url_may_have_a_prefix_and_v1_and_the_key_is_sent() -> None:
    table = {"GET /gate/v1/models": models("tiny")}
    with ScriptedServer(answers(table)) as server:
        assert probe(make_target(f"{server.url}/gate/v1", api_key="k", headers=(("X-Team", "a"),))).model == "tiny"
    assert server.requests[0].headers["authorization"] == "Bearer k"
    assert server.requests[0].headers["x-team"] == "a"
    assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"


def test_an_unknown_model_is_an_error_that_lists_the_known_ones() -> None:
    with ScriptedServer(answers(VLLM)) as server, pytest.raises(TargetError) as error:
        probe(make_target(server.url, model="tinny"))
    assert str(error.value) == (
        f"{server.url} serves no model 'tinny'. Known: tiny, other.\nDid you mean tiny? No request was sent."
    )


def test_an_adapter_of_sglang_is_known_by_its_base() -> None:
    with ScriptedServer(answers({"GET /v1/models": models("base", owned_by="sglang")})) as server:
        assert probe(make_target(server.url, "sglang", "base:adapter")).model == "base:adapter"


def test_a_server_without_a_list_of_models_needs_a_name_and_then_is_a_finding() -> None:
    with ScriptedServer(answers({})) as server:
        with pytest.raises(TargetError, match="lists no models"):
            probe(make_target(server.url))
        found = probe(make_target(server.url, model="m"))
    assert (found.model, [finding["id"] for finding in found.findings]) == ("m", ["NO-MODEL-LIST"])


def test_triton_is_asked_in_its_own_way() -> None:
    with ScriptedServer(answers({"GET /v2": json_answer({"name": "triton", "version": "2.59.0"})})) as server:
        found = probe(make_target(server.url, "triton", "ensemble", api="generate"))
    assert (found.model, found.facts["version"], found.findings) == ("ensemble", "2.59.0", ())


# What stops a run.


def test_nobody_there_is_said_in_one_sentence_with_the_remedy() -> None:
    with scripted.refused_port() as port, pytest.raises(TargetError) as error:
        probe(make_target(f"http://localhost:{port}"))
    assert str(error.value) == (
        f"cannot reach vllm at http://localhost:{port} (connection refused).\n"
        "Start the engine, or check --base-url. No request was sent."
    )
    assert error.value.exit_code == EXIT_NOT_MEASURED


def test_a_password_in_the_url_is_not_in_the_error() -> None:
    with scripted.refused_port() as port, pytest.raises(TargetError) as error:
        probe(make_target(f"http://user:word@127.0.0.1:{port}"))
    assert "word" not in str(error.value)


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(TargetError, match=r"cannot reach vllm at http://no-such-host\.invalid:8000 \("):
        probe(make_target("http://no-such-host.invalid:8000"))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Silence()], "does not answer GET /v1/models within 0.2 s"),
        ([Send(b"SSH-2.0-OpenSSH_9.6\r\n"), Close()], "does not speak HTTP"),
        ([Close()], "does not speak HTTP"),
        ([Send(json_answer({"error": {"message": "loading"}}, 503))], "answers 503 to GET /v1/models: loading"),
        ([Send(json_answer({}, 302, ("Location", "/login")))], "answers 302"),
        ([Send(json_answer({"error": "Unauthorized"}, 401))], "answers 401 to GET /v1/models: the key is missing or wrong"),
    ],
    ids=["silent", "not-http", "closes", "503", "redirect", "401"],
)
def test_a_server_that_cannot_be_used_is_an_error_with_its_reason(steps: Steps, words: str) -> None:
    with ScriptedServer(steps) as server, pytest.raises(TargetError) as error:
        probe(make_target(server.url), ProbeOptions(answer_s=0.2))
    assert words in str(error.value)
    assert "No request was sent." in str(error.value)


def test_a_connection_that_does_not_come_about_is_given_up() -> None:
    with scripted.unanswering_port() as port, pytest.raises(TargetError, match=r"no connection within 0\.1 s"):
        probe(make_target(f"http://127.0.0.1:{port}"), ProbeOptions(connect_s=0.1))


def test_https_to_a_server_that_waits_for_a_line_of_plain_http_is_told_apart() -> None:
    with (
        ScriptedServer([Silence()]) as server,
        pytest.raises(TargetError, match=r"no TLS connection within 0\.1 s; is it http"),
    ):
        probe(make_target(server.url.replace("http:", "https:")), ProbeOptions(connect_s=0.1))


@pytest.mark.parametrize(
    "begin",
    [b"HTTP/1.1 200 OK\r\nX-Endless: ", scripted.head(200, ("Content-Length", "100000")), scripted.head(200)],
    ids=["headers", "body", "body-to-the-end-of-the-connection"],
)
def test_an_answer_that_comes_byte_by_byte_for_ever_is_given_up(begin: bytes) -> None:
    endless = [Send(begin), Segments([b"x"] * 100_000, gap_ms=5)]
    with ScriptedServer(endless) as server, pytest.raises(TargetError) as error:
        probe(make_target(server.url), ProbeOptions(answer_s=0.05))
    assert f"{server.url} does not come to the end of its answer to GET /v1/models in 0.3 s" in str(error.value)
    assert "No request was sent." in str(error.value)


def test_a_later_answer_that_never_ends_is_passed_over() -> None:
    endless = {"GET /metrics": [Send(b"HTTP/1.1 200 OK\r\nX-Endless: "), Segments([b"x"] * 100_000, gap_ms=5)]}
    table = endless | {path: [Send(answer)] for path, answer in VLLM.items()}
    with ScriptedServer(routes(table)) as server:
        assert probe(make_target(server.url), ProbeOptions(answer_s=0.05)).facts["version"] == "0.32.0"


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(UsageError, match="line break"):
        probe(make_target("http://127.0.0.1:1", headers=(("X-Team", "a\r\nX-Evil: b"),)))


def test_b16_a_workload_longer_than_the_context_stops_before_the_load_with_both_numbers() -> None:
    with ScriptedServer(answers({"GET /v1/models": models("m", max_model_len=32768)})) as server:
        found = probe(make_target(server.url))
    check_context(found, "vllm", 32_268, 500)  # 32,768 fits
    with pytest.raises(TargetError) as error:
        check_context(found, "vllm", 32_500, 500)
    assert str(error.value) == (
        "the model accepts 32768 tokens; the workload needs 33000 (32500 + 500).\n"
        "Serve with a larger --max-model-len, or lower isl/osl. No request was sent."
    )


def test_b16_the_chat_template_counts_against_the_context() -> None:
    found = Preflight("m", facts={"max_model_len": 1100}, template_overhead=37)
    check_context(found, "sglang", 1000, 63)
    with pytest.raises(TargetError, match=r"needs 1101 \(1000 \+ 64 \+ 37 of the chat template\)"):
        check_context(found, "sglang", 1000, 64)


def test_b16_a_server_that_does_not_say_its_context_stops_nothing() -> None:
    check_context(Preflight("m"), "vllm", 10**9, 1)


# What is found and learnt.


def test_another_engine_than_asked_for_is_a_finding() -> None:
    with ScriptedServer(answers({"GET /v1/models": models("m", owned_by="sglang")})) as server:
        found = probe(make_target(server.url, "vllm"))
        assert probe(make_target(server.url, "openai")).findings == ()
    assert [finding["id"] for finding in found.findings] == ["OTHER-ENGINE"]
    assert found.findings[0]["text"] == f"--engine vllm was given, but {server.url} says it is SGLang."


def test_the_embedded_engine_announces_itself() -> None:
    info = {"simulated": True, "time_scale": 6, "gpu": "H200", "options": {"a": 1}, "lateness": {"p99_ms": 0.25}}
    with ScriptedServer(answers(VLLM | {"GET /longbench/info": json_answer(info)})) as server:
        found = probe(make_target(server.url))
        assert read_server_lateness_ms(make_target(server.url)) == 0.25
    assert (found.is_simulated, found.time_scale) == (True, 6.0)
    assert found.announcement == {"gpu": "H200", "options": {"a": 1}}
    assert (found.facts["simulated"], found.facts["time_scale"]) == (True, 6.0)


def test_settings_that_only_the_embedded_engine_tells_are_facts_and_give_way_to_what_the_engine_says() -> None:
    """TensorRT-LLM has no route for its settings: that its chunked prefill was switched on would show nowhere."""
    options = {"max_num_tokens": 8192, "enable_chunked_prefill": True, "max_batch_size": 2048, "max_seq_len": 32768}
    info = {"simulated": True, "time_scale": 6, "options": options}
    table = {
        "GET /v1/models": models("m", owned_by="tensorrt_llm", max_model_len=16384),
        "GET /longbench/info": json_answer(info),
    }
    with ScriptedServer(answers(table)) as server:
        found = probe(make_target(server.url, "trtllm"))
    known = {name: found.facts.get(name) for name in ("token_budget", "chunked_prefill", "max_num_seqs", "max_model_len")}
    assert known == {"token_budget": 8192, "chunked_prefill": True, "max_num_seqs": 2048, "max_model_len": 16384}


@pytest.mark.parametrize("scale", [0, -1, "6", None, 1e9], ids=str)
def test_a_clock_that_cannot_be_is_not_believed(scale: object) -> None:
    info = {"simulated": True, "time_scale": scale}
    with ScriptedServer(answers(VLLM | {"GET /longbench/info": json_answer(info)})) as server:
        assert probe(make_target(server.url)).time_scale == 1.0


def test_no_real_engine_compresses_time() -> None:
    with ScriptedServer(answers(VLLM | {"GET /longbench/info": json_answer({"time_scale": 6})})) as server:
        assert probe(make_target(server.url)).time_scale == 1.0


def test_the_lateness_of_a_server_that_is_gone_is_not_known() -> None:
    with scripted.refused_port() as port:
        assert read_server_lateness_ms(make_target(f"http://127.0.0.1:{port}")) is None


def test_information_routes_that_answer_nonsense_are_passed_over() -> None:
    table = VLLM | {"GET /metrics": json_answer({"x": 1}), "GET /server_info": scripted.head(200) + b"<html>"}
    with ScriptedServer(routes({path: [Send(answer), Close()] for path, answer in table.items()})) as server:
        assert probe(make_target(server.url)).model == "tiny"


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"simulated":true,"lateness":{"p99_ms":1e999}}', b"\xff"], ids=["nested", "inf", "raw"]
)
def test_an_announcement_that_is_nonsense_is_passed_over(body: bytes) -> None:
    answer = scripted.head(200, ("Content-Length", str(len(body)))) + body
    with ScriptedServer(answers(VLLM | {"GET /longbench/info": answer})) as server:
        assert probe(make_target(server.url)).time_scale == 1.0
        assert read_server_lateness_ms(make_target(server.url)) is None


# Proxies and TLS.


def test_a30_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted.refused_port() as dead, ScriptedServer(answers(VLLM)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{dead}")
        assert probe(make_target(server.url)).model == "tiny"


def test_a30_a_dead_proxy_that_was_asked_for_is_named_without_its_password() -> None:
    with scripted.refused_port() as dead, ScriptedServer(answers(VLLM)) as server:
        with pytest.raises(TargetError) as error:
            probe(make_target(server.url), ProbeOptions(proxy=f"http://user:word@127.0.0.1:{dead}"))
        assert server.requests == []
    assert str(error.value) == (
        f"cannot reach the proxy http://***@127.0.0.1:{dead} on the way to {server.url} (connection refused).\n"
        "Check the proxy, or leave it out. No request was sent."
    )


def test_c09_an_untrusted_certificate_is_an_error_with_both_remedies() -> None:
    with ScriptedServer(answers(VLLM), tls=True) as server:
        with pytest.raises(TargetError) as error:
            probe(make_target(server.url))
        assert server.requests == []
    assert "certificate verify failed" in str(error.value)
    assert "--ca-file FILE" in str(error.value)
    assert "--insecure" in str(error.value)


@pytest.mark.parametrize(
    "options", [ProbeOptions(ca_file=scripted.CA_FILE), ProbeOptions(insecure=True)], ids=["ca", "insecure"]
)
def test_c09_a_ca_file_or_insecure_let_it_through(options: ProbeOptions) -> None:
    with ScriptedServer(answers(VLLM), tls=True) as server:
        assert probe(make_target(server.url), options).model == "tiny"


def test_https_to_a_plain_server_says_so() -> None:
    with ScriptedServer([], greeting=scripted.head(400)) as server, pytest.raises(TargetError, match="Is it an https address"):
        probe(make_target(server.url.replace("http://", "https://")))


@pytest.mark.parametrize("content", [None, "no certificate\n"], ids=["missing", "not-pem"])
def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="ca-file"):
        probe(make_target("https://127.0.0.1:1"), ProbeOptions(ca_file=path))


# The server's tokenizer.


def _word_ids(text: str) -> list[int]:
    """One id a character, so that text and ids correspond."""
    return [ord(character) for character in text]


def _vllm_tokenizer(text_key: str) -> Any:
    def tokenize(request: Received) -> Steps:
        body = request.json
        if not isinstance(body.get("prompt"), str):
            return [Send(json_answer({"error": {"message": "no prompt"}}, 400))]
        ids = [1] * bool(body["add_special_tokens"]) + _word_ids(str(body["prompt"]))
        return [Send(json_answer({"tokens": ids, "count": len(ids), "max_model_len": 9}))]

    def detokenize(request: Received) -> Steps:
        ids = json.loads(request.body)["tokens"]
        return [Send(json_answer({text_key: "".join(map(chr, ids))}))]

    return routes({"POST /tokenize": tokenize, "POST /detokenize": detokenize})


def _llama_cpp_tokenizer(request: Received) -> Steps:
    body = json.loads(request.body)
    if request.path == "/detokenize":
        return [Send(json_answer({"content": "".join(map(chr, body["tokens"]))}))]
    return [Send(json_answer({"tokens": [1] * bool(body.get("add_special")) + _word_ids(body.get("content", ""))}))]


@pytest.mark.parametrize(
    "script",
    [_vllm_tokenizer("prompt"), _vllm_tokenizer("text"), _llama_cpp_tokenizer],
    ids=["vllm", "sglang", "llama.cpp"],
)
def test_d02_a_servers_tokenizer_is_used_in_its_own_words(script: Any) -> None:
    with ScriptedServer(script) as server:
        tokenizer = open_server_tokenizer(make_target(server.url), "m")
        assert tokenizer is not None
        assert tokenizer.encode("ab", special=False) == [97, 98]
        assert tokenizer.encode("ab", special=True) == [1, 97, 98]
        assert tokenizer.decode([97, 98]) == "ab"
        assert (tokenizer.name, tokenizer.vocab_size) == ("m /tokenize", None)
        tokenizer.close()


def test_a_server_without_a_tokenizer_offers_none() -> None:
    with ScriptedServer(routes({})) as server:
        assert open_server_tokenizer(make_target(server.url), "m") is None


def test_a_tokenizer_that_stops_answering_is_an_error_with_a_remedy() -> None:
    def script(request: Received) -> Steps:
        if request.index >= 2:
            return [Send(json_answer({"error": {"message": "gone"}}, 500))]
        return _llama_cpp_tokenizer(request) if request.path == "/detokenize" else _vllm_tokenizer("prompt")(request)

    with ScriptedServer(script) as server:
        tokenizer = open_server_tokenizer(make_target(server.url), "m")
        assert tokenizer is not None
        with pytest.raises(TargetError, match=r"/tokenize cannot be used \(answers 500: gone\)"):
            tokenizer.encode("a", special=False)
        tokenizer.close()


def test_a_name_that_no_one_could_look_up_is_an_unreachable_server() -> None:
    with pytest.raises(TargetError, match="cannot reach vllm at http://xn--yp9h:9"):
        probe(Target("vllm", Endpoint.parse("http://\U0001f916:9"), "m"))
