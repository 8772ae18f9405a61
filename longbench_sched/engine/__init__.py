"""Engines: the table of dialects."""

from __future__ import annotations

from difflib import get_close_matches

from longbench_sched.engine import openai, sglang, triton, trtllm, vllm
from longbench_sched.engine.dialect import Dialect, EngineEntry
from longbench_sched.errors import UsageError
from longbench_sched.target import Api, CountMode

_FROM_SOURCE = "from source, not yet run against a live server"

ENGINES: dict[str, EngineEntry] = {
    entry.name: entry
    for entry in (
        EngineEntry("vllm", "vLLM", ("completions", "chat"), vllm.make, 8000, "run against vLLM 0.32.0 on a CPU"),
        EngineEntry(
            "sglang", "SGLang", ("completions", "chat", "generate"), sglang.make, 30000, "run against SGLang 0.5.23 on a CPU"
        ),
        EngineEntry("trtllm", "TensorRT-LLM", ("completions", "chat"), trtllm.make, 8000, _FROM_SOURCE),
        EngineEntry("triton", "Triton", ("generate",), triton.make, 8000, _FROM_SOURCE),
        EngineEntry(
            "openai",
            "OpenAI API",
            ("completions", "chat"),
            openai.make,
            8000,
            "run against llama.cpp b11434, Dynamo 1.6.1 and vLLM 0.32.0",
        ),
    )
}


def find_engine(name: str) -> EngineEntry:
    """The engine of that name. Raises UsageError with the known ones and a guess."""
    if name in ENGINES:
        return ENGINES[name]
    close = get_close_matches(name.lower(), ENGINES, n=1, cutoff=0.5)
    guess = f"\n  Did you mean {close[0]}?" if close else ""
    raise UsageError(f"no engine named {name!r}. Known: {', '.join(ENGINES)}.{guess}")


def make_dialect(engine: str, api: Api | None = None, count: CountMode = "full") -> Dialect:
    """The dialect of an engine; without an API its default. Raises UsageError for an unknown engine or API."""
    entry = find_engine(engine)
    if api is not None and api not in entry.apis:
        raise UsageError(f"--engine {engine} has no --api {api}. Known: {', '.join(entry.apis)}.")
    return entry.make(api or entry.apis[0], count)
