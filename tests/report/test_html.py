"""One file with everything in it: nothing to run, nothing to fetch, nothing a server's words can do."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import handmade_summaries as handmade
import pytest

from longbench_sched.errors import UsageError
from longbench_sched.metrics.curves import Bar, Curves, Ecdf, Trail
from longbench_sched.metrics.stat import Summary
from longbench_sched.report import html
from longbench_sched.report.charts import Chart, charts
from longbench_sched.report.drawing import to_png, to_svg
from longbench_sched.report.page import build_page

SVG_TAGS = {"svg", "g", "path", "line", "text", "rect", "defs", "clippath", "tspan"}
HTML_TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "dl", "dt", "dd", "br", "a", "b", "div", "table",
    "tr", "th", "td", "figure", "details", "summary",
}  # fmt: skip


class Seen(HTMLParser):
    """Tags, attributes and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def with_curves(summary: Summary, request: str = "r", n: int = 40) -> Summary:
    """Curves of four metrics and of some requests, of plausible figures."""
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(0, 0.5) for _ in range(n))
    shares = [(place + 1) / n for place in range(n)]
    ecdfs = {name: Ecdf(name, "s", n, tuple(values), tuple(shares)) for name in ("ttft", "tpot", "itl", "e2e")}
    trails = {name: Trail(name, "s", tuple(float(i) for i in range(n)), tuple(values)) for name in ("ttft", "tpot")}
    bars = [
        Bar(f"{request}{i}", kind, float(i + at), float(i + at + 1))
        for i in range(24)
        for at, kind in enumerate(("prefill", "decode", "stall", "decode"))
    ]
    return replace(summary, curves=Curves(ecdfs, trails, tuple(bars)))


def page_of(*summaries: Summary) -> str:
    return html.render(build_page(summaries))


@pytest.fixture(scope="module")
def hostile_page() -> str:
    attack = with_curves(handmade.hostile(), handmade.HOSTILE)
    return page_of(attack, with_curves(handmade.make_summary()))


def test_nothing_in_a_page_can_run_or_be_fetched(hostile_page: str) -> None:
    seen = Seen(hostile_page)
    assert seen.tags <= SVG_TAGS | HTML_TAGS
    names = {name for name, _ in seen.attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "srcset", "action", "xlink:href")]
    assert all((value or "").startswith("#") for name, value in seen.attributes if name == "href")
    assert not [value for _, value in seen.attributes if "javascript:" in (value or "").lower()]
    assert "default-src 'none'" in hostile_page
    assert "@import" not in hostile_page
    assert "\x1b" not in hostile_page


def test_words_of_a_server_are_shown_as_they_are(hostile_page: str) -> None:
    assert "<script>alert(1)</script>" in "".join(Seen(hostile_page).words)


def test_no_two_charts_share_an_id(hostile_page: str) -> None:
    ids = Seen(hostile_page).ids
    assert ids
    assert len(ids) == len(set(ids))


def test_every_chart_of_a_simulated_run_says_so() -> None:
    simulated = [with_curves(handmade.simulated(engine, factor)) for engine, factor in (("vllm", 1.0), ("sglang", 1.5))]
    drawn = [*charts(simulated), *charts(simulated[:1])]
    assert len(drawn) == 6 + 2 + 7
    for chart in drawn:
        assert "(simulated, clock x6)" in chart.spec["title"]["text"], chart.name
    text = page_of(*simulated)
    assert text.count("(simulated, clock x6)") >= 8
    assert "not of a measured one" in text


def test_where_only_some_runs_are_simulated_the_charts_say_that() -> None:
    mixed = [with_curves(handmade.simulated("vllm", 1.0)), with_curves(handmade.make_summary())]
    shared = [chart for chart in charts(mixed) if "timelines" not in chart.name]
    assert shared
    assert all("some runs are simulated" in chart.spec["title"]["text"] for chart in shared)
    for summaries, start in ((mixed, "Partly simulated: some"), (mixed[:1], "Simulated: these")):
        assert f'<p class="sim">{start}' in page_of(*summaries)


