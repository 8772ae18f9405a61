"""What the client costs and how wrong it is: wire (kernel and user stamps), http, and a plain httpx loop, side by side.

    python benchmarks/client.py                        against benchmarks/truth_server.py
    python benchmarks/client.py --referee DIR          against an independent server of known truth and a client at the physical
                                                       limit, whose sources (truthd.c, limitc.c, score.py) lie in DIR

One core for the server, the other for the client and all its children; clients alternate, a run counts only if the server
itself was on time, and the best three of them (by TTFT error p99) are averaged. A client runs until three of its runs count;
the two that the bars compare go on while a bar is not cleared, to seven runs at most. Errors are reported minus true, in ms.
Loads: A 64 in flight x 30,000 in / 500 out, ITL 20 ms; B 256 x 1,000 / 200, 20 ms; C 512 x 1,000 / 200, 10 ms; TTFT 200 ms.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
TTFT_MS = 200.0
MAX_RUNS = 7
N_BEST = 3
BAR_CLIENTS = ("limit", "wire kernel")


@dataclass(frozen=True)
class Load:
    name: str
    conns: int
    requests: int
    isl: int
    osl: int
    itl_ms: float

    @property
    def events(self) -> int:
        return self.requests * self.osl


LOADS = {
    "A": Load("A", 64, 128, 30_000, 500, 20.0),
    "B": Load("B", 256, 512, 1_000, 200, 20.0),
    "C": Load("C", 512, 1_024, 1_000, 200, 10.0),
    "S": Load("S", 16, 64, 1_000, 100, 10.0),  # small: what make bench runs without a referee
}


@dataclass(frozen=True)
class Score:
    """One run of one client."""

    is_ok: bool
    ttft_p50: float
    ttft_p99: float
    gap_p99: float
    kept: float
    cpu_us: float | None  # a token event, between first send and last event
    tree_cpu_s: float  # the whole process tree, start-up and storing included
    rss_mb: float


def pinned(core: int, command: list[str]) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core % len(cores)]), *command]


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float, float]:
    """Exit code, CPU seconds of the process and its children, and its own peak resident MB.

    The peak is read from /proc while it runs: the one that wait4 gives begins with that of this process, which forked it.
    """
    peak_mb = 0.0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime, peak_mb
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            lines = []
        peak_mb = max([peak_mb, *(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))])
        time.sleep(0.1)


class OwnTruth:
    """benchmarks/truth_server.py as the judge."""

    clients = ("wire kernel", "wire user", "http", "httpx loop")

    def __init__(self, folder: Path) -> None:
        self.log = folder / "truth.json"

    def start(self, load: Load) -> int:
        command = [sys.executable, str(HERE / "truth_server.py"), "--log", str(self.log)]
        command += ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(load.itl_ms)]
        self.process = subprocess.Popen(pinned(0, command), stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def stop(self) -> bool:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.truth = json.loads(self.log.read_text())
        return bool(self.truth["verdict"] == "OK")

    def score(self, load: Load, run: Path, *, is_limit: bool) -> dict[str, float]:
        ttft, gaps, first, last = [], [], [], []
        for row in pq.read_table(run, columns=["request_id", "sent_ns", "chunk_at_ns"]).to_pylist():
            true = self.truth["requests"].get(row["request_id"])
            if true is None or not row["chunk_at_ns"]:
                continue
            sent = true["sent_ns"]
            ttft.append((row["chunk_at_ns"][0] - row["sent_ns"] - (sent[0] - true["last_byte_ns"])) / 1e6)
            if len(sent) == len(row["chunk_at_ns"]):
                gaps.append(np.abs(np.diff(row["chunk_at_ns"]) - np.diff(sent)) / 1e6)
            first.append(true["last_byte_ns"])
            last.append(sent[-1])
        best_s = math.ceil(load.requests / load.conns) * (TTFT_MS + (load.osl - 1) * load.itl_ms) / 1e3
        return {
            "ttft_p50": float(np.percentile(ttft, 50)),
            "ttft_p99": float(np.percentile(ttft, 99)),
            "gap_p99": float(np.percentile(np.concatenate(gaps), 99)) if gaps else math.nan,
            "kept": best_s / ((max(last) - min(first)) / 1e9),
        }


class Referee:
    """An independent server, built from its C source; its own scorer says how wrong a run was."""

    clients = ("limit", "limit kernel", "wire kernel", "wire user", "http", "httpx loop")

    def __init__(self, sources: Path, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "truth.bin"
        self.score_py = sources / "score.py"
        for name in ("truthd", "limitc"):
            subprocess.run(["gcc", "-O2", "-o", folder / name, sources / f"{name}.c", "-lm"], check=True)

    def start(self, load: Load) -> int:
        port = 20_000 + os.getpid() % 10_000
        command = [str(self.folder / "truthd"), "--port", str(port), "--ttft-ms", str(TTFT_MS), "--itl-ms", str(load.itl_ms)]
        self.process = subprocess.Popen(
            pinned(0, [*command, "--log", str(self.log), "--spin-us", "15"]), stdout=subprocess.PIPE
        )
        time.sleep(0.5)
        return port

    def stop(self) -> bool:
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        return bool(json.loads(out.splitlines()[-1])["verdict"] == "OK")

    def score(self, load: Load, run: Path, *, is_limit: bool) -> dict[str, float]:
        if is_limit:
            self._name_requests_by_number()
        command = [sys.executable, str(self.score_py), str(self.log), str(run), "--json", "--conns", str(load.conns)]
        command += ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(load.itl_ms)]
        s = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return {
            "ttft_p50": s["ttft_error_ms"]["p50"],
            "ttft_p99": s["ttft_error_ms"]["p99"],
            "gap_p99": s["gap_abs_error_ms"]["p99"] if s["gap_abs_error_ms"] else math.nan,
            "kept": s["offered_load_kept"],
        }

    def _name_requests_by_number(self) -> None:
        """The limit client sends no X-Request-Id: its requests go by the server's number."""
        path = Path(f"{self.log}.req.csv")
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows([{**row, "xid": row["req"]} for row in rows])

    def run_limit(self, load: Load, port: int, out: Path, kernel: bool) -> subprocess.Popen[bytes]:
        command = [str(self.folder / "limitc"), "--port", str(port), "--conns", str(load.conns), "--out", str(out)]
        command += ["--requests", str(load.requests), "--prompt", str(load.isl), "--out-tokens", str(load.osl)]
        return subprocess.Popen(pinned(1, [*command, "--kts", "1" if kernel else "0"]), stderr=subprocess.DEVNULL)


