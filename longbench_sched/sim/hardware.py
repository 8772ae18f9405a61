"""GPUs as a handful of figures: what the roofline of `cost.py` divides by.

Peaks are dense (no sparsity) and per GPU, from NVIDIA's and AMD's data sheets unless a line says otherwise. How much of a
peak real kernels reach is not a property of the GPU alone: it was fitted on public kernel measurements (`KernelFit`) and
belongs to the kernels of 2024-26. A GPU without measurements of its own borrows another's fit and says so in `source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from longbench_sched.errors import UsageError

T = TypeVar("T")

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KernelFit:
    """What kernels reach of a peak, fitted on public measurements of bf16 kernels.

    GEMM: t = ((FLOP / (gemm_eff P))^p + (bytes / (mem_eff BW))^p)^(1/p) + launch_s.
    Prefill attention: `attention_eff` is the asymptote, half reached at `attention_half_tokens` of effective key length.
    Decode attention: `decode_attention_floor_s` a layer plus KV bytes at `decode_kv_eff` of the bandwidth.
    """

    gemm_eff: float
    mem_eff: float
    gemm_power: float
    gemm_launch_s: float
    attention_eff: float
    attention_half_tokens: float
    decode_kv_eff: float
    decode_attention_floor_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: peaks in FLOP/s, bytes and bytes/s."""

    name: str
    bf16_flops: float
    fp8_flops: float | None
    memory_bytes: int  # what the driver shows
    bandwidth: float
    nvlink: float  # total of both directions
    fit: KernelFit
    source: str

    @property
    def memory_gib(self) -> float:
        """Memory in GiB: engines choose their defaults by it."""
        return self.memory_bytes / GIB


# Decode attention floors and asymptotes: 10-12 us and 0.88 on H200, 20 us and 0.80 on A100, 7-9 us and 0.91 on B200.
_H200_FIT = KernelFit(0.775, 0.85, 4.0, 4e-6, 0.70, 1600.0, 0.88, 12e-6, "fit on public H200 bf16 kernel timings, MAPE 7.0 %")
_A100_FIT = KernelFit(0.85, 0.725, 2.0, 4e-6, 0.60, 900.0, 0.80, 20e-6, "fit on public A100 bf16 kernel timings, MAPE 8.5 %")
_B200_FIT = KernelFit(0.725, 0.825, 3.0, 4e-6, 0.65, 2500.0, 0.91, 8e-6, "fit on public B200 bf16 kernel timings, MAPE 7.7 %")
_H100_FIT = KernelFit(0.775, 0.85, 4.0, 4e-6, 0.70, 1600.0, 0.88, 12e-6, "H200's fit: the same SMs")
_H20_FIT = KernelFit(0.775, 0.85, 4.0, 4e-6, 0.90, 1600.0, 0.88, 12e-6, "H200's GEMM fit; attention 0.85-0.93 of a low peak")
_MI300X_FIT = KernelFit(0.575, 0.75, 3.0, 4e-6, 0.45, 2500.0, 0.75, 12e-6, "not measured: a starting point, to be calibrated")

# The "GB" of a data sheet are GiB less a little on the device: a driver shows 81,559 MiB for 80 GB, 143,771 MiB for 141 GB.
_GPUS = (
    Gpu("A100", 312e12, None, 80 * GIB, 2.039e12, 600e9, _A100_FIT, "A100 80GB SXM data sheet; no fp8"),
    Gpu("H100", 989e12, 1979e12, 80 * GIB, 3.35e12, 900e9, _H100_FIT, "H100 SXM data sheet"),
    Gpu("H200", 989e12, 1979e12, 140 * GIB, 4.8e12, 900e9, _H200_FIT, "H200 SXM data sheet (141 GB nominal, 140 GiB usable)"),
    Gpu(
        "H20",
        148e12,
        296e12,
        96 * GIB,
        4.0e12,
        900e9,
        _H20_FIT,
        "peaks as commonly quoted, not verified; also sold with 141 GB",
    ),
    Gpu("B200", 2250e12, 4500e12, 180 * GIB, 7.7e12, 1800e9, _B200_FIT, "B200 SXM data sheet; 180 of 192 GB usable"),
    Gpu(
        "MI300X",
        1307e12,
        2615e12,
        192 * GIB,
        5.3e12,
        896e9,
        _MI300X_FIT,
        "peaks as commonly quoted, not verified; 7 x 128 GB/s",
    ),
)
GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in _GPUS}


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case. Raises UsageError with the alternatives."""
    return lookup(GPUS, name, "GPU")


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of that name, in any case. Raises UsageError naming the alternatives and the nearest one."""
    by_folded_name = {key.casefold(): key for key in table}
    key = by_folded_name.get(name.casefold())
    if key is not None:
        return table[key]
    near = get_close_matches(name.casefold(), by_folded_name, n=1)
    hint = f"\n  Did you mean {by_folded_name[near[0]]}?" if near else ""
    raise UsageError(f"no {what} named {name!r}. Known: {', '.join(table)}.{hint}")
