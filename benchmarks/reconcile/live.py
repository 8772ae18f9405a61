"""The tools' own commands against `longbench-sched serve`, and our client under the same load on the same server.

The server is simulated and keeps no prefix, so that every prompt costs the same. Each tool draws its own prompts; ours have the
length that the server counted for the tool's. Two runs, one after the other, are compared, so that ratios are near 1: with
one request in flight they say what the clients cost, with several also how they space their sends. A file that can be imported
must give the very figures that the tool printed of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines.tiny_llama import write_model
from benchmarks.reconcile.inside.figures import FIGURES, RATES
from longbench_sched.metrics.conventions import Foreign, convert
from longbench_sched.store.foreign import read_foreign
from longbench_sched.store.parquet import read_run

ISL, OSL = 512, 64
LOADS = ((1, 24), (4, 64))  # requests in flight, and in all
NO_CACHE = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}
VLLM = (
    "import argparse; from vllm.benchmarks import serve; p = argparse.ArgumentParser(); serve.add_cli_args(p); "
    "serve.main(p.parse_args())"
)


@dataclass(frozen=True)
class Command:
    """How a tool is started, where its result is, and what that says: {figure: {"mean", "p50"}}, with "isl"."""

    engine: str
    api: str
    argv: Callable[[Path, str, Path, int, int], Sequence[str]]  # bin, URL, folder, in flight, requests
    result: str
    read: Callable[[Path], dict[str, Any]]
    imported: str | None = None  # the file that `import` takes
    offline: bool = True


def main(pythons: Mapping[str, Path]) -> int:
    """Run each tool; 1 if an imported file gives other figures than were printed, or a command failed."""
    wrong = 0
    for tool, python in pythons.items():
        for in_flight, n in LOADS:
            with tempfile.TemporaryDirectory() as name, _served(COMMANDS[tool].engine) as url:
                print(f"\n{tool}: {n} requests of {ISL} in and {OSL} out, {in_flight} in flight (simulated server)", flush=True)
                wrong += _run(tool, python.parent, url, Path(name), in_flight, n)
    return 1 if wrong else 0


def _run(tool: str, programs: Path, url: str, folder: Path, in_flight: int, n: int) -> bool:
    command = COMMANDS[tool]
    write_model(folder / "tokenizer")
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1"} | ({"HF_HUB_OFFLINE": "1"} if command.offline else {})
    argv = [str(word) for word in command.argv(programs, url, folder, in_flight, n)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    path = folder / command.result
    if ended.returncode or not path.exists():
        print(f"  did not run, code {ended.returncode}: {(ended.stderr or ended.stdout)[-1500:]}")
        return True
    theirs = command.read(path)
    ours = _ours(tool, url, folder, in_flight, n, round(theirs.pop("isl")))
    print(f"  {'figure':<36}{'theirs':>12}{'ours':>12}{'ratio':>8}   (median; rates: mean)")
    for name, said in theirs.items():
        share = "p50" if "p50" in said else "mean"
        value = getattr(ours[name], share)
        print(f"  {name:<36}{said[share]:>12.6g}{value:>12.6g}{said[share] / value:>8.3f}")
    return command.imported is not None and _check_import(tool, folder / command.imported, theirs)


def _ours(tool: str, url: str, folder: Path, in_flight: int, n: int, isl: int) -> dict[str, Foreign]:
    """Our client under the same load; its figures under the tool's definitions."""
    command = COMMANDS[tool]
    argv = [sys.executable, "-m", "longbench_sched", "run", "smoke", "--engine", command.engine, "--api", command.api]
    load = [
        f"--isl={isl}",
        f"--osl={OSL}",
        f"--concurrency={in_flight}",
        f"--num-prompts={n}",
        "--num-warmups=0",
        "--prompts=ids",
    ]
    where = ["--base-url", url, "--output-dir", str(folder / "ours")]
    subprocess.run([*argv, *load, *where], check=True, capture_output=True)
    (stored,) = (folder / "ours").glob("*.parquet")
    return {figure.name: figure for figure in convert(read_run(stored), tool).figures}


