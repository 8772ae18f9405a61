"""Files that other tools' own clients wrote: read, and found to say what those tools printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longbench_sched.compare.comparison import Side, compare
from longbench_sched.compare.point import point_of
from longbench_sched.errors import NotComparableError, StoreError
from longbench_sched.metrics.conventions import convert
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import NONE, Run
from longbench_sched.store.foreign import read_foreign
from longbench_sched.store.parquet import read_run, write_run

FILES = Path(__file__).parent / "foreign"
VLLM, SGLANG = FILES / "vllm_bench_serve.json", FILES / "sglang_bench_serving.jsonl"
# AIPerf 0.13.0, chat with 2 warm-ups and 8 requests, against `serve --fault 5xx:every=5`.
AIPERF = FILES / "aiperf_profile_export.jsonl"


def run_of(path: Path) -> Run:
    (run,) = read_foreign(path)
    return run


def document(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def altered(path: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a file with some keys changed, or left out where None."""
    fields = {key: value for key, value in (document(path) | changes).items() if value is not None or key not in changes}
    copy = folder / path.name
    copy.write_text(json.dumps(fields))
    return copy


def test_a_vllm_result_gives_the_figures_that_vllm_printed() -> None:
    run, printed = run_of(VLLM), document(VLLM)
    figures = {figure.name: figure for figure in convert(run, "vllm").figures}
    for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl")):
        found = figures[name]
        assert (found.mean, found.p50, found.p99) == (
            pytest.approx(printed[f"mean_{key}_ms"] / 1e3, abs=1e-8),
            pytest.approx(printed[f"median_{key}_ms"] / 1e3, abs=1e-8),
            pytest.approx(printed[f"p99_{key}_ms"] / 1e3, abs=1e-8),
        )
    assert figures["E2EL"].mean == pytest.approx(sum(printed["latencies"]) / 8, abs=1e-8)


def test_an_sglang_result_gives_the_figures_that_sglang_printed() -> None:
    run, printed = run_of(SGLANG), document(SGLANG)
    figures = {figure.name: figure for figure in convert(Run(run.meta, run.table), "vllm").figures}  # raw stamps: tokens here
    for name, key in (("TTFT", "ttft"), ("ITL", "itl")):
        assert figures[name].mean == pytest.approx(printed[f"mean_{key}_ms"] / 1e3, abs=1e-8)
        assert figures[name].p99 == pytest.approx(printed[f"p99_{key}_ms"] / 1e3, abs=1e-8)


@pytest.mark.parametrize("path", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_what_a_file_does_not_say_is_null(path: Path) -> None:
    run = run_of(path)
    assert run.table.n == 8
    for name in ("due_ns", "slot_ns", "body_sent_ns", "header_ns", "first_byte_ns", "cached_tokens", "http_status"):
        assert set(run.table.ints[name]) == {NONE}, name
    assert set(run.table.texts["output_token_source"]) == {None}
    stats = summarize(run).whole.stats
    assert all(stats[name].n == 0 for name in ("ttft_due", "queue_wait", "lateness", "upload", "first_byte"))
    assert stats["ttft"].n == stats["tpot"].n == 8
    assert run.meta.marks == ("imported",)
    assert run.meta.origin["tool"] == path.stem.split("_")[0]
    assert run.meta.origin["printed"]["completed"] == 8


def test_without_send_times_nothing_is_said_that_needs_a_common_clock() -> None:
    summary = summarize(run_of(SGLANG), with_curves=True)
    rates = summary.whole.rates
    for name in ("output_throughput", "input_throughput", "total_throughput", "request_rate", "goodput", "completion_rate"):
        assert rates[name].value is None, name
    assert summary.steady is None
    assert summary.facts["littles_law"] is None
    assert summary.facts["stalls"] is None
    assert "NO-STEADY-WINDOW" not in {advice.id for advice in summary.advice}
    assert summary.curves is not None
    assert (summary.curves.trails, summary.curves.bars) == ({}, ())
    assert summary.curves.ecdfs["ttft"].n == 8
    assert summarize(run_of(VLLM)).whole.rates["output_throughput"].value is not None


def test_an_imported_run_is_stored_and_read_like_any_other(tmp_path: Path) -> None:
    run = run_of(SGLANG)
    write_run(run, tmp_path / "run.parquet")
    back = read_run(tmp_path / "run.parquet")
    assert back.meta.origin == run.meta.origin
    assert not back.meta.has_common_clock
    assert summarize(back).whole.stats == summarize(run).whole.stats


@pytest.mark.parametrize(("changes", "is_alike"), [("ttfts", True), ("input_lens", False)])
def test_files_of_one_load_can_be_compared_and_those_of_another_cannot(tmp_path: Path, changes: str, is_alike: bool) -> None:
    doubled = {changes: [2 * value for value in document(VLLM)[changes]]}
    sides = [Side(path.stem, (point_of(summarize(run_of(path))),)) for path in (VLLM, altered(VLLM, tmp_path, **doubled))]
    if is_alike:
        (match,) = compare(sides[0], sides[1:]).matches
        assert [disparity.id for disparity in match.disparities] == ["imported"]
    else:
        with pytest.raises(NotComparableError, match="plans-differ"):
            compare(sides[0], sides[1:])


def test_a_file_that_does_not_say_its_load_is_compared_with_no_other(tmp_path: Path) -> None:
    lines = AIPERF.read_text().splitlines()
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(lines) + "\n\n")
    schedules = {point_of(summarize(run_of(path))).schedule for path in (AIPERF, other)}
    assert len(schedules) == 2


