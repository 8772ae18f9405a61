"""What was run: the mode of the load by its name, realised lengths beside nominal ones, the engine's settings."""

from __future__ import annotations

from typing import Any

import handmade_summaries as handmade
import pytest

from longbench_sched.metrics.stat import Summary
from longbench_sched.report import headline, render_for
from longbench_sched.report.page import build_page


def with_length(**length: Any) -> Summary:
    return handmade.make_summary(handmade.make_meta(plan=handmade.PLAN | {"isl": length}), facts={})


def plain(texts: list[str]) -> str:
    return " / ".join(texts).replace("\u00a0", " ")


class TestLengths:
    def test_one_length_is_exact(self) -> None:
        assert plain(headline.length_texts(handmade.make_summary())) == "ISL 30000 exact / OSL 500 exact"

    def test_a17_a_range_shows_its_realised_mean_beside_the_nominal_one(self) -> None:
        summary = with_length(nominal_mean=768.0, mean=771.3, min=512, max=1024)
        assert "ISL mean 771 (nominal 768), 512 … 1024" in plain(headline.length_texts(summary))

    @pytest.mark.parametrize("suffix", [".txt", ".md"])
    def test_a18_a_mean_under_the_nominal_one_is_flagged_in_the_headline(self, suffix: str) -> None:
        summary = with_length(nominal_mean=8192.0, mean=7373.0, min=6554, max=8192)
        text = render_for(f"x{suffix}", build_page([summary]))
        assert isinstance(text, str)
        assert "ISL mean 7373 (-10 % vs nominal 8192)" in text

    @pytest.mark.parametrize(
        ("mean", "deviation"), [(98.1, None), (97.9, -0.021), (102.1, 0.021)], ids=["within", "under", "over"]
    )
    def test_a18_two_percent_is_the_limit(self, mean: float, deviation: float | None) -> None:
        found = headline.nominal_deviation({"nominal_mean": 100.0, "mean": mean})
        assert found == (None if deviation is None else pytest.approx(deviation))

    def test_a_run_that_ends_by_time_shows_the_mean_of_what_was_sent(self) -> None:
        """Seen on vLLM: 22 short and 3 long prompts of a plan of 200 and 3."""
        length = {"nominal_mean": 373.3, "mean": 373.3, "min": 256, "max": 8192}
        summary = handmade.make_summary(
            handmade.make_meta(plan=handmade.PLAN | {"isl": length}), facts={"isl": {"asked": {"mean": 1208.3}}}
        )
        assert "ISL mean 1208 as sent (plan 373), 256 … 8192" in plain(headline.length_texts(summary))

    def test_a_length_that_no_tokenizer_made_is_not_called_exact(self) -> None:
        summary = handmade.make_summary(handmade.make_meta(plan=handmade.PLAN | {"extra": {"isl_source": "estimate"}}))
        assert plain(headline.length_texts(summary)) == "ISL 30000 by estimate / OSL 500 exact"

    def test_what_the_server_counted_is_said_if_it_differs(self) -> None:
        facts = {
            "isl": {"asked": {"mean": 30000.0}, "server": {"mean": 30023.0}},
            "osl": {"asked": {"mean": 500.0}, "realised": {"mean": 31.5}},
        }
        texts = plain(headline.length_texts(handmade.make_summary(facts=facts)))
        assert texts == "ISL 30000 exact, the server counted 30023 / OSL 500 exact, 31.5 came"

    @pytest.mark.parametrize(
        ("counted", "words"), [(1_048_577.0, "1048577"), (625.3125, "625.3")], ids=["a million", "a mean of few"]
    )
    def test_what_the_server_counted_is_written_out(self, counted: float, words: str) -> None:
        facts = {"isl": {"asked": {"mean": 300.0}, "server": {"mean": counted}}}
        assert f"the server counted {words} /" in plain(headline.length_texts(handmade.make_summary(facts=facts)))


