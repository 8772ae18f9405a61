"""Duration of one step, from its tokens: a roofline with a few fitted efficiencies.

    t_step = max(t_gpu, t_host)                      where the host works ahead of the GPU, else their sum
    t_gpu  = layers x sum of GEMMs(M) + prefill attention + decode attention + head

Linear layers see all M tokens of the step at once, so a decode that shares a step with a chunk reads the weights for nothing.
Attention is summed per chunk and, for decodes, over the whole batch. Taking the larger of prefill and decode instead of adding
their attention is a known cause of predictions that are half of what is measured.

Only `Calibration` holds numbers that are not properties of the GPU's kernels or of the model; each names its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.models import Experts, Gqa, Model
from longbench_sched.sim.state import StepPlan


@dataclass(frozen=True, slots=True)
class Calibration:
    """What an engine generation makes of the hardware: the numbers to fit when there is a measured run."""

    attention_eff: float | None = 0.47  # of the bf16 peak in prefill; None: what the best kernels reach
    attention_half_tokens: float | None = None  # None: as the GPU's fit
    kv_bandwidth_eff: float | None = None  # of the bandwidth in decode attention; None: as the GPU's fit
    host_step_s: float = 126e-6
    host_per_request_s: float = 4e-6
    host_per_layer_s: float = 32e-6
    is_host_overlapped: bool = True  # the next step is planned while this one runs
    chunk_penalty_s: float = 0.0  # a step with a chunk that has a prefix takes so much longer
    tile_tokens: int = 1  # M is rounded up to a multiple; 1 = off
    source: str = (
        "attention_eff: from the published rows of vLLM 0.7.2 (0.48) and SGLang 0.4.2 with 32K chunks (0.465) on an H200; "
        "host: public fit on vLLM 0.15 with an H100"
    )


@dataclass(slots=True)
class StepCost:
    """Prices the steps of one model on one GPU."""

    gpu: Gpu
    model: Model
    calibration: Calibration = field(default_factory=Calibration)
    _linear_s: dict[int, float] = field(default_factory=dict)  # by tokens: few values occur again and again
    _head_s: dict[int, float] = field(default_factory=dict)
    _host_fixed_s: float = 0.0
    _decode_floor_s: float = 0.0
    _decode_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        fit, calibration, model = self.gpu.fit, self.calibration, self.model
        self._host_fixed_s = calibration.host_step_s + calibration.host_per_layer_s * model.layers
        self._decode_floor_s = fit.decode_attention_floor_s * model.layers
        kv_eff = calibration.kv_bandwidth_eff or fit.decode_kv_eff
        self._decode_s_per_token = model.kv_bytes_per_token() / (kv_eff * self.gpu.bandwidth)

    def __call__(self, plan: StepPlan) -> float:
        """Seconds the step takes. An empty plan takes none."""
        n_decodes = len(plan.decodes)
        n_chunks = len(plan.chunks)
        if not n_decodes and not n_chunks:
            return 0.0
        tokens = n_decodes
        gpu_s = 0.0
        n_sampled = n_decodes
        for chunk in plan.chunks:
            tokens += chunk.n_tokens
            n_sampled += chunk.is_last
            gpu_s += self.prefill_attention_s(chunk.n_tokens, chunk.start)
            if chunk.start:
                gpu_s += self.calibration.chunk_penalty_s
        if n_decodes:
            context = n_decodes
            for sequence in plan.decodes:
                context += sequence.computed
            gpu_s += self._decode_floor_s + self._decode_s_per_token * context
        gpu_s += self.linear_s(tokens) + self.head_s(n_sampled)
        host_s = self._host_fixed_s + self.calibration.host_per_request_s * (n_decodes + n_chunks)
        return max(gpu_s, host_s) if self.calibration.is_host_overlapped else gpu_s + host_s

    def gemm_s(self, tokens: float, inputs: int, outputs: int, eff: float = 1.0) -> float:
        """Time of one matrix product [tokens, inputs] x [inputs, outputs].

        Formula of `KernelFit`; `eff` scales the compute efficiency (grouped experts).
        """
        fit, width = self.gpu.fit, self.model.weight_bytes
        peak = self.gpu.fp8_flops if width == 1 and self.gpu.fp8_flops else self.gpu.bf16_flops
        compute_s = 2.0 * tokens * inputs * outputs / (fit.gemm_eff * eff * peak)
        n_bytes = inputs * outputs * width + 2.0 * tokens * (inputs + outputs)
        memory_s = n_bytes / (fit.mem_eff * self.gpu.bandwidth)
        p = fit.gemm_power
        return float((compute_s**p + memory_s**p) ** (1.0 / p)) + fit.gemm_launch_s

    def linear_s(self, tokens: int) -> float:
        """All linear layers for a step of so many tokens."""
        known = self._linear_s.get(tokens)
        if known is not None:
            return known
        tile = self.calibration.tile_tokens
        m = -(-tokens // tile) * tile
        model = self.model
        per_layer = self._attention_projections_s(m)
        total = model.layers * per_layer
        total += model.dense_layers() * (self.gemm_s(m, model.hidden, 2 * model.ffn) + self.gemm_s(m, model.ffn, model.hidden))
        if model.experts:
            total += (model.layers - model.n_dense_layers) * self._experts_s(model.experts, m)
        self._linear_s[tokens] = total
        return total

    def prefill_attention_s(self, n_tokens: int, start: int) -> float:
        """Causal attention of a chunk after `start` tokens, all layers.

        FLOP = layers x flop_per_pair x (c L + c^2 / 2); efficiency e s / (s + s0) with the effective key length s = 2 L + c
        (not measured for chunks with a prefix).
        """
        fit, calibration = self.gpu.fit, self.calibration
        flop = self.model.layers * self.model.attention.flop_per_pair() * n_tokens * (start + n_tokens / 2)
        reach = 2.0 * start + n_tokens
        half = fit.attention_half_tokens if calibration.attention_half_tokens is None else calibration.attention_half_tokens
        eff = calibration.attention_eff or fit.attention_eff
        compute_s = flop / (self.gpu.bf16_flops * eff * reach / (reach + half))
        memory_s = (start + n_tokens) * self.model.kv_bytes_per_token() / (fit.mem_eff * self.gpu.bandwidth)
        return max(compute_s, memory_s)

    def head_s(self, n_sampled: int) -> float:
        """Logits of the sampled positions: mostly reading the head's weights."""
        if not n_sampled:
            return 0.0
        known = self._head_s.get(n_sampled)
        if known is None:
            known = self._head_s[n_sampled] = self.gemm_s(n_sampled, self.model.hidden, self.model.vocab)
        return known

    def _attention_projections_s(self, m: int) -> float:
        model, attention = self.model, self.model.attention
        if isinstance(attention, Gqa):
            qkv = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
            return self.gemm_s(m, model.hidden, qkv) + self.gemm_s(m, attention.heads * attention.head_dim, model.hidden)
        query = self.gemm_s(m, model.hidden, attention.q_rank) + self.gemm_s(
            m, attention.q_rank, attention.heads * (attention.nope_dim + attention.rope_dim)
        )
        latent = self.gemm_s(m, model.hidden, attention.kv_rank + attention.rope_dim) + self.gemm_s(
            m, attention.kv_rank, attention.heads * (attention.nope_dim + attention.v_dim)
        )
        return query + latent + self.gemm_s(m, attention.heads * attention.v_dim, model.hidden)

    def _experts_s(self, experts: Experts, m: int) -> float:
        """Grouped products of the loaded experts, as one product whose weights are all that is read and whose rows are m k."""
        model = self.model
        loaded = experts.n_loaded(m) + experts.n_shared
        rows = m * (experts.top_k + experts.n_shared)
        flop = 2.0 * rows * 3 * model.hidden * experts.ffn
        fit, width = self.gpu.fit, model.weight_bytes
        peak = self.gpu.fp8_flops if width == 1 and self.gpu.fp8_flops else self.gpu.bf16_flops
        n_bytes = loaded * 3 * model.hidden * experts.ffn * width + 4.0 * rows * (model.hidden + experts.ffn)
        compute_s, memory_s = flop / (fit.gemm_eff * peak), n_bytes / (fit.mem_eff * self.gpu.bandwidth)
        p = fit.gemm_power
        return (
            float((compute_s**p + memory_s**p) ** (1.0 / p))
            + 2 * fit.gemm_launch_s
            + self.gemm_s(m, model.hidden, experts.n_experts)
        )
