"""What a report costs: time and memory of `report` on runs that are generated, from the headline's size to a million requests.

    python -m benchmarks.report                     # 256 x 500 (the headline's size) and 1,000,000 x 100
    python -m benchmarks.report --requests 100000 --chunks 100 --formats md,csv

A closed loop of 64 slots is generated: TTFT and gaps are log-normal, one gap in a hundred is a stall, one request in a
thousand fails. The report runs in a process of its own, from a cold start; memory is the most that was resident.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from longbench_sched.plan import LengthFacts
from longbench_sched.record import Status
from longbench_sched.run import INT_COLUMNS, NONE, TEXT_COLUMNS, ClientHealth, RecordTable, Run, RunMeta
from longbench_sched.store.parquet import write_run

SLOTS = 64
LIMIT_S, LIMIT_GIB = 60.0, 4.0  # for a million requests of a hundred chunks
START_NS = 1_000_000_000_000


def generate(n: int, n_chunks: int, seed: int = 0) -> Run:
    """A run of n requests with n_chunks token-bearing events each."""
    rng = np.random.default_rng(seed)
    gaps = (rng.lognormal(-4.0, 0.3, (n, n_chunks)) * 1e9).astype(np.int64)
    stalls = rng.integers(0, gaps.size, gaps.size // 100)
    gaps.ravel()[stalls] += 150_000_000
    gaps[:, 0] = (rng.lognormal(0.0, 0.4, n) * 1e9).astype(np.int64)
    lengths = gaps.sum(axis=1)
    sent = np.empty(n, dtype=np.int64)
    for slot in range(SLOTS):  # one after the other, a millisecond between
        mine = slice(slot, n, SLOTS)
        sent[mine] = START_NS + np.cumsum(lengths[mine] + 1_000_000) - lengths[mine]
    np.cumsum(gaps, axis=1, out=gaps)
    gaps += sent[:, None]
    ends = gaps[:, -1].copy()
    order = np.argsort(ends, kind="stable")
    ints = {name: np.full(n, NONE) for name in INT_COLUMNS}
    ints |= {
        "index": order, "isl": np.full(n, 1000), "osl": np.full(n, n_chunks), "due_ns": sent[order], "slot_ns": sent[order],
        "sent_ns": sent[order], "body_sent_ns": sent[order] + 20_000, "header_ns": sent[order] + 900_000,
        "first_byte_ns": gaps[order, 0], "answer_at_ns": gaps[order, 0], "finish_ns": ends[order],
        "end_ns": ends[order] + 50_000, "n_shared_reads": np.zeros(n, np.int64), "n_comments": np.zeros(n, np.int64),
        "n_body_bytes": np.full(n, 200 * n_chunks), "prompt_tokens": np.full(n, 1000), "output_tokens": np.full(n, n_chunks),
        "http_status": np.full(n, 200),
    }  # fmt: skip
    texts: dict[str, list[str | None]] = {name: [None] * n for name in TEXT_COLUMNS}
    texts |= {
        "request_id": [f"bench-{i:07d}" for i in order.tolist()],
        "phase": ["measured"] * n,
        "lane": ["main"] * n,
        "status": [Status.FAILED.value if i % 1000 == 999 else Status.OK.value for i in order.tolist()],
        "reason": ["reset" if i % 1000 == 999 else None for i in order.tolist()],
        "finish_reason": ["length"] * n,
        "clock": ["kernel"] * n,
    }
    texts |= {f"{which}_token_source": ["usage"] * n for which in ("chunk", "prompt", "output")}
    stamps = gaps[order].ravel()
    lists = {
        "chunk_at_ns": stamps,
        "chunk_tokens": np.ones(len(stamps), np.int64),
        "chunk_lateness_ns": np.zeros(len(stamps), np.int64),
    }
    offsets = np.arange(n + 1) * n_chunks
    table = RecordTable(n, ints, texts, offsets, lists, [()] * n)  # type: ignore[arg-type]
    return Run(_meta(n, n_chunks, int(ends.max())), table)


def _meta(n: int, n_chunks: int, last_ns: int) -> RunMeta:
    lane = {"name": "main", "requests": n, "duration_s": None, "loop": "closed", "concurrency": SLOTS}
    return RunMeta(
        run_id=f"2026-01-01T0000-generated-{n}x{n_chunks}",
        started_at="2026-01-01T00:00:00Z",
        wall_anchor_ns=0,
        mono_anchor_ns=0,
        measured_from_ns=START_NS,
        measured_to_ns=last_ns + 50_000,
        workload=f"{n}x{n_chunks}",
        workload_text="",
        seed=0,
        digest="0" * 64,
        plan={
            "requests": n,
            "warmups": 0,
            "lanes": [lane | {"steps": [[0.0, SLOTS]]}],
            "isl": asdict(LengthFacts(1000, 1000.0, 1000, 1000)),
            "osl": asdict(LengthFacts(n_chunks, float(n_chunks), n_chunks, n_chunks)),
            "prompt_source": "none",
            "shared_prefix_tokens": 0,
            "notes": [],
            "extra": {},
        },
        target={"engine": "vllm", "api": "completions"},
        engine_facts={"version": "generated"},
        host={},
        versions={},
        client=ClientHealth(clock="kernel", cpu_s=1.0, wall_s=(last_ns - START_NS) / 1e9),
        clock="kernel",
        slo={"ttft": 3.0, "tpot": 0.05},
    )


def store(n: int, n_chunks: int, path: Path) -> None:
    """Generate a run and store it."""
    write_run(generate(n, n_chunks), path)


def measure(arguments: list[str]) -> tuple[float, float, float]:
    """Wall and CPU seconds and peak resident GiB of one command, from a cold start."""
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "longbench_sched", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"report ended with exit code {child.returncode}")
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def main() -> None:
    """Generate, report, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, action="append")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--formats", default="txt,md,csv")
    parser.add_argument("--folder", type=Path, help="keep the generated runs and the reports here, and use them again")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure_sizes(chosen, chosen.folder or Path(scratch))


def measure_sizes(chosen: argparse.Namespace, folder: Path) -> None:
    """One row a size."""
    cells = [(n, chosen.chunks) for n in chosen.requests] if chosen.requests else [(256, 500), (1_000_000, 100)]
    print("             report of  as                    wall       CPU    memory      file")
    for n, n_chunks in cells:
        path = folder / f"generated-{n}x{n_chunks}.parquet"
        if not path.exists():
            # In a child, so that its memory is not taken for the report's.
            code = f"import pathlib; from benchmarks.report import store; store({n}, {n_chunks}, pathlib.Path({str(path)!r}))"
            subprocess.run([sys.executable, "-c", code], check=True)
        exports = [f"--export={path.with_suffix('')}.{form}" for form in chosen.formats.split(",")]
        wall_s, cpu_s, gib = measure(["report", str(path), *exports])
        size = f"{path.stat().st_size / 1e6:5.0f} MB"
        print(
            f"{n:>11,} x {n_chunks:<8} {chosen.formats:<16} {wall_s:7.1f} s {cpu_s:7.1f} s {gib:5.2f} GiB  {size}", flush=True
        )


if __name__ == "__main__":
    main()
