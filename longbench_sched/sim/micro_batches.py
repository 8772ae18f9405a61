"""An engine whose layers lie in stages: micro-batches follow each other through them.

The engine's own scheduler is called for the next micro-batch as soon as stage 0 is free, while earlier ones are on their way;
who waits for a token of one of these is in none of the others, but the next chunk of a prompt follows the one before. So as
many micro-batches as there are stages are on their way at once, and a token takes the time of all stages.

What is shared differs. vLLM, TensorRT-LLM, Sarathi and Orca have one scheduler over all requests. SGLang has slots (stages, and
`pp_async_batch_depth` more) that are visited in turn: each has running requests of its own, all share the queue, the memory and
the one prompt in progress; a slot is visited again when its last batch has left the last stage.

A stage takes its share of the layers, the last one the head besides, and the host of each stage launches its part. Activations
go on over NVLink. Where there is one scheduler, a request that comes while stage 0 is idle is looked at at once, which one
that waits for a result does a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from longbench_sched.errors import UsageError
from longbench_sched.sim.bill import StepBill, load_of
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine, Glide, vllm_state
from longbench_sched.sim.pipeline import DynamicChunking, Pipeline, chunk_price, fit_quadratic, hand_off_s_per_token
from longbench_sched.sim.policy.sarathi import FastgenOptions
from longbench_sched.sim.policy.sglang import Sglang, SglangNote, SglangOptions
from longbench_sched.sim.policy.vllm_v1 import VllmV1, VllmV1Options
from longbench_sched.sim.step import Sequence, StepPlan

_INSTANT_S = 0.6e-9  # what lies closer together is one instant: callers count whole ns


@dataclass(slots=True)
class MicroBatch:
    """One plan on its way."""

    plan: StepPlan
    slot: int
    entered_s: list[float]  # by stage
    left_s: list[float]


@dataclass(slots=True)
class _Slot:
    """What a slot of SGLang has for itself."""

    running: list[Sequence] = field(default_factory=list)
    note: object | None = None
    is_out: bool = False  # its micro-batch is on its way


@dataclass(frozen=True, slots=True)
class StageCost:
    """Prices a plan stage by stage."""

    cost: StepCost
    pipeline: Pipeline

    @classmethod
    def of(cls, cost: StepCost, layers: tuple[int, ...]) -> StageCost:
        """Stages on GPUs of one machine."""
        calibration = cost.calibration
        bandwidth = calibration.all_reduce_eff * cost.gpu.nvlink / 2
        per_token = hand_off_s_per_token(cost.model.hidden, bandwidth)
        return cls(cost, Pipeline(layers, 0.0, per_token, calibration.all_reduce_floor_s))

    def __call__(self, plan: StepPlan) -> list[float]:
        """Seconds that the plan takes in each stage."""
        return [self._both(gpu_s, host_s) for gpu_s, host_s in self._times(self.cost.bill(load_of(plan)))]

    def explain(self, plan: StepPlan) -> list[StepBill]:
        """The same time as a call gives, part by part, of one GPU of each stage: its share of layers; of the last, the head."""
        bill = self.cost.bill(load_of(plan))
        heads = [part for part in bill.parts if part.name == "head"]
        head_peak_s = sum(part.flop for part in heads) / self.cost.gpu.bf16_flops
        bills = []
        for stage, (gpu_s, host_s) in enumerate(self._times(bill)):
            share, is_last = self.pipeline.shares[stage], stage == self.pipeline.n_stages - 1
            parts = [
                replace(part, seconds=share * part.seconds, flop=share * part.flop, n_bytes=share * part.n_bytes)
                for part in bill.parts
                if part.name != "head"
            ]
            peak_s = share * (bill.peak_s - head_peak_s) + head_peak_s * is_last
            parts += heads if is_last else []
            seconds = self._both(gpu_s, host_s)
            bills.append(StepBill(seconds, gpu_s, host_s, tuple(parts), bill.load, peak_s, bill.bandwidth))
        return bills

    def _both(self, gpu_s: float, host_s: float) -> float:
        return max(gpu_s, host_s) if self.cost.calibration.is_host_overlapped else gpu_s + host_s

    def _times(self, bill: StepBill) -> list[tuple[float, float]]:
        """Seconds of the GPU and of the host in each stage."""
        calibration = self.cost.calibration
        head_s = sum(part.seconds for part in bill.parts if part.name == "head")
        host_s = calibration.host_step_s + calibration.host_per_request_s * (len(bill.load.chunks) + bill.load.n_decodes)
        times = []
        for stage, n in enumerate(self.pipeline.layers):
            gpu_s = self.pipeline.stage_s(bill.gpu_s - head_s, stage)
            if stage == self.pipeline.n_stages - 1:
                gpu_s += head_s
            times.append((gpu_s, host_s + calibration.host_per_layer_s * n))
        return times


@dataclass(slots=True)
class PipedEngine(Engine):
    """An engine of several stages. `begin` may be called at any time: it starts what can be started."""

    stage_cost: StageCost = field(kw_only=True)
    n_slots: int = field(kw_only=True)  # micro-batches on their way at most
    has_own_batches: bool = field(kw_only=True, default=False)  # every slot, as in SGLang
    places: int = field(kw_only=True, default=0)  # requests that run at once, of all slots and of one
    places_of_slot: int = field(kw_only=True, default=0)
    flight: deque[MicroBatch] = field(default_factory=deque)  # in the order in which they were sent
    _free_at_s: list[float] = field(default_factory=list)
    _slots: list[_Slot] = field(default_factory=list)
    _next_slot: int = 0

    def __post_init__(self) -> None:
        self.state.is_piped = True
        self._free_at_s = [0.0] * self.stage_cost.pipeline.n_stages
        self._slots = [_Slot() for _ in range(self.n_slots)]

    @property
    def is_concurrent(self) -> bool:
        """Whether something can begin while something else goes on."""
        return True

    def begin(self, now_s: float) -> float | None:
        """Send a micro-batch if one can be sent; seconds until something happens. None: nothing will by itself."""
        free_s = self._free_at_s[0]
        if free_s <= now_s + _INSTANT_S and (batch := self._next(now_s)) is not None:
            self.flight.append(batch)
            free_s = self._free_at_s[0]
        if not self.flight:
            return None
        ends_s = self.flight[0].left_s[-1]
        if now_s + _INSTANT_S < free_s < ends_s and len(self.flight) < self.n_slots:
            return free_s - now_s
        return max(ends_s - now_s, 0.0)

    def end(self, end_s: float) -> list[Sequence]:
        """Take what has left the last stage; the sequences that got tokens, each `yielded_now` of them."""
        yielded: list[Sequence] = []
        while self.flight and self.flight[0].left_s[-1] <= end_s + _INSTANT_S:
            batch = self.flight.popleft()
            self._slots[batch.slot].is_out = False
            if self.watch is not None:
                self.watch.left(self, end_s)
            yielded += self._advance(batch.plan, end_s)
        return yielded

    def glide(self, end_ns: int, until_ns: int | None) -> Glide | None:
        """Steps overlap: there is nothing to take at once."""
        return None

    # -- the next micro-batch

    def _next(self, now_s: float) -> MicroBatch | None:
        """Of the scheduler's next plan, or of the next slot that has something to do."""
        state = self.state
        if not (state.running or state.waiting):
            state.n_planned = 0  # idle
            return None
        if not self.has_own_batches:
            plan = self._schedule(now_s) if len(self.flight) < self.n_slots else None
            return None if plan is None else self._send(plan, 0, now_s)
        for _ in self._slots:
            index = self._next_slot
            slot = self._slots[index]
            if slot.is_out:
                return None
            self._next_slot = (index + 1) % self.n_slots
            plan = self._of_slot(slot, now_s)
            if plan is not None:
                return self._send(plan, index, now_s)
        return None

    def _schedule(self, now_s: float) -> StepPlan | None:
        """The next plan, its blocks taken; None if it computes nothing."""
        while True:
            plan = self._reserved(now_s)
            if not plan.is_empty:
                return plan
            if not plan.preempted:
                return None

    def _of_slot(self, slot: _Slot, now_s: float) -> StepPlan | None:
        """The scheduler sees the running requests of this slot and the prompt in progress, wherever that was last."""
        state = self.state
        last = state.note if isinstance(state.note, SglangNote) else None
        chunked = last.chunked if last is not None and last.chunked is not None and last.chunked.is_partial else None
        own = [one for one in slot.running if one.is_running and one is not chunked]
        if chunked is not None and chunked.is_running:
            own.append(chunked)
        mine = set(own)
        others = [one for one in state.running if one not in mine]
        if last is not None:
            note = slot.note if isinstance(slot.note, SglangNote) else SglangNote(last.ratio)
            state.note = replace(note, ratio=last.ratio, chunked=last.chunked)
        policy = self.policy
        assert isinstance(policy, Sglang)
        policy.elsewhere = others
        policy.places = min(self.places_of_slot, len(own) + max(self.places - len(state.running), 0))
        state.running = own
        plan = self._schedule(now_s)
        slot.running, slot.note = [one for one in state.running if not one.is_partial], state.note
        state.running = [*others, *state.running]
        return plan

    def _send(self, plan: StepPlan, slot: int, now_s: float) -> MicroBatch:
        """Through all stages: into each when it is free and the one above has passed the batch on."""
        pipeline = self.stage_cost.pipeline
        stage_s = self.stage_cost(plan)
        entered_s = pipeline.pass_down(self._free_at_s, now_s, stage_s, plan.n_tokens)
        batch = MicroBatch(plan, slot, entered_s, [a + b for a, b in zip(entered_s, stage_s, strict=True)])
        if self.watch is not None:
            self.watch.sent(self, batch)  # before what it computes counts as computed
        self.state.board(plan)
        self._slots[slot].is_out = True
        self.counters.n_steps += 1
        self.counters.busy_s += stage_s[0]
        return batch


