"""What virtual time costs: seconds of CPU a simulated token, as a run grows tenfold and tenfold again, and memory.

    python -m benchmarks.simulate                       # headline, 1,000 and 10,000 requests of 30000/500, a grid of 100 cells
    python -m benchmarks.simulate --engines sglang --requests 256 1000 --cells 0

Each line is a process of its own, so that memory is that run's alone. "simulated" is the step loop with its records, after
start-up (imports, plan); "in all" adds start-up, the file and the metrics. Bars: the headline under 1 s, 10,000 requests under
60 s, both on one core and simulated; the cost of a token at 10 times the requests within a quarter of the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HEADLINE_BAR_S, LONG_BAR_S, FLAT = 1.0, 60.0, 1.25
WORKLOAD, MODEL = "30k-500-c64", "Qwen2.5-Coder-7B"
FLAGS = {"trtllm": ["--enable-chunked-prefill"]}


def measure_here(engine: str, n: int) -> dict[str, float]:
    """One run in this process."""
    from longbench_sched.experiment.virtual_run import Origin, Setting, plan_virtual, simulate
    from longbench_sched.metrics.summary import summarize
    from longbench_sched.sim.flags import read_flags
    from longbench_sched.store.parquet import write_run
    from longbench_sched.workload.spec import Overrides, load_workload

    plan = plan_virtual(load_workload(WORKLOAD, Overrides(num_prompts=n)), 0)
    setting = Setting(engine, "H200", MODEL, read_flags(engine, FLAGS.get(engine, [])))
    done = simulate(plan, setting, Origin("bench", datetime.now(UTC), {}))
    simulated_mb = peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        write_run(done.run, Path(folder) / "run.parquet")
    summary = summarize(done.run)
    n_tokens = int(done.run.table.offsets[-1])
    return {
        "simulated_s": done.cpu_s,
        "in_all_s": time.process_time(),
        "tokens": n_tokens,
        "steps": done.n_steps,
        "us_a_token": done.cpu_s / n_tokens * 1e6,
        "us_a_step": done.cpu_s / done.n_steps * 1e6,
        "simulated_mb": simulated_mb,
        "peak_mb": peak_mb(),
        "ok": summary.outcomes.ok,
    }


def peak_mb() -> float:
    """The most memory that was resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def measure(engine: str, n: int) -> dict[str, float]:
    """One run in a fresh process."""
    command = [sys.executable, __file__, "--one", engine, str(n)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure_grid(n_cells: int) -> tuple[float, float]:
    """A grid of so many cells: wall seconds, and cores kept busy."""
    chunks = ",".join(str(1024 * (i + 1)) for i in range(10))
    rates = ",".join(f"{0.1 * (i + 1):.1f}" for i in range(max(1, n_cells // 10)))
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "longbench_sched",
            "simulate",
            "30k-500-r1",
            "--engine",
            "sglang",
            "--output-dir",
            folder,
        ]
        command += ["--sweep", f"chunked_prefill_size={chunks}", "--sweep", f"request_rate={rates}"]
        before = children_cpu_s()
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        wall_s = time.monotonic() - began
        assert len(list(Path(folder).glob("*.parquet"))) == 10 * max(1, n_cells // 10)
    return wall_s, (children_cpu_s() - before) / wall_s


def children_cpu_s() -> float:
    """CPU of processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--engines", nargs="*", default=["vllm", "sglang", "trtllm"])
    parser.add_argument("--requests", nargs="*", type=int, default=[256, 1_000, 10_000])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_here(args.one[0], int(args.one[1]))))
        return 0
    print(f"{WORKLOAD}, {MODEL} on an H200: 30000 in, 500 out, 64 in flight; seconds of CPU on one core")
    print(
        f"{'':8}{'requests':>9}{'tokens':>9}{'steps':>9}{'simulated':>11}{'in all':>9}{'us/token':>10}{'us/step':>9}{'peak':>9}"
    )
    missed: list[str] = []
    for engine in args.engines:
        lines = [(n, measure(engine, n)) for n in args.requests]
        for n, one in lines:
            print(
                f"{engine:8}{n:9}{one['tokens']:9.0f}{one['steps']:9.0f}{one['simulated_s']:9.2f} s{one['in_all_s']:7.1f} s"
                f"{one['us_a_token']:10.2f}{one['us_a_step']:9.1f}{one['peak_mb']:6.0f} MB"
            )
            bar_s = HEADLINE_BAR_S if n <= 256 else LONG_BAR_S
            if one["simulated_s"] > bar_s:
                missed.append(f"{engine}: {n} requests took {one['simulated_s']:.2f} s, bar {bar_s:g} s")
            if one["ok"] != n:
                missed.append(f"{engine}: {one['ok']:.0f} of {n} ok")
        first, last = lines[-2:][0][1]["us_a_token"], lines[-1][1]["us_a_token"]
        if len(lines) > 1 and last > FLAT * first:
            missed.append(f"{engine}: a token costs {last / first:.2f} times as much in the longest run, bar {FLAT:g}")
    if args.cells:
        wall_s, cores = measure_grid(args.cells)
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        print(f"grid of {args.cells} cells of 64 requests: {wall_s:.1f} s, {cores:.2f} of {usable} cores busy on average")
    print("\n".join(f"MISSED {text}" for text in missed) or "all bars held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
