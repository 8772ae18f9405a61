"""Builds runs by hand: rows are written in milliseconds, as a reader thinks of them, and stored in ns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.record import UNKNOWN_TOKENS, Decoded, Reason, Status, StreamRecord, TokenSource
from longbench_sched.run import ClientHealth, RecordTable, Run, RunMeta

START_NS = 5_000_000_000  # the measured phase begins here: no instant is 0 by accident


def ns(ms: float) -> int:
    """An instant, given in ms after the start of the measured phase."""
    return START_NS + round(ms * 1e6)


def row(
    sent: float | None = 0.0,
    chunks: Sequence[float] = (),  # instants of token-bearing events, ms after the start of the measured phase
    *,
    index: int = 0,
    tokens: Sequence[int] | int | None = 1,  # of each chunk; None: unknown
    output: int | None = -1,  # the server's count; -1: what the chunks show; None: the server did not say
    due: float | None = None,  # default: as slot
    slot: float | None = None,  # default: as sent
    end: float | None = None,  # default: the last chunk, else the send
    body_sent: float | None = None,
    first_byte: float | None = None,
    answer: float | None = None,
    isl: int = 100,
    osl: int | None = None,  # default: what came
    prompt: int | None = -1,  # the server's count; -1: as planned
    cached: int | None = None,
    status: Status = Status.OK,
    reason: Reason | None = None,
    http_status: int | None = 200,
    error_code: int | None = None,
    detail: str | None = None,
    phase: str = "measured",
    lane: str = "main",
    chunk_source: TokenSource | None = TokenSource.USAGE,
    output_source: TokenSource | None = TokenSource.USAGE,
    shared_reads: int = 0,
    marks: Sequence[str] = (),
) -> StreamRecord:
    """One record."""
    counts = [tokens] * len(chunks) if isinstance(tokens, int) else list(tokens) if tokens else [UNKNOWN_TOKENS] * len(chunks)
    shown = sum(counts) if UNKNOWN_TOKENS not in counts else None
    produced = (shown if shown else None) if output == -1 else output
    last = chunks[-1] if chunks else sent
    ended = end if end is not None else last
    slot = slot if slot is not None else (sent if sent is not None else 0.0)
    due = due if due is not None else slot

    def at(ms: float | None) -> int | None:
        return None if ms is None else ns(ms)

    return StreamRecord(
        request_id=f"{'w' if phase == 'warmup' else 'r'}{index}",
        index=index,
        phase=phase,
        lane=lane,
        due_ns=ns(due),
        slot_ns=ns(slot),
        isl=isl,
        osl=osl if osl is not None else (produced or 1),
        sent_ns=at(sent),
        body_sent_ns=at(body_sent),
        end_ns=at(ended),
        http_status=http_status,
        decoded=Decoded(
            chunk_at_ns=array("q", [ns(chunk) for chunk in chunks]),
            chunk_tokens=array("i", counts),
            chunk_lateness_ns=array("q", [0] * len(chunks)),
            chunk_token_source=chunk_source if chunks else None,
            answer_at_ns=at(answer),
            first_byte_ns=at(first_byte),
            n_shared_reads=shared_reads,
            prompt_tokens=(isl if prompt == -1 else prompt) if chunks else None,
            prompt_token_source=TokenSource.USAGE if chunks and prompt is not None else None,
            output_tokens=produced,
            output_token_source=output_source if produced is not None else None,
            cached_tokens=cached,
            cached_token_source=TokenSource.USAGE if cached is not None else None,
            status=status,
            reason=reason,
            detail=detail,
            error_code=error_code,
            marks=list(marks),
        ),
    )


def failed(reason: Reason, *, status: Status = Status.FAILED, **fields: Any) -> StreamRecord:
    """A record of a request that did not succeed."""
    return row(status=status, reason=reason, **{"http_status": None, **fields})


def steps(first: float, step: float, n: int) -> list[float]:
    """Instants `step` ms apart."""
    return [first + step * i for i in range(n)]


def health(**fields: Any) -> ClientHealth:
    """A client that kept up."""
    return ClientHealth(**{"clock": "kernel", "cpu_s": 1.0, "wall_s": 100.0, **fields})


def meta(**fields: Any) -> RunMeta:
    """What a run is stored with."""
    base: dict[str, Any] = {
        "run_id": "run",
        "started_at": "2026-01-01T00:00:00Z",
        "wall_anchor_ns": 0,
        "mono_anchor_ns": 0,
        "measured_from_ns": START_NS,
        "measured_to_ns": START_NS,
        "workload": "by-hand",
        "workload_text": "",
        "seed": 7,
        "digest": "00",
        "plan": {},
        "target": {"engine": "vllm", "api": "completions"},
        "engine_facts": {},
        "host": {},
        "versions": {},
        "client": health(),
    }
    return RunMeta(**{**base, **fields})


def run_of(records: Iterable[StreamRecord], **fields: Any) -> Run:
    """A run of these records; `fields` are those of RunMeta."""
    rows = list(records)
    last = max((record.end_ns or START_NS for record in rows), default=START_NS)
    return Run(meta(**{"measured_to_ns": last, **fields}), RecordTable.from_records(rows))


OPEN_LOOP = {"lanes": [{"name": "main", "loop": "open", "process": "constant", "rate_per_s": 1.0, "max_in_flight": None}]}


def closed_loop(concurrency: int) -> dict[str, Any]:
    """Plan facts of one closed loop."""
    return {"lanes": [{"name": "main", "loop": "closed", "concurrency": concurrency, "steps": [[0.0, concurrency]]}]}


def all_numbers(section: Section) -> list[float]:
    """Every number of a section."""
    numbers: list[float] = [section.from_s, section.to_s]
    for stat in section.stats.values():
        fields = (stat.mean, stat.p50, stat.p90, stat.p95, stat.p99, stat.min, stat.max, stat.low, stat.high)
        fields += (stat.mean_low, stat.mean_high, *stat.adjusted.values(), *stat.adjusted_at_least.values())
        numbers += [value for value in fields if value is not None]
    for rate in section.rates.values():
        numbers += [value for value in (rate.value, rate.low, rate.high, rate.over_s) if value is not None]
    return numbers


def assert_finite(summary: Summary) -> None:
    """No NaN and no infinity anywhere."""

    def walk(value: object) -> None:
        if isinstance(value, float):
            assert math.isfinite(value)
        elif isinstance(value, dict):
            for inner in value.values():
                walk(inner)

    for section in [summary.whole, *([summary.steady] if summary.steady else []), *summary.lanes.values()]:
        for number in all_numbers(section):
            assert math.isfinite(number)
    walk(dict(summary.facts))


def advice_ids(summary: Summary) -> list[str]:
    """Which warnings were given."""
    return [advice.id for advice in summary.advice]
