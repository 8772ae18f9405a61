"""Baselines say why, from where, and what was before; they come back as they were written."""

from __future__ import annotations

import json

import pytest
from handmade_points import around, make_side

from longbench_sched.compare.baseline import decode_baseline, encode_baseline, flaws, make_baseline, promote
from longbench_sched.errors import StoreError, UsageError

OLD = make_side("old", {"ttft_p50": around(1.0, 0.01, 3)}).points
NEW = make_side("new", {"ttft_p50": around(0.9, 0.01, 3)}).points


def test_a_baseline_comes_back_as_it_was_written() -> None:
    baseline = make_baseline("main", OLD, "before the upgrade", "2026-11-30T10:00:00Z")
    assert decode_baseline(encode_baseline(baseline), "main.json") == baseline
    assert baseline.entry.machine == {"cpu": "X", "cores": 8}


def test_promoting_keeps_what_was_before() -> None:
    baseline = make_baseline("main", OLD, "first", "2026-11-30T10:00:00Z")
    after = promote(baseline, NEW, "faster prefill", "2026-12-01T10:00:00Z")
    assert after.points == NEW
    assert [(entry.reason, entry.run_ids) for entry in after.history] == [("first", ("old.1", "old.2", "old.3"))]
    assert decode_baseline(encode_baseline(after), "main.json") == after


@pytest.mark.parametrize(
    ("points", "reason", "message"),
    [
        (OLD, "  ", "needs a reason"),
        ((), "why", "at least one run"),
        (make_side("x", {"ttft_p50": [1.0]}, complete=False).points, "why", "ended before all was sent"),
        ((*OLD, *make_side("x", {"ttft_p50": [1.0]}, ok=200, cell="c64").points), "why", "no check decides anything"),
        ((*OLD, *make_side("x", {"ttft_p50": [1.0]}, machine={"cpu": "Y"}).points), "why", "different machines"),
    ],
    ids=["reason", "runs", "incomplete", "failures", "machines"],
)
def test_what_cannot_be_a_baseline_is_refused(points: tuple[object, ...], reason: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_baseline("main", points, reason, "now")  # type: ignore[arg-type]


def test_runs_that_no_check_could_be_held_against_are_known() -> None:
    assert flaws(OLD) == []
    assert [flaw.id for flaw in flaws(make_side("x", {"ttft_p50": [1.0]}, marks=("client-limited",)).points)] == [
        "client-limited"
    ]


def test_a_newer_or_damaged_file_is_refused() -> None:
    data = encode_baseline(make_baseline("main", OLD, "why", "now"))
    newer = json.dumps({**json.loads(data), "schema_version": 99}).encode()
    with pytest.raises(StoreError, match="newer longbench-sched"):
        decode_baseline(newer, "main.json")
    plain = json.loads(data)
    first = plain["runs"][0]
    by_hand = [
        {**plain, "runs": []},
        {**plain, "saved_at": 5},
        {**plain, "history": [{**plain, "run_ids": "abc"}]},
        *({**plain, "runs": [first | wrong]} for wrong in (
            {"values": {"whole": {"ttft_p50": "fast"}}}, {"values": {"whole": {"ttft_p50": float("nan")}}}, {"values": None},
            {"cell": 5}, {"ok": "x"}, {"facts": []}, {"machine": None}, {"started_at": None}, {"marks": 5}, {"block": 1.5},
        )),
    ]  # fmt: skip
    broken_ones = [b"{", b"[]", b'{"schema_version": 1}', data.replace(b'"marks"', b'"mraks"'), b"[" * 100_000]
    for broken in (*broken_ones, *(json.dumps(one).encode() for one in by_hand)):
        with pytest.raises(StoreError, match=r"main\.json is damaged"):
            decode_baseline(broken, "main.json")
