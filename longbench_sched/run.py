"""Run: records, and all that is needed to read and to repeat them.

Records are kept column by column (`RecordTable`), the form in which they are stored and measured: a million requests fit in
memory and numpy reads the buffers as they are. Times are raw: `RunMeta.time_scale` turns measured time into engine time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from longbench_sched.plan import ClosedLoop, Lane, Plan
from longbench_sched.record import StreamRecord

SCHEMA_VERSION = 1

SEND_TIMES = "send times"  # in RunMeta.origin["unknown"]: each request's instants are on a clock of its own

NONE = -(2**63)  # stands for null in integer columns in memory; null in Parquet

INT_COLUMNS = (
    "index", "isl", "osl", "due_ns", "slot_ns", "sent_ns", "body_sent_ns", "header_ns", "first_byte_ns", "answer_at_ns",
    "finish_ns", "end_ns", "n_shared_reads", "n_comments", "n_body_bytes", "prompt_tokens", "output_tokens", "cached_tokens",
    "reasoning_tokens", "http_status", "error_code",
)  # fmt: skip
TEXT_COLUMNS = (
    "request_id", "phase", "lane", "status", "reason", "detail", "finish_reason", "clock", "chunk_token_source",
    "prompt_token_source", "output_token_source", "cached_token_source", "text",
)  # fmt: skip
LIST_COLUMNS = ("chunk_at_ns", "chunk_tokens", "chunk_lateness_ns")  # parallel: one entry a token-bearing event

_ON_DECODED = frozenset(
    {
        "first_byte_ns", "answer_at_ns", "finish_ns", "n_shared_reads", "n_comments", "prompt_tokens", "output_tokens",
        "cached_tokens", "reasoning_tokens", "error_code", "status", "reason", "detail", "finish_reason", "chunk_token_source",
        "prompt_token_source", "output_token_source", "cached_token_source", "text",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Records column by column; rows in the order of completion.

    ints: name -> array('q') or any int64 buffer, shape (n,), NONE where null.
    texts: name -> n values, None where null.
    offsets: int64, shape (n + 1,): row i owns lists[...][offsets[i]:offsets[i + 1]].
    lists: name -> int64 buffer (tokens also int32), shape (offsets[-1],); chunk_tokens holds UNKNOWN_TOKENS (-1) where unknown.
    marks: n tuples of marks.
    """

    n: int
    ints: Mapping[str, Sequence[int]]
    texts: Mapping[str, Sequence[str | None]]
    offsets: Sequence[int]
    lists: Mapping[str, Sequence[int]]
    marks: Sequence[tuple[str, ...]]

    @classmethod
    def from_records(cls, records: Iterable[StreamRecord]) -> RecordTable:
        """Turn records into columns."""
        columns = RecordColumns()
        for record in records:
            columns.add(record)
        return columns.table()


