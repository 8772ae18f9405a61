"""A run as a point: its name, its load and its numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from longbench_sched.compare.point import cell_name, common_window, decode_point, encode_point, point_of, target_name
from longbench_sched.errors import StoreError
from tests.report import handmade_summaries as handmade

CHANGED = "isl = 5\n\n# From the command line:\n# --concurrency 8\n# --num-prompts 16\n# --goodput ttft:3000\n"


@pytest.mark.parametrize(
    ("changes", "cell", "target"),
    [
        ({}, "30k-500-c64", "vllm 0.33.0"),
        ({"workload_text": CHANGED}, "30k-500-c64 concurrency=8 num_prompts=16", "vllm 0.33.0"),
        ({"experiment": {"target": "a", "cell": "x"}}, "x", "a"),
        (
            {"target": {"engine": "sglang", "cell": {"chunked_prefill_size": "2048", "concurrency": "8", "seed": "3"}}},
            "30k-500-c64",
            "sglang 0.33.0 chunked_prefill_size=2048",
        ),
        ({"engine_facts": {}}, "30k-500-c64", "vllm"),
    ],
    ids=["plain", "flags", "experiment", "sweep", "no version"],
)
def test_runs_under_other_loads_or_settings_have_other_names(changes: dict[str, Any], cell: str, target: str) -> None:
    meta = handmade.make_meta(**changes)
    assert (cell_name(meta), target_name(meta)) == (cell, target)


def test_the_figures_of_every_window_are_there() -> None:
    point = point_of(handmade.make_summary())
    assert point.value("ttft_p50", "whole") == 11.2
    assert point.value("itl_p99", "steady") == 0.161
    assert point.value("total_throughput", "steady") == 25_105.0
    assert point.value("error_rate", "whole") == 0.0
    assert point.value("ttft_p50", "lane x") is None
    assert point.within["whole"]["ttft_p50"] == (10.9, 11.5)
    assert common_window([point]) == "steady"
    assert common_window([point, point_of(handmade.make_summary(steady=None))]) == "whole"


def test_what_tells_like_from_like_is_read_from_the_run() -> None:
    point = point_of(
        handmade.make_summary(
            handmade.make_meta(plan=handmade.PLAN | {"extra": {"schedule_digest": "abc"}}),
            outcomes=handmade.make_outcomes(ok=250, failed=6),
            facts={
                "isl": {"server": {"mean": 30_100.0}},
                "osl": {"realised": {"mean": 480.0}, "share": 0.96},
                "cache": {"share": 0.2},
                "packing": {"mode": 4},
            },
        )
    )
    assert (point.schedule, point.isl_mean, point.osl_mean, point.osl_share) == ("abc", 30_100.0, 480.0, 0.96)
    assert (point.cached_share, point.tokens_per_chunk, point.value("error_rate", "whole")) == (0.2, 4.0, 6 / 256)
    assert point.params == {"isl": 30_000.0, "osl": 500.0, "concurrency": 64.0}


@pytest.mark.parametrize(
    ("facts", "stated", "gpus"),
    [
        ({"tensor_parallel": 4, "pipeline_parallel": 2}, {}, 8),
        ({"tensor_parallel": 4}, {"gpus": 16}, 16),
        ({}, {}, None),
    ],
)
def test_e09_the_number_of_gpus_is_stated_or_told_by_the_engine(
    facts: dict[str, int], stated: dict[str, int], gpus: int | None
) -> None:
    assert point_of(handmade.make_summary(handmade.make_meta(engine_facts=facts, experiment=stated))).gpus == gpus


def test_a_point_comes_back_from_json_as_it_was_but_for_what_judges_nothing() -> None:
    point = point_of(handmade.make_summary())
    plain = json.loads(json.dumps(encode_point(point)))
    again = decode_point(plain, "main.json")
    assert again.values == point.values
    assert again.within == {}
    assert json.loads(json.dumps(encode_point(again))) == plain
    with pytest.raises(StoreError, match=r"main\.json is damaged"):
        decode_point({"marks": []}, "main.json")
