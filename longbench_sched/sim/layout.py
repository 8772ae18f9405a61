"""Layout: how one engine is spread over GPUs, and what of the model lies on each.

Tensor parallelism splits every layer: attention and KV heads, the feed-forward part. KV heads and what makes them are copied
once there are more GPUs than heads; the latent vector of MLA, the projections to it, and routers are whole on every GPU.
Pipeline parallelism splits the row of layers into stages; the first has the embedding as well, the last the head. How many
tokens fit is decided by the stage with the least room.
"""

from __future__ import annotations

from dataclasses import dataclass

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.models import Gqa, Model

LEAST_TOKENS = 1024  # less KV memory than for so many tokens is none
_MOST_GPUS = 64  # of the sizes that are proposed


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As even as it goes, the larger stages last (61 over 4 is 15, 15, 15, 16)."""
    small, more = divmod(layers, stages)
    return (small,) * (stages - more) + (small + 1,) * more


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel parts of one engine."""

    tp: int = 1  # GPUs that share each layer
    pp: int = 1  # stages

    @property
    def n_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp

    def on(self, gpu: Gpu) -> str:
        """`one H200`, `4 H200`."""
        return f"{'one' if self.n_gpus == 1 else self.n_gpus} {gpu.name}"

    def check(self, model: Model) -> None:
        """Raises UsageError if the model cannot be split like this."""
        if not _divides(model, self.tp):
            attention = model.attention
            kv = f" and {attention.kv_heads} KV heads" if isinstance(attention, Gqa) else ""
            sizes = ", ".join(str(n) for n in range(1, _MOST_GPUS + 1) if _divides(model, n))
            raise UsageError(
                f"{model.name} has {attention.heads} attention heads{kv}: a tensor-parallel size of {self.tp} does not divide "
                f"them.\n  Sizes that do: {sizes}."
            )
        if self.pp > model.layers:
            raise UsageError(
                f"{model.name} has {model.layers} layers: {self.pp} pipeline stages are more than that.\n"
                f"  Give a pipeline-parallel size from 1 to {model.layers}."
            )

    def stages(self, model: Model) -> tuple[int, ...]:
        """Layers of each stage."""
        return split_layers(model.layers, self.pp)

    def kv_bytes_per_token(self, model: Model, stage: int) -> int:
        """Bytes of KV cache that a token takes on each GPU of a stage."""
        return self.stages(model)[stage] * model.attention.kv_elements(self.tp) * model.kv_bytes

    def kv_parts(self, model: Model) -> int:
        """GPUs that hold different parts of a token's KV; the rest hold copies."""
        return self.pp * model.attention.kv_parts(self.tp)

    def weight_bytes(self, model: Model, stage: int) -> float:
        """Bytes of weights on each GPU of a stage; embedding and head at 2 bytes each."""
        layers = model.layer_weights(self.tp) * model.weight_bytes * self.stages(model)[stage] / model.layers
        embeddings = model.embedding_weights()
        if self.pp > 1:
            is_end = stage in (0, self.pp - 1)
            embeddings = model.vocab * model.hidden if is_end else 0
        return layers + embeddings * 2 / self.tp

    def kv_capacity_tokens(self, gpu: Gpu, model: Model, usable_bytes: float, share: float = 1.0) -> int:
        """Tokens whose KV fits. Raises UsageError if the model leaves no room for one long request.

        `usable_bytes`: what weights and KV may take of each GPU. `share`: of what the weights leave, the part that KV takes.
        """
        tokens = min(
            int(share * (usable_bytes - self.weight_bytes(model, stage)) // self.kv_bytes_per_token(model, stage))
            for stage in range(self.pp)
        )
        if tokens < LEAST_TOKENS:
            need_gb = max(self.weight_bytes(model, stage) for stage in range(self.pp)) / 1e9
            on_each = "" if self.n_gpus == 1 else " on each"
            raise UsageError(
                f"{model.name} ({need_gb:.0f} GB of weights{on_each}) leaves no room for KV on {self.on(gpu)} "
                f"({gpu.memory_gib:.0f} GiB).\n  Choose a larger GPU, more of them (tensor or pipeline parallel), a smaller "
                "model or a smaller largest step; or give the engine a larger share of memory."
            )
        return tokens


def _divides(model: Model, tp: int) -> bool:
    """Whether heads can be dealt out: KV heads evenly, or each copied to as many GPUs."""
    attention = model.attention
    if attention.heads % tp:
        return False
    return not isinstance(attention, Gqa) or not (attention.kv_heads % tp and tp % attention.kv_heads)


def layout_of(options: object) -> Layout:
    """The sizes that an engine's flags ask for, by their own names; one GPU where it has no such flag."""

    def size(*names: str) -> int:
        return next((getattr(options, name) for name in names if hasattr(options, name)), 1)

    return Layout(size("tp_size", "tensor_parallel_size"), size("pp_size", "pipeline_parallel_size"))
