"""AIPerf's `profile_export.jsonl`, a line a request, as the lists that the other tools' files have.

Written with `--streaming` at its usual export level. A line has the wall clock of the send and of the end, TTFT and every gap
between events with content. Where the server sent usage, its counts are there beside those of AIPerf's tokenizer and are taken.
Warm-ups are told apart. A request that failed has no more than its send and the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longbench_sched.errors import StoreError
from longbench_sched.record import Status, TokenSource

MARKER = "aiperf"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}


def is_aiperf(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these lines are requests of AIPerf."""
    return all(isinstance(line.get("metadata"), dict) and isinstance(line.get("metrics"), dict) for line in documents)


def as_document(lines: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """All lines as one result: lists with an entry a request, and `more` with what only this tool knows.

    Raises StoreError for lines without the times of a stream, and for damaged ones.
    """
    try:
        return _read(lines, where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{where} is damaged: a line lacks {error}, or it is no number.") from None


def _read(lines: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    base_ns = min(int(line["metadata"]["request_start_ns"]) for line in lines)
    good = [line for line in lines if not line.get("error")]
    if good and not any("time_to_first_token" in line["metrics"] for line in good):
        raise StoreError(f"{where} holds no times of tokens. Run AIPerf again with --streaming.")
    more = [_more(line, base_ns) for line in lines]
    starts_ns = [int(line["metadata"]["request_start_ns"]) - base_ns for line in lines]
    measured = [i for i, one in enumerate(more) if one["phase"] == "measured"]
    from_ns = min((starts_ns[i] for i in measured), default=0)
    to_ns = max((more[i]["end_ns"] or starts_ns[i] for i in measured), default=0)
    return {
        MARKER: True,
        "start_times": [start_ns / 1e9 for start_ns in starts_ns],
        "ttfts": [_seconds(line, "time_to_first_token") or 0.0 for line in lines],
        "itls": [_gaps(line) for line in lines],
        "input_lens": [_count(line, "usage_prompt_tokens", "input_sequence_length", "error_isl") or 0 for line in lines],
        "output_lens": [_count(line, "usage_completion_tokens", "output_sequence_length") or 0 for line in lines],
        "errors": [_error(line) for line in lines],
        "measured_from_ns": from_ns,
        "duration": (to_ns - from_ns) / 1e9,
        "more": more,
    }


def _more(line: Mapping[str, Any], base_ns: int) -> dict[str, Any]:
    about = line["metadata"]
    start_ns, end_ns = int(about["request_start_ns"]), int(about["request_end_ns"])
    status = Status.CANCELLED if about.get("was_cancelled") else None
    return {
        "phase": "warmup" if about.get("benchmark_phase") == "warmup" else "measured",
        "end_ns": end_ns - base_ns if end_ns > start_ns else None,  # of a failure it writes the start
        "status": status,
        "source": TokenSource.USAGE if "usage_completion_tokens" in line["metrics"] else None,
    }


def _seconds(line: Mapping[str, Any], tag: str) -> Any:
    """A time, or the list of times, of a request in seconds; None if it has none."""
    metric = line["metrics"].get(tag)
    if metric is None:
        return None
    scale = _SECONDS[metric["unit"]]
    value = metric["value"]
    return [float(one) * scale for one in value] if isinstance(value, list) else float(value) * scale


def _gaps(line: Mapping[str, Any]) -> list[float]:
    gaps: list[float] = _seconds(line, "inter_chunk_latency") or []
    return gaps


def _count(line: Mapping[str, Any], *tags: str) -> int | None:
    """The first count that is there."""
    return next((int(line["metrics"][tag]["value"]) for tag in tags if tag in line["metrics"]), None)


def _error(line: Mapping[str, Any]) -> str:
    """What went wrong, in AIPerf's words; empty for a success."""
    error = line.get("error")
    if not error:
        return ""
    if "time_to_first_token" not in line["metrics"] and not isinstance(error, dict):
        return str(error)
    return " ".join(str(error[key]) for key in ("code", "type", "message") if error.get(key)) or "unknown"
