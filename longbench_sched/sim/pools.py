"""Pools: how many engines prefill and how many decode, and what carries KV from the ones to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count
from longbench_sched.sim.hardware import lookup

MAX_ENGINES = 1024  # of a pool


@dataclass(frozen=True, slots=True)
class Link:
    """What carries KV between two engines."""

    bandwidth: float = 50e9  # bytes/s of one link; 50e9 is 400 Gb/s
    n_links: int = 1
    eff: float = 0.7  # of the bandwidth; 0.6-0.8 is usual
    setup_s: float = 1e-3  # a transfer
    reslice: float = 1.0  # 1.1 where both sides are split over GPUs differently

    def seconds(self, n_bytes: float) -> float:
        """Setup and bytes."""
        return self.setup_s + self.reslice * n_bytes / (self.n_links * self.eff * self.bandwidth)


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """How requests go from one pool to the other."""

    link: Link = Link()
    is_streamed: bool = True  # each chunk is sent when it is computed; else all at the end of the prefill
    through_store: bool = False  # to host memory first, and from there when a decode engine has room
    source: str = ""


PRESETS = {
    "mooncake-like": Disaggregation(
        Link(bandwidth=25e9), is_streamed=True, through_store=True,
        source="Mooncake 2024: streamed to a store of host memory; 200 Gb/s and eff assumed",
    ),
    "dynamo-like": Disaggregation(
        Link(bandwidth=50e9), is_streamed=False, through_store=False,
        source="Dynamo's documents: decode memory first, then a direct transfer; 400 Gb/s and eff assumed",
    ),
}  # fmt: skip


def exposed_transfer_s(link: Link, n_bytes: float, last_chunk_bytes: float, prefill_s: float) -> float:
    """What of a streamed transfer is left after the prefill: max(last chunk, total - prefill)."""
    return max(link.seconds(last_chunk_bytes), link.seconds(n_bytes) - prefill_s)


@dataclass(frozen=True, slots=True)
class Pools:
    """How many engines prefill and how many decode, and the way between them."""

    way: str = "dynamo-like"  # of `PRESETS`; or `TOGETHER`: as many engines that do both
    n_prefill: int = 1
    n_decode: int = 1

    def __str__(self) -> str:
        """`2 prefill + 2 decode, dynamo-like`."""
        return f"{self.n_prefill} prefill + {self.n_decode} decode, {self.way}"

    @property
    def plan(self) -> Disaggregation:
        """The way. Raises UsageError if nobody knows it."""
        return lookup(PRESETS, self.way, "way of disaggregation")


POOL_KNOBS = ("disaggregation", "prefill_engines", "decode_engines")
TOGETHER = "none"  # the way of engines that do both


def read_pools(words: Mapping[str, str]) -> Pools | None:
    """Pools from words by the names of `POOL_KNOBS`; None for one engine that does both. Raises UsageError."""
    sizes = {knob: _size(knob, words[knob]) for knob in POOL_KNOBS[1:] if knob in words}
    way = words.get("disaggregation", TOGETHER)
    if sizes and "disaggregation" not in words:
        raise UsageError(
            f"--{next(iter(sizes)).replace('_', '-')} is of prefill and decode apart. Say which way: --disaggregation "
            f"{' or '.join(PRESETS)}; or {TOGETHER}, for as many engines that do both."
        )
    if way == TOGETHER and not sizes:
        return None
    pools = Pools(way, sizes.get("prefill_engines", 1), sizes.get("decode_engines", 1))
    if way == TOGETHER:
        return pools
    return replace(pools, way=next(name for name, plan in PRESETS.items() if plan is pools.plan))


def _size(knob: str, word: str) -> int:
    size = count(word, f"--{knob.replace('_', '-')}")
    if not 1 <= size <= MAX_ENGINES:
        raise UsageError(f"--{knob.replace('_', '-')}: {size} engines. Give a number from 1 to {MAX_ENGINES}.")
    return size
