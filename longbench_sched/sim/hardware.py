"""GPUs as a handful of figures: what the roofline of `cost.py` divides by.

Peaks are dense (no sparsity) and per GPU, from NVIDIA's and AMD's data sheets unless a line says otherwise. How much of a
peak real kernels reach is not a property of the GPU alone: it was fitted on public kernel measurements (`GemmFit`,
`AttentionFit`) and belongs to the kernels of 2024-26. A GPU without measurements of its own borrows another's fit and says so
in `source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, TypeVar

from longbench_sched.errors import UsageError

T = TypeVar("T")

GIB = 1 << 30

Precision = Literal["bf16", "fp8", "fp8-block", "nvfp4"]


@dataclass(frozen=True, slots=True)
class GemmFit:
    """Matrix products: t = ((FLOP / (compute_eff P))^power + (bytes / (mem_eff BW))^power)^(1/power) + launch_s."""

    compute_eff: float
    mem_eff: float
    power: float
    source: str
    launch_s: float = 4e-6  # a kernel, with CUDA graphs; hidden in part


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """Attention kernels.

    Prefill reaches `prefill_eff` x s / (s + half_tokens) of the bf16 peak, s = effective key length in tokens. Decode takes
    `decode_floor_s` a layer, and reads KV at `decode_kv_eff` of the bandwidth.
    """

    prefill_eff: float
    half_tokens: float
    decode_kv_eff: float
    decode_floor_s: float
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
    gemm: Mapping[Precision, GemmFit] = field(hash=False)  # bf16 always
    attention: AttentionFit
    source: str
    fp4_flops: float | None = None

    @property
    def memory_gib(self) -> float:
        """Memory in GiB: engines choose their defaults by it."""
        return self.memory_bytes / GIB

    def products(self, precision: Precision) -> tuple[float, GemmFit]:
        """Peak and fit of matrix products with weights of that precision; those of bf16 where the GPU has no such units."""
        peak = self.fp4_flops if precision == "nvfp4" else self.bf16_flops if precision == "bf16" else self.fp8_flops
        fit = self.gemm.get(precision)
        if peak is None or fit is None:
            return self.bf16_flops, self.gemm["bf16"]
        return peak, fit


# Errors are those of each fit over its own measurements. fp8 scatters: kernels of many shapes and scalings in one fit.
_H200_GEMM: Mapping[Precision, GemmFit] = {
    "bf16": GemmFit(0.775, 0.85, 4.0, "public H200 bf16 kernel timings, mean error 7.0 %"),
    "fp8": GemmFit(0.625, 0.75, 1.5, "public H200 fp8 per-tensor kernel timings, mean error 18 %"),
    "fp8-block": GemmFit(0.50, 0.50, 1.5, "public H200 fp8 block-scaled kernel timings, mean error 26 %"),
}
_A100_GEMM: Mapping[Precision, GemmFit] = {"bf16": GemmFit(0.85, 0.725, 2.0, "public A100 kernel timings, mean error 8.5 %")}
_B200_GEMM: Mapping[Precision, GemmFit] = {
    "bf16": GemmFit(0.725, 0.825, 3.0, "public B200 bf16 kernel timings, mean error 7.7 %"),
    "fp8": GemmFit(0.45, 0.63, 1.0, "public B200 fp8 kernel timings, mean error 19 %"),
    "fp8-block": GemmFit(0.45, 0.63, 1.0, "B200's fp8 fit"),
    "nvfp4": GemmFit(0.50, 0.50, 2.0, "public B200 nvfp4 kernel timings, mean error 18 %"),
}
_H20_FP8 = GemmFit(
    0.60, 0.75, 4.0, "chosen with the published 128K prefill of DeepSeek-V3.1 on H20; its peak is easily reached"
)
_H20_GEMM: Mapping[Precision, GemmFit] = {
    "bf16": GemmFit(0.775, 0.85, 4.0, "H200's fit"),
    "fp8": _H20_FP8,
    "fp8-block": _H20_FP8,
}
_MI300X = "not measured: a starting point, to be calibrated"
_MI300X_GEMM: Mapping[Precision, GemmFit] = {
    "bf16": GemmFit(0.575, 0.75, 3.0, _MI300X),
    "fp8": GemmFit(0.50, 0.70, 1.5, _MI300X),
    "fp8-block": GemmFit(0.45, 0.50, 1.5, _MI300X),
}

_H200_ATTENTION = AttentionFit(0.70, 1600.0, 0.88, 12e-6, "public FlashAttention-3 timings on H200; decode 10-12 us, 0.87-0.93")
_A100_ATTENTION = AttentionFit(0.60, 900.0, 0.80, 20e-6, "public FlashAttention-2 timings on A100; decode 20 us, 0.80")
_B200_ATTENTION = AttentionFit(0.65, 2500.0, 0.91, 8e-6, "public timings on B200; decode 7-9 us, 0.91")
_H20_ATTENTION = AttentionFit(0.90, 1600.0, 0.88, 12e-6, "0.85-0.93 of a low peak in prefill; decode as H200")
_MI300X_ATTENTION = AttentionFit(0.45, 2500.0, 0.75, 12e-6, _MI300X)

# The "GB" of a data sheet are GiB less a little on the device: a driver shows 81,559 MiB for 80 GB, 143,771 MiB for 141 GB.
_QUOTED = "peaks as commonly quoted, not verified"
_GPUS = (
    Gpu("A100", 312e12, None, 80 * GIB, 2.039e12, 600e9, _A100_GEMM, _A100_ATTENTION, "A100 80GB SXM data sheet; no fp8"),
    Gpu("H100", 989e12, 1979e12, 80 * GIB, 3.35e12, 900e9, _H200_GEMM, _H200_ATTENTION, "H100 SXM data sheet; H200's fits"),
    Gpu("H200", 989e12, 1979e12, 140 * GIB, 4.8e12, 900e9, _H200_GEMM, _H200_ATTENTION, "H200 SXM data sheet (141 GB nominal)"),
    Gpu("H20", 148e12, 296e12, 96 * GIB, 4.0e12, 900e9, _H20_GEMM, _H20_ATTENTION, f"{_QUOTED}; also sold with 141 GB"),
    Gpu(
        "B200", 2250e12, 4500e12, 180 * GIB, 7.7e12, 1800e9, _B200_GEMM, _B200_ATTENTION,
        "B200 SXM data sheet; 180 of 192 GB usable", fp4_flops=9000e12,
    ),
    Gpu("MI300X", 1307e12, 2615e12, 192 * GIB, 5.3e12, 896e9, _MI300X_GEMM, _MI300X_ATTENTION, f"{_QUOTED}; 7 x 128 GB/s"),
)  # fmt: skip
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