class RecordColumns:
    """Takes records one by one, so that none has to be kept: a simulated run has millions of tokens."""

    def __init__(self) -> None:
        self._ints: dict[str, array[int]] = {name: array("q") for name in INT_COLUMNS}
        self._texts: dict[str, list[str | None]] = {name: [] for name in TEXT_COLUMNS}
        self._lists: dict[str, array[int]] = {name: array("q") for name in LIST_COLUMNS}
        self._offsets = array("q", [0])
        self._marks: list[tuple[str, ...]] = []

    def add(self, record: StreamRecord) -> None:
        """Append one row."""
        decoded = record.decoded
        for name in INT_COLUMNS:
            value = getattr(decoded if name in _ON_DECODED else record, name)
            self._ints[name].append(NONE if value is None else value)
        for name in TEXT_COLUMNS:
            text = getattr(decoded if name in _ON_DECODED else record, name)
            self._texts[name].append(None if text is None else str(text))
        for name in LIST_COLUMNS:
            values = getattr(decoded, name)
            # An array is extended by its own kind only, and tokens are kept as 32-bit integers in a record.
            self._lists[name].extend(values if values.typecode == "q" else array("q", values))
        self._offsets.append(len(self._lists["chunk_at_ns"]))
        self._marks.append(tuple(decoded.marks))

    def table(self) -> RecordTable:
        """The rows so far."""
        return RecordTable(len(self._marks), self._ints, self._texts, self._offsets, self._lists, self._marks)


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How well the tool itself kept up: whether the numbers are the server's or ours."""

    clock: str  # kernel, user or virtual
    cpu_s: float  # CPU time of the tool while measuring, all its processes
    wall_s: float
    lateness_p50_ms: float | None = None  # sent - slot
    lateness_p99_ms: float | None = None
    read_lateness_p99_ms: float | None = None  # user stamp - kernel stamp
    loop_lag_p99_ms: float | None = None
    gc_pauses: int = 0
    gc_pause_max_ms: float = 0.0
    peak_open_sockets: int = 0
    peak_rss_mb: float | None = None
    peak_undecoded_mb: float = 0.0
    spooled_mb: float = 0.0
    clock_step_max_us: float | None = None  # largest step of REALTIME - MONOTONIC between two samples
    server_lateness_p99_ms: float | None = None  # of the embedded engine, if that is the target
    planned_rate_per_s: float | None = None
    achieved_rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunMeta:
    """What is needed to read a run and to repeat it. JSON in the footer of the Parquet file."""

    run_id: str
    started_at: str  # ISO 8601, UTC
    wall_anchor_ns: int  # CLOCK_REALTIME at the instant mono_anchor_ns
    mono_anchor_ns: int
    measured_from_ns: int  # start of the measured phase: due times count from here
    measured_to_ns: int
    workload: str
    workload_text: str
    seed: int
    digest: str
    plan: Mapping[str, Any]  # loop, lengths, prompt source: what the headline shows (see plan_facts)
    target: Mapping[str, Any]  # engine, api, base_url (masked), model, transport, timeouts, count, proxy, headers (names)
    engine_facts: Mapping[str, Any]  # from the probe; {} where nothing was learned
    host: Mapping[str, Any]
    versions: Mapping[str, str]
    client: ClientHealth
    clock: str = "user"
    time_scale: float = 1.0  # engine time = measured time x time_scale
    simulated: bool = False
    complete: bool = True
    interrupted: str | None = None  # SIGINT, SIGTERM, or None
    marks: tuple[str, ...] = ()  # client-limited, clock-stepped, isl-mismatch, incomplete, recovered, ...
    preflight: tuple[Mapping[str, Any], ...] = ()  # findings before the run: {"id", "text", ...}
    slo: Mapping[str, float] = field(default_factory=dict)  # seconds, by metric name
    # Its place among other runs: {"id", "target", "cell", "params", "block", "place", "gpus", ...}; {} for a run by itself.
    experiment: Mapping[str, Any] = field(default_factory=dict)
    # Of a run that another tool made: its name, the file, what that does not say, what it printed. Empty for our own.
    origin: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def has_common_clock(self) -> bool:
        """Whether instants of different requests can be compared: always, but for what some tools write."""
        return SEND_TIMES not in self.origin.get("unknown", ())


@dataclass(frozen=True, slots=True)
class Run:
    """A measured (or simulated) run."""

    meta: RunMeta
    table: RecordTable


def plan_facts(plan: Plan) -> dict[str, Any]:
    """What a reader must know of a plan, as plain data for `RunMeta.plan`: loops, lengths, where the prompts came from."""
    return {
        "requests": sum(len(lane.requests) for lane in plan.lanes),
        "warmups": len(plan.warmups),
        "lanes": [_lane_facts(lane) for lane in plan.lanes],
        "isl": asdict(plan.isl),
        "osl": asdict(plan.osl),
        "prompt_source": plan.prompt_source,
        "shared_prefix_tokens": plan.shared_prefix_tokens,
        "notes": list(plan.notes),
        "extra": dict(plan.extra),
    }


def _lane_facts(lane: Lane) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": lane.name, "requests": len(lane.requests), "duration_s": lane.duration_s}
    if isinstance(lane.loop, ClosedLoop):
        steps = [[step.from_s, step.concurrency] for step in lane.loop.steps]
        return facts | {"loop": "closed", "concurrency": lane.loop.concurrency, "steps": steps}
    loop = lane.loop
    return facts | {"loop": "open", "process": loop.process, "rate_per_s": loop.rate_per_s, "max_in_flight": loop.max_in_flight}
