"""Pipeline-parallel prefill: a prompt in chunks, its layers over stages.

Chunk i (c tokens after L) takes t_i = o + b c + a (2 L c + c^2) over all layers. Chunk i + 1 enters a stage when chunk i has
left it, and not before it has left the stage above (a flow shop). With balanced stages

    TTFT = (sum t_i + (S - 1) max t_i) / S + (S - 1) t_p2p

exactly, because a chunk takes the same time in every stage. What chunking costs is the second term, the bubble: with chunks of
one size the last one is the longest, so the bubble grows with the *prompt*, and the textbook's (S - 1) / (S - 1 + M) is only a
lower bound. Dynamic chunking (SGLang from 0.5.7) makes later chunks shorter so that all take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from longbench_sched.sim.bill import StepLoad
from longbench_sched.sim.cost import StepCost

ALIGN_TOKENS = 64  # dynamic chunks are rounded down to the page size, but to 64 at least
FIT_SAMPLES = 128
FIT_REACH = 1.25  # of the chunk: how far the start-up profile goes
FIT_MIN_SAMPLES = 8
HEADROOM_TOKENS = 100  # of the context that a dynamic chunk leaves

PriceChunk = Callable[[int, int], float]  # (tokens, tokens before them) -> seconds over all layers


@dataclass(frozen=True, slots=True)
class Quadratic:
    """f(l) = a l^2 + b l + c: time to prefill l tokens from nothing."""

    a: float
    b: float
    c: float

    def chunk_s(self, tokens: int, start: int) -> float:
        """Time of a chunk: o + b c + a (2 L c + c^2), o being `c`."""
        return self.c + self.b * tokens + self.a * (2.0 * start * tokens + tokens * tokens)


def fit_quadratic(price: PriceChunk, chunk: int, n_samples: int = FIT_SAMPLES) -> Quadratic | None:
    """The start-up profile: whole prompts up to 1.25 x the chunk, the first sample dropped, least squares.

    None if there are fewer than 8 samples or the fit does not bend upwards: the engine then keeps its fixed chunk.
    """
    lengths = np.unique(np.linspace(1, FIT_REACH * chunk, n_samples).astype(int))[1:]
    if len(lengths) < FIT_MIN_SAMPLES:
        return None
    seconds = [price(int(length), 0) for length in lengths]
    # Lengths in units of the chunk, so that the columns are of one size.
    scaled = lengths / chunk
    rows = np.stack([scaled**2, scaled, np.ones_like(scaled)], axis=1)
    a, b, c = (float(value) for value in np.linalg.lstsq(rows, np.asarray(seconds), rcond=None)[0])
    return Quadratic(a / chunk**2, b / chunk, c) if a > 0 else None


def fixed_chunks(isl: int, chunk: int) -> list[int]:
    """Chunks of one size and a rest."""
    whole, rest = divmod(isl, chunk)
    return [chunk] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class DynamicChunking:
    """Chunks of equal time, as `--enable-dynamic-chunking` makes them."""

    chunk: int  # static size: the first chunk of a prompt, and what the target time is taken from
    fit: Quadratic
    smoothing: float = 0.75  # 0: fixed chunks, 1: strictly equal times
    page_size: int = 1
    context: int = 1 << 30
    max_prefill_tokens: int = 16384

    def next_chunk(self, start: int) -> int:
        """Tokens of the chunk that continues a prompt after `start` of them.

        x solves f(L + x) - f(L) = f(C) - f(0); smoothed towards C, at least C / 4, rounded down to the grid, capped by context
        and budget.
        """
        size = self.chunk
        if start > 0:
            a, slope = self.fit.a, 2.0 * self.fit.a * start + self.fit.b
            target_s = self.fit.a * size * size + self.fit.b * size
            exact = (-slope + math.sqrt(slope * slope + 4.0 * a * target_s)) / (2.0 * a)
            smoothed = max(size + self.smoothing * (exact - size), size // 4)
            grid = max(self.page_size, ALIGN_TOKENS)
            size = max(grid, int(smoothed) // grid * grid)
            size = max(1, min(size, self.context - start - HEADROOM_TOKENS))
        # A static chunk may be larger than the budget: the first prompt of a batch is let through (policy/sglang.py).
        return min(size, max(self.max_prefill_tokens, self.chunk))

    def chunks(self, isl: int) -> list[int]:
        """The whole prompt."""
        sizes: list[int] = []
        start = 0
        while start < isl:
            size = min(isl - start, self.next_chunk(start))
            sizes.append(size)
            start += size
        return sizes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages: the layers each has, and what lies between them."""

    layers: tuple[int, ...]
    overhead_s: float = 5e-3  # a chunk and stage: launching, receiving, queueing
    hand_off_s_per_token: float = 0.0
    hand_off_s: float = 0.0  # a chunk

    @property
    def n_stages(self) -> int:
        """S."""
        return len(self.layers)

    @property
    def shares(self) -> list[float]:
        """Each stage's part of the layers."""
        total = sum(self.layers)
        return [n / total for n in self.layers]

    def stage_s(self, whole_s: float, stage: int) -> float:
        """Time of a chunk in one stage."""
        return whole_s * self.layers[stage] / sum(self.layers) + self.overhead_s

    def p2p_s(self, tokens: int) -> float:
        """Passing a chunk's activations on: c h bytes / bandwidth."""
        return self.hand_off_s + self.hand_off_s_per_token * tokens

    def makespan_s(self, whole_s: Sequence[float], tokens: Sequence[int]) -> float:
        """When the last chunk leaves the last stage, by the recursion of a flow shop. Exact for any stages.

        `whole_s` is each chunk's time over all layers.
        """
        free_at_s = [0.0] * self.n_stages
        for chunk_s, n in zip(whole_s, tokens, strict=True):
            self.pass_down(free_at_s, 0.0, [self.stage_s(chunk_s, stage) for stage in range(self.n_stages)], n)
        return free_at_s[-1]

    def pass_down(self, free_at_s: list[float], now_s: float, stage_s: Sequence[float], tokens: int) -> list[float]:
        """Send a batch through the stages: into each when it is free and the one above has passed the batch on.

        `free_at_s`, when each stage is free, is moved on. Returns when the batch enters each stage.
        """
        ready_s, entered_s = now_s, []
        for stage, seconds in enumerate(stage_s):
            entered_s.append(max(ready_s, free_at_s[stage]))
            free_at_s[stage] = entered_s[-1] + seconds
            ready_s = free_at_s[stage] + self.p2p_s(tokens)
        return entered_s


