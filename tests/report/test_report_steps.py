"""The table of steps by phase, on traces made by hand."""

from __future__ import annotations

import handmade_summaries as handmade
from handmade_steps import FACTS, trace

from longbench_sched.report import terminal
from longbench_sched.report.layout import Lines, Table
from longbench_sched.report.page import build_page
from longbench_sched.report.steps import blocks, with_steps

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
