"""Summaries made by hand, so that the pages do not depend on how metrics are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longbench_sched.metrics.stat import Advice, Outcomes, Rate, ReasonCount, Section, Stat, Summary
from longbench_sched.run import ClientHealth, RunMeta

FIXED_30K = {"nominal_mean": 30000.0, "mean": 30000.0, "min": 30000, "max": 30000}
FIXED_500 = {"nominal_mean": 500.0, "mean": 500.0, "min": 500, "max": 500}
CLOSED_64 = {"name": "main", "requests": 256, "duration_s": None, "loop": "closed", "concurrency": 64, "steps": [[0.0, 64]]}

PLAN = {
    "requests": 256,
    "warmups": 2,
    "lanes": [CLOSED_64],
    "isl": FIXED_30K,
    "osl": FIXED_500,
    "prompt_source": "synthetic",
    "shared_prefix_tokens": 0,
    "notes": [],
    "extra": {},
}
FACTS = {
    "version": "0.33.0",
    "model": "Qwen2.5-Coder-7B-Instruct",
    "token_budget": 8192,
    "chunked_prefill": True,
    "prefix_caching": True,
    "tensor_parallel": 1,
}


def make_meta(**changes: Any) -> RunMeta:
    fields: dict[str, Any] = {
        "run_id": "2026-11-30T1012-vllm-30k-500-c64",
        "started_at": "2026-11-30T10:12:07Z",
        "wall_anchor_ns": 1,
        "mono_anchor_ns": 1,
        "measured_from_ns": 0,
        "measured_to_ns": 181_000_000_000,
        "workload": "30k-500-c64",
        "workload_text": "",
        "seed": 0,
        "digest": "9f3c21" + "0" * 58,
        "plan": PLAN,
        "target": {
            "engine": "vllm",
            "api": "completions",
            "base_url": "http://127.0.0.1:8000",
            "model": "Qwen2.5-Coder-7B-Instruct",
        },
        "engine_facts": FACTS,
        "host": {},
        "versions": {"longbench-sched": "0.1.0"},
        "client": ClientHealth(
            clock="kernel", cpu_s=16.3, wall_s=181.0, lateness_p99_ms=0.31, read_lateness_p99_ms=0.4, loop_lag_p99_ms=0.5
        ),
        "clock": "kernel",
        "slo": {"ttft": 15.0, "tpot": 0.05},
    }
    return RunMeta(**fields | changes)


def make_stats(n: int = 256) -> dict[str, Stat]:
    """The four of the first example of what people see, and a fifth for the details."""
    return {
        "ttft": Stat("ttft", "s", n, 12.34, 11.2, 24.1, 28.0, 31.6, 2.1, 33.04, low=10.9, high=11.5),
        "tpot": Stat("tpot", "s", n, 0.0418, 0.0413, 0.0488, 0.0501, 0.052, 0.02, 0.0533, low=0.041, high=0.0417),
        "itl": Stat("itl", "s", 499 * n, 0.0417, 0.0216, 0.142, 0.15, 0.161, 0.011, 2.31, low=0.0214, high=0.0219),
        "e2e": Stat("e2e", "s", n, 33.2, 31.9, 44.5, 48.8, 52.4, 20.0, 55.1, low=31.5, high=32.4),
        "upload": Stat("upload", "s", n, 0.00021, 0.0002, 0.0003, 0.0003, 0.0004, 0.0001, 0.0005),
    }


def make_rates() -> dict[str, Rate]:
    return {
        "total_throughput": Rate("total_throughput", "tok/s", 25_105.0, 24_900.0, 25_300.0, n=3_565_000, over_s=142.0),
        "output_throughput": Rate("output_throughput", "tok/s", 411.4, n=58_400, over_s=142.0),
        "request_rate": Rate("request_rate", "1/s", 0.823, n=117, over_s=142.0),
        "goodput": Rate("goodput", "1/s", 0.41, n=58, over_s=142.0),
        "good_share": Rate("good_share", "1", 0.498, n=256),
    }


def make_outcomes(**changes: Any) -> Outcomes:
    fields: dict[str, Any] = {
        "attempted": 256, "ok": 256, "failed": 0, "timeout": 0, "cancelled": 0, "lost": 0, "reasons": (), "planned": 256,
    }  # fmt: skip
    return Outcomes(**fields | changes)


def make_summary(meta: RunMeta | None = None, **changes: Any) -> Summary:
    """The first example of what people see, as numbers."""
    fields: dict[str, Any] = {
        "outcomes": make_outcomes(),
        "whole": Section("whole", 0.0, 181.0, make_stats(), make_rates()),
        "steady": Section("steady", 12.0, 154.0, make_stats(200), make_rates()),
        "facts": {
            "in_flight": {
                "whole": {"mean": 58.1, "mean_prefill": 20.2, "mean_decode": 37.7},
                "steady": {"mean": 63.8, "mean_prefill": 22.5, "mean_decode": 41.2},
            },
            "cache": {"n": 256, "cached_tokens": 0, "share": 0.0},
            "isl": {
                "asked": {"min": 30000, "mean": 30000, "max": 30000},
                "server": {"min": 30000, "mean": 30000, "max": 30000},
            },
        },
        "advice": (
            Advice(
                "ITL-PREFILL",
                "ITL p99 is 7.5 x its median (161 ms vs 21.6 ms).",
                "Decode steps wait behind prefill chunks of other requests.",
                "A smaller token budget shortens these gaps.",
            ),
        ),
    }
    return Summary(meta=meta or make_meta(), **fields | changes)


def all_failed() -> Summary:
    """B-10: eight requests, all answered 500."""
    stats = {name: Stat(name, "s", 0, adjusted={"p50": None, "p90": None, "p99": None}) for name in ("ttft", "tpot", "e2e")}
    stats["itl"] = Stat("itl", "s", 0)
    rates = {
        "total_throughput": Rate("total_throughput", "tok/s", 0.0, n=0, over_s=1.0),
        "output_throughput": Rate("output_throughput", "tok/s", None),
    }
    reasons = (ReasonCount("failed", "http-status 500", 8, "b10-r0", '{"error":"Internal | `Server` <b>Error</b>"}'),)
    return make_summary(
        make_meta(slo={}, plan=PLAN | {"requests": 8}),
        outcomes=make_outcomes(attempted=8, ok=0, failed=8, planned=8, reasons=reasons),
        whole=Section("whole", 0.0, 1.0, stats, rates),
        steady=None,
        facts={},
        advice=(),
    )


HOSTILE = (
    "\x1b]0;owned\x07\x1b[31mred\u202egpj.exe | `rm` <script>alert(1)</script> [x](http://evil.example) =cmd|'/c calc'!A1\nnext"
)


def hostile() -> Summary:
    """A run in which every string that a server chooses is an attack."""
    reasons = (ReasonCount("failed", "in-band-error", 1, HOSTILE, HOSTILE),)
    return make_summary(
        make_meta(
            workload=HOSTILE,
            engine_facts={"version": HOSTILE, "model": "=" + HOSTILE, "schedule_policy": HOSTILE},
            plan=PLAN | {"notes": [HOSTILE], "lanes": [CLOSED_64 | {"name": HOSTILE}]},
            marks=(HOSTILE,),
        ),
        outcomes=make_outcomes(ok=255, failed=1, reasons=reasons),
        marks=("=" + HOSTILE, "+1"),
        lanes={HOSTILE: Section("whole", 0.0, 181.0, make_stats(), make_rates())},
        advice=(Advice("X", HOSTILE, HOSTILE, HOSTILE),),
    )


def simulated(engine: str, factor: float, **facts: Any) -> Summary:
    """A run of the embedded engine on a clock compressed by 6; times of the first example, multiplied."""
    stats = {name: _times(stat, factor) for name, stat in make_stats(128).items() if stat.low is not None}
    meta = make_meta(
        run_id=f"2026-11-30T1012-{engine}-30k-500-c64",
        target={"engine": engine, "api": "completions"},
        engine_facts={"model": "Qwen2.5-Coder-7B-Instruct", "simulated": True, **facts},
        simulated=True,
        time_scale=6.0,
        client=ClientHealth(clock="kernel", cpu_s=3.0, wall_s=30.0, lateness_p99_ms=0.1, server_lateness_p99_ms=0.25),
    )
    return make_summary(meta, whole=Section("whole", 0.0, 181.0, stats, make_rates()), steady=None)


def _times(stat: Stat, factor: float) -> Stat:
    names = ("mean", "p50", "p90", "p95", "p99", "min", "max", "low", "high")
    return replace(stat, **{name: getattr(stat, name) * factor for name in names})
