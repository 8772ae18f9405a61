"""Duration of one step, from its tokens: a roofline with a few fitted efficiencies.

    t_step = max(t_gpu, t_host)                      where the host works ahead of the GPU, else their sum
    t_gpu  = linear layers(M) + prefill attention + decode attention + head + communication + drafting

Linear layers see all M tokens of the step at once, so a decode that shares a step with a chunk reads the weights for nothing.
Attention is summed per chunk and, for decodes, over the whole batch. Taking the larger of prefill and decode instead of adding
their attention is a known cause of predictions that are half of what is measured.

`StepCost(plan)` is called for every step and caches what depends on M alone; `StepCost.explain(plan)` gives the same time part
by part. Both are of one GPU out of `tp`; pipeline stages are `pipeline.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from longbench_sched.sim.bill import BillPart, StepBill, StepLoad, lines_of, load_of
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.kernels import Kernel, Products
from longbench_sched.sim.models import Experts, Gqa, Model
from longbench_sched.sim.speculation import Speculator
from longbench_sched.sim.step import StepPlan


@dataclass(frozen=True, slots=True)
class Parallel:
    """How a stage is spread over GPUs."""

    tp: int = 1  # attention and dense layers are split
    ep: int = 1  # experts are spread over so many GPUs; 1: each expert is split over the tp GPUs instead


@dataclass(slots=True)
class StepCost:
    """Prices the steps of one model on `parallel` GPUs of a kind."""

    gpu: Gpu
    model: Model
    calibration: Calibration = field(default_factory=Calibration)
    parallel: Parallel = Parallel()
    speculator: Speculator | None = None
    _products: Products = field(init=False)
    _head_products: Products = field(init=False)
    _linear_s: dict[int, float] = field(default_factory=dict)  # by tokens: few values occur again and again
    _head_s: dict[int, float] = field(default_factory=dict)
    _host_fixed_s: float = 0.0
    _decode_floor_s: float = 0.0
    _decode_s_per_key: float = 0.0
    _decode_flop_s_per_pair: float = 0.0

    def __post_init__(self) -> None:
        calibration, model, gpu = self.calibration, self.model, self.gpu
        self._products = Products.of(gpu, model.weights, calibration.gemm_eff)
        self._head_products = Products.of(gpu, "bf16", calibration.gemm_eff)
        self._host_fixed_s = calibration.host_step_s + calibration.host_per_layer_s * model.layers
        self._decode_floor_s = gpu.attention.decode_floor_s * model.layers
        eff = calibration.kv_bandwidth_eff or gpu.attention.decode_kv_eff
        self._decode_s_per_key = model.kv_bytes_per_token(self.parallel.tp) / (eff * gpu.bandwidth)
        flop = model.layers * model.attention.decode_flop_per_pair() / self.parallel.tp
        self._decode_flop_s_per_pair = flop / (self._attention_eff * gpu.bf16_flops)

    def __call__(self, plan: StepPlan) -> float:
        """Seconds the step takes. An empty plan takes none."""
        n_decodes = len(plan.decodes)
        if not n_decodes and plan.is_empty:
            return 0.0
        context = n_decodes
        for sequence in plan.decodes:
            context += sequence.computed
        decode_tokens, pairs = n_decodes, float(context)
        for verify in plan.verifies:
            keys = verify.sequence.computed + verify.n_tokens
            decode_tokens += verify.n_tokens
            context += keys
            pairs += keys * verify.n_tokens
        prefill_tokens, n_last, attention_s = 0, 0, 0.0
        for chunk in plan.chunks:
            prefill_tokens += chunk.n_tokens
            n_last += chunk.is_last
            attention_s += self.prefill_attention_s(chunk.n_tokens, chunk.start)
            if chunk.start:
                attention_s += self.calibration.chunk_penalty_s
        n_decodes += len(plan.verifies)
        if n_decodes:
            attention_s += self.decode_attention_s(context, pairs)
        tokens = prefill_tokens + decode_tokens + plan.padding
        gpu_s = attention_s + self.linear_s(tokens) + self.head_s(n_last + decode_tokens)
        return self._with_host(gpu_s, [(chunk.n_tokens, chunk.start) for chunk in plan.chunks], n_decodes, context)

    def decode_s(self, n_requests: int, context: int) -> float:
        """Seconds of a step that only decodes; `context` is the sum of the keys that each request's token sees."""
        gpu_s = self.linear_s(n_requests) + self.head_s(n_requests) + self.decode_attention_s(context, context)
        return self._with_host(gpu_s, (), n_requests, context)

    def _with_host(self, gpu_s: float, chunks: Sequence[tuple[int, int]], n_decodes: int, context: int) -> float:
        """The step with what the host and a drafter add; chunks are (tokens, tokens before them)."""
        host_s = self._host_fixed_s + self.calibration.host_per_request_s * (n_decodes + len(chunks))
        if self.speculator is not None:
            gpu_s += self.draft_s(n_decodes, context) + self.draft_prefill_s(chunks)
            host_s += self.speculator.drafter.host_s_per_request * n_decodes
        return max(gpu_s, host_s) if self.calibration.is_host_overlapped else gpu_s + host_s

    def price(self, load: StepLoad) -> float:
        """Seconds of a step that is known by its load."""
        return self.bill(load).seconds

    def explain(self, plan: StepPlan) -> StepBill:
        """The same time as a call gives, part by part."""
        return self.bill(load_of(plan))

    def bill(self, load: StepLoad) -> StepBill:
        """Price a load part by part."""
        tokens = load.prefill_tokens + load.decode_tokens + load.padding
        if not load.chunks and not load.n_decodes:  # padding alone is no step
            return StepBill(0.0, 0.0, 0.0, (), load, 0.0, self.gpu.bandwidth)
        calibration = self.calibration
        kernels: list[tuple[str, Kernel]] = [("linear", one) for one in self._linear(self._tiled(tokens))]
        kernels += [("experts", one) for one in self._expert_layers(self._tiled(tokens))]
        kernels += [("prefill attention", self._prefill_attention(n, start)) for n, start, _ in load.chunks]
        if load.n_decodes:
            kernels.append(("decode attention", self._decode_attention(load.decode_context, load.pairs)))
        if load.n_sampled:
            kernels.append(("head", self._head(load.n_sampled)))
        if self.speculator is not None:
            kernels += [("drafting", one) for one in _drafting(self, self.speculator, load.n_decodes, load.decode_context)]
            kernels += [("drafting", one) for one in self._draft_prefill([(n, start) for n, start, _ in load.chunks])]
        parts = list(lines_of(kernels))
        n_late = sum(start > 0 for _, start, _ in load.chunks)
        if n_late and calibration.chunk_penalty_s:
            parts.append(BillPart("chunk penalty", n_late * calibration.chunk_penalty_s, 0.0, 0.0, "host"))
        comm_s = self.communication_s(tokens)
        if comm_s:
            parts.append(BillPart("communication", comm_s, 0.0, 0.0, "comm"))
        gpu_s = sum(part.seconds for part in parts)
        host_s = self._host_fixed_s + calibration.host_per_request_s * (load.n_decodes + len(load.chunks))
        if self.speculator is not None:
            host_s += self.speculator.drafter.host_s_per_request * load.n_decodes
        seconds = max(gpu_s, host_s) if calibration.is_host_overlapped else gpu_s + host_s
        peak_s = sum(kernel.peak_s for _, kernel in kernels)
        return StepBill(seconds, gpu_s, host_s, tuple(parts), load, peak_s, self.gpu.bandwidth)

    # -- linear layers

    def linear_s(self, tokens: int) -> float:
        """All linear layers and their communication, for a step of so many tokens."""
        known = self._linear_s.get(tokens)
        if known is None:
            m = self._tiled(tokens)
            known = sum(kernel.seconds for kernel in self._linear(m)) + sum(one.seconds for one in self._expert_layers(m))
            known = self._linear_s[tokens] = known + self.communication_s(tokens)
        return known

    def gemm_s(self, tokens: float, inputs: int, outputs: int) -> float:
        """Time of one matrix product [tokens, inputs] x [inputs, outputs] (`kernels.Products`)."""
        return self._products.kernel(tokens, inputs, outputs).seconds

    def _tiled(self, tokens: int) -> int:
        tile = self.calibration.tile_tokens
        return -(-tokens // tile) * tile

    def _linear(self, m: int) -> Iterator[Kernel]:
        model, tp = self.model, self.parallel.tp
        for kernel in self._projections(m):
            yield kernel.times(model.layers)
        if model.dense_layers():
            yield self._products.kernel(m, model.hidden, 2 * model.ffn / tp).times(model.dense_layers())
            yield self._products.kernel(m, model.ffn / tp, model.hidden).times(model.dense_layers())

    def _projections(self, m: int) -> Iterator[Kernel]:
        """Attention projections of a layer; of latent attention the compressions are whole on every GPU."""
        model, attention, tp = self.model, self.model.attention, self.parallel.tp
        product = self._products.kernel
        if isinstance(attention, Gqa):
            heads = attention.heads / tp
            yield product(m, model.hidden, (heads + 2 * max(1.0, attention.kv_heads / tp)) * attention.head_dim)
            yield product(m, heads * attention.head_dim, model.hidden)
            return
        heads = attention.heads / tp
        query = heads * (attention.nope_dim + attention.rope_dim)
        if attention.q_rank:
            yield product(m, model.hidden, attention.q_rank)
        yield product(m, attention.q_rank or model.hidden, query)
        yield product(m, model.hidden, attention.kv_rank + attention.rope_dim)
        yield product(m, attention.kv_rank, heads * (attention.nope_dim + attention.v_dim))
        yield product(m, heads * attention.v_dim, model.hidden)

    def _expert_layers(self, m: int) -> Iterator[Kernel]:
        model, experts = self.model, self.model.experts
        if experts is None:
            return
        n = model.layers - model.n_dense_layers
        yield self._experts(experts, m).times(n)
        yield self._products.kernel(m, model.hidden, experts.n_experts).times(n)
        if experts.n_shared:
            width = experts.n_shared * experts.ffn / self.parallel.tp
            yield self._products.kernel(m, model.hidden, 2 * width).times(n)
            yield self._products.kernel(m, width, model.hidden).times(n)

    def _experts(self, experts: Experts, m: int) -> Kernel:
        """Grouped products of the loaded experts: m top_k rows in all, weights of every expert that is hit.

        Each expert sees m top_k / loaded rows; being alike, all together keep the roofline of one.
        """
        hidden = self.model.hidden
        rows, loaded, width = float(m * experts.top_k), experts.n_loaded(m), experts.ffn / self.parallel.tp
        if self.parallel.ep > 1:
            share = self.calibration.expert_imbalance / self.parallel.ep
            rows, loaded = rows * share, min(loaded * share, experts.n_experts / self.parallel.ep)
            width = float(experts.ffn)
        n_bytes = loaded * 3 * hidden * width * self.model.weight_bytes + 2.0 * rows * (2 * hidden + 3 * width)
        return self._products.of_work(2.0 * rows * 3 * hidden * width, n_bytes, 2)

    # -- communication

    def communication_s(self, tokens: int) -> float:
        """Two all-reduces a layer under tensor parallelism; dispatch and combine under expert parallelism."""
        model, parallel = self.model, self.parallel
        total = 0.0
        message = tokens * model.hidden * 2.0
        if parallel.tp > 1:
            total += 2 * model.layers * self.all_reduce_s(message)
        if parallel.ep > 1 and model.experts is not None:
            wire = 2.0 * message * model.experts.top_k / parallel.ep * (parallel.ep - 1) / parallel.ep
            bandwidth = self.calibration.all_reduce_eff * self.gpu.nvlink / 2
            total += (model.layers - model.n_dense_layers) * (2 * self.calibration.all_reduce_floor_s + wire / bandwidth)
        return total

    def all_reduce_s(self, n_bytes: float) -> float:
        """Sum a message over the tp GPUs: floor + 2 (n - 1) / n x bytes / (eff x one direction of NVLink)."""
        n = self.parallel.tp
        bandwidth = self.calibration.all_reduce_eff * self.gpu.nvlink / 2
        return self.calibration.all_reduce_floor_s + 2.0 * (n - 1) / n * n_bytes / bandwidth

    # -- attention

    @property
    def _attention_eff(self) -> float:
        return self.calibration.attention_eff or self.gpu.attention.prefill_eff

    def prefill_attention_s(self, n_tokens: int, start: int) -> float:
        """Causal attention of a chunk after `start` tokens, all layers."""
        return self._prefill_attention(n_tokens, start).seconds

    def _prefill_attention(self, n_tokens: int, start: int) -> Kernel:
        """The target's, all layers.

        For chunks with a prefix the efficiency is measured nowhere: `attention_chunk_eff` is theirs to calibrate.
        """
        tp, eff = self.parallel.tp, self._attention_eff
        if start and self.calibration.attention_chunk_eff is not None:
            eff = self.calibration.attention_chunk_eff
        flop_per_pair = self.model.layers * self.model.attention.flop_per_pair() / tp
        pairs = n_tokens * (start + n_tokens / 2)
        return self._causal(flop_per_pair * pairs, n_tokens, pairs, (start + n_tokens) * self.model.kv_bytes_per_token(tp), eff)

    def _causal(self, flop: float, n_tokens: int, pairs: float, n_bytes: float, eff: float) -> Kernel:
        """Queries on keys before them; efficiency e s / (s + s0) with the effective key length s = 2 x pairs / queries.

        Without a window there are c L + c^2 / 2 pairs for c tokens after L, and s = 2 L + c.
        """
        fit, peak = self.gpu.attention, self.gpu.bf16_flops
        half = fit.half_tokens if self.calibration.attention_half_tokens is None else self.calibration.attention_half_tokens
        reach = 2.0 * pairs / n_tokens
        memory_s = n_bytes / (self._head_products.fit.mem_eff * self.gpu.bandwidth)
        return Kernel(flop, float(n_bytes), flop / (peak * eff * reach / (reach + half)), memory_s, flop / peak)

    def decode_attention_s(self, keys: int, pairs: float) -> float:
        """Attention of all decodes: each key is read once for its request, and works with every query of it."""
        return self._decode_floor_s + max(self._decode_s_per_key * keys, self._decode_flop_s_per_pair * pairs)

    def _decode_attention(self, keys: int, pairs: float) -> Kernel:
        flop = self.model.layers * self.model.attention.decode_flop_per_pair() / self.parallel.tp * pairs
        n_bytes = float(keys * self.model.kv_bytes_per_token(self.parallel.tp))
        compute_s, memory_s = self._decode_flop_s_per_pair * pairs, self._decode_s_per_key * keys
        return Kernel(flop, n_bytes, compute_s, memory_s, flop / self.gpu.bf16_flops, fixed_s=self._decode_floor_s)

    # -- head and drafts

    def head_s(self, n_sampled: int) -> float:
        """Logits of the sampled positions: mostly reading the head's weights."""
        if not n_sampled:
            return 0.0
        known = self._head_s.get(n_sampled)
        if known is None:
            known = self._head_s[n_sampled] = self._head(n_sampled).seconds
        return known

    def _head(self, n_sampled: int) -> Kernel:
        return self._head_products.kernel(n_sampled, self.model.hidden, self.model.vocab / self.parallel.tp)

    def draft_s(self, n_requests: int, context: int) -> float:
        """Drafting for so many requests with that many tokens of context together; 0 without speculation."""
        if self.speculator is None or not n_requests:
            return 0.0
        return sum(kernel.seconds for kernel in _drafting(self, self.speculator, n_requests, context))

    def draft_prefill_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Filling the drafter's own cache with chunks of prompts: (tokens, tokens before them)."""
        return sum(kernel.seconds for kernel in self._draft_prefill(chunks))

    def _draft_prefill(self, chunks: Sequence[tuple[int, int]]) -> Iterator[Kernel]:
        """A drafter with a cache reads the prompt as well: its weights for all chunks together, its attention for each.

        With a window w a token sees at most w keys: of c tokens after L the first a = w - L see all, the others w each.
        """
        if self.speculator is None or not chunks or not self.speculator.kv_bytes_per_token:
            return
        drafter, tp = self.speculator.drafter, self.parallel.tp
        tokens, weights = sum(n for n, _ in chunks), drafter.own_weights / tp
        yield self._products.of_work(2.0 * tokens * weights, weights * self.model.weight_bytes, 4 * drafter.layers)
        for n, start in chunks if drafter.flop_per_pair else ():
            window = drafter.window or start + n
            n_whole = max(0, min(n, window - start))
            pairs = n_whole * (start + n_whole / 2) + (n - n_whole) * window
            n_bytes = min(start, window) + n
            yield self._causal(
                drafter.flop_per_pair / tp * pairs, n, pairs, n_bytes * drafter.kv_bytes_per_token / tp, self._attention_eff
            )


def _drafting(cost: StepCost, speculator: Speculator, n_requests: int, context: int) -> Iterator[Kernel]:
    """The passes of a drafter; where drafts are drafted for in turn, passes at the cost of an accepted inner token."""
    drafter = speculator.drafter
    if not n_requests or not drafter.passes:
        return
    keys = context if drafter.window is None else min(context, n_requests * drafter.window)
    if speculator.inner is None:
        yield from (kernel.times(drafter.passes) for kernel in _draft_pass(cost, speculator, n_requests, keys, drafter.width))
        return
    inner = speculator.inner
    tokens = inner.acceptance.expected(context // n_requests, inner.n_drafts)
    rounds = drafter.passes / tokens
    for kernel in (
        *_drafting(cost, inner, n_requests, context),
        *_draft_pass(cost, speculator, n_requests, keys, inner.verify_tokens),
    ):
        yield kernel.times(rounds)


def _draft_pass(cost: StepCost, speculator: Speculator, n_requests: int, keys: int, width: int) -> Iterator[Kernel]:
    """One pass: its weights as one product (about four kernels a layer and the head), and its attention."""
    drafter, tp = speculator.drafter, cost.parallel.tp
    weights = drafter.read_weights / tp
    products = Products.of(cost.gpu, cost.model.weights, cost.calibration.gemm_eff)
    yield products.of_work(2.0 * weights * n_requests * width, weights * cost.model.weight_bytes, 4 * drafter.layers + 1)
    if drafter.layers:
        n_bytes = keys * drafter.read_kv_bytes_per_token / tp
        eff = cost.calibration.kv_bandwidth_eff or cost.gpu.attention.decode_kv_eff
        memory_s = n_bytes / (eff * cost.gpu.bandwidth)
        yield Kernel(0.0, n_bytes, 0.0, memory_s, fixed_s=drafter.layers * cost.gpu.attention.decode_floor_s)
