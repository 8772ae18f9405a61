"""Pools: how many engines prefill and how many decode, and what carries KV from the ones to the others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count
from longbench_sched.sim.hardware import lookup

MAX_ENGINES = 1024  # of a pool
RESLICE = 1.1  # of the bytes, where both sides are split over GPUs differently (assumed)


@dataclass(frozen=True, slots=True)
class Link:
    """What carries KV between two engines."""

    bandwidth: float = 50e9  # bytes/s of one link; 50e9 is 400 Gb/s
    n_links: int = 1
    eff: float = 0.7  # of the bandwidth; 0.6-0.8 is usual
    setup_s: float = 1e-3  # a transfer
    reslice: float = 1.0  # `RESLICE` where both sides are split over GPUs differently

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
    prefill_flags: str = ""  # the engine's own, of one pool alone: `-tp 2 --max-num-batched-tokens 32768`
    decode_flags: str = ""

    def __str__(self) -> str:
        """`2 prefill + 2 decode, dynamo-like; prefill -tp 2`."""
        own = (("prefill", self.prefill_flags), ("decode", self.decode_flags))
        flags = "".join(f"; {pool} {words}" for pool, words in own if words)
        return f"{self.n_prefill} prefill + {self.n_decode} decode, {self.way}{flags}"

    @property
    def plan(self) -> Disaggregation:
        """The way. Raises UsageError if nobody knows it."""
        return lookup(PRESETS, self.way, "way of disaggregation")


_SIZES = ("prefill_engines", "decode_engines")
_FLAGS = ("prefill_flags", "decode_flags")
POOL_KNOBS = ("disaggregation", *_SIZES, *_FLAGS)
TOGETHER = "none"  # the way of engines that do both


def read_pools(words: Mapping[str, str]) -> Pools | None:
    """Pools from words by the names of `POOL_KNOBS`; None for one engine that does both. Raises UsageError."""
    sizes = {knob: _size(knob, words[knob]) for knob in _SIZES if knob in words}
    flags = {knob: words[knob] for knob in _FLAGS if words.get(knob)}
    for knob, text in flags.items():
        try:
            shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--{knob.replace('_', '-')} {text!r}: {error}. Write the engine's own flags: '-tp 2'.") from None
    way = words.get("disaggregation", TOGETHER)
    if (sizes or flags) and "disaggregation" not in words:
        raise UsageError(
            f"--{next(iter(sizes | flags)).replace('_', '-')} is of prefill and decode apart. Say which way: --disaggregation "
            f"{' or '.join(PRESETS)}; or {TOGETHER}, for as many engines that do both."
        )
    if way == TOGETHER:
        # Engines that do both have no flags of one pool.
        return Pools(way, sizes.get("prefill_engines", 1), sizes.get("decode_engines", 1)) if sizes else None
    pools = Pools(way, sizes.get("prefill_engines", 1), sizes.get("decode_engines", 1), **flags)
    return replace(pools, way=next(name for name, plan in PRESETS.items() if plan is pools.plan))


def _size(knob: str, word: str) -> int:
    size = count(word, f"--{knob.replace('_', '-')}")
    if not 1 <= size <= MAX_ENGINES:
        raise UsageError(f"--{knob.replace('_', '-')}: {size} engines. Give a number from 1 to {MAX_ENGINES}.")
    return size
