"""Time of one group of GPU kernels: work, what the hardware allows, and which of the two decides.

    t = (compute^p + memory^p)^(1/p) + fixed

p is the sharpness of the corner of the roofline: infinite for the larger of both, 1 for their sum. FLOP and bytes are those of
one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from longbench_sched.sim.hardware import GemmFit, Gpu, Precision
from longbench_sched.sim.models import WEIGHT_BYTES


@dataclass(frozen=True, slots=True)
class Kernel:
    """Some kernels that do one thing."""

    flop: float
    n_bytes: float
    compute_s: float  # if only computing took time
    memory_s: float  # if only moving bytes did
    peak_s: float = 0.0  # computing at the peak
    power: float = inf
    fixed_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The time they take."""
        return corner(self.compute_s, self.memory_s, self.power) + self.fixed_s

    @property
    def is_compute_bound(self) -> bool:
        """Whether computing takes longer than moving."""
        return self.compute_s > self.memory_s

    def times(self, n: float) -> Kernel:
        """The same n times, one after the other."""
        return Kernel(
            n * self.flop,
            n * self.n_bytes,
            n * self.compute_s,
            n * self.memory_s,
            n * self.peak_s,
            self.power,
            n * self.fixed_s,
        )


def corner(compute_s: float, memory_s: float, power: float) -> float:
    """The p-norm of two times."""
    high, low = (compute_s, memory_s) if compute_s > memory_s else (memory_s, compute_s)
    if power == inf or low == 0.0:
        return high
    return float(high * (1.0 + (low / high) ** power) ** (1.0 / power))


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products of one GPU with weights of one precision."""

    gpu: Gpu
    precision: Precision
    peak: float
    fit: GemmFit
    eff: float

    @classmethod
    def of(cls, gpu: Gpu, precision: Precision, eff: float | None = None) -> Products:
        """Those of the GPU's fit; `eff` takes the place of its compute efficiency."""
        peak, fit = gpu.products(precision)
        return cls(gpu, precision, peak, fit, eff or fit.compute_eff)

    def kernel(self, rows: float, inputs: float, outputs: float) -> Kernel:
        """[rows, inputs] x [inputs, outputs]; activations are 2 bytes whatever the weights are."""
        weights = inputs * outputs
        n_bytes = weights * WEIGHT_BYTES[self.precision] + 2.0 * rows * (inputs + outputs)
        return self.of_work(2.0 * rows * weights, n_bytes, 1)

    def of_work(self, flop: float, n_bytes: float, n_launches: float) -> Kernel:
        """Products known by their FLOP and bytes."""
        return Kernel(
            flop,
            n_bytes,
            flop / (self.eff * self.peak),
            n_bytes / (self.fit.mem_eff * self.gpu.bandwidth),
            flop / self.peak,
            self.fit.power,
            n_launches * self.fit.launch_s,
        )
