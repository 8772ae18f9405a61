"""`run` from the command line to the exit code, against scripted servers on loopback."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_server import (
    CA_FILE,
    DONE,
    Received,
    Script,
    ScriptedServer,
    Send,
    Silence,
    Steps,
    chat_token,
    chunked,
    head,
    json_answer,
    models,
    not_found,
    ok_stream,
    refused_port,
    routes,
    stream_head,
    usage,
)

from longbench_sched.cli.app import main
from longbench_sched.run import NONE, Run
from longbench_sched.store.parquet import read_run

ISL, OSL = 32, 3
WORKLOAD = f"""
title = "Tiny"
isl = {ISL}
osl = {OSL}
concurrency = 2
requests = 8
warmups = 0
"""
OK = ok_stream(OSL, ISL)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(WORKLOAD)
    return str(path)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def engine(completions: Script, **more: Script) -> Callable[[Received], Steps]:
    """A server with one model `m` that answers completions by this script; the list of models may be another."""
    return routes({"GET /v1/models": more.get("models", [Send(models("m"))]), "POST /v1/completions": completions})


def after_the_first(first: bytes, rest: bytes) -> Script:
    """One answer to the request of the preflight, another to all that are measured."""

    def answer(request: Received) -> Steps:
        is_preflight = request.headers.get("x-request-id", "").startswith("preflight")
        return [Send(first if is_preflight else rest)]

    return answer


def run(workload: str, results: Path, url: str, *more: str) -> int:
    return main(["run", workload, "--engine", "vllm", "--base-url", url, "--output-dir", str(results), *more])


def stored(results: Path) -> Run:
    [path] = results.glob("*.parquet")
    return read_run(path)


def statuses(run: Run) -> list[tuple[str | None, str | None]]:
    return list(zip(run.table.texts["status"], run.table.texts["reason"], strict=True))


def test_a_run_is_stored_printed_and_exported(
    workload: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = [tmp_path / f"out.{ending}" for ending in ("md", "csv", "json", "parquet", "txt")]
    flags = [word for path in exports for word in ("--export", str(path))]
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, *flags) == 0
    printed = capsys.readouterr()
    assert "8 ok" in printed.out
    assert str(next(results.glob("*.parquet"))) in "".join(printed.out.split())  # a long path may be wrapped
    assert [path.suffix for path in results.iterdir()] == [".parquet"]  # the journal is gone
    assert all(path.stat().st_size > 100 for path in exports)
    kept = stored(results)
    assert statuses(kept) == [("ok", None)] * 8
    assert kept.meta.complete
    assert (kept.meta.target["engine"], kept.meta.target["model"], kept.meta.workload) == ("vllm", "m", "tiny")
    sent = [r.headers["x-request-id"] for r in server.requests if r.method == "POST"]
    assert sent[1:] == sorted(sent[1:], key=sent.index)
    assert len(set(sent)) == 9  # the preflight and eight


def test_the_page_goes_to_stdout_and_everything_else_to_stderr(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, "--export", "-.json") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)  # one document and nothing else
    assert document
    assert "\x1b" not in printed.out + printed.err


def test_c09_the_key_and_header_values_are_in_no_file(
    workload: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEAM_KEY", "sk-very-secret")
    flags = ["--api-key-env", "TEAM_KEY", "--header", "X-Team: blue-whale"]
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, *flags) == 0
    posts = [r for r in server.requests if r.method == "POST"]
    assert {r.headers["authorization"] for r in posts} == {"Bearer sk-very-secret"}
    assert {r.headers["x-team"] for r in posts} == {"blue-whale"}
    printed = capsys.readouterr()
    for held in [*(path.read_bytes() for path in results.iterdir()), printed.out.encode(), printed.err.encode()]:
        assert b"sk-very-secret" not in held
        assert b"blue-whale" not in held
    assert stored(results).meta.target["headers"] == ["X-Team"]


def test_c09_tls_fails_clearly_and_works_with_the_ca_file(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(OK)]), tls=True) as server:
        assert run(workload, results, server.url) == 4
        assert "certificate" in capsys.readouterr().err
        assert not list(results.iterdir())
        assert run(workload, results, server.url, "--ca-file", str(CA_FILE)) == 0
        assert stored(results).meta.target["tls"] == "checked"
        assert run(workload, results / "insecure", server.url, "--insecure") == 0
    assert stored(results / "insecure").meta.target["tls"] == "unchecked"


def test_a30_proxies_of_the_environment_are_used_only_when_asked_for(
    workload: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused_port() as dead, ScriptedServer(engine([Send(OK)])) as server:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{dead}")
        assert run(workload, results, server.url) == 0
        assert stored(results).meta.target["proxy"] is None
        capsys.readouterr()
        assert run(workload, results / "two", server.url, "--proxy-from-env") == 4
    assert f"the proxy http://127.0.0.1:{dead}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "timeouts"),
    [
        ([], {"connect_s": 10.0, "first_token_s": 1800.0, "idle_s": 120.0, "total_s": None}),
        (
            ["--timeout-connect", "3s", "--timeout-first-token", "2m", "--timeout-idle", "900ms", "--timeout-total", "1h"],
            {"connect_s": 3.0, "first_token_s": 120.0, "idle_s": 0.9, "total_s": 3600.0},
        ),
    ],
    ids=["defaults", "set"],
)
def test_b14_the_limits_of_a_run_are_in_its_record(
    workload: str, results: Path, flags: list[str], timeouts: dict[str, float | None]
) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, *flags) == 0
    assert stored(results).meta.target["timeouts"] == timeouts


@pytest.mark.parametrize(
    ("flags", "counts"),
    [([], {"include_usage": True, "continuous_usage_stats": True}), (["--count", "final"], {"include_usage": True})],
    ids=["full", "final"],
)
def test_what_was_sent_beside_the_prompt_is_in_the_record(
    workload: str, results: Path, flags: list[str], counts: dict[str, bool]
) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, *flags) == 0
    sent = {"stream": True, "stream_options": counts, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    assert stored(results).meta.target["sent_options"] == sent
    for request in server.requests:
        if request.method == "POST":
            rest = {name: value for name, value in request.json.items() if name not in ("model", "prompt", "max_tokens")}
            assert rest == sent


def test_a30_the_proxy_that_was_used_is_in_the_record_without_its_password(
    workload: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Received) -> Steps:
        known = {"/v1/models": models("m"), "/v1/completions": OK}
        return [Send(known.get(request.path.removeprefix("http://engine.test:8000"), not_found()))]

    with ScriptedServer(answer) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:pass-word@127.0.0.1:{proxy.port}")
        assert run(workload, results, "http://engine.test:8000", "--proxy-from-env") == 0
        port = proxy.port
    target = stored(results).meta.target
    assert (target["proxy"], target["transport"]) == (f"http://***@127.0.0.1:{port}", "http")
    assert b"pass-word" not in next(results.glob("*.parquet")).read_bytes()


def test_an_unreachable_server_is_one_error_and_nothing_is_stored(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused_port() as port:
        assert run(workload, results, f"http://127.0.0.1:{port}") == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"Error: cannot reach vllm at http://127.0.0.1:{port} (connection refused).\n"
        "  Start the engine, or check --base-url. No request was sent.\n"
    )
    assert not list(results.iterdir())


def test_b16_a_prompt_that_is_too_long_stops_the_run_before_any_request(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(OK)], models=[Send(models("m", max_model_len=16384))])) as server:
        assert run("30k-500-c64", results, server.url) == 4
    assert capsys.readouterr().err == (
        "Error: the model accepts 16384 tokens; the workload needs 30500 (30000 + 500).\n"
        "  Serve with a larger --max-model-len, or lower isl/osl. No request was sent.\n"
    )
    assert not [r for r in server.requests if r.path == "/v1/completions"]
    assert not list(results.iterdir())


PAGE = b"<html>not an engine</html>"
HTML = head(200, ("Content-Type", "text/html"), ("Content-Length", str(len(PAGE)))) + PAGE


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json_answer({"detail": "Not Found"}, 404), "answers 404 to POST /v1/completions"),
        (json_answer({"error": {"message": "prompt is bad", "code": 400}}, 400), "prompt is bad"),
        (json_answer({"error": {"message": "out of memory"}}, 500), "out of memory"),
        (json_answer({"error": {"message": "slow down"}}, 429), "slow down"),
        (HTML, "not-json"),
        (stream_head() + chunked(DONE), "empty-stream"),
    ],
    ids=["404", "400", "500", "429", "html", "a28-empty"],
)
def test_an_engine_that_fails_its_first_request_is_not_measured(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], answer: bytes, words: str
) -> None:
    with ScriptedServer(engine([Send(answer)])) as server:
        assert run(workload, results, server.url) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) <= 3
    assert "Traceback" not in printed.err
    assert len([r for r in server.requests if r.method == "POST"]) == 1  # no storm
    assert not list(results.iterdir())


def test_a_model_that_is_not_served_is_refused_with_those_that_are(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, "--model", "other") == 4
    assert "serves no model 'other'. Known: m." in capsys.readouterr().err


def no_nan(text: str) -> None:
    """Raises ValueError for a NaN or an infinity, which Python's reader would otherwise take."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    json.loads(text, parse_constant=refuse)


