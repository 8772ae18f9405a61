"""The table of steps by phase, on traces made by hand."""

from __future__ import annotations

from dataclasses import replace

import handmade_summaries as handmade
from handmade_steps import FACTS, trace

from longbench_sched.report import terminal
from longbench_sched.report.layout import Lines, Table
from longbench_sched.report.page import build_page
from longbench_sched.report.steps import blocks, with_steps
from longbench_sched.steps import PoolFacts, StepTable

# 400 ms of prefill in two steps, 100 ms of decode in ten, 500 ms at rest in between.
STEPS = trace(
    (500, 900, "prefill", {"prefill_tokens": 999}),  # a warm-up: before the measured phase
    (
        *(1000, 1100, "prefill"),
        {"prefill_tokens": 4000, "n_prefill": 1, "flop": 2e13, "n_bytes": 1e10, "compute_utilisation": 0.6},
    ),
    (
        *(1100, 1400, "prefill"),
        {"prefill_tokens": 8000, "n_prefill": 2, "flop": 4e13, "n_bytes": 2e10, "compute_utilisation": 0.8, "n_waiting": 4},
    ),
    *(
        (
            *(1900 + 10 * i, 1910 + 10 * i, "decode"),
            {"decode_tokens": 2, "n_decode": 2, "flop": 1e10, "n_bytes": 1e10, "bandwidth_utilisation": 0.5,
             "bound": "memory" if i < 8 else "host", "n_running": 2, "kv_used_tokens": 100 + 10 * i, "n_preempted": i == 0},
        )
        for i in range(10)
    ),
)  # fmt: skip


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_phases_are_added_up_by_time() -> None:
    table, _ = blocks(STEPS)
    assert isinstance(table, Table)
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, map(plain, row), strict=True)) for row in table.rows]
    assert rows[0] == {
        "": "prefill", "steps": "2", "time": "80.0 %", "p50 ms": "100", "tokens": "6.00k", "requests": "1.50",
        "FLOP/B": "2.00k", "MFU": "75.0 %", "MBU": "0 %", "waits for": "compute",
    }  # fmt: skip
    assert rows[1] == {
        "": "decode", "steps": "10", "time": "20.0 %", "p50 ms": "10.0", "tokens": "2.00", "requests": "2.00", "FLOP/B": "1.00",
        "MFU": "0 %", "MBU": "50.0 %", "waits for": "memory 80 %, host 20 %",
    }  # fmt: skip


def test_rest_queue_and_memory_are_said() -> None:
    _, lines = blocks(STEPS)
    assert isinstance(lines, Lines)
    said = {line.label: plain(line.text) for line in lines.lines}
    assert said == {
        "Engine": "12 steps in 1.00 s, idle 50.0 %",
        "Batch": "mean 0.400 running · at most 2",  # 2 for a fifth of the busy time
        "Queue": "mean 2.40 waiting · at most 4",  # 4 for 300 of 500 ms
        "KV": "mean 2.90 % of 1.00k tokens · at most 19.0 % · 1 preemptions",  # 145 for a fifth of it
    }


def test_an_engine_that_never_rests_is_idle_for_nothing() -> None:
    """Times are added up in whole ns: ten times 0.1 s as fractions are less than 1 s."""
    _, lines = blocks(trace(*((at, at + 100, "decode", {"n_decode": 1}) for at in range(1000, 2000, 100))))
    assert isinstance(lines, Lines)
    assert plain(lines.lines[0].text) == "10 steps in 1.00 s, idle 0 %"


def test_warm_ups_alone_are_no_trace_worth_a_table() -> None:
    assert blocks(trace((500, 900, "prefill", {}))) == ()
    assert blocks(trace(facts=FACTS)) == ()


def test_the_table_stands_below_what_the_run_carried_and_fits_80_columns() -> None:
    page = with_steps(build_page([handmade.make_summary()]), STEPS)
    text = terminal.render(page)
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("Throughput") < text.index("Steps by phase") < text.index("Warning")


# -- several stages, several engines


def grouped(pools: tuple[PoolFacts, ...], *steps: tuple[float, float, str, dict[str, float | str]]) -> StepTable:
    return trace(*steps, facts=replace(FACTS, pools=pools))


