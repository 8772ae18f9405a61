"""The picture of what acts side by side: a row for each stage and each engine, white where nothing is done."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from handmade_steps import FACTS, trace

from longbench_sched.report import timeline
from longbench_sched.report.bars import DECODE, LEFT, PREFILL, RIGHT, WIDTH
from longbench_sched.report.lanes import DECODE_TINT, LINK, MAX_LANES, PREFILL_TINT
from longbench_sched.report.timeline import View
from longbench_sched.steps import PoolFacts, StepTable

INSIDE = WIDTH - LEFT - RIGHT
SPACE = "{http://www.w3.org/2000/svg}"


def staged(n: int = 2, n_batches: int = 2) -> StepTable:
    """Micro-batches of 100 ms in each stage, sent every 200 ms: half of the time is bubbles."""
    steps = [
        (1000 + 200 * batch + 100 * stage, 1100 + 200 * batch + 100 * stage, "prefill",
         {"stage": stage, "micro_batch": batch, "prefill_tokens": 512 * (batch + 1)})
        for batch in range(n_batches)
        for stage in range(n)
    ]  # fmt: skip
    return trace(*steps, facts=replace(FACTS, pools=(PoolFacts("", 1, n, 1000),)))


POOLS = (PoolFacts("prefill", 2, 1, 500), PoolFacts("decode", 1, 1, 1000))
APART = trace(
    (1000, 1400, "prefill", {"pool": "prefill", "prefill_tokens": 8000}),
    (1400, 1500, "transfer", {"pool": "prefill", "transfer_tokens": 8000, "transfer_bytes": 10**9, "bound": "comm"}),
    (1500, 2000, "decode", {"pool": "decode", "n_decode": 1, "kv_used_tokens": 500}),
    facts=replace(FACTS, pools=POOLS),
)


def boxes(picture: str, fill: str) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) below the legend."""
    found = []
    for element in ElementTree.fromstring(picture).iter(f"{SPACE}rect"):
        x, y, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
        if element.attrib["fill"] == fill and y > 40:
            found.append((x, y, width, height))
    return found


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SPACE}text")]


def test_each_stage_has_a_row_and_its_bubbles_stay_white() -> None:
    """Two micro-batches of 100 ms, 200 ms apart, in 400 ms: busy for half of it, the second stage 100 ms after the first."""
    picture = timeline.draw(staged())
    first, second = [], []
    for box in boxes(picture, PREFILL_TINT):
        (first if box[1] == boxes(picture, PREFILL_TINT)[0][1] else second).append(box)
    assert [round(box[0] - LEFT) for box in first] == [0, round(INSIDE / 2)]
    assert [round(box[0] - LEFT) for box in second] == [round(INSIDE / 4), round(INSIDE * 3 / 4)]
    assert [box[2] for box in first] == pytest.approx([INSIDE / 4 - 1] * 2, abs=0.1)
    assert first[0][1] + first[0][3] < second[0][1], "rows do not touch"
    said = words(picture)
    assert [word for word in said if word.startswith("stage")] == ["stage 0", "stage 1"]
    assert said.count("busy 50 %") == 2
    assert said.count("0") == said.count("1") == 2, "the number of a micro-batch, in both stages"
    # To one scale in all stages: the first micro-batch is half as high.
    heights = [box[3] for box in boxes(picture, PREFILL)]
    assert sorted(heights) == [10, 10, 20, 20]


def test_each_engine_of_each_pool_has_a_row_and_its_link_a_strip() -> None:
    picture = timeline.draw(APART)
    said = words(picture)
    assert [word for word in said if word.split()[0] in ("prefill", "decode")] == ["prefill 0", "prefill 1", "decode"]
    assert [word for word in said if word.startswith("busy ")] == ["busy 40 %", "busy 0 %", "busy 50 %"]
    assert {"KV on the link", "KV prefill", "KV decode", "max 50 %"} <= set(said)
    (step,), (link,), (decode,) = boxes(picture, PREFILL_TINT), boxes(picture, LINK), boxes(picture, DECODE_TINT)
    assert step[0] == LEFT
    assert step[1] + step[3] < link[1], "below the row of its engine"
    assert (round(link[0]), round(link[2])) == (round(LEFT + 0.4 * INSIDE), round(0.1 * INSIDE))
    assert boxes(picture, DECODE)[0][0] == decode[0] == pytest.approx(LEFT + INSIDE / 2, abs=0.01)


def test_what_is_outside_the_view_is_not_drawn_and_not_counted() -> None:
    picture = timeline.draw(staged(), view=View(0.05, 0.15))
    assert words(picture).count("busy 50 %") == 2
    for x, _, width, _ in boxes(picture, PREFILL_TINT):
        assert LEFT <= x <= x + width <= WIDTH - RIGHT


def test_more_rows_than_fit_are_said_not_drawn() -> None:
    picture = timeline.draw(staged(MAX_LANES + 4))
    assert len([word for word in words(picture) if re.fullmatch(r"stage \d+", word)]) == MAX_LANES
    assert "not drawn: 4 more" in words(picture)


def test_every_pool_keeps_rows_where_there_are_too_many() -> None:
    facts = replace(FACTS, pools=(PoolFacts("prefill", 100, 1, 500), PoolFacts("decode", 3, 1, 500)))
    said = words(timeline.draw(trace((1000, 1100, "prefill", {"pool": "prefill"}), facts=facts)))
    assert [word for word in said if word.startswith("prefill ")] == [f"prefill {n}" for n in range(MAX_LANES - 3)]
    assert [word for word in said if word.startswith("decode ")] == ["decode 0", "decode 1", "decode 2"]


def test_everything_lies_inside_the_picture() -> None:
    for steps in (staged(), staged(20, 400), APART):
        root = ElementTree.fromstring(timeline.draw(steps))
        height = float(root.attrib["height"])
        for element in root.iter(f"{SPACE}rect"):
            x, y, wide, high = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + wide <= WIDTH
            assert 0 <= y <= y + high <= height
        for element in root.iter(f"{SPACE}text"):
            assert 0 <= float(element.attrib["x"]) <= WIDTH
            assert 0 < float(element.attrib["y"]) <= height - 8


def test_thousands_of_steps_are_a_picture_of_bounded_size() -> None:
    """Drawn together, a row is as high as it was busy."""
    picture = timeline.draw(staged(16, 3000))
    assert len(picture) < 1_500_000
    assert {box[3] for box in boxes(picture, PREFILL_TINT)} != {40.0}