def hand_off_s_per_token(hidden: int, bandwidth: float) -> float:
    """Seconds to pass one token's hidden state on, at 2 bytes an element."""
    return hidden * 2 / bandwidth


def balanced_makespan_s(whole_s: Sequence[float], n_stages: int, overhead_s: float = 0.0, p2p_s: float = 0.0) -> float:
    """The closed form, for stages that are equal and a hand-off that is the same for every chunk."""
    stage_s = [chunk_s / n_stages + overhead_s for chunk_s in whole_s]
    return sum(stage_s) + (n_stages - 1) * (max(stage_s) + p2p_s)


def optimal_fixed_chunk(isl: int, fit: Quadratic, n_stages: int, overhead_s: float) -> float:
    """Chunk size with the shortest balanced makespan: c* = sqrt(S o N / ((S - 1) (b + 2 a N))), o per chunk and stage."""
    return math.sqrt(n_stages * overhead_s * isl / ((n_stages - 1) * (fit.b + 2.0 * fit.a * isl)))


def bubble_s(whole_s: Sequence[float], n_stages: int) -> float:
    """Time lost to filling and draining: (S - 1) / S of the longest chunk."""
    return (n_stages - 1) / n_stages * max(whole_s)


def chunk_price(cost: StepCost) -> PriceChunk:
    """Price of a chunk over all layers, without head, host and penalty: what a stage spends on it."""

    def price(tokens: int, start: int) -> float:
        bill = cost.bill(StepLoad(chunks=((tokens, start, False),)))
        return sum(part.seconds for part in bill.parts if part.bound != "host")

    return price


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The time to the first token of one prompt alone."""

    seconds: float
    chunks: tuple[int, ...]
    whole_s: tuple[float, ...]  # each chunk over all layers
    pipeline: Pipeline

    @property
    def alone_s(self) -> float:
        """The same chunks in one stage."""
        return sum(self.whole_s) + len(self.whole_s) * self.pipeline.overhead_s

    @property
    def efficiency(self) -> float:
        """T_1 / (S T_S)."""
        return self.alone_s / (self.pipeline.n_stages * self.seconds)


def time_prefill(cost: StepCost, isl: int, pipeline: Pipeline, chunks: Sequence[int]) -> PrefillTime:
    """Run one prompt through an empty pipeline; the head is the last stage's and comes once."""
    price = chunk_price(cost)
    starts = np.cumsum([0, *chunks[:-1]])
    whole_s = [price(n, int(start)) for n, start in zip(chunks, starts, strict=True)]
    assert sum(chunks) == isl, "chunks are the whole prompt"
    return PrefillTime(pipeline.makespan_s(whole_s, chunks) + cost.head_s(1), tuple(chunks), tuple(whole_s), pipeline)
