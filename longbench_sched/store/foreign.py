"""Results of other tools -> runs: what their files hold of each request, and nothing that they do not hold.

Read are the JSON of `vllm bench serve --save-result --save-detailed`, the JSONL of SGLang's `bench_serving --output-file ...
--output-details`, and AIPerf's `profile_export.jsonl` (`foreign_aiperf.py`): without the details there are no requests to read.
No file says when a request was due, what the server sent besides, or when a failure ended, and the first two do not say who
counted the tokens; those columns stay null. SGLang's does not say when requests were sent either: its times count from each
request's own send, and whatever needs a common clock (rates, requests in flight, stalls) is not known of such a run.
`RunMeta.origin` says which tool it was, what is unknown, and what the tool printed.

Formats as written by vLLM 0.32.0, SGLang 0.5.23 and AIPerf 0.13.0.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from longbench_sched.errors import StoreError
from longbench_sched.record import UNKNOWN_TOKENS, Decoded, Status, StreamRecord, TokenSource
from longbench_sched.run import NONE, SEND_TIMES, ClientHealth, RecordTable, Run, RunMeta
from longbench_sched.store.foreign_aiperf import MARKER, as_document, is_aiperf

_DETAILS = ("input_lens", "output_lens", "ttfts", "itls")  # lists with an entry a request
_MEANINGS = {
    "vllm": (
        "imported from vllm bench serve: TTFT and E2E from the client's send to a chunk with a choice, stamped by the client "
        "when it had read it; ITL and ICG only where each chunk held one token, else ICG alone",
        "token counts are the server's where it sent usage, else of the client's tokenizer: the file does not say which",
    ),
    "sglang": (
        "imported from SGLang bench_serving: TTFT from the client's send to the first text, stamped by the client when it had "
        "read it; E2E here is TTFT and the gaps after it, without what follows the last token",
        "send times are not in the file: no rates, no requests in flight, no windows",
    ),
    MARKER: (
        "imported from AIPerf: TTFT and E2E from the client's send to an event with content, stamped by the client when it had "
        "read it; ITL and ICG only where each event held one token, else ICG alone",
        "how the load was made is not in the file",
    ),
}
_KNOWN = "Known: vllm bench serve --save-result, SGLang bench_serving, AIPerf's profile_export.jsonl."
_TOO_LITTLE = {  # a key that only this format has -> what to do
    "aiperf_version": "holds AIPerf's summary and no requests. Import profile_export.jsonl, which lies beside it.",
    "benchmarks": "is of GuideLLM, which keeps the first and last token of each request, and no gaps. It cannot be imported.",
}


@dataclass(frozen=True, slots=True)
class _Format:
    """A tool's file: how it is known, and how its requests are placed in time."""

    tool: str
    marker: str  # a key that only this format has
    send_ns: Callable[[Mapping[str, Any], int], list[int]]