# SGLang's own check of its arguments; reports on vLLM 0.25 to 0.29, where a head or draft model does not start in stages.
_REFUSES_DRAFTS_IN_STAGES: Mapping[type, str] = {SglangOptions: "SGLang", VllmV1Options: "vLLM"}


def in_stages(engine: Engine) -> PipedEngine:
    """The idle engine with its layers in stages. Raises UsageError for what is not played with stages."""
    options, layout = engine.options, engine.layout
    if engine.state.n_drafts:
        refuses = _REFUSES_DRAFTS_IN_STAGES.get(type(options))
        raise UsageError(
            f"{refuses} does not start with speculation and pipeline stages together.\n  Leave one of the two out."
            if refuses
            else "speculation and pipeline stages are not played together here: what a drafter costs at the last stage of "
            f"{engine.name} is not known.\n  Leave one of the two out."
        )
    if isinstance(options, SglangOptions) and options.enable_mixed_chunk:
        raise UsageError(
            "SGLang does not start with pipeline stages and --enable-mixed-chunk together.\n  Leave one of the two out."
        )
    if isinstance(options, FastgenOptions):
        raise UsageError(
            "DeepSpeed-FastGen has no pipeline stages. Leave the pipeline-parallel size out, or give --engine sarathi."
        )
    policy, state, n_slots, places, cap = engine.policy, engine.state, layout.pp, 0, 0
    match options:
        case VllmV1Options():
            # A token comes back from the last stage before the next can be computed, so nothing is planned on trust.
            scheduled = replace(options, async_scheduling=False)
            policy, state = VllmV1(scheduled), vllm_state(scheduled, state.kv.total)
        case SglangOptions():
            policy = Sglang(options, _dynamic(engine, options))
            places = options.max_running(state.kv.total * state.kv.block_tokens)
            cap = options.pp_max_micro_batch_size or max(places // layout.pp, 1)
            n_slots += options.pp_async_batch_depth
    return PipedEngine(
        engine.name,
        engine.gpu,
        engine.model,
        options,
        engine.context,
        policy,
        state,
        engine.cost,
        stage_cost=StageCost.of(engine.cost, layout.stages(engine.model)),
        n_slots=n_slots,
        has_own_batches=isinstance(options, SglangOptions),
        places=places,
        places_of_slot=cap,
    )


def _dynamic(engine: Engine, options: SglangOptions) -> Callable[[int], int] | None:
    """How SGLang cuts a prompt that goes through stages; None: chunks of one size."""
    chunk = options.chunked_prefill_size or -1
    if not options.enable_dynamic_chunking or chunk < 0:
        return None
    fit = fit_quadratic(chunk_price(engine.cost), chunk)
    if fit is None:
        return None  # as the engine does when its profile does not bend
    return DynamicChunking(
        chunk, fit, options.dynamic_chunking_smooth_factor, options.page_size, engine.context, options.max_prefill_tokens
    ).next_chunk