def limit_to_parquet(raw: Path, out: Path, kernel: bool) -> None:
    """What the limit client wrote, as the columns the scorer reads."""
    dtype = np.dtype([("req", "<u4"), ("idx", "<u4"), ("user", "<u8"), ("kernel", "<u8")])
    records = np.fromfile(raw, dtype=dtype, offset=8)
    starts = {int(r["req"]): r for r in records[records["idx"] == 0xFFFFFFFF]}
    rows = []
    events = records[records["idx"] != 0xFFFFFFFF]
    events = events[np.lexsort((events["idx"], events["req"]))]
    for req, group in ((int(g["req"][0]), g) for g in np.split(events, np.flatnonzero(np.diff(events["req"])) + 1)):
        at = group["kernel" if kernel else "user"].astype(np.int64).tolist()
        start = starts[req]
        rows.append(
            {"request_id": str(req), "sent_ns": int(start["user"]), "body_sent_ns": int(start["kernel"]), "chunk_at_ns": at}
        )
    pq.write_table(pa.Table.from_pylist(rows), out)


def run_client(client: str, load: Load, judge: OwnTruth | Referee, folder: Path) -> Score:
    port = judge.start(load)
    run = folder / "run.parquet"
    cpu: float | None = None
    try:
        if client.startswith("limit"):
            assert isinstance(judge, Referee)
            process = judge.run_limit(load, port, folder / "limit.bin", client.endswith("kernel"))
            code, tree_cpu_s, rss_mb = wait(process)
            cpu = tree_cpu_s
        elif client == "httpx loop":
            command = [sys.executable, str(HERE / "httpx_loop.py"), "--url", f"http://127.0.0.1:{port}/v1/completions"]
            command += ["--conns", str(load.conns), "--requests", str(load.requests), "--isl", str(load.isl)]
            command += ["--osl", str(load.osl), "--out", str(run)]
            process = subprocess.Popen(pinned(1, command), stdout=subprocess.PIPE)
            assert process.stdout is not None
            line = process.stdout.readline()
            code, tree_cpu_s, rss_mb = wait(process)
            cpu = json.loads(line)["cpu_s"] if line else None
        else:
            results = folder / "results"
            shutil.rmtree(results, ignore_errors=True)
            transport, _, stamps = client.partition(" ")
            command = [sys.executable, "-m", "longbench_sched", "run", str(HERE / "bench.toml"), "--engine", "vllm"]
            command += ["--base-url", f"http://127.0.0.1:{port}", "--model", "truth", "--output-dir", str(results)]
            command += ["--isl", str(load.isl), "--osl", str(load.osl), "--concurrency", str(load.conns)]
            command += ["--num-prompts", str(load.requests), "--transport", transport, "--timestamps", stamps or "auto"]
            command += ["--no-preflight", "--num-warmups", "0"]
            with (folder / "client.log").open("wb") as log:
                process = subprocess.Popen(pinned(1, command), stdout=log, stderr=log)
                code, tree_cpu_s, rss_mb = wait(process)
            if code:
                raise SystemExit(f"{client}: exit {code}\n{(folder / 'client.log').read_text()}")
            run = next(results.glob("*.parquet"))
            cpu = json.loads(pq.read_metadata(run).metadata[b"longbench_sched"])["client"]["cpu_s"]
    finally:
        is_ok = judge.stop()
    is_limit = client.startswith("limit")
    if is_limit:
        limit_to_parquet(folder / "limit.bin", run, client.endswith("kernel"))
    s = judge.score(load, run, is_limit=is_limit)
    cpu_us = None if cpu is None else cpu * 1e6 / load.events
    return Score(is_ok, s["ttft_p50"], s["ttft_p99"], s["gap_p99"], s["kept"], cpu_us, tree_cpu_s, rss_mb)