def test_tokens_of_a_chunk_are_known_only_where_each_holds_one(tmp_path: Path) -> None:
    packed = altered(VLLM, tmp_path, output_lens=[40] * 8)
    assert set(run_of(packed).table.lists["chunk_tokens"]) == {-1}
    spread = altered(SGLANG, tmp_path, output_lens=[22] * 8)
    run = run_of(spread)
    first, second = run.table.offsets[0], run.table.offsets[0] + 1
    n_stamps = run.table.offsets[1] - run.table.offsets[0]
    assert run.table.lists["chunk_tokens"][first] == 22 - n_stamps + 1
    assert run.table.lists["chunk_tokens"][second] == 1


def test_an_aiperf_result_gives_the_figures_that_aiperf_printed() -> None:
    figures = {figure.name: figure for figure in convert(run_of(AIPERF), "aiperf").figures}
    ttft, gaps = figures["Time to First Token"], figures["Inter Chunk Latency"]
    # From profile_export_aiperf.json, written beside the file.
    assert (ttft.n, ttft.mean, ttft.p50) == (6, pytest.approx(0.027111026666666667), pytest.approx(0.026376461))
    assert (ttft.p90, ttft.p99) == (pytest.approx(0.0331574295), pytest.approx(0.03648143685))
    assert (gaps.n, gaps.mean) == (66, pytest.approx(0.004219394151515151))
    assert figures["Request Latency"].mean == pytest.approx(0.07352436233333333)


def test_what_aiperf_knows_beside_the_times_is_read() -> None:
    run = run_of(AIPERF)
    table, summary = run.table, summarize(run)
    assert [table.texts["phase"].count(phase) for phase in ("warmup", "measured")] == [2, 8]
    assert (run.meta.plan["requests"], run.meta.plan["warmups"], run.meta.plan["lanes"]) == (8, 2, [])
    assert (summary.outcomes.ok, summary.outcomes.failed) == (6, 2)
    assert summary.outcomes.reasons[0].sample_detail is not None
    assert summary.outcomes.reasons[0].sample_detail.startswith("503 Service Unavailable")
    good = [i for i in range(table.n) if table.texts["status"][i] == "ok"]
    # The server counted 179 and 12 of the first measured request; the tool's tokenizer 127 and 14.
    assert {table.texts["output_token_source"][i] for i in good} == {"usage"}
    assert {table.ints["output_tokens"][i] for i in good} == {12}
    assert all(table.ints["end_ns"][i] >= table.lists["chunk_at_ns"][table.offsets[i + 1] - 1] - 1000 for i in good)
    assert run.meta.origin["unknown"] == ["due times"]
    assert set(table.ints["due_ns"]) == {NONE}


