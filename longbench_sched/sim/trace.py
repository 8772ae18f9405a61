"""Trace: looks at every step and notes what it computes, what it costs and what it waits for.

Bills are made part by part (`StepCost.explain`), which costs more than the price alone: a trace makes a simulation two or three
times as slow.

A step is explained when it begins, before the next one is planned, which may preempt who is in it. Its row is written when the
step, or the micro-batch, is over: its end is the instant at which its tokens went out, to the ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longbench_sched.sim.bill import StepBill
from longbench_sched.sim.deployment import AnyEngine
from longbench_sched.sim.disaggregation import DisaggregatedEngine
from longbench_sched.sim.engine import Engine
from longbench_sched.sim.micro_batches import MicroBatch, PipedEngine
from longbench_sched.sim.side_by_side import SideBySide
from longbench_sched.sim.step import StepPlan
from longbench_sched.steps import TRANSFER, Phase, PoolFacts, StepColumns, StepFacts, StepTable


@dataclass(slots=True)
class _Row:
    """What is known of a step when it begins."""

    ints: dict[str, int]
    floats: dict[str, float]
    texts: dict[str, str]


@dataclass(slots=True)
class _Place:
    """An engine, as rows name it, and what of it is under way."""

    pool: str = ""
    instance: int = 0
    n_batches: int = 0
    n_preemptions: int = 0  # so far
    begun: tuple[_Row, float] | None = None  # and since when
    flight: deque[tuple[MicroBatch, list[_Row]]] = field(default_factory=deque)
    until_ns: dict[int, int] = field(default_factory=dict)  # end of the last row, by stage; of the link: `_LINK`


_LINK = -1


class StepTracer:
    """`transport.StepObserver` that keeps every step."""

    def __init__(self) -> None:
        self._columns = StepColumns()
        self._origin_ns = 0
        self._places: dict[int, _Place] = {}  # by `id`: engines are not hashable
        self._pools: list[PoolFacts] = []

    def attach(self, engine: AnyEngine, origin_ns: int) -> None:
        """Look at everything that goes on in it."""
        self._origin_ns = origin_ns
        match engine:
            case DisaggregatedEngine():
                engine.watch = self
                self._know("prefill", engine.prefillers)
                self._know("decode", engine.decoders)
            case SideBySide():
                self._know("", engine.engines)
            case _:
                self._know("", [engine])

    def table(self, facts: StepFacts) -> StepTable:
        """The steps so far, and whose they are."""
        return self._columns.table(replace(facts, pools=tuple(self._pools)))

    def _know(self, pool: str, engines: Sequence[Engine]) -> None:
        for instance, engine in enumerate(engines):
            self._places[id(engine)] = _Place(pool, instance)
            engine.watch = self
        first = engines[0]
        self._pools.append(PoolFacts(pool, len(engines), first.layout.pp, first.kv_tokens))

    # watch.Watch: steps

    def began(self, engine: Engine, begin_s: float) -> None:
        """The engine's step in progress has begun."""
        plan, place = engine.step, self._places[id(engine)]
        assert plan is not None
        (row,) = _rows(engine, place, plan, [engine.cost.explain(plan)])
        place.begun = row, begin_s

    def ended(self, engine: Engine, end_s: float) -> None:
        """It has ended."""
        place = self._places[id(engine)]
        assert place.begun is not None
        self._add_after(place, 0, *place.begun, end_s)
        place.begun = None

    def transferred(self, engine: Engine, begin_s: float, end_s: float, tokens: int, n_bytes: int) -> None:
        """KV has gone over the link of the engine."""
        place, columns = self._places[id(engine)], self._columns
        ints = dict.fromkeys(columns.ints, 0)
        ints |= {"instance": place.instance, "transfer_tokens": tokens, "transfer_bytes": n_bytes}
        row = _Row(ints, dict.fromkeys(columns.floats, 0.0), {"pool": place.pool, "phase": TRANSFER, "bound": "comm"})
        self._add_after(place, _LINK, row, begin_s, end_s)

    # watch.Watch: stages

    def sent(self, engine: PipedEngine, batch: MicroBatch) -> None:
        """A micro-batch has entered stage 0, and it is known when it will enter and leave the others."""
        place = self._places[id(engine)]
        place.flight.append((batch, _rows(engine, place, batch.plan, engine.stage_cost.explain(batch.plan))))

    def left(self, engine: PipedEngine, end_s: float) -> None:
        """The first of those on their way has left the last stage."""
        place = self._places[id(engine)]
        batch, rows = place.flight.popleft()
        for stage, (row, begin_s, left_s) in enumerate(zip(rows, batch.entered_s, batch.left_s, strict=True)):
            self._add_after(place, stage, row, begin_s, end_s if row is rows[-1] else left_s)

    def _add_after(self, place: _Place, lane: int, row: _Row, begin_s: float, end_s: float) -> None:
        """A row. The clock is in seconds: what rounding lets begin before the row before it ended begins then."""
        begin_ns, end_ns = (self._origin_ns + round(at_s * 1e9) for at_s in (begin_s, end_s))
        begin_ns = max(begin_ns, place.until_ns.get(lane, begin_ns))
        place.until_ns[lane] = end_ns
        self._columns.add(row.ints | {"begin_ns": begin_ns, "end_ns": end_ns}, row.floats, row.texts)


def _rows(engine: Engine, place: _Place, plan: StepPlan, bills: Sequence[StepBill]) -> list[_Row]:
    """Of the engine's next micro-batch, one for each stage."""
    # Not `plan.preempted`: a plan that only preempts is no step, and the next one is made at once.
    n_preempted = engine.state.n_preemptions - place.n_preemptions
    rows = [_row(engine, place, plan, bill, stage, n_preempted) for stage, bill in enumerate(bills)]
    place.n_batches += 1
    place.n_preemptions += n_preempted
    return rows


def _row(engine: Engine, place: _Place, plan: StepPlan, bill: StepBill, stage: int, n_preempted: int) -> _Row:
    load, state = bill.load, engine.state
    return _Row(
        {
            "instance": place.instance,
            "stage": stage,
            "micro_batch": place.n_batches,
            "n_prefill": len(load.chunks),
            "n_decode": load.n_decodes,
            "prefill_tokens": load.prefill_tokens,
            "decode_tokens": load.decode_tokens,
            "decode_context": load.decode_context,
            "n_running": len(state.running),
            "n_waiting": len(state.waiting),
            "n_admitted": len(plan.admitted),
            "n_preempted": n_preempted,
            "kv_used_tokens": state.kv.held * state.kv.block_tokens,
            "transfer_tokens": 0,
            "transfer_bytes": 0,
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
        {"pool": place.pool, "phase": phase_of(plan), "bound": bill.bound},
    )


def phase_of(plan: StepPlan) -> Phase:
    """Whether a step computes prompts, decodes, or both."""
    n_chunks = len(plan.chunks)
    if not n_chunks:
        return "decode"
    is_prefill_only = sum(1 for _ in plan.entries()) == n_chunks
    return "prefill" if is_prefill_only else "mixed"