def best(scores: list[Score]) -> Score | None:
    """The mean of the best three runs that count."""
    good = sorted((s for s in scores if s.is_ok), key=lambda s: s.ttft_p99)[:N_BEST]
    if not good:
        return None

    def mean(field: str) -> float:
        values = [getattr(s, field) for s in good]
        return float(np.mean([v for v in values if v is not None])) if any(v is not None for v in values) else math.nan

    return Score(
        len(good) == N_BEST, *(mean(f) for f in ("ttft_p50", "ttft_p99", "gap_p99", "kept", "cpu_us", "tree_cpu_s", "rss_mb"))
    )


def measure(load: Load, judge: OwnTruth | Referee, clients: list[str], n_runs: int, folder: Path) -> dict[str, Score]:
    """Alternate the clients: n_runs each, or with 0 until three of each count and every bar is cleared, at most seven."""
    scores: dict[str, list[Score]] = {client: [] for client in clients}
    for _ in range(n_runs or MAX_RUNS):
        is_missed = not all(check.is_cleared for check in bars(load, best_of_each(scores)))
        for client in clients:
            is_settled = sum(s.is_ok for s in scores[client]) >= N_BEST
            if n_runs == 0 and is_settled and not (is_missed and client in BAR_CLIENTS):
                continue
            scores[client].append(run_client(client, load, judge, folder))
    return best_of_each(scores)


def best_of_each(scores: dict[str, list[Score]]) -> dict[str, Score]:
    return {client: score for client, runs in scores.items() if (score := best(runs)) is not None}