def read_foreign(path: Path) -> list[Run]:
    """The runs of a file, one a line of JSONL. Raises StoreError: missing, another format, no details."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
    # The reader of the standard library: both tools write with it, Infinity and NaN included.
    try:
        try:
            documents = [json.loads(data)]
        except ValueError:
            documents = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        documents = []
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise StoreError(f"{path} is neither JSON nor JSONL. {_KNOWN}")
    if is_aiperf(documents):
        documents = [as_document(documents, str(path))]  # a line a request
    digest = hashlib.sha256(data).hexdigest()
    named = [(document, path.name if len(documents) == 1 else f"{path.name}:{n}") for n, document in enumerate(documents, 1)]
    return [_run(document, str(path), name, digest) for document, name in named]


def _run(document: Mapping[str, Any], where: str, name: str, digest: str) -> Run:
    form = next((form for form in _FORMATS if form.marker in document), None)
    if form is None:
        why = next(
            (words for key, words in _TOO_LITTLE.items() if key in document), f"is JSON of no tool that is known. {_KNOWN}"
        )
        raise StoreError(f"{where} {why}")
    missing = [key for key in _DETAILS if not isinstance(document.get(key), list)]
    if missing:
        flag = "--save-detailed" if form.tool == "vllm" else "--output-details"
        raise StoreError(f"{where} holds no requests (no {missing[0]}). Run the tool again with {flag}.")
    n = len(document["ttfts"])
    if any(len(document[key]) != n for key in _DETAILS):
        raise StoreError(f"{where} is damaged: its lists differ in length.")
    try:
        sent_ns = form.send_ns(document, n)
        table = RecordTable.from_records([_record(document, form.tool, index, sent_ns[index]) for index in range(n)])
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise StoreError(f"{where} is damaged: its lists hold other things than numbers ({error}).") from None
    unknown = array("q", [NONE]) * n
    ints = {**table.ints, "due_ns": unknown, "slot_ns": unknown}
    table = RecordTable(n, ints, table.texts, table.offsets, table.lists, table.marks)
    return Run(_meta(document, form.tool, name, digest, sent_ns), table)


def _record(document: Mapping[str, Any], tool: str, index: int, sent_ns: int) -> StreamRecord:
    errors = document.get("errors") or []
    error = str(errors[index]) if index < len(errors) else ""
    more: Mapping[str, Any] = document["more"][index] if tool == MARKER else {}
    at_ns = _stamps(sent_ns, document["ttfts"][index], document["itls"][index]) if not error else array("q")
    n_output = int(document["output_lens"][index]) or None
    texts = document.get("generated_texts") or []
    decoded = Decoded(
        chunk_at_ns=at_ns,
        chunk_lateness_ns=array("q", [0]) * len(at_ns),
        prompt_tokens=int(document["input_lens"][index]) if not error else None,
        output_tokens=n_output if not error else None,
        output_token_source=more.get("source") if not error else None,
        status=more.get("status") or (Status.FAILED if error else Status.OK),
        detail=error[-500:] or None,
        text=str(texts[index]) if index < len(texts) else None,
    )
    decoded.chunk_tokens, decoded.chunk_token_source = _chunk_tokens(tool, len(at_ns), n_output)
    return StreamRecord(
        request_id=f"{tool}-{index}",
        index=index,
        phase=more.get("phase", "measured"),
        lane="main",
        due_ns=sent_ns,
        slot_ns=sent_ns,
        isl=int(document["input_lens"][index]),
        osl=n_output or 0,
        sent_ns=sent_ns,
        end_ns=more.get("end_ns", at_ns[-1] if at_ns else None),
        decoded=decoded,
        clock="user",
    )


def _stamps(sent_ns: int, ttft_s: float, gaps_s: Sequence[float]) -> array[int]:
    at_s = ttft_s
    stamps = array("q", [sent_ns + round(at_s * 1e9)])
    for gap_s in gaps_s:
        at_s += gap_s
        stamps.append(sent_ns + round(at_s * 1e9))
    return stamps


def _chunk_tokens(tool: str, n_chunks: int, n_output: int | None) -> tuple[array[int], TokenSource | None]:
    """Tokens of each stamp: one where there are as many stamps as tokens.

    SGLang's client spreads the gap before a chunk over its tokens, so that each stamp after the first is a token; the rest came
    in the first chunk. vLLM's client stamps chunks: with fewer stamps than tokens nobody knows which held how many.
    """
    if not n_chunks:
        return array("i"), None
    if n_output == n_chunks:
        return array("i", [1]) * n_chunks, TokenSource.INFERRED
    if tool == "sglang" and n_output is not None and n_output > n_chunks:
        return array("i", [n_output - n_chunks + 1, *([1] * (n_chunks - 1))]), TokenSource.INFERRED
    return array("i", [UNKNOWN_TOKENS]) * n_chunks, None


def _starts(document: Mapping[str, Any], n: int) -> list[int]:
    starts = document["start_times"]
    return [round(float(start) * 1e9) for start in starts[:n]]


def _own_clocks(document: Mapping[str, Any], n: int) -> list[int]:
    return [0] * n


_FORMATS = (
    _Format(MARKER, MARKER, _starts),
    _Format("vllm", "start_times", _starts),
    _Format("sglang", "total_output_tokens_retokenized", _own_clocks),
)


def _meta(document: Mapping[str, Any], tool: str, name: str, digest: str, sent_ns: Sequence[int]) -> RunMeta:
    origin_ns = document.get("measured_from_ns", min(sent_ns, default=0))
    duration_s = _number(document.get("duration")) or 0.0
    model = document.get("model_id")
    info = document.get("server_info")
    facts: dict[str, Any] = {"model": model} if model else {}
    if isinstance(info, Mapping) and info.get("version"):
        facts["version"] = str(info["version"])
    printed = {key: value for key, value in document.items() if _number(value) is not None}
    unknown = ["due times", *(["token sources"] if tool != MARKER else []), *([SEND_TIMES] if tool == "sglang" else [])]
    return RunMeta(
        run_id="",  # given when it is stored
        started_at=_started(document),
        wall_anchor_ns=0,
        mono_anchor_ns=0,
        measured_from_ns=origin_ns,
        measured_to_ns=origin_ns + round(duration_s * 1e9),
        workload=str(document.get("dataset_name") or "imported"),
        workload_text="",
        seed=0,
        digest=digest,
        plan=_plan(document, tool),
        target={"engine": str(document.get("backend") or tool), "model": model, "base_url": None},
        engine_facts=facts,
        host={},
        versions={},
        client=ClientHealth(clock="user", cpu_s=0.0, wall_s=0.0),
        clock="user",
        marks=("imported",),
        origin={"tool": tool, "file": name, "unknown": unknown, "printed": printed},
    )


def _plan(document: Mapping[str, Any], tool: str) -> dict[str, Any]:
    rate, cap = _number(document.get("request_rate")), document.get("max_concurrency")
    burstiness = _number(document.get("burstiness")) or 1.0
    process = "burst" if rate is None else "poisson" if burstiness == 1 else f"gamma {burstiness:g}"
    n = len(document["ttfts"])
    n_warmups = sum(more["phase"] == "warmup" for more in document.get("more", ()))
    lane = {"name": "main", "requests": n, "duration_s": None, "loop": "open", "process": process, "rate_per_s": rate}
    return {
        "requests": n - n_warmups,
        "warmups": n_warmups,
        "lanes": [lane | {"max_in_flight": cap if isinstance(cap, int) else None}] if tool != MARKER else [],
        "prompt_source": f"imported from {tool}",
        "shared_prefix_tokens": 0,
        "notes": [*_MEANINGS[tool], *_endless(document, tool)],
        "extra": {"load_digest": _load_digest(document, tool)} if tool != MARKER else {},
    }


def _load_digest(document: Mapping[str, Any], tool: str) -> str:
    """Equal for files of one tool whose load was the same as far as they say: prompt lengths in order, rate, burstiness, cap.

    Output lengths are realised ones, which a comparison looks at by itself. A file that does not say its load has none.
    """
    load = [
        tool,
        document["input_lens"],
        *(str(document.get(key)) for key in ("request_rate", "burstiness", "max_concurrency")),
    ]
    return hashlib.sha256(json.dumps(load).encode()).hexdigest()


def _endless(document: Mapping[str, Any], tool: str) -> list[str]:
    n = sum(map(bool, document.get("errors") or [])) if tool != "sglang" else 0
    return [f"{n} requests failed, and the file does not say when: they count as in flight to the end"] if n else []


def _number(value: object) -> float | None:
    """A finite number; None for anything else (an infinite rate is written as text by one tool, as Infinity by the other)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _started(document: Mapping[str, Any]) -> str:
    """When the tool wrote its result, on the wall clock of its machine; empty if it does not say."""
    try:
        return datetime.strptime(str(document.get("date")), "%Y%m%d-%H%M%S").isoformat()  # no zone is given
    except ValueError:
        return ""
