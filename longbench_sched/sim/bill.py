"""What a step is charged for, and the bill: the load of a plan, and where its time goes, part by part.

`cost.py` sets the prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from longbench_sched.sim.kernels import Kernel
from longbench_sched.sim.step import StepPlan

Bound = Literal["compute", "memory", "host", "comm"]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What of a plan the price depends on."""

    chunks: tuple[tuple[int, int, bool], ...] = ()  # tokens, tokens before them, whether a token is sampled
    n_decodes: int = 0  # requests
    decode_tokens: int = 0  # with the drafts that are verified
    decode_context: int = 0  # sum over requests of the keys that their last token sees
    decode_pairs: float | None = None  # sum over tokens of the keys that each sees; None: all requests are alike
    padding: int = 0  # tokens computed for nothing

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts."""
        return sum(n for n, _, _ in self.chunks)

    @property
    def pairs(self) -> float:
        """Pairs of query and key in decode attention."""
        if self.decode_pairs is not None:
            return self.decode_pairs
        return self.decode_context * self.decode_tokens / self.n_decodes if self.n_decodes else 0.0

    @property
    def n_sampled(self) -> int:
        """Positions whose logits are needed."""
        return self.decode_tokens + sum(is_last for _, _, is_last in self.chunks)


def load_of(plan: StepPlan) -> StepLoad:
    """What of a plan the price depends on."""
    keys = [(sequence.computed + 1, 1) for sequence in plan.decodes]
    keys += [(verify.sequence.computed + verify.n_tokens, verify.n_tokens) for verify in plan.verifies]
    return StepLoad(
        chunks=tuple((chunk.n_tokens, chunk.start, chunk.is_last) for chunk in plan.chunks),
        n_decodes=len(keys),
        decode_tokens=sum(n for _, n in keys),
        decode_context=sum(seen for seen, _ in keys),
        decode_pairs=float(sum(seen * n for seen, n in keys)),
        padding=plan.padding,
    )


@dataclass(frozen=True, slots=True)
class BillPart:
    """One line of a bill, of one GPU."""

    name: str
    seconds: float
    flop: float
    n_bytes: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class StepBill:
    """Where the time of a step goes. FLOP and bytes are those of one GPU."""

    seconds: float
    gpu_s: float
    host_s: float
    parts: tuple[BillPart, ...]
    load: StepLoad
    peak_s: float  # the FLOP at the peak of their precision
    bandwidth: float

    @property
    def flop(self) -> float:
        """FLOP of the step."""
        return sum(part.flop for part in self.parts)

    @property
    def n_bytes(self) -> float:
        """Bytes moved between memory and GPU."""
        return sum(part.n_bytes for part in self.parts)

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP a byte."""
        return self.flop / self.n_bytes if self.n_bytes else 0.0

    @property
    def compute_utilisation(self) -> float:
        """Share of the peak that is used (MFU)."""
        return self.peak_s / self.seconds if self.seconds else 0.0

    @property
    def bandwidth_utilisation(self) -> float:
        """Share of the memory bandwidth that is used."""
        return self.n_bytes / self.bandwidth / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> Bound:
        """What most of the step waits for."""
        if self.host_s > self.gpu_s:
            return "host"
        by: dict[Bound, float] = {}
        for part in self.parts:
            by[part.bound] = by.get(part.bound, 0.0) + part.seconds
        return max(by, key=lambda bound: by[bound]) if by else "host"


def lines_of(kernels: list[tuple[str, Kernel]]) -> Iterator[BillPart]:
    """Kernels of one name become one line; it is bound by what bounds most of its time."""
    for name in dict.fromkeys(name for name, _ in kernels):
        group = [kernel for one, kernel in kernels if one == name]
        computing = sum(kernel.seconds for kernel in group if kernel.is_compute_bound)
        seconds = sum(kernel.seconds for kernel in group)
        bound: Bound = "compute" if computing > seconds / 2 else "memory"
        yield BillPart(name, seconds, sum(kernel.flop for kernel in group), sum(kernel.n_bytes for kernel in group), bound)