def test_b10_when_all_requests_fail_the_page_says_why_and_files_hold_nulls(
    workload: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = after_the_first(OK, json_answer({"error": {"message": "broken"}}, 500))
    flags = [
        "--export",
        str(tmp_path / "out.json"),
        "--export",
        str(tmp_path / "out.csv"),
        "--export",
        str(tmp_path / "out.md"),
    ]
    with ScriptedServer(engine(failing)) as server:
        assert run(workload, results, server.url, *flags) == 4
    printed = capsys.readouterr()
    assert "0/8 ok, 8 x HTTP 500" in printed.out
    assert "0/8 ok, fewer than --min-success 0.95" in printed.err
    no_nan((tmp_path / "out.json").read_text())
    for name in ("out.csv", "out.md"):
        words = (tmp_path / name).read_text().lower().replace(",", " ").replace("|", " ").split()
        assert not {"nan", "inf", "infinity", "-inf"} & set(words)
    assert statuses(stored(results)) == [("failed", "http-status")] * 8
    assert main(["show", str(next(results.glob("*.parquet")))]) == 0


def test_b08_a_single_refused_request_still_gives_a_report(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused_port() as port:
        flags = ["--no-preflight", "--model", "m", "--num-prompts", "1"]
        assert run(workload, results, f"http://127.0.0.1:{port}", *flags) == 4
    printed = capsys.readouterr()
    assert "0/1 ok, 1 x connect-refused" in printed.out
    assert "Traceback" not in printed.err
    kept = stored(results)
    assert statuses(kept) == [("failed", "connect-refused")]
    assert list(kept.table.ints["first_byte_ns"]) == [NONE]


def test_a28_empty_streams_are_failures_and_credit_no_tokens(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(stream_head() + chunked(DONE))])) as server:
        assert run(workload, results, server.url, "--no-preflight", "--model", "m") == 4
    assert "0/8 ok, 8 x empty-stream" in capsys.readouterr().out