def test_a_page_holds_numbers_charts_warnings_facts_and_how_it_was_measured() -> None:
    text = page_of(with_curves(handmade.make_summary()))
    for heading in ("Numbers", "Charts", "Warnings", "Engines, as they say of themselves", "How it was measured"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<svg ") == 7
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text
    assert "currentColor" in text
    assert "ITL-PREFILL" in text
    assert "9f3c21" in text


def test_pages_without_runs_or_tokens_are_pages_too() -> None:
    assert "<h1>No runs</h1>" in page_of()
    assert "<svg" not in page_of(handmade.all_failed())


def test_runs_under_several_loads_are_drawn_against_the_load() -> None:
    runs = []
    for concurrency in (8, 16, 32):
        lane = handmade.CLOSED_64 | {"concurrency": concurrency}
        runs.append(
            with_curves(
                handmade.make_summary(handmade.make_meta(run_id=f"r{concurrency}", plan=handmade.PLAN | {"lanes": [lane]}))
            )
        )
    drawn = {chart.name: chart for chart in charts(runs)}
    rows = drawn["load-ttft"].spec["data"]["values"]
    assert [(row["load"], row["value"], row["low"], row["high"]) for row in rows] == [
        (load, pytest.approx(11.2), pytest.approx(10.9), pytest.approx(11.5)) for load in (8, 16, 32)
    ]
    assert "load-ttft" not in {chart.name for chart in charts(runs[:2])}
    # Two targets of one engine are two curves.
    targets = [replace(run, meta=replace(run.meta, experiment={"target": name})) for name in "ab" for run in runs]
    rows = {chart.name: chart for chart in charts(targets)}["load-ttft"].spec["data"]["values"]
    assert [row["run"] for row in rows] == ["a"] * 3 + ["b"] * 3


def run_of(name: str, speed: float, carried: float, gpus: int | None = 1) -> Summary:
    """A run that serves a user at `speed` and carries so much in all, both in tok/s."""
    from longbench_sched.metrics.stat import Rate, Stat

    facts = {"version": "0.33.0"} if gpus is None else {"tensor_parallel": gpus}
    summary = handmade.make_summary(handmade.make_meta(run_id=name, target={"engine": name}, engine_facts=facts))
    assert summary.steady is not None
    stats = {**summary.steady.stats, "output_speed": Stat("output_speed", "tok/s", 9, p50=speed)}
    rates = {**summary.steady.rates, "total_throughput": Rate("total_throughput", "tok/s", carried)}
    return replace(summary, steady=replace(summary.steady, stats=stats, rates=rates))


def frontier(*runs: Summary) -> Chart:
    return next(chart for chart in charts(runs) if chart.name == "frontier")


def test_the_frontier_joins_the_runs_that_none_beats() -> None:
    chart = frontier(run_of("fast", 50, 100), run_of("wide", 20, 900), run_of("beaten", 20, 90))
    assert {row["run"]: row["best"] for row in chart.spec["data"]["values"]} == {"fast": True, "wide": True, "beaten": False}


def test_the_frontier_is_that_of_one_gpu_where_every_run_says_how_many_it_had() -> None:
    four = run_of("four", 50, 1000, gpus=4)
    chart = frontier(four, run_of("one", 40, 300))
    assert {row["run"]: row["carried"] for row in chart.spec["data"]["values"]} == {"four": 250.0, "one": 300.0}
    assert chart.spec["encoding"]["y"]["title"] == "input + output, tok/s per GPU"
    chart = frontier(four, run_of("silent", 40, 300, gpus=None))
    assert {row["run"]: row["carried"] for row in chart.spec["data"]["values"]} == {"four": 1000.0, "silent": 300.0}
    assert chart.spec["encoding"]["y"]["title"] == "input + output, tok/s of all GPUs"


def test_pictures_are_drawn_as_svg_and_png() -> None:
    chart = charts([with_curves(handmade.make_summary())])[0]
    assert to_png(chart.spec).startswith(b"\x89PNG\r\n")
    svg = to_svg(chart.spec)
    assert svg.startswith("<svg ")
    assert "currentColor" not in svg


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from longbench_sched.cli.exports import open_exports

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"\[plots\]"):
        page_of(with_curves(handmade.make_summary()))
    with pytest.raises(UsageError, match=r"\[plots\]"), open_exports([str(tmp_path / "out.html")]):
        pytest.fail("before anything is measured")
    assert not list(tmp_path.iterdir())


def test_a_token_alone_between_two_stalls_is_drawn_as_a_tick() -> None:
    def ticks(*ends_s: float) -> int:
        """Ticks drawn where a stall, a token and a stall end at these times."""
        begins_s = (0.0, *ends_s)
        stalls = [Bar("r0", *one) for one in zip(("stall", "decode", "stall"), begins_s, ends_s, strict=False)]
        curves = Curves({}, {}, (*stalls, Bar("r0", "decode", 3.0, 4.0)))
        (timelines,) = charts([replace(handmade.make_summary(), curves=curves)])
        return to_svg(timelines.spec).partition("layer_1_marks")[2].partition("<g ")[0].count("<path")

    assert ticks(1.0, 1.0, 3.0) == 1
    assert ticks(1.0, 1.5, 3.0) == 0  # wide enough to be seen
    assert ticks(1.0, 1.0, 1.001) == 0  # would hide the stall