class TestLoop:
    """C-14: closed loop, open loop and burst are separate, and named."""

    @pytest.mark.parametrize(
        ("lane", "text"),
        [
            ({"loop": "closed", "concurrency": 64, "steps": [[0.0, 64]]}, "closed loop, 64 in flight"),
            ({"loop": "closed", "concurrency": 64, "steps": [[0.0, 16], [60.0, 64]]}, "closed loop, ramp 16 → 64 in flight"),
            ({"loop": "open", "process": "poisson", "rate_per_s": 2.5}, "open loop, poisson 2.50/s"),
            (
                {"loop": "open", "process": "constant", "rate_per_s": 1.0, "max_in_flight": 8},
                "open loop, constant 1.00/s, at most 8 in flight",
            ),
            ({"loop": "open", "process": "burst", "rate_per_s": None}, "burst, all at once"),
            ({"loop": "open", "process": "burst", "rate_per_s": 0.5}, "burst, 0.500/s on average"),
        ],
        ids=["closed", "ramp", "poisson", "capped", "burst", "bursts"],
    )  # fmt: skip
    def test_c14_the_mode_is_named(self, lane: dict[str, Any], text: str) -> None:
        assert headline.loop_text(lane) == text

    def test_c14_the_mode_is_on_the_first_line_of_every_page(self) -> None:
        page = build_page([handmade.make_summary()])
        for suffix in (".txt", ".md"):
            text = render_for(f"x{suffix}", page)
            assert isinstance(text, str)
            assert "closed loop, 64 in flight · 256 requests" in "\n".join(text.splitlines()[:3])

    def test_each_lane_has_its_line(self) -> None:
        lanes = [
            {"name": "decode", "loop": "closed", "concurrency": 32, "requests": 500},
            {"name": "long", "loop": "open", "process": "constant", "rate_per_s": 0.25, "requests": 10, "duration_s": 60.0},
        ]
        lines = headline.load_lines(handmade.make_meta(plan={"lanes": lanes}))
        assert [line.replace("\u00a0", " ") for line in lines] == [
            "decode: closed loop, 32 in flight · 500 requests",
            "long: open loop, constant 0.250/s · for 60 s, at most 10 requests",
        ]

    def test_a_run_of_which_little_is_known_has_a_headline_too(self) -> None:
        summary = handmade.make_summary(handmade.make_meta(plan={}, target={}, engine_facts={}, digest=""), facts={})
        text = render_for("x.txt", build_page([summary]))
        assert isinstance(text, str)
        assert "engine?      nothing is known of its settings" in text


class TestEngine:
    def test_settings_are_in_a_fixed_order_and_usual_ones_are_left_out(self) -> None:
        facts = {
            "max_model_len": 32768,
            "tensor_parallel": 1,
            "prefix_caching": False,
            "token_budget": 8192,
            "mixed_chunk": None,
        }
        assert plain(headline.settings_texts(facts)) == "token budget 8192 / prefix cache off / context 32768"

    @pytest.mark.parametrize(
        ("asked", "facts", "name"),
        [
            ("vllm", {"engine": "vllm", "version": "0.32.0"}, "vllm 0.32.0"),
            ("openai", {"engine": "vllm", "version": "0.32.0"}, "vllm 0.32.0 as openai"),
            ("openai", {"engine": "llama.cpp"}, "llama.cpp as openai"),
            ("trtllm", {}, "trtllm"),
        ],
        ids=["itself", "another-dialect", "no-version", "not-told"],
    )
    def test_a_server_goes_by_its_own_name(self, asked: str, facts: dict[str, str], name: str) -> None:
        assert headline.engine_name(handmade.make_meta(target={"engine": asked}, engine_facts=facts)) == name

    def test_the_title_says_that_a_run_is_simulated_and_how_fast_its_clock_ran(self) -> None:
        assert headline.title(handmade.simulated("vllm", 1.0).meta) == "30k-500-c64 on vllm (simulated, clock x6)"
        assert headline.title(handmade.make_meta()) == "30k-500-c64 on vllm 0.33.0"

    def test_a_simulated_page_begins_with_its_title_and_shows_the_servers_lateness_in_engine_time(self) -> None:
        text = render_for("x.txt", build_page([handmade.simulated("vllm", 1.0)]))
        assert isinstance(text, str)
        assert text.startswith("30k-500-c64 on vllm (simulated, clock x6)\n")
        assert "embedded engine, late p99 1.5 ms" in text  # 0.25 ms as measured, times 6
        assert "sends late p99 0.60 ms" in text  # 0.1 ms as measured, times 6


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (2.6e-7, "under 0.01 %"), (0.0001, "0.0100 %"), (0.5, "50.0 %")], ids=str
)
def test_a_token_in_the_cache_is_no_figure_of_seven_digits(share: float, text: str) -> None:
    summary = handmade.make_summary(facts={"cache": {"share": share}})
    assert plain(headline.engine_texts(summary)).endswith(f"{text} of prompts cached")