def test_min_success_is_the_share_below_which_a_run_is_not_a_measurement(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def two_of_eight_fail(request: Received) -> Steps:
        fails = request.headers["x-request-id"].endswith(("-r3", "-r7"))
        return [Send(json_answer({"error": {"message": "x"}}, 503) if fails else OK)]

    with ScriptedServer(engine(two_of_eight_fail)) as server:
        assert run(workload, results / "a", server.url) == 4  # 6 of 8
        assert run(workload, results / "b", server.url, "--min-success", "0.75") == 0
    assert "6/8 ok" in capsys.readouterr().out


def test_a15_strict_refuses_prompts_of_another_length_and_the_default_marks_them(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(engine([Send(ok_stream(OSL, 2 * ISL))])) as server:
        assert run(workload, results / "marked", server.url) == 0
        assert "isl-mismatch" in capsys.readouterr().out
        assert run(workload, results / "strict", server.url, "--strict") == 4
    assert "isl-mismatch" in capsys.readouterr().err
    assert len(list((results / "strict").glob("*.parquet"))) == 1  # stored all the same


def marks_of(run: Run) -> list[tuple[str, ...]]:
    return list(run.table.marks)


def test_a15_each_row_whose_prompt_the_server_counted_otherwise_carries_the_mark_and_so_does_the_run(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-15: 10,000 asked, the server says 5,827, of all but one request."""

    def answer(request: Received) -> Steps:
        is_as_planned = request.headers["x-request-id"].endswith("-r3")
        return [Send(ok_stream(OSL, 10_000 if is_as_planned else 5_827))]

    with ScriptedServer(engine(answer)) as server:
        assert run(workload, results, server.url, "--isl", "10000") == 0
    assert "Marks isl-mismatch" in " ".join(capsys.readouterr().out.split())
    kept = stored(results)
    by_row = dict(zip(kept.table.ints["index"], marks_of(kept), strict=True))
    assert by_row == {index: () if index == 3 else ("isl-mismatch",) for index in range(8)}
    assert kept.meta.marks == ("isl-mismatch",)


@pytest.mark.parametrize(("counted", "n_marked"), [(1061, 0), (700, 1)], ids=["as-measured-ahead", "cut"])
def test_a16_what_the_template_adds_marks_no_row_and_a_prompt_that_was_cut_does(
    workload: str, results: Path, counted: int, n_marked: int
) -> None:
    """A-16: 1024 tokens of content, 1061 with the template, as the first request of all shows."""

    def answer(request: Received) -> Steps:
        is_odd = request.headers["x-request-id"].endswith("-r5")
        events = [chat_token("a"), chat_token("b"), chat_token("c", "length"), usage(counted if is_odd else 1061, OSL), DONE]
        return [Send(stream_head() + chunked(*events))]

    table = routes({"GET /v1/models": [Send(models("m"))], "POST /v1/chat/completions": answer})
    with ScriptedServer(table) as server:
        assert run(workload, results, server.url, "--api", "chat", "--isl", "1024") == 0
    assert [marks for marks in marks_of(stored(results)) if marks] == [("isl-mismatch",)] * n_marked


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-prompts", "0"], "--num-prompts: 0 is too small"),
        (["--header", "X-A: b\r\nHost: c"], "a line break inside a header is refused"),
        (["--timeout-connect", "1e999"], "--timeout-connect: inf is not a finite number above 0"),
        (["--timeout-first-token", "0"], "--timeout-first-token: 0 is not a finite number above 0"),
        (["--timeout-idle", "1e300"], "--timeout-idle: '1e300' is not between 1 ns and"),
        (["--export", "/no/such/folder/out.md"], "nothing was done"),
        (["--export", "out.docx"], "no format with the suffix"),
        (["--output-dir", "/proc/nothing"], "cannot write"),
        (["--min-success", "95"], "not a share"),
        (["--timeout-total", "soon"], "--timeout-total: 'soon' is not a duration"),
        (["--transport", "carrier"], "--transport 'carrier' is not known. Known: wire, http."),
        (["--timestamps", "gps"], "--timestamps 'gps' is not known"),
        (["--api", "generate"], "--engine vllm has no --api generate"),
        (["--engine", "vlm"], "Did you mean vllm?"),
        (["--goodput", "speed:1"], "--goodput 'speed:1' is not METRIC:MILLISECONDS"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE: that variable is not set"),
        (["--request-rate", "1", "--concurrency", "2"], "give one of them"),
        (["--nonsense"], "No such option"),
        (["--gpu", "H100", "--sim-set", "max_num_seqs=8"], "--gpu, --sim-set: that is for the embedded engine, and --base-url"),
        (["--base-url", "localhost:8000"], "is not an http:// or https:// address"),
        (["--prompts", "/no/such/corpus.txt"], "does not exist"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_error_with_exit_code_2_before_any_request_is_sent(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, *flags) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert words in printed.err
    assert "Traceback" not in printed.err
    assert not [r for r in server.requests if r.path == "/v1/completions"]


def test_a_file_in_place_of_the_results_folder_is_found_before_the_engine_is_asked(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_text("a file")
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url) == 2
    assert not server.requests
    assert "cannot write" in capsys.readouterr().err


def test_debug_shows_the_traceback_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no-such-workload", "--debug"]) == 2
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert "Error: no workload named 'no-such-workload'." in printed


# Interrupts. The server sends the signal while the 13th request waits for its answer.


def interrupting(number: signal.Signals, at: int, *, hangs: bool = False) -> Script:
    """Answers well, and signals our own process when the request with this number has arrived."""

    def answer(request: Received) -> Steps:
        if request.headers["x-request-id"].endswith(f"-r{at}"):
            os.kill(os.getpid(), number)
            if hangs:
                return [Silence()]
        return [Send(OK)]

    return answer


SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])


@SIGNALS
def test_b13_an_interrupted_run_stores_what_was_measured(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    flags = ["--num-prompts", "100", "--concurrency", "1"]
    with ScriptedServer(engine(interrupting(number, 12))) as server:
        assert run(workload, results, server.url, *flags) == code
    printed = capsys.readouterr()
    assert f"Interrupted by {number.name}: what was measured is stored." in printed.err
    kept = stored(results)
    assert 13 <= kept.table.n < 30  # the signal is seen while the 13th or one of the next is in flight
    assert set(statuses(kept)) == {("ok", None)}
    assert kept.meta.interrupted == number.name
    assert not kept.meta.complete
    assert main(["show", "latest", "--output-dir", str(results)]) == 0
    assert "planned" in capsys.readouterr().out


def test_b13_a_second_interrupt_leaves_at_once_and_stores_what_was_measured(workload: str, results: Path) -> None:
    def answer(request: Received) -> Steps:
        if request.headers["x-request-id"].endswith(("-r4", "-r5")):
            os.kill(os.getpid(), signal.SIGINT)
            return [Silence()]
        return [Send(OK)]

    with ScriptedServer(engine(answer)) as server:
        assert run(workload, results, server.url, "--num-prompts", "100", "--concurrency", "2") == 130
    kept = stored(results)
    assert statuses(kept)[-2:] == [("cancelled", "interrupted")] * 2
    assert {status for status, _ in statuses(kept)[:-2]} == {"ok"}


def test_b13_a_second_interrupt_while_the_run_is_put_away_does_not_cost_the_run(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine is asked for its counter once more after the last answer: the second signal comes then."""
    n_asked = 0

    def metrics(_: Received) -> Steps:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 3:
            os.kill(os.getpid(), signal.SIGINT)
        page = b'vllm:prefix_cache_hits_total{engine="0"} 0.0\n'
        return [Send(head(200, ("content-type", "text/plain"), ("content-length", str(len(page)))) + page)]

    table = {
        "GET /v1/models": [Send(models("m"))],
        "GET /metrics": metrics,
        "POST /v1/completions": interrupting(signal.SIGINT, 4),
    }
    with ScriptedServer(routes(table)) as server:
        assert run(workload, results, server.url, "--num-prompts", "100", "--concurrency", "1") == 130
    assert n_asked == 3
    assert [path.suffix for path in results.iterdir()] == [".parquet"]
    printed = capsys.readouterr()
    assert "Interrupted by SIGINT: what was measured is stored." in printed.err
    kept = stored(results)
    assert 5 <= kept.table.n < 100, "the signal is seen a few requests after it was sent"
    assert set(kept.table.texts["status"]) == {"ok"}
    assert f"{kept.table.n}/{kept.table.n} ok" in printed.out


@pytest.mark.parametrize("flag", ["--order", "--cool-down", "--deadline"])
def test_a_flag_for_several_runs_is_refused_for_one(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert main(["run", workload, flag, "random", "--output-dir", str(results)]) == 2
    assert f"Error: {flag}: that is for several runs, and this is one." in capsys.readouterr().err
    assert not results.exists()


class _Interrupting(io.StringIO):
    """A stdout during whose first page a signal comes: Ctrl-C, or that of a job's end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        os.kill(os.getpid(), self._number)
        return super().write(text)


@SIGNALS
def test_b13_an_interrupt_while_the_page_is_made_says_what_is_stored_and_how_to_see_it(
    workload: str,
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(sys, "stdout", _Interrupting(number))
    page = tmp_path / "page.md"
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, "--export", str(page)) == code
    monkeypatch.undo()
    assert signal.getsignal(number) is before
    (path,) = results.iterdir()
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first == f"Interrupted. The run is stored: {path}. To see it: `longbench-sched show {path}`."
    assert second == f"  To write {page}: `longbench-sched report {path} --export {page}`."
    assert not page.exists()
    assert main(["show", str(path)]) == 0


def test_b13_no_signal_while_the_embedded_engine_stops_keeps_the_page_from_being_made(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stored by then, and nothing has said where."""
    terminate = subprocess.Popen.terminate

    def interrupted(process: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        terminate(process)

    monkeypatch.setattr(subprocess.Popen, "terminate", interrupted)
    assert main(["run", workload, "--time-scale", "100", "--output-dir", str(results)]) == 0
    (path,) = results.iterdir()
    assert path.name in capsys.readouterr().out.replace("\n", "")


@SIGNALS
def test_b13_an_interrupt_between_runs_says_what_is_stored_and_how_to_go_on(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    """While the second run is prepared: the engine is asked for its models."""
    n_asked = 0

    def cards(_: Received) -> Steps:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 2:
            os.kill(os.getpid(), number)
            return [Silence()]
        return [Send(models("m"))]

    with ScriptedServer(engine([Send(OK)], models=cards)) as server:
        assert run(workload, results, server.url, "--num-runs", "3", "--cool-down", "0s") == code
    (ledger,) = results.glob("*.experiment.jsonl")
    name = ledger.name.removesuffix(".experiment.jsonl")
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"Interrupted. 1 of 3 runs are stored in {results}. To see them: `longbench-sched show {results}/{name}`. "
        f"To go on: `longbench-sched run --resume {name} --output-dir {results}`."
    )
    assert main(["show", f"{results}/{name}"]) == 0


def test_an_interrupt_before_the_run_begins_says_so_and_leaves_nothing(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cards(_: Received) -> Steps:
        os.kill(os.getpid(), signal.SIGINT)
        return [Silence()]

    with ScriptedServer(routes({"GET /v1/models": cards})) as server:
        assert run(workload, results, server.url) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Interrupted.\n")
    assert not list(results.iterdir())


def test_a11_a_second_run_with_the_same_seed_is_seen_by_the_servers_own_counter(
    workload: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen with vLLM 0.32.0 as it starts by default: 145 ms to the first token instead of 2088, and no answer said why."""
    hits = iter([0, 5_000, 5_000 + 8 * ISL])  # asked who it is, before the first measured request, after the last

    def metrics(_: Received) -> Steps:
        page = f'vllm:prefix_cache_hits_total{{engine="0"}} {next(hits)}.0\n'.encode()
        return [Send(head(200, ("content-type", "text/plain"), ("content-length", str(len(page)))) + page)]

    table = {
        "GET /v1/models": [Send(models("m"))],
        "GET /metrics": metrics,
        "POST /v1/completions": [Send(OK)],
    }
    with ScriptedServer(routes(table)) as server:
        assert run(workload, results, server.url) == 0
    assert stored(results).meta.engine_facts["prefix_hit_tokens"] == 8 * ISL
    assert "CACHE-ASSISTED: 100 % of the prompt tokens" in capsys.readouterr().out


def test_an_export_may_lie_in_the_output_folder_that_is_yet_to_be_made(workload: str, results: Path) -> None:
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, "--export", str(results / "report.md")) == 0
    assert (results / "report.md").stat().st_size > 100


def test_d07_a_tokenizer_that_cannot_be_loaded_is_one_note_and_the_servers_counts_are_used(
    workload: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "new-model-family"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    with ScriptedServer(engine([Send(OK)])) as server:
        assert run(workload, results, server.url, "--tokenizer", str(broken)) == 0
    kept = stored(results)
    [note] = kept.meta.plan["notes"]
    assert "new-model-family cannot be loaded" in note
    assert set(kept.table.texts["prompt_token_source"]) == {"usage"}
    assert "new-model-familycannotbeloaded" in "".join(capsys.readouterr().out.split())  # a long path is wrapped


def test_without_the_preflight_a_context_that_the_server_says_too_small_stops_nothing(workload: str, results: Path) -> None:
    small = [Send(models("m", max_model_len=ISL))]
    with ScriptedServer(engine([Send(OK)], models=small)) as server:
        assert run(workload, results, server.url) == 4
        assert run(workload, results, server.url, "--no-preflight") == 0
    assert statuses(stored(results)) == [("ok", None)] * 8
