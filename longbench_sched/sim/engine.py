"""The engine: a step loop over a clock that someone else holds.

    begin(now)  schedule -> reserve -> cost      says how long the step takes
    end(then)   advance                          says who got a token

Between the two the engine is busy; requests may arrive and be aborted meanwhile. Nothing here reads a clock: the server hands
in wall time (compressed or not), a simulation virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.content import Content
from longbench_sched.sim.cost import Parallel, StepCost
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.layout import Layout, layout_of
from longbench_sched.sim.models import Model, as_served
from longbench_sched.sim.policy.orca import Orca, OrcaOptions
from longbench_sched.sim.policy.recompute import WATERMARK
from longbench_sched.sim.policy.sarathi import FastgenOptions, Sarathi, SarathiOptions
from longbench_sched.sim.policy.sglang import Sglang, Sglang042Options, SglangOptions
from longbench_sched.sim.policy.static import Static, StaticOptions
from longbench_sched.sim.policy.trtllm import Trtllm, TrtllmOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0, VllmV0Options
from longbench_sched.sim.policy.vllm_v1 import VllmV1, VllmV1Options
from longbench_sched.sim.prefix_cache import PrefixCache
from longbench_sched.sim.queue_limit import Full, full_queue
from longbench_sched.sim.radix_cache import RadixCache
from longbench_sched.sim.state import Accepted, Policy, SchedulerState
from longbench_sched.sim.step import Sequence, StepPlan
from longbench_sched.sim.watch import Watch

EngineOptions = (
    VllmV1Options | VllmV0Options | SglangOptions | TrtllmOptions | StaticOptions | OrcaOptions | SarathiOptions
)  # Sglang042Options and FastgenOptions are presets of theirs
Dialect = Literal["vllm", "sglang", "trtllm"]


@dataclass(slots=True)
class Counters:
    """What has happened since the engine started."""

    n_arrived: int = 0
    n_steps: int = 0
    prompt_tokens: int = 0  # of prompts whose prefill has ended
    prefill_tokens: int = 0  # computed in chunks, recomputation included
    generated_tokens: int = 0
    n_verified: int = 0  # verifications, the tokens drafted for them, and how many of these were accepted
    draft_tokens: int = 0
    accepted_tokens: int = 0
    busy_s: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


@dataclass(frozen=True, slots=True)
class Glide:
    """Steps that were all the same: each of the sequences got one token at each of the instants."""

    sequences: list[Sequence]
    ends_ns: list[int]


@dataclass(slots=True)
class Engine:
    """Policy, memory and cost of one engine instance. Times are seconds since it started."""

    name: str  # of `PLAYED`
    gpu: Gpu
    model: Model
    options: EngineOptions  # resolved
    context: int  # longest prompt + output it takes
    policy: Policy
    state: SchedulerState
    cost: StepCost
    counters: Counters = field(default_factory=Counters)
    step: StepPlan | None = None  # the one in progress
    accepted: Accepted | None = None  # how many drafts of a verification hold; None: none
    watch: Watch | None = None  # is told of every step that computes something
    _ahead: StepPlan | None = None  # planned while the one in progress runs
    _is_news: bool = False  # somebody came or was aborted since the last plan was made

    def submit(
        self,
        isl: int,
        max_new: int,
        now_s: float,
        *,
        stop_at: int | None = None,
        to_length: bool = True,
        content: Content | None = None,
        priority: int = 0,
    ) -> Sequence:
        """Put a request into the queue. The caller has checked it against `context` and `policy.refusal`.

        `content` names the tokens of a prompt that may share its beginning with others (`content.py`); None: with nobody.
        """
        sequence = Sequence(
            self.counters.n_arrived,
            isl,
            max_new,
            now_s,
            stop_at=stop_at,
            runs_to_length=to_length,
            content=content,
            priority=priority,
        )
        self.counters.n_arrived += 1
        self._is_news = True
        self.state.enqueue(sequence)
        return sequence

    def take_in(self, sequence: Sequence) -> None:
        """Let a sequence decode whose prompt was computed elsewhere: its KV has come, and its first token has gone out."""
        self.state.take_in(sequence)
        self.counters.n_arrived += 1
        self._is_news = True

    def abort(self, sequence: Sequence) -> None:
        """Drop a request that nobody waits for any more."""
        if sequence.finish is None:
            self.state.abort(sequence)
            self._is_news = True
            self.counters.finished["abort"] += 1

    def begin(self, now_s: float) -> float | None:
        """Start a step; the seconds it takes. None if there is nothing to do.

        An empty step is a wait for company, which is looked at again whenever something may have come.
        """
        assert self.step is None or self.step.is_empty
        self.step = None
        plan = self._ahead
        self._ahead = None
        if plan is None or plan.is_empty:
            plan = self._plan(now_s)
        if plan is None:
            return None
        self.step = plan
        if plan.is_empty:
            return plan.wait_s
        duration_s = self.cost(plan)
        if self.watch is not None:
            self.watch.began(self, now_s)  # before the plan made ahead changes what this step is seen with
        if self.state.is_ahead:
            self._ahead = self._reserved(now_s)
        self.counters.n_steps += 1
        self.counters.busy_s += duration_s
        return duration_s

    def end(self, end_s: float) -> list[Sequence]:
        """End the step in progress; the sequences that got tokens, each `yielded_now` of them."""
        plan = self.step
        assert plan is not None
        self.step = None
        if self.watch is not None and not plan.is_empty:
            self.watch.ended(self, end_s)
        return self._advance(plan, end_s)

    def _advance(self, plan: StepPlan, end_s: float) -> list[Sequence]:
        counters = self.counters
        yielded = self.state.advance(plan, end_s, self.accepted)
        for chunk in plan.chunks:
            counters.prefill_tokens += chunk.n_tokens
            if chunk.sequence.generated == 1 and chunk.sequence.first_token_s == end_s:
                counters.prompt_tokens += chunk.sequence.isl
        counters.generated_tokens += len(yielded)
        counters.n_verified += len(plan.verifies)
        for verify in plan.verifies:
            counters.draft_tokens += verify.n_drafts
        if plan.verifies:
            extra = sum(sequence.yielded_now for sequence in yielded) - len(yielded)
            counters.generated_tokens += extra
            counters.accepted_tokens += extra
        for sequence in yielded:
            if sequence.finish is not None:
                counters.finished[sequence.finish] += 1
        return yielded

    def glide(self, end_ns: int, until_ns: int | None) -> Glide | None:
        """End the step in progress, at `end_ns`, and all after it that are the same and end by `until_ns`, at once.

        Does what `end` and `begin` would do in turn, each step rounded to whole ns, as long as the same sequences decode:
        nobody comes, ends, or is preempted. None if that would be no more than one step. Afterwards no step is in progress.
        """
        plan, cost, state = self.step, self.cost, self.state
        if plan is None or not plan.is_steady or plan.padding or not isinstance(cost, StepCost):
            return None
        # Nobody has looked at them yet: the next plan may be another one.
        if self._is_news:
            return None
        if state.is_ahead and not (self._ahead is not None and self._ahead.is_steady and _is_same(self._ahead, plan)):
            return None
        sequences = [sequence for sequence in plan.decodes if sequence.finish is None]
        if len(sequences) < len(plan.decodes):
            return None
        limit = state.glide_limit(plan)
        if limit < 2:
            return None
        n = len(sequences)
        context = sum(sequence.computed for sequence in sequences) + n
        ends_ns = [end_ns]
        busy_s = 0.0
        while len(ends_ns) < limit:
            context += n
            duration_s = cost.decode_s(n, context)
            end_ns += max(1, round(duration_s * 1e9))
            if until_ns is not None and end_ns > until_ns:
                break
            ends_ns.append(end_ns)
            busy_s += duration_s
        if len(ends_ns) < 2:
            return None
        state.glide(plan, len(ends_ns))
        self.step = None
        counters = self.counters
        counters.n_steps += len(ends_ns) - 1
        counters.busy_s += busy_s
        counters.generated_tokens += n * len(ends_ns)
        return Glide(sequences, ends_ns)

    def _plan(self, now_s: float) -> StepPlan | None:
        """The next step that computes something, its blocks taken; None if there is nothing to do."""
        state = self.state
        while state.running or state.waiting:
            plan = self._reserved(now_s)
            if not plan.is_empty or plan.wait_s:
                return plan
            if not plan.preempted:
                return None
        state.n_planned = 0
        return None

    def _reserved(self, now_s: float) -> StepPlan:
        self._is_news = False
        plan = self.policy.schedule(self.state, now_s)
        self.state.reserve(plan, now_s)
        return plan

    @property
    def is_concurrent(self) -> bool:
        """Whether something can begin while something else goes on; else `begin` is called when a step has ended."""
        return self.step is not None and self.step.is_empty

    def refusal(self, isl: int, max_new: int) -> str | None:
        """Why a request can never run here, in the scheduler's terms; None if it can."""
        return self.policy.refusal(isl, max_new)

    def full_queue(self, isl: int) -> Full | None:
        """Why a prompt of that length finds no place in the queue; None if it does."""
        return full_queue(self.options, self.state.waiting, isl)

    @property
    def layout(self) -> Layout:
        """How it is spread over GPUs."""
        return layout_of(self.options)

    @property
    def n_gpus(self) -> int:
        """GPUs that it runs on."""
        return self.layout.n_gpus

    @property
    def where(self) -> str:
        """What it runs on."""
        return self.layout.on(self.gpu)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return len(self.state.waiting)

    @property
    def n_running(self) -> int:
        """Requests that hold a place."""
        return len(self.state.running)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into KV memory."""
        return self.state.kv.total * self.state.kv.block_tokens

    @property
    def is_caching(self) -> bool:
        """Whether prefixes are found again."""
        return self.state.kv.is_caching

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return self.state.kv.held / self.state.kv.total


def _is_same(one: StepPlan, other: StepPlan) -> bool:
    """Whether two steady plans decode the same sequences."""
    return len(one.decodes) == len(other.decodes) and all(a is b for a, b in zip(one.decodes, other.decodes, strict=True))


def build_engine(name: str, gpu: Gpu, model: Model, options: EngineOptions, calibration: Calibration | None = None) -> Engine:
    """An idle engine with its defaults resolved for this GPU and model. Raises UsageError if they do not go together."""
    if name not in PLAYED or not isinstance(options, PLAYED[name].options):
        raise UsageError(f"the embedded engine does not play {name!r} with these options. Known: {', '.join(PLAYED)}.")
    resolved = options.resolved(gpu, model.context)
    model = as_served(model, getattr(resolved, "quantization", ""), resolved.kv_cache_dtype)
    calibration = calibration or Calibration()
    if not _works_ahead(resolved):
        calibration = replace(calibration, is_host_overlapped=False)
    layout = layout_of(resolved)
    layout.check(model)
    cost = StepCost(gpu, model, calibration, Parallel(layout.tp))
    policy, state, context = _parts(gpu, model, resolved, layout)
    engine = Engine(name, gpu, model, resolved, context, policy, state, cost)
    if layout.pp == 1:
        return engine
    from longbench_sched.sim.micro_batches import in_stages  # which is built on this module

    return in_stages(engine)


def _works_ahead(options: EngineOptions) -> bool:
    """Whether the host plans the next step while the GPU computes this one."""
    match options:
        case VllmV1Options():
            return options.is_ahead
        case SglangOptions():
            return options.is_overlapped
        case TrtllmOptions():
            return True
    return False


def _parts(gpu: Gpu, model: Model, options: EngineOptions, layout: Layout) -> tuple[Policy, SchedulerState, int]:
    """Policy, idle state, and the longest prompt + output."""
    match options:
        case VllmV1Options():
            return _vllm(gpu, model, options, layout)
        case SglangOptions():
            return _sglang(gpu, model, options, layout)
        case TrtllmOptions():
            return _trtllm(gpu, model, options, layout)
        case VllmV0Options():
            return VllmV0(options), *_paged(gpu, model, options, layout, WATERMARK, options.num_speculative_tokens)
        case StaticOptions():
            return Static(options), *_paged(gpu, model, options, layout)
        case OrcaOptions():
            return Orca(options), *_paged(gpu, model, options, layout)
        case SarathiOptions():
            return Sarathi(options), *_paged(gpu, model, options, layout, WATERMARK)


def _paged(
    gpu: Gpu,
    model: Model,
    options: VllmV0Options | StaticOptions | OrcaOptions | SarathiOptions,
    layout: Layout,
    watermark: float = 0.0,
    n_drafts: int = 0,
) -> tuple[SchedulerState, int]:
    """Plain paged memory: whoever is admitted must leave the watermark free."""
    # A batch of padded prompts may be longer than memory; what is kept for activations has an end.
    step_tokens = min(options.step_tokens, 4 * (options.max_model_len or 0))
    usable_bytes = options.gpu_memory_utilization * gpu.memory_bytes - model.activation_bytes(step_tokens, layout.tp)
    blocks = layout.kv_capacity_tokens(gpu, model, usable_bytes) // options.block_size
    longest = (blocks - int(watermark * blocks)) * options.block_size
    context = options.max_model_len or model.context
    if context > longest:
        raise UsageError(_too_long(context, longest, layout.on(gpu), model))
    return SchedulerState(KvBlocks(blocks, options.block_size), n_drafts=n_drafts), context


def _vllm(gpu: Gpu, model: Model, options: VllmV1Options, layout: Layout) -> tuple[Policy, SchedulerState, int]:
    activation_bytes = model.activation_bytes(options.max_num_batched_tokens or 0, layout.tp)
    usable_bytes = options.gpu_memory_utilization * gpu.memory_bytes - activation_bytes
    # One block is a placeholder.
    blocks = layout.kv_capacity_tokens(gpu, model, usable_bytes) // options.block_size - 1
    context = options.max_model_len or model.context
    if context > blocks * options.block_size:
        raise UsageError(_too_long(context, blocks * options.block_size, layout.on(gpu), model))
    return VllmV1(options), vllm_state(options, blocks), context


def _too_long(context: int, longest: int, where: str, model: Model) -> str:
    return (
        f"max_model_len is {context}, but the KV cache of {where} holds {longest} tokens of {model.name}. "
        "Lower --max-model-len or raise --gpu-memory-utilization."
    )


def vllm_state(options: VllmV1Options, n_blocks: int) -> SchedulerState:
    """The state of an idle vLLM V1 with so many blocks."""
    is_filled_told = options.is_ahead or options.num_speculative_tokens > 0
    size = options.block_size
    kv = PrefixCache(n_blocks, size, is_filled_told=is_filled_told) if options.enable_prefix_caching else None
    return SchedulerState(
        kv or KvBlocks(n_blocks, size),
        is_by_priority=options.scheduling_policy == "priority",
        n_drafts=options.num_speculative_tokens,
        is_ahead=options.is_ahead,
    )


def _sglang(gpu: Gpu, model: Model, options: SglangOptions, layout: Layout) -> tuple[Policy, SchedulerState, int]:
    usable_bytes = (options.mem_fraction_static or 0.0) * gpu.memory_bytes
    tokens = min(layout.kv_capacity_tokens(gpu, model, usable_bytes), options.max_total_tokens or 1 << 60)
    pages = tokens // options.page_size
    context = max(0, min(options.context_length or model.context, pages * options.page_size - options.page_size - 1))
    return Sglang(options), sglang_state(options, pages), context


def sglang_state(options: SglangOptions, n_pages: int) -> SchedulerState:
    """The state of an idle SGLang with so many pages."""
    size = options.page_size
    tree = None
    if not options.disable_radix_cache:
        tree = RadixCache(n_pages, size, splits_prompt=options.profile.splits_prompt)
    return SchedulerState(tree or KvBlocks(n_pages, size), n_drafts=options.speculative_num_steps)


def _trtllm(gpu: Gpu, model: Model, options: TrtllmOptions, layout: Layout) -> tuple[Policy, SchedulerState, int]:
    usable_bytes = gpu.memory_bytes - model.activation_bytes(options.max_num_tokens, layout.tp)
    tokens = layout.kv_capacity_tokens(gpu, model, usable_bytes, options.kv_cache_free_gpu_memory_fraction)
    blocks = tokens // options.tokens_per_block
    context = min(options.max_seq_len or model.context, blocks * options.tokens_per_block)
    return Trtllm(options), trtllm_state(options, blocks), context


def trtllm_state(options: TrtllmOptions, n_blocks: int) -> SchedulerState:
    """The state of an idle TensorRT-LLM with so many blocks."""
    size, k = options.tokens_per_block, options.num_speculative_tokens
    cache = PrefixCache(n_blocks, size, is_filled_told=k > 0) if options.enable_block_reuse else None
    return SchedulerState(cache or KvBlocks(n_blocks, size), n_drafts=k)


@dataclass(frozen=True, slots=True)
class Played:
    """A scheduler that can be played: its flags, and whose HTTP interface it has."""

    options: type[EngineOptions]
    dialect: Dialect
    title: str


PLAYED: Mapping[str, Played] = {
    "vllm": Played(VllmV1Options, "vllm", "vLLM V1 0.33.0"),
    "vllm-v0": Played(VllmV0Options, "vllm", "vLLM V0 0.7.2"),
    "sglang": Played(SglangOptions, "sglang", "SGLang 0.5.23"),
    "sglang-0.4": Played(Sglang042Options, "sglang", "SGLang 0.4.2.post4"),
    "trtllm": Played(TrtllmOptions, "trtllm", "TensorRT-LLM"),
    "static": Played(StaticOptions, "vllm", "static batching"),
    "orca": Played(OrcaOptions, "vllm", "Orca"),
    "sarathi": Played(SarathiOptions, "vllm", "Sarathi-Serve, SARATHI"),
    "fastgen": Played(FastgenOptions, "vllm", "DeepSpeed-FastGen"),
}
OPTIONS: Mapping[str, Callable[[], EngineOptions]] = {name: played.options for name, played in PLAYED.items()}
