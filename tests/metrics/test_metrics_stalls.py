"""Stalls: when all answers stand still, and whose prompt it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
from handmade import advice_ids, closed_loop, row, run_of, steps

from longbench_sched.metrics.summary import summarize
from longbench_sched.run import Run


def interfered(
    arrivals: list[float], stall_ms: float, *, n_before: int = 4, length_ms: float = 4000.0, pause_ms: float = 0.0
) -> Run:
    """Streams that get a token every 10 ms; whenever a request arrives, nobody gets one for `stall_ms`, then it joins.

    At 3 s nobody gets one for `pause_ms`, and no request is there to be the reason.
    """
    ticks, at, waiting = [], 100.0, sorted(arrivals)
    while at < length_ms:
        ticks.append(at)
        at += 10.0
        if waiting and at > waiting[0]:
            at = waiting.pop(0) + stall_ms
        if 3000.0 <= at < 3010.0:
            at += pause_ms
    records = [row(0.0, ticks, index=i) for i in range(n_before)]
    records += [
        row(arrival, [tick for tick in ticks if tick >= arrival + stall_ms], index=n_before + i)
        for i, arrival in enumerate(arrivals)
    ]
    return run_of(records, plan=closed_loop(8))


def stalls_of(run: Run) -> dict[str, Any]:
    found = summarize(run).facts["stalls"]
    assert isinstance(found, dict)
    return found


ARRIVALS = [500.0, 1200.0, 1900.0, 2600.0, 3300.0]


def test_e03_five_stalls_are_found_with_time_size_and_the_arriving_request() -> None:
    run = interfered(ARRIVALS, 500.0)
    found = stalls_of(run)
    assert (found["n_stalls"], found["n_with_prefill"]) == (5, 5)
    assert found["median_gap_s"] == pytest.approx(0.010)
    for place, (stall, arrival) in enumerate(zip(found["longest"], ARRIVALS, strict=True)):
        assert stall["from_s"] == pytest.approx(arrival / 1e3, abs=0.011)  # the last token before it
        assert stall["size_s"] == pytest.approx(0.5, abs=0.011)
        assert stall["arrived"] == (f"r{4 + place}",)
        assert (stall["next_id"], stall["next_after_s"]) == (f"r{4 + place}", 0.0)
        assert stall["n_streams"] == stall["n_decoding"] == 4 + place
        assert stall["n_prefilling"] == 1
    # 4 + 5 + 6 + 7 + 8 gaps are long.
    assert found["n_long"] == 30
    summary = summarize(run)
    assert "ITL-PREFILL" in advice_ids(summary)
    text = next(advice.text for advice in summary.advice if advice.id == "ITL-PREFILL")
    assert "In 5 of 5 stalls another request was before its first token" in text
    assert ", when r" in text


@pytest.mark.parametrize(
    ("pause_ms", "said"),
    [
        (490.0, r": 500 ms at 500 ms, when r4 arrived\.$"),
        (700.0, r": 500 ms at 500 ms, when r4 arrived\. The longest of all, 710 ms at 2\.99 s, had none\.$"),
    ],
    ids=["shorter", "longer"],
)
def test_a_longer_stall_without_a_request_to_its_name_is_told_of(pause_ms: float, said: str) -> None:
    summary = summarize(interfered([500.0, 1200.0], 500.0, pause_ms=pause_ms))
    text = next(advice.text for advice in summary.advice if advice.id == "ITL-PREFILL")
    assert re.search("In 2 of 3 stalls another request was before its first token" + said, text), text


def test_gaps_up_to_the_factor_are_no_stalls() -> None:
    assert stalls_of(interfered(ARRIVALS, 40.0))["n_stalls"] == 0
    assert stalls_of(interfered([], 500.0))["n_stalls"] == 0


def test_a_stall_without_a_prompt_is_not_put_down_to_one() -> None:
    ticks = [*steps(100.0, 10.0, 30), *steps(890.0, 10.0, 30), *steps(1690.0, 10.0, 30)]
    summary = summarize(run_of([row(0.0, ticks, index=i) for i in range(3)], plan=closed_loop(3)))
    found = summary.facts["stalls"]
    assert isinstance(found, dict)
    assert (found["n_stalls"], found["n_with_prefill"]) == (2, 0)
    assert found["longest"][0]["arrived"] == ()
    by_cause = {advice.id: advice.cause for advice in summary.advice}
    assert "had no prompt to wait for" in by_cause["ITL-PREFILL"]
    text = next(advice.text for advice in summary.advice if advice.id == "ITL-PREFILL")
    assert text.endswith("In 0 of 2 stalls another request was before its first token.")


def test_stalls_one_after_the_other_are_two() -> None:
    """The second stream's long gap begins when the first one's is over: they share no instant."""
    records = [
        row(0.0, [*steps(100.0, 10.0, 10), *steps(290.0, 10.0, 30)]),  # still from 190 to 290
        row(0.0, [*steps(100.0, 10.0, 20), *steps(390.0, 10.0, 30)], index=1),  # still from 290 to 390
    ]
    found = stalls_of(run_of(records, plan=closed_loop(2)))
    assert [(round(s["from_s"], 3), round(s["to_s"], 3)) for s in found["longest"]] == [(0.19, 0.29), (0.29, 0.39)]


def test_a_prompt_of_several_steps_is_named_in_each_of_its_stalls() -> None:
    """r2 is sent at 0.2 s and computed in two steps of 100 ms with a token of the others between; its own comes at 0.4 s."""
    ticks = [*steps(100.0, 10.0, 11), 300.0, *steps(400.0, 10.0, 30)]
    records = [*(row(0.0, ticks, index=i) for i in range(2)), row(200.0, ticks[12:], index=2)]
    found = stalls_of(run_of(records, plan=closed_loop(3)))
    assert [(s["arrived"], s["next_id"], round(s["next_after_s"], 3)) for s in found["longest"]] == [
        (("r2",), "r2", 0.1),
        ((), "r2", 0.0),
    ]


def test_a_run_without_gaps_has_no_stalls() -> None:
    assert summarize(run_of([row(0.0, [5.0])])).facts["stalls"] is None


@pytest.mark.parametrize("apart_ms", [0.0, 0.005])
def test_tokens_in_packs_have_stalls_by_the_pace_of_the_packs(apart_ms: float) -> None:
    """Four tokens a read, a read every 40 ms: the median gap is next to nothing, the pace is 40 ms."""
    packs = [*steps(100.0, 40.0, 20), *steps(1400.0, 40.0, 20)]  # still from 860 to 1400
    ticks = [pack + i * apart_ms for pack in packs for i in range(4)]
    run = run_of([row(0.0, ticks, index=i) for i in range(3)], plan=closed_loop(3))
    found = stalls_of(run)
    assert found["median_gap_s"] == pytest.approx(0.040, abs=1e-4)
    assert (found["n_stalls"], found["n_long"]) == (1, 3)
    assert found["longest"][0]["size_s"] == pytest.approx(0.540, abs=1e-4)
    bars = summarize(run, with_curves=True).curves.bars
    assert [round((bar.to_s - bar.from_s) * 1e3) for bar in bars if bar.kind == "stall"] == [540] * 3
