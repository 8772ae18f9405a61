"""Drives an engine over a list of arrivals and checks the laws that hold for every scheduler, on every step.

G1 tokens of a step within the budget, above 0 unless idle; G2 running within the limit; G3 blocks conserved and enough for
what is computed; G4 chunks contiguous, in order, the whole prompt; G5 a token only when everything before it is computed; G6
one token a decode; G7 nothing lost, time never backwards; G8 no empty step while something could run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longbench_sched.sim.content import Content, prompt_content
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine, sglang_state, trtllm_state, vllm_state
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.kv_blocks import KvBlocks
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.policy.orca import OrcaOptions
from longbench_sched.sim.policy.sarathi import SarathiOptions
from longbench_sched.sim.policy.sglang import Sglang, SglangOptions
from longbench_sched.sim.policy.static import StaticOptions
from longbench_sched.sim.policy.trtllm import Trtllm, TrtllmOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0Options
from longbench_sched.sim.policy.vllm_v1 import VllmV1, VllmV1Options
from longbench_sched.sim.prefix_cache import PrefixCache
from longbench_sched.sim.radix_cache import RadixCache
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Sequence as Request
from longbench_sched.sim.step import StepPlan

H200, QWEN = GPUS["H200"], MODELS["Qwen2.5-Coder-7B"]


@dataclass(frozen=True)
class Arrival:
    at_s: float
    isl: int
    osl: int
    stop_at: int | None = None
    to_length: bool = True
    priority: int = 0
    group: int | None = None  # whose first `prefix` tokens are common to the group
    prefix: int = 0

    def content(self, request_id: int) -> Content | None:
        """The prompt by name, if any of it may be shared."""
        if self.group is None:
            return None
        return prompt_content(request_id, self.isl, group=self.group, prefix_tokens=self.prefix)


@dataclass
class Limits:
    """What one step may hold: tokens, and running requests after it has begun."""

    tokens: Callable[[StepPlan], int]
    running: int


@dataclass
class Story:
    """What happened, step by step."""

    plans: list[list[tuple[int, int, int, str]]] = field(default_factory=list)  # (id, tokens, start, kind)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    tokens_at: dict[int, list[float]] = field(default_factory=dict)
    ends_s: list[float] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def vllm(kv_tokens: int = 1 << 20, **flags) -> Engine:
    """A vLLM with so much KV memory that plans one step at a time."""
    options = VllmV1Options(**{"async_scheduling": False, **flags}).resolved(H200, QWEN.context)
    state = vllm_state(options, kv_tokens // options.block_size)
    return Engine("vllm", H200, QWEN, options, QWEN.context, VllmV1(options), state, StepCost(H200, QWEN))


def sglang(kv_tokens: int = 1 << 20, kind=SglangOptions, **flags) -> Engine:
    options = kind(**flags).resolved(H200, QWEN.context)
    state = sglang_state(options, kv_tokens // options.page_size)
    return Engine("sglang", H200, QWEN, options, QWEN.context, Sglang(options), state, StepCost(H200, QWEN))


def trtllm(kv_tokens: int = 1 << 20, **flags) -> Engine:
    options = TrtllmOptions(**flags).resolved(H200, QWEN.context)
    state = trtllm_state(options, kv_tokens // options.tokens_per_block)
    return Engine("trtllm", H200, QWEN, options, QWEN.context, Trtllm(options), state, StepCost(H200, QWEN))


def paged(name: str, policy, options, kv_tokens: int = 1 << 20, n_drafts: int = 0) -> Engine:
    """An engine with plain paged memory: vllm-v0, static, orca, sarathi."""
    options = options.resolved(H200, QWEN.context)
    state = SchedulerState(KvBlocks(kv_tokens // options.block_size, options.block_size), n_drafts=n_drafts)
    return Engine(name, H200, QWEN, options, QWEN.context, policy(options), state, StepCost(H200, QWEN))


def limits_of(engine: Engine) -> Limits:
    options = engine.options
    match options:
        case VllmV1Options():
            return Limits(lambda plan: options.max_num_batched_tokens, options.max_num_seqs)
        case SglangOptions():
            places = options.max_running(engine.state.kv.total * engine.state.kv.block_tokens)
            chunk = options.chunked_prefill_size

            def tokens(plan: StepPlan) -> int:
                """SG-3: a decode step is bounded by the places, a prefill batch by the chunk, or it is one oversized prompt."""
                if not plan.chunks:
                    return places * (options.speculative_num_draft_tokens or 1)
                if chunk > 0:
                    return max(chunk, len(plan.decodes))
                return plan.n_tokens if len(plan.chunks) == 1 else options.max_prefill_tokens

            return Limits(tokens, places)
        case TrtllmOptions():
            # Stated exception: what a paused request had generated may make it longer than a step; it then runs alone.
            def most(plan: StepPlan) -> int:
                is_outgrown = (
                    len(plan.chunks) == 1 and plan.chunks[0].sequence.generated > 0 and not options.enable_chunked_prefill
                )
                return max(options.max_num_tokens, plan.n_tokens if is_outgrown else 0)

            return Limits(most, options.max_batch_size)
        case VllmV0Options():
            k = options.num_speculative_tokens
            return Limits(lambda plan: options.max_num_batched_tokens + k * options.max_num_seqs, options.max_num_seqs)
        case StaticOptions() | OrcaOptions():  # no budget of tokens
            return Limits(lambda plan: plan.n_tokens, options.max_num_seqs)
        case SarathiOptions():
            return Limits(lambda plan: options.token_budget, options.max_num_seqs)


def drive(
    engine: Engine, arrivals: Sequence[Arrival], each_step: Callable[[StepPlan, SchedulerState], None] | None = None
) -> Story:
    """Run to the end, checking every step."""
    story, state, limits = Story(), engine.state, limits_of(engine)
    pending = sorted(arrivals, key=lambda arrival: arrival.at_s)
    now_s = 0.0
    next_start: dict[int, int] = {}
    while True:
        while pending and pending[0].at_s <= now_s:
            arrival = pending.pop(0)
            request = engine.submit(
                arrival.isl,
                arrival.osl,
                now_s,
                stop_at=arrival.stop_at,
                to_length=arrival.to_length,
                content=arrival.content(engine.counters.n_arrived),
                priority=arrival.priority,
            )
            story.requests.append(request)
            next_start[request.id] = 0
        n_before = engine.counters.generated_tokens
        duration_s = engine.begin(now_s)
        plan = engine.step
        if plan is None:
            assert not state.running, "G8: requests hold places and nothing is computed"
            assert not state.waiting, "G8: the queue waits before an idle engine"
            if not pending:
                break
            now_s = pending[0].at_s
            continue
        assert duration_s > 0, "G7: time stands still"
        if plan.is_empty:  # a batch is being formed
            assert plan.wait_s == duration_s
            assert not state.running
            assert engine.is_concurrent
            if pending and pending[0].at_s < now_s + duration_s:
                now_s = pending[0].at_s
                continue
            now_s += duration_s
            assert engine.end(now_s) == []
            continue
        _check_plan(plan, state, limits, next_start, story)
        if each_step is not None:
            each_step(plan, state)
        entries = [entry for entry in plan.entries() if entry.sequence.finish is None]
        expected = {entry.sequence: entry for entry in entries if entry.start + entry.n_tokens >= entry.sequence.length}
        if state.is_ahead:  # some have been preempted by the plan for the next step: their tokens come all the same
            expected |= {entry.sequence: entry for entry in entries if entry.kind != "prefill"}
        now_s += duration_s
        yielded = engine.end(now_s)
        assert set(yielded) == set(expected), "G5: a token exactly where the last missing token was computed"
        assert len(yielded) == len(expected), "G6: one line each"
        for request in yielded:
            most = expected[request].n_tokens if expected[request].kind == "verify" else 1
            assert 1 <= request.yielded_now <= most, "G6, SP-1: one token, with drafts at most one more than drafts"
            if next_start[request.id] == request.computed + most - request.yielded_now:
                next_start[request.id] = request.computed  # SP-4: what was rejected is computed again
            if request.finish is None and not state.is_ahead:
                assert request.left_to_compute == 1, "SP-4: the cache holds what was accepted, up to the last token but one"
            story.tokens_at.setdefault(request.id, []).extend([now_s] * request.yielded_now)
        n_yielded = sum(request.yielded_now for request in yielded)
        assert engine.counters.generated_tokens == n_before + n_yielded
        story.ends_s.append(now_s)
        _check_blocks(state, story)
    _check_end(engine, story)
    return story


def _check_plan(plan: StepPlan, state: SchedulerState, limits: Limits, next_start: dict[int, int], story: Story) -> None:
    entries = list(plan.entries())
    story.plans.append([(entry.sequence.id, entry.n_tokens, entry.start, entry.kind) for entry in entries])
    story.admitted += [request.id for request in plan.admitted]
    story.preempted += [request.id for request in plan.preempted]
    assert 0 < plan.n_tokens <= limits.tokens(plan), f"G1: {plan.n_tokens} tokens"
    assert len(state.running) <= limits.running, "G2"
    assert len({id(entry.sequence) for entry in entries}) == len(entries), "one line a request"
    assert len({id(request) for request in state.sequences()}) == len(state.running) + len(state.waiting), "G7: in one place"
    for request in plan.admitted:
        hit = plan.hits.get(request, 0)
        assert hit < request.length, "V1-7: the last token is always computed"
        next_start[request.id] = hit
    for entry in entries:
        request = entry.sequence
        if state.is_ahead and (not request.is_running or request.finish is not None):
            continue  # preempted by the plan for the next step
        assert request in state.running, "only running requests are computed"
        assert entry.start == request.computed, "G4"
        assert entry.start == next_start[request.id], "G4: contiguous and in order"
        if entry.kind == "prefill":
            assert 0 < entry.n_tokens <= request.length - entry.start, "G4: not beyond the end"
        next_start[request.id] = entry.start + entry.n_tokens
        needed = state.kv.blocks_for(entry.start + entry.n_tokens)
        assert request.blocks >= needed, "G3: computed without memory"


def _check_blocks(state: SchedulerState, story: Story) -> None:
    kv = state.kv
    held = sum(request.blocks for request in state.running)
    if isinstance(kv, PrefixCache):
        held = blocks_held(state.running, kv)
        assert 0 <= kv.idle <= kv.free, "G3: idle blocks are free ones"
    if isinstance(kv, RadixCache):
        own = sum(request.blocks - request.kept // kv.block_tokens for request in state.running)
        held = own + kv.locked_tokens() // kv.block_tokens
        assert 0 <= kv.idle <= kv.free, "SG-6: free + evictable + locked = capacity"
    assert kv.free >= 0
    assert held == kv.held, "G3: free + held = total"
    assert all(request.blocks == 0 for request in state.waiting), "G3: a waiting request holds none"
    assert all(request.blocks == 0 for request in story.requests if request.finish), "G3: a finished request holds none"


def blocks_held(running: Sequence[Request], kv: PrefixCache) -> int:
    """Blocks held, a shared one counted once; every holder of a run must be among them."""
    shared: dict[int, int] = {}
    own = 0
    for request in running:
        known = 0
        for run in request.table:
            filled = request.filled if kv.is_filled_told else request.computed
            end = run.hi if run.owner is None else min(max(filled // kv.block_tokens, run.lo), run.hi)
            assert request in run.holders, "G3: whoever holds a run is known to it"
            assert set(run.holders) <= set(running), "G3: nobody who has gone holds anything"
            shared[id(run)] = end - run.lo
            known += end - run.lo
        own += request.blocks - known
    return own + sum(shared.values())


def _check_end(engine: Engine, story: Story) -> None:
    assert engine.state.kv.free == engine.state.kv.total, "G3: everything is given back"
    for request in story.requests:
        wanted = min(request.max_new, request.stop_at or request.max_new)
        assert request.generated == wanted, "G7: every request ends with what it asked for"
        assert request.finish == ("stop" if request.stop_at is not None and request.stop_at <= request.max_new else "length")
        assert len(story.tokens_at[request.id]) == wanted
        assert story.tokens_at[request.id] == sorted(story.tokens_at[request.id]), "G7: time runs forward"
