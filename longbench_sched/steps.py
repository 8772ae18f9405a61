"""Steps: what a simulated engine did, forward pass by forward pass. Column by column, as it is stored and drawn.

Instants are on the clock of the run that the steps belong to, so that a step can be laid beside the tokens it gave.

One engine does one step after the other. Where several go on at once, a row says whose it is: the engine (`pool`, `instance`)
and the pipeline stage. A micro-batch that goes through several stages has a row in each. KV that goes from one engine to
another has rows of its own, whose phase is `transfer`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

STEPS_VERSION = 2

Phase = Literal["prefill", "decode", "mixed", "transfer"]
PHASES: tuple[Phase, ...] = ("prefill", "mixed", "decode")  # of steps
TRANSFER: Phase = "transfer"


@dataclass(frozen=True, slots=True)
class StepColumn:
    """One column of a trace."""

    name: str
    type: Literal["int", "float", "text"]
    unit: str
    meaning: str
    since: int = 1  # the first version that has it


STEP_COLUMNS: tuple[StepColumn, ...] = (
    StepColumn("begin_ns", "int", "ns", "when the step began, on the run's clock"),
    StepColumn("end_ns", "int", "ns", "when it ended: its tokens have this stamp; of stages, the last"),
    StepColumn("pool", "text", "", "prefill or decode where these are engines of their own, else empty", 2),
    StepColumn("instance", "int", "1", "which engine of its pool, or of those side by side, from 0", 2),
    StepColumn("stage", "int", "1", "which pipeline stage, from 0", 2),
    StepColumn("micro_batch", "int", "1", "number of the scheduler's plan, the same in all stages, by engine from 0", 2),
    StepColumn(
        "phase", "text", "", "prefill, decode (verification of drafts included) or mixed; transfer: KV on the engine's link"
    ),
    StepColumn("n_prefill", "int", "1", "prompts of which a piece was computed"),
    StepColumn("n_decode", "int", "1", "requests that decoded or verified drafts"),
    StepColumn("prefill_tokens", "int", "tokens", "prompt tokens computed"),
    StepColumn("decode_tokens", "int", "tokens", "tokens computed for requests that decode, drafts included"),
    StepColumn("decode_context", "int", "tokens", "KV read by decodes, summed over requests"),
    StepColumn("n_running", "int", "1", "requests admitted, after the step began (of stages: after stage 0 began it)"),
    StepColumn("n_waiting", "int", "1", "requests in the engine's queue, at the same instant"),
    StepColumn("n_admitted", "int", "1", "requests that left the queue with this step"),
    StepColumn("n_preempted", "int", "1", "requests that lost their KV since the step before was planned"),
    StepColumn("kv_used_tokens", "int", "tokens", "KV blocks in use in the engine, in tokens, at the same instant"),
    StepColumn("flop", "float", "FLOP", "work of one GPU, of the stage's layers"),
    StepColumn("n_bytes", "float", "bytes", "moved between memory and GPU, of one GPU"),
    StepColumn("arithmetic_intensity", "float", "FLOP/byte", "flop / n_bytes"),
    StepColumn("compute_utilisation", "float", "1", "share of the peak FLOP/s used over the step (MFU)"),
    StepColumn("bandwidth_utilisation", "float", "1", "share of the memory bandwidth used over the step (MBU)"),
    StepColumn("gpu_s", "float", "s", "time of the GPU"),
    StepColumn("host_s", "float", "s", "time of the host; hidden behind the GPU where it works ahead"),
    StepColumn("bound", "text", "", "what most of the step waits for: compute, memory, host or comm"),
    StepColumn("transfer_tokens", "int", "tokens", "of a transfer: tokens whose KV goes over the link", 2),
    StepColumn("transfer_bytes", "int", "bytes", "of a transfer: bytes of that KV, over all links of the engine", 2),
)


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Engines that are alike."""

    pool: str = ""
    n_engines: int = 1
    n_stages: int = 1
    kv_tokens: int = 0  # that the KV memory of one of them holds


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What is needed to read a trace."""

    run_id: str
    engine: str
    gpu: str
    model: str
    kv_tokens: int  # that the KV memory holds
    measured_from_ns: int = 0  # start of the measured phase; steps before it are warm-ups
    version: int = STEPS_VERSION
    pools: tuple[PoolFacts, ...] = ()  # empty: one engine

    @property
    def engines(self) -> tuple[PoolFacts, ...]:
        """The pools; one engine is a pool of one."""
        return self.pools or (PoolFacts(kv_tokens=self.kv_tokens),)


@dataclass(frozen=True, slots=True)
class StepTable:
    """A trace: `n` steps in the order in which they began. Columns are named as in STEP_COLUMNS."""

    facts: StepFacts
    n: int
    ints: Mapping[str, Sequence[int]]
    floats: Mapping[str, Sequence[float]]
    texts: Mapping[str, Sequence[str]]


@dataclass(slots=True)
class StepColumns:
    """Takes steps one by one."""

    ints: dict[str, array[int]] = field(default_factory=lambda: {c.name: array("q") for c in STEP_COLUMNS if c.type == "int"})
    floats: dict[str, array[float]] = field(
        default_factory=lambda: {c.name: array("d") for c in STEP_COLUMNS if c.type == "float"}
    )
    texts: dict[str, list[str]] = field(default_factory=lambda: {c.name: [] for c in STEP_COLUMNS if c.type == "text"})

    def add(self, ints: Mapping[str, int], floats: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Append one step; every column must be given."""
        for name, column in self.ints.items():
            column.append(ints[name])
        for name, numbers in self.floats.items():
            numbers.append(floats[name])
        for name, words in self.texts.items():
            words.append(texts[name])

    def table(self, facts: StepFacts) -> StepTable:
        """The steps so far, in the order in which they began."""
        begins = self.ints["begin_ns"]
        order = sorted(range(len(begins)), key=begins.__getitem__)
        return StepTable(
            facts,
            len(begins),
            {name: array("q", [column[row] for row in order]) for name, column in self.ints.items()},
            {name: array("d", [column[row] for row in order]) for name, column in self.floats.items()},
            {name: [column[row] for row in order] for name, column in self.texts.items()},
        )
