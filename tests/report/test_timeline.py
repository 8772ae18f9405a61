"""The picture of the steps: read back as XML, boxes where the times say."""

from __future__ import annotations

import re
from array import array
from itertools import pairwise
from xml.etree import ElementTree

import handmade_summaries as handmade
import pytest
from handmade_steps import MS, trace

from longbench_sched.record import Decoded, StreamRecord
from longbench_sched.report import svg, timeline
from longbench_sched.report.timeline import DECODE, LEFT, PREFILL, RIGHT, STALL, WAIT, WIDTH, View
from longbench_sched.run import RecordTable, Run
from longbench_sched.steps import StepTable

INSIDE = WIDTH - LEFT - RIGHT  # px for the whole view

# One second in view: prefill for 500 ms, then ten decodes of 50 ms.
STEPS = trace(
    (1000, 1500, "prefill", {"prefill_tokens": 8000, "n_waiting": 2}),
    *((1500 + 50 * i, 1550 + 50 * i, "decode", {"n_decode": 4, "kv_used_tokens": 500}) for i in range(10)),
)

Box = tuple[float, float, float, float, str]


def boxes(picture: str, fill: str) -> list[Box]:
    """(x, y, width, height, title) of the boxes of a colour below the legend."""
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    found = []
    for element in root.iter(f"{space}rect"):
        x, y, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
        if element.attrib["fill"] == fill and y > 40:
            title = element.find(f"{space}title")
            found.append((x, y, width, height, "" if title is None else title.text or ""))
    return found


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def run_of(*requests: tuple[str, float, list[float]]) -> Run:
    """Requests of (id, sent ms, token ms)."""
    records = [
        StreamRecord(
            name, i, "measured", "lane", int(sent * MS), int(sent * MS), 10, len(tokens), int(sent * MS),
            end_ns=int(tokens[-1] * MS),
            decoded=Decoded(
                chunk_at_ns=array("q", [int(at * MS) for at in tokens]),
                chunk_tokens=array("i", [1] * len(tokens)),
                chunk_lateness_ns=array("q", [0] * len(tokens)),
            ),
        )
        for i, (name, sent, tokens) in enumerate(requests)
    ]  # fmt: skip
    return Run(handmade.make_meta(), RecordTable.from_records(records))


def test_prefill_stands_above_the_axis_and_decode_hangs_below_each_as_long_as_it_took() -> None:
    picture = timeline.draw(STEPS)
    (prefill,) = boxes(picture, PREFILL)
    decodes = boxes(picture, DECODE)
    assert prefill[0] == LEFT
    assert prefill[2] == pytest.approx(INSIDE / 2, abs=1)
    assert prefill[1] + prefill[3] == decodes[0][1]
    assert len(decodes) == 10
    assert [round(b[0] - a[0], 1) for a, b in pairwise(decodes)] == [round(INSIDE / 20, 1)] * 9
    assert prefill[4] == "500 ms: 8000 prompt tokens, 0 requests decode"
    assert "8000" in words(picture)


def test_a_part_of_the_run_can_be_drawn_alone() -> None:
    picture = timeline.draw(STEPS, view=View(0.5, 0.6))
    assert not boxes(picture, PREFILL)
    assert [box[2] for box in boxes(picture, DECODE)] == pytest.approx([INSIDE / 2] * 2, abs=1)  # less the gap between them


def test_a_request_is_grey_until_its_first_token_and_red_where_the_next_is_late() -> None:
    tokens = [1500.0, 1510, 1520, 1530, 1900, 1910, 1920, 2000]
    picture = timeline.draw(STEPS, run_of(("r0", 1250, tokens)))
    (wait,) = boxes(picture, WAIT)
    assert (round(wait[0]), round(wait[2])) == (round(LEFT + INSIDE / 4), round(INSIDE / 4))
    late = boxes(picture, STALL)
    assert [round(box[2]) for box in late] == [round(INSIDE * 0.37), round(INSIDE * 0.08)]
    assert "r0" in words(picture)


def test_requests_are_in_the_order_in_which_they_were_sent_and_not_more_than_fit() -> None:
    requests = [(f"r{i}", 1000.0 + i, [1600.0, 1700]) for i in range(40)]
    shown = [text for text in words(timeline.draw(STEPS, run_of(*reversed(requests)))) if re.fullmatch(r"r\d+", text)]
    assert shown == [f"r{i}" for i in range(timeline.MAX_ROWS)]


def many(n: int) -> StepTable:
    return trace(*((1000 + i, 1001 + i, "decode", {"n_decode": 1 + i % 3}) for i in range(n)))


def test_steps_too_thin_to_be_seen_apart_are_drawn_together() -> None:
    picture = timeline.draw(many(20_000))
    drawn = boxes(picture, DECODE)
    assert 1000 < len(drawn) <= 2 * INSIDE
    assert not any(box[4] for box in drawn)
    assert len(picture) < 300_000


def test_a_trace_without_steps_is_a_bare_frame() -> None:
    picture = timeline.draw(trace())
    assert not boxes(picture, PREFILL) + boxes(picture, DECODE)


def test_round_times_are_marked() -> None:
    assert [text for text in words(timeline.draw(STEPS)) if text.replace(".", "").removesuffix(" s").isdigit()][-6:] == [
        "0.0", "0.2", "0.4", "0.6", "0.8", "1.0 s",
    ]  # fmt: skip


def test_words_from_outside_are_only_words() -> None:
    hostile = timeline.draw(STEPS, title="<script>alert('x')</script> & \"more\"")
    assert "<script>" not in hostile
    assert words(hostile)[0] == "<script>alert('x')</script> & \"more\""


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (3.14159, "3.14"), (0.5, "0.5"), (100, "100"), (-0.25, "-0.25")])
def test_coordinates_are_short(value: float, text: str) -> None:
    assert svg.number(value) == text