STAGED = grouped(
    (PoolFacts("", 1, 2, 1000),),
    *((1000 + 100 * stage, 1100 + 100 * stage, "prefill",
       {"stage": stage, "prefill_tokens": 4000, "n_prefill": 1, "compute_utilisation": 0.6, "n_running": 1, "n_preempted": 1})
      for stage in range(2)),
    *((1200 + 100 * stage, 1250 + 150 * stage, "decode",
       {"stage": stage, "micro_batch": 1, "n_decode": 2, "bandwidth_utilisation": 0.5, "kv_used_tokens": 500})
      for stage in range(2)),
)  # fmt: skip
APART = grouped(
    (PoolFacts("prefill", 2, 1, 500), PoolFacts("decode", 1, 1, 1000)),
    (1000, 1200, "prefill", {"pool": "prefill", "instance": 1, "kv_used_tokens": 250, "n_waiting": 2}),
    (1200, 1300, "transfer", {"pool": "prefill", "instance": 1, "transfer_bytes": 2e9, "bound": "comm"}),
    (1300, 1400, "decode", {"pool": "decode", "kv_used_tokens": 250}),
)


def cells(steps: StepTable) -> tuple[str, list[dict[str, str]], dict[str, list[str]]]:
    """Title and rows of the table, and the lines by label."""
    table, lines = blocks(steps)
    assert isinstance(table, Table)
    assert isinstance(lines, Lines)
    titles = ["group", "phase", *(column.title for column in table.columns[2:])]
    said: dict[str, list[str]] = {}
    for line in lines.lines:
        label = line.label or list(said)[-1]
        said.setdefault(label, []).append(plain(line.text))
    return table.title, [dict(zip(titles, map(plain, row), strict=True)) for row in table.rows], said


def test_stages_are_never_put_together() -> None:
    """400 ms in all: the first stage works for 150 ms of it, the second for 200."""
    title, rows, said = cells(STAGED)
    assert title == "Steps by stage and phase"
    assert [(row["group"], row["phase"], row["steps"], row["time"], row["MFU"]) for row in rows] == [
        ("stage 0", "prefill", "1", "25.0 %", "60.0 %"),
        ("", "decode", "1", "12.5 %", "0 %"),
        ("", "idle", "-", "62.5 %", "-"),
        ("stage 1", "prefill", "1", "25.0 %", "60.0 %"),
        ("", "decode", "1", "25.0 %", "0 %"),
        ("", "idle", "-", "50.0 %", "-"),
    ]
    assert said == {
        "Engines": ["1 engine of 2 stages · 2 batches in 400 ms"],
        "Batch": ["mean 0.667 running · at most 1"],
        "Queue": ["mean 0 waiting · at most 0"],
        "KV": ["mean 16.7 % of 1.00k tokens · at most 50.0 % · 1 preemptions"],  # once, not once a stage
    }


def test_pools_are_never_put_together_and_an_engine_that_did_nothing_counts() -> None:
    """400 ms in all, two prefill engines: 200 of 800 ms; the link 100 of 800; one decode engine 100 of 400."""
    title, rows, said = cells(APART)
    assert title == "Steps by pool and phase"
    assert [(row["group"], row["phase"], row["steps"], row["time"]) for row in rows] == [
        ("prefill", "prefill", "1", "25.0 %"),
        ("", "idle", "-", "75.0 %"),
        ("decode", "decode", "1", "25.0 %"),
        ("", "idle", "-", "75.0 %"),
    ]
    assert said["Engines"] == ["2 prefill + 1 decode · 2 batches in 400 ms"]
    assert said["Queue"] == ["prefill: mean 2.00 waiting · at most 2"]
    assert said["KV"] == [
        "prefill: mean 50.0 % of 500 tokens · at most 50.0 % · 0 preemptions",
        "decode: mean 25.0 % of 1.00k tokens · at most 25.0 % · 0 preemptions",
    ]
    assert said["KV moved"] == ["from prefill: 1 transfers · 2.00 GB · p50 100 ms · links busy 12.5 %"]


def test_engines_side_by_side_share_their_rows() -> None:
    title, rows, said = cells(grouped((PoolFacts("", 4, 1, 500),), (1000, 1400, "decode", {"instance": 2})))
    assert title == "Steps by phase"
    assert [(row["group"], row["phase"], row["time"]) for row in rows] == [
        ("4 engines", "decode", "25.0 %"),
        ("", "idle", "75.0 %"),
    ]
    assert said["Engines"] == ["4 engines · 1 batches in 400 ms"]


def test_of_very_many_stages_those_in_the_middle_are_left_out() -> None:
    table, _ = blocks(grouped((PoolFacts("", 1, 40, 500),), *((1000, 1100, "decode", {"stage": n}) for n in range(40))))
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows if row[0]] == [f"stage {n}" for n in (*range(8), *range(32, 40))]
    assert "stage 8 to stage 31 are left out." in table.notes


def test_stages_and_pools_fit_80_columns() -> None:
    for steps in (STAGED, APART):
        text = terminal.render(with_steps(build_page([handmade.make_summary()]), steps))
        assert max(map(len, text.splitlines())) <= 80