def _check_import(tool: str, path: Path, theirs: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether an imported file differs from what was printed of it, in figures of single requests; says it."""
    (run,) = read_foreign(path)
    by_tool = "vllm" if tool == "sglang" else tool  # its stamps are of tokens already
    found = {figure.name: figure for figure in convert(run, by_tool).figures}
    named = {name: name for name in FIGURES[tool]} if tool != "sglang" else {"TTFT": "TTFT", "ITL": "ITL"}
    wrong = [
        name
        for name, theirs_name in named.items()
        if abs((found[name].mean or 0.0) - theirs[theirs_name]["mean"]) > 1e-6 * theirs[theirs_name]["mean"]
    ]
    print(
        f"  imported: {run.table.n} requests; means of {', '.join(named)} {'DIFFER: ' + ', '.join(wrong) if wrong else 'equal'}"
    )
    return bool(wrong)


@contextmanager
def _served(engine: str) -> Iterator[str]:
    """The URL of an embedded engine, stopped on the way out."""
    argv = [sys.executable, "-m", "longbench_sched", "serve", "--engine", engine, "--port", "0", "--served-model-name", "tiny"]
    server = subprocess.Popen([*argv, NO_CACHE[engine]], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


def _vllm(programs: Path, url: str, folder: Path, in_flight: int, n: int) -> Sequence[str]:
    # The package for CPUs lacks what its command `vllm bench serve` asks for; this is what that calls.
    return [
        *(programs / "python", "-c", VLLM, "--backend", "openai", "--base-url", url, "--model", "tiny", "--ignore-eos"),
        *(
            "--tokenizer",
            folder / "tokenizer",
            "--dataset-name",
            "random",
            "--random-input-len",
            ISL,
            "--random-output-len",
            OSL,
        ),
        *("--num-prompts", n, "--max-concurrency", in_flight, "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "result.json"),
    ]


def _sglang(programs: Path, url: str, folder: Path, in_flight: int, n: int) -> Sequence[str]:
    return [
        *(programs / "python", "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url, "--model", "tiny"),
        *("--tokenizer", folder / "tokenizer", "--dataset-name", "random-ids", "--random-input-len", ISL),
        *(
            "--random-output-len",
            OSL,
            "--random-range-ratio",
            "1.0",
            "--tokenize-prompt",
            "--num-prompts",
            n,
            "--max-concurrency",
            in_flight,
        ),
        *("--output-file", folder / "result.jsonl", "--output-details"),
    ]


def _guidellm(programs: Path, url: str, folder: Path, in_flight: int, n: int) -> Sequence[str]:
    return [
        *(
            programs / "guidellm",
            "run",
            "--backend",
            f"kind=openai_http,target={url},model=tiny,request_format=/v1/completions",
        ),
        *("--profile", f"kind=concurrent,streams={in_flight}", "--constraint", f"kind=max_requests,count={n}"),
        *("--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={ISL},output_tokens={OSL}"),
        *("--output", f"kind=json,path={folder / 'result.json'}", "--disable-console-interactive"),
    ]


def _aiperf(programs: Path, url: str, folder: Path, in_flight: int, n: int) -> Sequence[str]:
    return [
        *(programs / "aiperf", "profile", "--model", "tiny", "--url", url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", folder / "tokenizer", "--synthetic-input-tokens-mean", ISL, "--synthetic-input-tokens-stddev", 0),
        *("--output-tokens-mean", OSL, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true"),
        *("--concurrency", in_flight, "--request-count", n, "--use-server-token-count", "--ui", "none"),
        *("--artifact-dir", folder / "aiperf"),
    ]


def _read_flat(tool: str) -> Callable[[Path], dict[str, Any]]:
    """vLLM's and SGLang's results: one object, milliseconds in names."""

    def read(path: Path) -> dict[str, Any]:
        said = json.loads(path.read_text().splitlines()[-1])
        figures = {
            name: {share: said[f"{word}_{key}_ms"] / 1e3 for share, word in (("mean", "mean"), ("p50", "median"))}
            for name, key in FIGURES[tool].items()
        }
        rates = {name: {"mean": said[key]} for name, key in RATES[tool].items()}
        return {**figures, **rates, "isl": sum(said["input_lens"]) / len(said["input_lens"])}

    return read


def _read_guidellm(path: Path) -> dict[str, Any]:
    said = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    found = {name: kept["successful"] for name, kept in said.items() if isinstance(kept, dict) and "successful" in kept}
    figures = {}
    for name, key in FIGURES["guidellm"].items():
        scale = 1e-3 if key.endswith("_ms") else 1.0
        figures[name] = {"mean": found[key]["mean"] * scale, "p50": found[key]["median"] * scale}
    rates = {name: {"mean": found[key]["mean"]} for name, key in RATES["guidellm"].items()}
    return {**figures, **rates, "isl": found["prompt_token_count"]["mean"]}


def _read_aiperf(path: Path) -> dict[str, Any]:
    said = json.loads(path.read_text())
    figures = {}
    for name, tag in FIGURES["aiperf"].items():
        scale = 1e-3 if said[tag]["unit"] == "ms" else 1.0
        figures[name] = {"mean": said[tag]["avg"] * scale, "p50": said[tag]["p50"] * scale}
    rates = {name: {"mean": said[tag]["avg"]} for name, tag in RATES["aiperf"].items()}
    return {**figures, **rates, "isl": said["input_sequence_length"]["avg"]}


COMMANDS = {
    "vllm": Command("vllm", "completions", _vllm, "result.json", _read_flat("vllm"), "result.json"),
    "sglang": Command("sglang", "generate", _sglang, "result.jsonl", _read_flat("sglang"), "result.jsonl"),
    "guidellm": Command("vllm", "completions", _guidellm, "result.json", _read_guidellm),
    # Without the network it takes a tokenizer by its path only if it is not told that it is offline.
    "aiperf": Command(
        "vllm",
        "completions",
        _aiperf,
        "aiperf/profile_export_aiperf.json",
        _read_aiperf,
        "aiperf/profile_export.jsonl",
        offline=False,
    ),
}
