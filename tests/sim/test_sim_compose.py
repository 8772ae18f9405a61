"""Chunks, prefix cache, speculation and pipeline stages, each on or off, under every scheduler: it runs, or is refused.

Where it runs, what is on is seen at work and what is off is not; on one stage the laws of `drive` hold (on several those of
test_sim_micro_batches.py). Where it is refused the reason is said.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from checked_engine import H200, QWEN, Arrival, drive
from law_parts import with_acceptance

from longbench_sched.errors import UsageError
from longbench_sched.sim.engine import PLAYED, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.micro_batches import PipedEngine

PARTS = ("chunks", "cache", "drafts", "stages")
WHOLE = "--max-model-len 512 --max-num-batched-tokens 512"

# Flags when a part is on, and when it is off.
FLAGS: dict[str, dict[str, tuple[str, str]]] = {
    "vllm": {
        "chunks": ("--max-num-batched-tokens 32", f"--no-enable-chunked-prefill {WHOLE}"),
        "cache": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "vllm-v0": {
        "chunks": ("--enable-chunked-prefill --max-num-batched-tokens 32 --max-num-seqs 8", WHOLE),
        "cache": ("--enable-prefix-caching", ""),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "sglang": {
        "chunks": ("--chunked-prefill-size 32", "--chunked-prefill-size -1"),
        "cache": ("", "--disable-radix-cache"),
        "drafts": ("--speculative-algorithm EAGLE3", ""),
        "stages": ("-pp=2", ""),
    },
    "sglang-0.4": {
        "chunks": ("--chunked-prefill-size 32", "--chunked-prefill-size -1"),
        "cache": ("", "--disable-radix-cache"),
        "drafts": ("--speculative-algorithm EAGLE", ""),
        "stages": ("-pp=2", ""),
    },
    "trtllm": {
        "chunks": ("--enable-chunked-prefill --max-num-tokens 64", "--max-num-tokens 512"),
        "cache": ("--enable-block-reuse", "--no-enable-block-reuse"),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "static": {
        "chunks": ("--batch-size 1 --enable-chunked-prefill", "--batch-size 1"),
        "cache": ("--enable-prefix-caching", ""),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "orca": {
        "chunks": ("--enable-chunked-prefill", ""),
        "cache": ("--enable-prefix-caching", ""),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "sarathi": {
        "chunks": ("--token-budget 32 --max-num-seqs 8", "--no-enable-chunked-prefill"),
        "cache": ("--enable-prefix-caching", ""),
        "drafts": ("--num-speculative-tokens 2", ""),
        "stages": ("-pp=2", ""),
    },
    "fastgen": {
        "chunks": ("--token-budget 32 --max-num-seqs 8", "--no-enable-chunked-prefill"),
        "cache": ("--enable-prefix-caching", ""),
        "drafts": ("--speculative-config {}", ""),
        "stages": ("-pp=2", ""),
    },
}

# Parts that cannot be on (or, with "no", off) together, and what is said. The first that applies.
REFUSED: dict[str, dict[tuple[str, ...], str]] = {
    "vllm": {("drafts", "stages"): "vLLM does not start with speculation and pipeline stages together"},
    "vllm-v0": {("cache",): "off by default and not played", ("stages",): "not played"},
    "sglang": {("drafts", "stages"): "SGLang does not start with speculation and pipeline stages together"},
    "sglang-0.4": {
        ("stages",): "has no pipeline stages",
        ("chunks", "drafts"): "turns chunked prefill, radix cache and overlap off",
    },
    "trtllm": {("drafts", "stages"): "speculation and pipeline stages are not played together"},
    "static": {
        ("chunks",): "all prompts of a batch in one step",
        ("cache",): "keeps nothing",
        ("drafts",): "token by token",
        ("stages",): "with one stage",
    },
    "orca": {("chunks",): "a whole prompt in the iteration", ("cache",): "keeps nothing", ("drafts",): "token by token"},
    "sarathi": {
        ("no chunks",): "what this scheduler does, always",
        ("cache",): "keeps nothing",
        ("drafts",): "token by token",
    },
    "fastgen": {
        ("no chunks",): "what this scheduler does, always",
        ("cache",): "keeps nothing",
        ("drafts",): "token by token",
        ("stages",): "has no pipeline stages",
    },
}
# The second comes when the first has left its prompt behind, and goes on from its first 64 tokens.
WORK = [Arrival(0.0, 100, 4, group=0, prefix=64), Arrival(1.0, 100, 4, group=0, prefix=64)]


def build(name: str, parts: dict[str, bool]):
    words = " ".join(FLAGS[name][part][0 if is_on else 1] for part, is_on in parts.items()).split()
    return with_acceptance(build_engine(name, H200, QWEN, read_flags(name, words)))


def reason(name: str, parts: dict[str, bool]) -> str | None:
    state = {part if is_on else f"no {part}" for part, is_on in parts.items()}
    return next((words for clash, words in REFUSED.get(name, {}).items() if state.issuperset(clash)), None)


def drive_stages(engine: PipedEngine, each_step) -> None:
    """The work, one request after the other, and every plan that was sent."""
    now_s = 0.0
    for i, arrival in enumerate(WORK):
        request = engine.submit(arrival.isl, arrival.osl, now_s, content=arrival.content(i))
        while (step_s := engine.begin(now_s)) is not None:
            for batch in engine.flight:
                each_step(batch.plan, engine.state)
            now_s += step_s
            engine.end(now_s)
        assert request.finish == "length"
    assert engine.state.kv.free == engine.state.kv.total


@pytest.mark.parametrize(
    "switches", list(product([True, False], repeat=len(PARTS))), ids=lambda on: "".join("ny"[one] for one in on)
)
@pytest.mark.parametrize("name", PLAYED)
def test_every_combination_runs_or_is_refused_with_the_reason(name: str, switches: tuple[bool, ...]) -> None:
    parts = dict(zip(PARTS, switches, strict=True))
    refusal = reason(name, parts)
    if refusal is not None:
        with pytest.raises(UsageError, match=refusal):
            build(name, parts)
        return
    seen = dict.fromkeys(PARTS, False)

    def step(plan, state) -> None:
        seen["chunks"] |= any(not chunk.is_last for chunk in plan.chunks)
        seen["cache"] |= bool(plan.hits)
        seen["drafts"] |= bool(plan.verifies)

    engine = build(name, parts)
    if isinstance(engine, PipedEngine):
        seen["stages"] = True
        drive_stages(engine, step)
    else:
        drive(engine, WORK, step)
    if name == "sglang-0.4" and parts["drafts"]:
        parts["cache"] = False  # EAGLE turns it off there
    assert seen == parts


def test_every_scheduler_is_in_the_table() -> None:
    assert set(FLAGS) == set(PLAYED)


def test_the_table_in_the_docs_says_the_same() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies" / "README.md").read_text()
    table = page.partition("## Parts together")[2].partition("\n## ")[0]
    written = dict(re.findall(r"^\| `(\w[\w.-]*)` \| (.+) \|$", table, re.MULTILINE))
    for name in PLAYED:
        refused = REFUSED.get(name, {})
        has = ["no" if (part,) in refused else "always" if (f"no {part}",) in refused else "yes" for part in PARTS]
        assert written.pop(name, "nothing") == " | ".join(has), name
    assert not written


def test_mixed_chunks_and_speculation_cannot_be_had_together() -> None:
    with pytest.raises(UsageError, match="speculation turns it off"):
        build_engine("sglang", H200, QWEN, read_flags("sglang", ["--enable-mixed-chunk", "--speculative-algorithm", "EAGLE3"]))
