"""Facts: what the load really was, beside what was asked for.

Plain data (numbers, texts, mappings), as `Summary.facts` holds it. The keys are listed in docs/metrics.md; a figure that is not
known is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from longbench_sched.metrics import window
from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask
from longbench_sched.metrics.distribution import most_common
from longbench_sched.metrics.window import Flight, Span
from longbench_sched.run import NONE, RunMeta

LENGTH_TOLERANCE = 0.02  # of the planned prompt: beyond it the server did not get the prompt that was meant
WHOLE_INTERVAL = "first send to last token of measured requests"


def collect_facts(meta: RunMeta, columns: Columns, whole: Span | None, steady: Span | None) -> dict[str, object]:
    """Everything about the run that is no metric of the engine."""
    return {
        "interval": WHOLE_INTERVAL,
        "isl": _isl(meta, columns),
        "osl": _osl(meta, columns),
        "tokens": _tokens(columns),
        "packing": _packing(columns),
        "cache": _cache(meta, columns),
        "in_flight": _in_flight(meta, columns, whole, steady),
        "sends": _sends(meta, columns),
        "shared_reads": _shared_reads(columns),
        "sources": _sources(columns),
        "row_marks": _row_marks(columns),
    }


def _spread(values: Ints | Floats) -> dict[str, float] | None:
    if not len(values):
        return None
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}


def _isl(meta: RunMeta, columns: Columns) -> dict[str, Any]:
    """Prompt lengths: nominal, asked, as the server counted them, and the difference.

    In chat the template adds its own tokens; what the smallest, typically constant, difference holds is no mismatch.
    Elsewhere any difference counts.
    """
    asked, served = columns.ints("isl"), columns.ints("prompt_tokens")
    rows = columns.ok & (served != NONE)
    overhead = (served - asked)[rows]
    # A template adds tokens and takes none away: a server that counts fewer did not get the prompt.
    template = max(0.0, float(np.median(overhead))) if len(overhead) and meta.target.get("api") == "chat" else 0.0
    expected = asked[rows] + template
    off = np.abs(served[rows] - expected) > LENGTH_TOLERANCE * expected
    return {
        "nominal": _nominal(meta, "isl"),
        "asked": _spread(asked[columns.measured]),
        "server": _spread(served[rows]),
        "overhead": _spread(overhead),
        "n_server": int(rows.sum()),
        "n_mismatch": int(off.sum()),
    }


def _osl(meta: RunMeta, columns: Columns) -> dict[str, Any]:
    asked, got = columns.ints("osl"), columns.output_tokens
    rows = columns.ok & (got != NONE)
    total = int(asked[rows].sum())
    return {
        "nominal": _nominal(meta, "osl"),
        "asked": _spread(asked[columns.measured]),
        "realised": _spread(got[rows]),
        "share": float(got[rows].sum() / total) if total else None,
        "n": int(rows.sum()),
    }


def _nominal(meta: RunMeta, which: str) -> float | None:
    lengths = meta.plan.get(which)
    nominal = lengths.get("nominal_mean") if isinstance(lengths, Mapping) else None
    return None if nominal is None else float(nominal)


def _tokens(columns: Columns) -> dict[str, int]:
    """Totals: prompt and output of successes, and what requests that did not succeed had received."""
    ok = columns.ok
    shown = columns.measured & ~ok & (columns.output_tokens != NONE)
    return {
        "prompt": int(columns.prompt_tokens[ok & (columns.prompt_tokens != NONE)].sum()),
        "output": int(columns.output_tokens[ok & (columns.output_tokens != NONE)].sum()),
        "output_unsuccessful": int(columns.output_tokens[shown].sum()),
    }


def _packing(columns: Columns) -> dict[str, Any]:
    """Tokens per chunk over all chunks of successes whose counts are known: mean and most frequent number.

    n_unknown: answers whose chunks' counts are unknown; n_disagree: answers whose chunks do not add up to the server's total;
    n_single_chunk: answers of several tokens in one chunk.
    """
    ok, total, shown = columns.ok, columns.output_tokens, columns.shown_tokens
    rows = ok & (shown != NONE)
    tokens = columns.chunk_tokens[np.repeat(rows, columns.n_chunks)]
    apart = np.abs(shown - total) > np.maximum(1, LENGTH_TOLERANCE * total)
    return {
        "mean": float(tokens.mean()) if len(tokens) else None,
        "mode": most_common(tokens) if len(tokens) else None,
        "n_chunks": len(tokens),
        "n_unknown": int((ok & (columns.n_chunks > 0) & (shown == NONE)).sum()),
        "n_disagree": int((rows & apart).sum()),
        "n_single_chunk": int((ok & (columns.n_chunks == 1) & (total > 1)).sum()),
    }


def _cache(meta: RunMeta, columns: Columns) -> dict[str, Any]:
    """Share of prompt tokens that came from the prefix cache, over successes whose server says so.

    SGLang with `--enable-cache-report` says nothing where nothing was cached: there silence is 0.

    Where no answer says it, the server's counter over the whole run does. The counter takes in the warm-ups, which may all have
    been known to the server; so the share is what is surely left for the measured prompts.
    """
    cached = columns.ints("cached_tokens")
    is_told = (cached != NONE) | (meta.engine_facts.get("cache_report") is True)
    rows = columns.ok & is_told & (columns.prompt_tokens > 0)
    prompt = int(columns.prompt_tokens[rows].sum())
    total = int(cached[rows & (cached != NONE)].sum())
    hits = meta.engine_facts.get("prefix_hit_tokens")
    if not rows.any() and isinstance(hits, int):
        rows = columns.ok
        prompt = int(columns.prompt_tokens[rows].sum())
        total = min(max(0, hits - int(columns.prompt_tokens[~columns.measured].sum())), prompt)
    return {"n": int(rows.sum()), "cached_tokens": total, "share": total / prompt if prompt else None}


def _in_flight(meta: RunMeta, columns: Columns, whole: Span | None, steady: Span | None) -> dict[str, Any]:
    """How many requests were in flight, in prefill (sent, no token yet) and in decode (first to last token)."""
    starts, stops = window.stays(columns, meta.measured_to_ns)
    sent = columns.ints("sent_ns")
    rows = columns.measured & (sent != NONE)
    first, last = columns.first_ns[rows], columns.last_ns[rows]
    has = first != NONE
    prefill_stop = np.where(has, first, stops)

    def means(span: Span | None) -> dict[str, float | None]:
        if span is None:
            return {"mean": None, "mean_prefill": None, "mean_decode": None}
        return {
            "mean": span.mean_inside(starts, stops),
            "mean_prefill": span.mean_inside(starts, prefill_stop),
            "mean_decode": span.mean_inside(first[has], last[has]),
        }

    return {
        "planned": _planned_in_flight(meta),
        "peak": Flight.of(starts, stops).peak if len(starts) else 0,
        "whole": means(whole),
        "steady": means(steady),
    }


def _lanes(meta: RunMeta) -> list[Mapping[str, Any]]:
    lanes = meta.plan.get("lanes", ())
    return [lane for lane in lanes if isinstance(lane, Mapping)]


def _planned_in_flight(meta: RunMeta) -> int | None:
    """The sum of the lanes' concurrency or cap; None if any lane is free."""
    limits = [lane.get("concurrency") or lane.get("max_in_flight") for lane in _lanes(meta)]
    return sum(int(limit) for limit in limits if limit) if limits and all(limits) else None