def test_failures_whose_end_is_not_in_the_file_break_no_law_and_are_said() -> None:
    run = run_of(AIPERF)
    assert summarize(run).facts["littles_law"] is None
    assert "2 requests failed, and the file does not say when: they count as in flight to the end" in run.meta.plan["notes"]


def aiperf_lines(**changes: Any) -> list[dict[str, Any]]:
    """Two good lines of AIPerf with changes; None leaves a metric out."""
    lines = [line for line in map(json.loads, AIPERF.read_text().splitlines()) if "error" not in line][2:4]
    for line in lines:
        line["metrics"] = {name: value for name, value in (line["metrics"] | changes).items() if value is not None}
    return lines


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_to_first_token": None}, "--streaming"),
        ({"time_to_first_token": {"value": "x", "unit": "ms"}}, "is damaged"),
        ({"inter_chunk_latency": {"value": [1.0], "unit": "fortnight"}}, "is damaged"),
        ({"input_sequence_length": {}}, "is damaged"),
    ],
)
def test_lines_of_aiperf_that_hold_something_else_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, aiperf_lines(usage_prompt_tokens=None, **changes))))
    with pytest.raises(StoreError, match=message):
        read_foreign(path)


def test_without_usage_the_counts_are_of_the_tools_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, aiperf_lines(usage_completion_tokens=None, usage_prompt_tokens=None))))
    table = run_of(path).table
    assert (table.ints["prompt_tokens"][0], set(table.texts["output_token_source"])) == (127, {None})


def test_failures_are_failures(tmp_path: Path) -> None:
    errors = ["Traceback\nConnectionError: reset"] + [""] * 7
    run = run_of(altered(VLLM, tmp_path, errors=errors, output_lens=[0] + [20] * 7, ttfts=[0.0] + [0.1] * 7))
    outcomes = summarize(run).outcomes
    assert (outcomes.ok, outcomes.failed) == (7, 1)
    assert outcomes.reasons[0].reason == "unknown"
    assert outcomes.reasons[0].sample_detail is not None
    assert "reset" in outcomes.reasons[0].sample_detail


def test_a_file_of_several_runs_gives_each(tmp_path: Path) -> None:
    several = tmp_path / "two.jsonl"
    several.write_text(SGLANG.read_text().strip() + "\n" + SGLANG.read_text())
    assert [run.meta.origin["file"] for run in read_foreign(several)] == ["two.jsonl:1", "two.jsonl:2"]


def test_a_rate_without_limit_is_read_as_the_tools_write_it(tmp_path: Path) -> None:
    """SGLang's client writes its default, an infinite rate, as Infinity, which strict readers of JSON refuse."""
    path = altered(SGLANG, tmp_path, request_rate=float("inf"), std_itl_ms=float("nan"))
    assert "Infinity" in path.read_text()
    assert run_of(path).meta.plan["lanes"][0]["process"] == "burst"


@pytest.mark.parametrize(
    "changes",
    [
        {"ttfts": ["x"] * 8}, {"ttfts": [None] * 8}, {"ttfts": [1e300] * 8}, {"ttfts": [float("nan")] * 8}, {"itls": [1] * 8},
        {"output_lens": ["a"] * 8}, {"output_lens": [10**30] * 8}, {"errors": 5}, {"start_times": [1.0]},
        {"start_times": ["x"] * 8},
    ],
)  # fmt: skip
def test_lists_of_something_else_are_said_to_be_damaged(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="is damaged: its lists hold other things"):
        read_foreign(altered(VLLM, tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no tool that is known"),
        ("not json", "neither JSON nor JSONL"),
        ("[1]", "neither JSON nor JSONL"),
        ('{"aiperf_version": "0.13.0"}', "Import profile_export.jsonl"),
        ('{"benchmarks": [], "metadata": {}}', "GuideLLM"),
        ('{"start_times": [], "ttfts": []}', "--save-detailed"),
        ('{"total_output_tokens_retokenized": 1}', "--output-details"),
        ('{"start_times": [1], "ttfts": [1], "itls": [], "input_lens": [1], "output_lens": [1]}', "differ in length"),
    ],
)
def test_other_files_are_refused_with_what_to_do(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=message):
        read_foreign(path)
    with pytest.raises(StoreError, match="cannot be read"):
        read_foreign(tmp_path / "gone.json")
