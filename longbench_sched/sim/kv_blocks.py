"""KV memory: how many blocks there are, and who holds how many.

Blocks are counts. A sequence holds `blocks_for(tokens)` of them, a free block is like any other, and nothing is shared yet;
what must always hold is that free + held = total, and that a finished sequence holds none.
"""

from __future__ import annotations

from dataclasses import dataclass

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.models import Model


@dataclass(slots=True)
class KvBlocks:
    """The block pool of an engine."""

    total: int
    block_tokens: int
    free: int = -1

    def __post_init__(self) -> None:
        if self.free < 0:
            self.free = self.total

    @property
    def held(self) -> int:
        """Blocks in use."""
        return self.total - self.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self.block_tokens)

    def take(self, n: int) -> None:
        """Take `n` blocks; the scheduler has made sure that they are there."""
        assert 0 <= n <= self.free, f"{n} blocks taken, {self.free} free"
        self.free -= n

    def give(self, n: int) -> None:
        """Give `n` blocks back."""
        assert 0 <= n <= self.held, f"{n} blocks given back, {self.held} held"
        self.free += n


def kv_capacity_tokens(gpu: Gpu, model: Model, kv_memory_bytes: float) -> int:
    """Tokens whose KV fits into so many bytes. Raises UsageError if the model leaves no room for one long request."""
    tokens = int(kv_memory_bytes // model.kv_bytes_per_token())
    if tokens < 1024:
        need = model.total_weights() * model.weight_bytes / 1e9
        raise UsageError(
            f"{model.name} ({need:.0f} GB of weights) leaves no room for KV on one {gpu.name} ({gpu.memory_gib:.0f} GiB).\n"
            "  Choose a larger GPU or a smaller model."
        )
    return tokens


def memory_left_for_kv(gpu: Gpu, model: Model, utilisation: float, step_tokens: int) -> float:
    """Bytes for KV: utilisation x memory - weights - activations of the largest step."""
    return utilisation * gpu.memory_bytes - model.total_weights() * model.weight_bytes - model.activation_bytes(step_tokens)