def table(load: Load, scores: dict[str, Score]) -> None:
    what = f"{load.conns} in flight x {load.isl} in / {load.osl} out, ITL {load.itl_ms:g} ms, {load.requests} requests"
    print(f"\nLoad {load.name}: {what}; errors in ms")
    heads = ("TTFT p50", "p99", "gap p99", "load kept", "CPU us/ev", "tree CPU s", "RSS MB")
    print(f"{'client':14s}" + "".join(f"{head:>11s}" for head in heads))
    for client, s in scores.items():
        cpu = "-" if s.cpu_us is None else f"{s.cpu_us:.1f}"
        cells = (f"{s.ttft_p50:.2f}", f"{s.ttft_p99:.2f}", f"{s.gap_p99:.3f}", f"{s.kept:.2%}", cpu, f"{s.tree_cpu_s:.2f}")
        mark = "" if s.is_ok else "  (fewer than 3 runs on time)"
        print(f"{client:14s}" + "".join(f"{cell:>11s}" for cell in (*cells, f"{s.rss_mb:.0f}")) + mark)


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    bound: float
    is_upper: bool = True

    @property
    def is_cleared(self) -> bool:
        return self.value <= self.bound if self.is_upper else self.value >= self.bound


def bars(load: Load, scores: dict[str, Score]) -> list[Bar]:
    """The bars that the client has to clear, with what was measured; none without the limit client beside it."""
    limit, wire = (scores.get(client) for client in BAR_CLIENTS)
    if wire is None or limit is None:
        return []
    checks: list[Bar] = []
    if load.name == "A":
        checks.append(Bar("TTFT p50 <= limit + 1 ms", wire.ttft_p50, limit.ttft_p50 + 1))
        checks.append(Bar("TTFT p99 <= 1.3 x limit", wire.ttft_p99, limit.ttft_p99 * 1.3))
        checks.append(Bar("load kept >= 99.5 %", wire.kept * 100, 99.5, is_upper=False))
    else:
        checks.append(Bar("TTFT p99 <= limit + 1.5 ms", wire.ttft_p99, limit.ttft_p99 + 1.5))
        checks.append(Bar("gap p99 < 0.05 ms", wire.gap_p99, 0.05))
    if load.name == "C":
        checks.append(Bar("load kept >= 98.5 %", wire.kept * 100, 98.5, is_upper=False))
        checks.append(Bar("CPU <= 16 us/event", wire.cpu_us or math.nan, 16.0))
    checks.append(Bar("peak RSS < 300 MB", wire.rss_mb, 300.0))
    return checks


def print_bars(load: Load, scores: dict[str, Score]) -> None:
    for bar in bars(load, scores):
        print(f"  {'pass' if bar.is_cleared else 'FAIL'}  {bar.name}: {bar.value:.3f} (bar {bar.bound:.3f})")


def slope(judge: OwnTruth | Referee, folder: Path, n_runs: int) -> None:
    """CPU of the whole process tree per token event, as the slope between 1,024 and 4,096 requests of load C."""
    small, large = LOADS["C"], Load("C", 512, 4_096, 1_000, 200, 10.0)
    values = []
    for _ in range(n_runs):
        runs = [run_client("wire kernel", load, judge, folder) for load in (small, large)]
        values.append((runs[1].tree_cpu_s - runs[0].tree_cpu_s) * 1e6 / (large.events - small.events))
        print(
            f"  slope {values[-1]:.1f} us/event; peak RSS {runs[0].rss_mb:.0f} and {runs[1].rss_mb:.0f} MB;"
            f" server on time: {runs[0].is_ok}, {runs[1].is_ok}"
        )
    print(f"Whole tree, load C, 1,024 to 4,096 requests: {min(values):.1f} us/event at best (bar 24)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--referee", type=Path, help="folder of truthd.c, limitc.c and score.py")
    parser.add_argument("--loads", help="of A, B, C, S; default A,B,C with a referee, else S")
    parser.add_argument("--clients", help="comma-separated; default all")
    parser.add_argument("--runs", type=int, default=0, help="runs of each client; default: see above")
    parser.add_argument("--slope", type=int, default=0, metavar="N", help="measure the whole tree's CPU slope N times")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        judge = Referee(args.referee.resolve(), folder) if args.referee else OwnTruth(folder)
        clients = args.clients.split(",") if args.clients else list(judge.clients)
        loads = args.loads.split(",") if args.loads is not None else (["A", "B", "C"] if args.referee else ["S"])
        for load in (LOADS[name] for name in loads if name):
            scores = measure(load, judge, clients, args.runs, folder)
            table(load, scores)
            print_bars(load, scores)
        if args.slope:
            slope(judge, folder, args.slope)


if __name__ == "__main__":
    main()