def _open_rows(meta: RunMeta, columns: Columns) -> Mask:
    """Measured requests of open-loop lanes that were sent."""
    names = {lane.get("name") for lane in _lanes(meta) if lane.get("loop") == "open"}
    of_lane = np.fromiter(map(names.__contains__, columns.texts("lane")), dtype=np.bool_, count=columns.n)
    rows: Mask = columns.measured & of_lane & (columns.ints("sent_ns") != NONE)
    return rows


def _sends(meta: RunMeta, columns: Columns) -> dict[str, Any]:
    """Planned and achieved rate of sends in the open loops, first to last; how irregular; how many a cap held back."""
    rows = _open_rows(meta, columns)
    due, slot, sent = (columns.ints(name)[rows] for name in ("due_ns", "slot_ns", "sent_ns"))
    planned, planned_cv = _pace(due, columns.scale_s)
    achieved, achieved_cv = _pace(sent, columns.scale_s)
    return {
        "n": len(sent),
        "planned_rate_per_s": planned,
        "achieved_rate_per_s": achieved,
        "share": achieved / planned if achieved is not None and planned is not None else None,
        "planned_cv": planned_cv,
        "achieved_cv": achieved_cv,
        "n_held_back": int((slot - due > 1_000_000).sum()),  # by the in-flight cap, for more than 1 ms
    }


def _pace(at_ns: Ints, scale_s: float) -> tuple[float | None, float | None]:
    """Rate from first to last (n - 1 gaps), and the coefficient of variation of the gaps; None where all are at once."""
    gaps: Floats = np.multiply(np.diff(np.sort(at_ns)), scale_s, dtype=np.float64)
    total = float(gaps.sum())
    if total <= 0:
        return None, None
    return len(gaps) / total, float(gaps.std() / gaps.mean())


def _shared_reads(columns: Columns) -> dict[str, Any]:
    """Token-bearing events that came in the same read as the one before, of all: their gap was not seen."""
    n = int(columns.ints("n_shared_reads")[columns.ok].sum())
    n_chunks = int(columns.n_chunks[columns.ok].sum())
    return {"n": n, "share": n / n_chunks if n_chunks else None}


def _sources(columns: Columns) -> dict[str, dict[str, int]]:
    """Where the counts of successes came from: how many requests by source, "none" where there is no count."""
    rows = np.flatnonzero(columns.ok).tolist()
    names = ("prompt_token_source", "output_token_source", "chunk_token_source", "cached_token_source")
    counts = {name: Counter(map(columns.texts(name).__getitem__, rows)) for name in names}
    return {name: {source or "none": n for source, n in counts[name].items()} for name in names}


def _row_marks(columns: Columns) -> dict[str, int]:
    """How many measured requests carry each mark."""
    if not any(columns.table.marks):
        return {}
    rows = np.flatnonzero(columns.measured).tolist()
    return dict(Counter(mark for row in rows for mark in columns.table.marks[row]))
