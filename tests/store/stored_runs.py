"""Runs to store: one made by hand, and a hypothesis strategy over all that a record can hold."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import strategies as st

from longbench_sched.record import UNKNOWN_TOKENS, Decoded, Reason, Status, StreamRecord, TokenSource
from longbench_sched.run import INT_COLUMNS, LIST_COLUMNS, TEXT_COLUMNS, ClientHealth, RecordTable, Run, RunMeta

ORIGIN_NS = 86_400_000_000_000


def make_meta(**changes: Any) -> RunMeta:
    """Metadata with every kind of value in it."""
    fields: dict[str, Any] = {
        "run_id": "2026-11-30T1012-vllm-30k-500-c64",
        "started_at": "2026-11-30T10:12:07Z",
        "wall_anchor_ns": 1_796_000_000_000_000_000,
        "mono_anchor_ns": ORIGIN_NS,
        "measured_from_ns": ORIGIN_NS + 5,
        "measured_to_ns": ORIGIN_NS + 142_000_000_000,
        "workload": "30k-500-c64",
        "workload_text": '[isl]\nfixed = 30000  # "exact"\n',
        "seed": 0,
        "digest": "9f3c21" + "0" * 58,
        "plan": {"requests": 2, "lanes": [{"name": "main", "loop": "closed", "concurrency": 64}]},
        "target": {"engine": "vllm", "base_url": "http://127.0.0.1:8000", "headers": ["X-Team"]},
        "engine_facts": {"version": "0.33.0"},
        "host": {"cpus": 2},
        "versions": {"longbench-sched": "0.1.0"},
        "client": ClientHealth(clock="kernel", cpu_s=1.5, wall_s=142.0, lateness_p99_ms=0.3),
        "clock": "kernel",
        "marks": ("client-limited",),
        "preflight": ({"id": "HOST-BUSY", "text": "load 3.2"},),
        "slo": {"ttft": 15.0},
    }
    return RunMeta(**fields | changes)


def make_record(index: int, n_chunks: int = 3, **decoded: Any) -> StreamRecord:
    """A good request that was due `index` seconds after the start; chunks every 20 ms from 1 s on, one token each."""
    due_ns = ORIGIN_NS + index * 1_000_000_000
    stamps = [due_ns + 1_000_000_000 + 20_000_000 * k for k in range(n_chunks)]
    return StreamRecord(
        request_id=f"run-r{index}",
        index=index,
        phase="measured",
        lane="main",
        due_ns=due_ns,
        slot_ns=due_ns,
        isl=30_000,
        osl=n_chunks,
        sent_ns=due_ns + 40_000,
        body_sent_ns=due_ns + 90_000,
        header_ns=due_ns + 900_000_000,
        end_ns=due_ns + 3_000_000_000,
        http_status=200,
        n_body_bytes=200 * n_chunks,
        clock="kernel",
        decoded=Decoded(
            **{
                "chunk_at_ns": array("q", stamps),
                "chunk_tokens": array("i", [1] * n_chunks),
                "chunk_lateness_ns": array("q", [4_000] * n_chunks),
                "chunk_token_source": TokenSource.USAGE,
                "prompt_tokens": 30_000,
                "output_tokens": n_chunks,
                "finish_reason": "length",
            }
            | decoded
        ),
    )


def make_run(records: list[StreamRecord], **meta: Any) -> Run:
    return Run(make_meta(**meta), RecordTable.from_records(records))


def as_plain(table: RecordTable) -> dict[str, object]:
    """A table in plain Python, so that buffers of different kinds compare."""
    return {
        "n": table.n,
        "ints": {name: [int(value) for value in table.ints[name]] for name in INT_COLUMNS},
        "texts": {name: list(table.texts[name]) for name in TEXT_COLUMNS},
        "offsets": [int(value) for value in table.offsets],
        "lists": {name: [int(value) for value in table.lists[name]] for name in LIST_COLUMNS},
        "marks": list(table.marks),
    }


_instants = st.integers(0, 2**62)
_maybe_instant = st.none() | _instants
_counts = st.integers(0, 2**31 - 1)
_maybe_count = st.none() | st.integers(0, 2**40)
_sources = st.none() | st.sampled_from(TokenSource)
_words = st.text(max_size=20)


@st.composite
def decoded_answers(draw: st.DrawFn) -> Decoded:
    n = draw(st.integers(0, 6))
    tokens = st.just(UNKNOWN_TOKENS) | st.integers(0, 4_000)
    return Decoded(
        chunk_at_ns=array("q", draw(st.lists(_instants, min_size=n, max_size=n))),
        chunk_tokens=array("i", draw(st.lists(tokens, min_size=n, max_size=n))),
        chunk_lateness_ns=array("q", draw(st.lists(st.integers(-(2**40), 2**40), min_size=n, max_size=n))),
        chunk_token_source=draw(_sources),
        answer_at_ns=draw(_maybe_instant),
        first_byte_ns=draw(_maybe_instant),
        finish_ns=draw(_maybe_instant),
        n_shared_reads=draw(_counts),
        n_comments=draw(_counts),
        prompt_tokens=draw(_maybe_count),
        prompt_token_source=draw(_sources),
        output_tokens=draw(_maybe_count),
        output_token_source=draw(_sources),
        cached_tokens=draw(_maybe_count),
        cached_token_source=draw(_sources),
        reasoning_tokens=draw(_maybe_count),
        finish_reason=draw(st.none() | _words),
        status=draw(st.sampled_from(Status)),
        reason=draw(st.none() | st.sampled_from(Reason)),
        detail=draw(st.none() | _words),
        error_code=draw(st.none() | st.integers(-(2**40), 2**40)),
        marks=draw(st.lists(_words, max_size=3)),
        text=draw(st.none() | _words),
    )


@st.composite
def stream_records(draw: st.DrawFn) -> StreamRecord:
    return StreamRecord(
        request_id=draw(_words),
        index=draw(_counts),
        phase=draw(st.sampled_from(["warmup", "measured"])),
        lane=draw(_words),
        due_ns=draw(_instants),
        slot_ns=draw(_instants),
        isl=draw(_counts),
        osl=draw(_counts),
        sent_ns=draw(_maybe_instant),
        body_sent_ns=draw(_maybe_instant),
        header_ns=draw(_maybe_instant),
        end_ns=draw(_maybe_instant),
        http_status=draw(st.none() | st.integers(100, 999)),
        decoded=draw(decoded_answers()),
        n_body_bytes=draw(st.integers(0, 2**40)),
        clock=draw(st.sampled_from(["kernel", "user", "virtual"])),
    )
