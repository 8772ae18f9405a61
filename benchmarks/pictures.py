"""The pictures of docs/policies: one load, every policy, the same three seconds; and of docs/parallel, on several GPUs.

    python -m benchmarks.pictures                  # all of them
    python -m benchmarks.pictures sglang stages    # some

Eight chats (2,000 tokens in, 150 out, four a second) meet three long prompts (24,000 in, 40 out). Simulated on an H200 with
Qwen2.5-Coder-7B and no fitted parameter; the pictures come out the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from longbench_sched.experiment.virtual_run import Origin, Setting, plan_virtual, simulate, step_facts
from longbench_sched.report import timeline
from longbench_sched.sim.engine import OPTIONS
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.pools import Pools
from longbench_sched.sim.trace import StepTracer
from longbench_sched.workload.spec import read_workload

DOCS = Path(__file__).resolve().parents[1] / "docs"
VIEW = timeline.View(0.0, 3.0)
LOAD = """
title = "Chats that meet long prompts"
warmups = 0

[[lane]]
name = "chat"
isl = 2000
osl = 150
arrivals = "constant"
rate = "4/s"
requests = 8

[[lane]]
name = "long"
isl = 24000
osl = 40
arrivals = "constant"
rate = "1.3/s"
requests = 3
"""

LONG_LOAD = """
title = "A long prompt comes to some that decode"
warmups = 0

[[lane]]
name = "chat"
isl = 2000
osl = 400
arrivals = "constant"
rate = "20/s"
requests = 6

[[lane]]
name = "long"
isl = 28000
osl = 10
arrivals = "constant"
rate = "4/s"
requests = 1
"""

# Picture -> engine, its flags, what the title says. Engines that this version does not play are passed over.
PICTURES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "vllm": ("vllm", (), "vLLM V1, budget 8192: decodes ride with every chunk"),
    "vllm-2048": ("vllm", ("--max-num-batched-tokens", "2048"), "vLLM V1, budget 2048: shorter steps, later first tokens"),
    "sglang": ("sglang", (), "SGLang, prefill first: decodes stand still while prompts can be admitted"),
    "sglang-mixed": ("sglang", ("--enable-mixed-chunk",), "SGLang with mixed chunks: decodes ride in the prefill batch"),
    "trtllm": ("trtllm", ("--enable-chunked-prefill",), "TensorRT-LLM, chunked context, nothing is ever evicted"),
    "static": ("static", ("--batch-size", "4"), "Static batching: a prefill of four, then decodes until the last of them ends"),
    "orca": ("orca", (), "Orca: iteration-level scheduling, prompts whole"),
    "vllm-v0": ("vllm-v0", (), "vLLM V0, unchunked: a step is prompts or decodes"),
    "vllm-v0-chunked": ("vllm-v0", ("--enable-chunked-prefill",), "vLLM V0, chunked: decodes first, then a chunk"),
    "sglang-0.4": ("sglang-0.4", (), "SGLang 0.4.2, prefill first"),
    "sarathi": ("sarathi", (), "Sarathi-Serve: stall-free batching under a token budget"),
    "fastgen": ("fastgen", (), "DeepSpeed-FastGen: the same as a preset"),
}

# The same with several engines or stages: pools, the load, and from when to when.
PARALLEL: dict[str, tuple[str, tuple[str, ...], Pools | None, str, timeline.View, str]] = {
    "stages": (
        "sglang", ("--pp-size", "4", "--chunked-prefill-size", "4096"), None, LONG_LOAD, timeline.View(0.0, 0.45),
        "SGLang in four pipeline stages: white is bubbles",
    ),
    "pools": (
        "vllm", (), Pools("mooncake-like", 2, 1), LOAD, timeline.View(0.0, 2.5),
        "vLLM, two engines prefill, one decodes, KV goes through a store",
    ),
}  # fmt: skip


def path_of(name: str) -> Path:
    """Where a picture is stored."""
    return DOCS / ("parallel" if name in PARALLEL else "policies") / f"{name}.svg"


def draw(name: str) -> str:
    """One picture as SVG."""
    engine, flags, pools, load, view, words = PARALLEL[name] if name in PARALLEL else _alone(name)
    plan = plan_virtual(read_workload(load, "chats-and-prompts", "pictures", DOCS), 0)
    setting = Setting(engine, "H200", "Qwen2.5-Coder-7B", read_flags(engine, flags), pools=pools)
    tracer = StepTracer()
    done = simulate(plan, setting, Origin(name, datetime(2026, 11, 30, tzinfo=UTC), {}), observer=tracer)
    steps = tracer.table(replace(step_facts(done.run.meta), run_id=name))
    return timeline.draw(steps, done.run, view, words)


def _alone(name: str) -> tuple[str, tuple[str, ...], Pools | None, str, timeline.View, str]:
    engine, flags, words = PICTURES[name]
    return engine, flags, None, LOAD, VIEW, words


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES, *PARALLEL], default=[])
    playable = [name for name, (engine, _, _) in PICTURES.items() if engine in OPTIONS]
    for name in parser.parse_args().names or [*playable, *PARALLEL]:
        path = path_of(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(draw(name), "utf-8")
        print(f"{path.relative_to(DOCS.parent)}  {path.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
