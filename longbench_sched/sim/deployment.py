"""What serves a load: one engine, several that are alike, or pools of engines for prefill and for decode."""

from __future__ import annotations

from collections.abc import Callable

from longbench_sched.errors import UsageError
from longbench_sched.sim.disaggregation import DisaggregatedEngine
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.policy.static import StaticOptions
from longbench_sched.sim.pools import TOGETHER, Pools
from longbench_sched.sim.queue_limit import is_limited
from longbench_sched.sim.side_by_side import SideBySide

AnyEngine = Engine | DisaggregatedEngine | SideBySide  # what can be simulated


def deploy(pools: Pools | None, build: Callable[[], Engine], build_decode: Callable[[], Engine] | None = None) -> AnyEngine:
    """Engines as the pools say, one without pools. Raises UsageError for what is not played apart.

    `build` makes an engine; `build_decode` one of the decode pool, if these are not like the others.
    """
    if pools is None:
        return build()
    if pools.way == TOGETHER:
        return SideBySide([build() for _ in range(pools.n_prefill + pools.n_decode)])
    prefillers = [build() for _ in range(pools.n_prefill)]
    decoders = [(build_decode or build)() for _ in range(pools.n_decode)]
    for engine in (prefillers[0], decoders[0]):
        _check_apart(engine)
    return DisaggregatedEngine(pools.plan, prefillers, decoders, pools)


def _check_apart(engine: Engine) -> None:
    if isinstance(engine.options, StaticOptions):
        raise UsageError(
            "static batching ends a batch when its longest answer does: it cannot be split into prefill and decode."
        )
    if engine.layout.pp > 1:
        raise UsageError(
            "pipeline stages are not played with prefill and decode apart.\n  Leave the pipeline-parallel size or "
            "--disaggregation out; tensor parallelism goes with either."
        )
    if is_limited(engine.options):
        raise UsageError(
            "limits of the queue are not played with prefill and decode apart: which queue they mean differs by router.\n"
            "  Leave one of the two out."
        )
    if engine.state.n_drafts:
        raise UsageError(
            "speculation is not played with prefill and decode apart: whether the drafter's cache travels differs by engine.\n"
            "  Leave one of the two out."
        )
