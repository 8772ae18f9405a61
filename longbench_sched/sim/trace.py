"""Trace: looks at every step as it begins and notes what it computes, what it costs and what it waits for.

Bills are made part by part (`StepCost.explain`), which costs more than the price alone: a trace makes a simulation two or three
times as slow.
"""

from __future__ import annotations

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.step import StepPlan
from longbench_sched.steps import Phase, StepColumns


class StepTracer:
    """`transport.StepObserver` that keeps every step."""

    def __init__(self) -> None:
        self.columns = StepColumns()

    def note(self, engine: Engine, begin_ns: int, end_ns: int) -> None:
        """The step in progress of the engine, and from when to when it runs."""
        plan, state = engine.step, engine.state
        assert plan is not None
        if plan.is_empty:  # the scheduler waits for company: time passes, nothing is computed
            return
        bill = engine.cost.explain(plan)
        load = bill.load
        self.columns.add(
            {
                "begin_ns": begin_ns,
                "end_ns": end_ns,
                "n_prefill": len(load.chunks),
                "n_decode": load.n_decodes,
                "prefill_tokens": load.prefill_tokens,
                "decode_tokens": load.decode_tokens,
                "decode_context": load.decode_context,
                "n_running": len(state.running),
                "n_waiting": len(state.waiting),
                "n_admitted": len(plan.admitted),
                "n_preempted": len(plan.preempted),
                "kv_used_tokens": state.kv.held * state.kv.block_tokens,
            },
            {
                "flop": bill.flop,
                "n_bytes": bill.n_bytes,
                "arithmetic_intensity": bill.arithmetic_intensity,
                "compute_utilisation": bill.compute_utilisation,
                "bandwidth_utilisation": bill.bandwidth_utilisation,
                "gpu_s": bill.gpu_s,
                "host_s": bill.host_s,
            },
            {"phase": phase_of(plan), "bound": bill.bound},
        )


def phase_of(plan: StepPlan) -> Phase:
    """Whether a step computes prompts, decodes, or both."""
    n_chunks = len(plan.chunks)
    if not n_chunks:
        return "decode"
    is_prefill_only = sum(1 for _ in plan.entries()) == n_chunks
    return "prefill" if is_prefill_only else "mixed"
