"""Advice: what a reader of these numbers should be warned of, why it is so, and what to do.

One function a warning: it looks at a summary and says nothing or what it saw, with the numbers and the limit. The table at
the end gives each its id and the mark that it puts on the run. docs/advice.md is the same table for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longbench_sched import quantity
from longbench_sched.metrics.degenerate import MAX_REPEATED
from longbench_sched.metrics.stat import Advice, Section, Summary
from longbench_sched.record import Reason

MIN_RATE_SHARE = 0.99  # achieved of planned sends
MAX_LATE_MS = 10.0  # p99 of sends, and of the event loop where it makes the stamps
MAX_LATE_SHARE = 0.01  # of the TTFT median, where that is more
MAX_READ_LATE_MS = 100.0  # p99 with kernel stamps: harmless to the stamps, but receive buffers fill
MAX_CPU_SHARE = 0.9  # of one core
MIN_CPU_WALL_S = 1.0  # in less the share is that of starting up
MAX_CLOCK_STEP_US = 100.0
MIN_CACHED_SHARE = 0.01
LENGTH_TOLERANCE = 0.02
PACKED = 1.05  # tokens a chunk
MAX_SHARED_SHARE = 0.05
ITL_TAIL = 4.0  # p99 over median
MAX_STALLED_SHARE = 0.05  # of the time between tokens, in gaps over 4 x the median
MIN_PREFILL_SHARE = 0.5  # of the stalls, so that they are put down to prefill
QUEUE_FACTOR = 3.0  # TTFT median over its smallest value
MAX_SERVER_LATE_SHARE = 0.2  # of the TPOT median
FULL_P99_N = 100
MAX_WORDS = 200  # characters of a server's own words

DECODE_WAITS = "Decode steps wait behind prefill chunks of other requests."
SMALLER_CHUNK = (
    "A smaller token budget or chunk shortens these gaps, at some cost in TTFT; where prompts go before decodes (SGLang "
    "without mixed chunk) the chunk hardly matters: mix them."
)

Seen = tuple[str, str, str]  # text, cause, next step


@dataclass(frozen=True, slots=True)
class Rule:
    """A warning of the catalogue."""

    id: str
    look: Callable[[Summary], Seen | None]
    mark: str | None = None  # put on the run if it fires


def advise(summary: Summary) -> tuple[tuple[Advice, ...], tuple[str, ...]]:
    """The warnings of a run, worst first, and its marks: those it was stored with and those that the warnings add."""
    found: list[Advice] = []
    marks = list(summary.meta.marks)
    for rule in RULES:
        if seen := rule.look(summary):
            found.append(Advice(rule.id, *seen))
            if rule.mark and rule.mark not in marks:
                marks.append(rule.mark)
    said = {advice.id for advice in found}
    return (*found, *(advice for advice in _preflight(summary) if advice.id not in said)), tuple(marks)


def _preflight(summary: Summary) -> list[Advice]:
    """What was found before the run, as it was said then. What the run itself shows again is said once, with its numbers."""
    return [
        Advice(
            str(finding.get("id", "PREFLIGHT")),
            str(finding.get("text", "")),
            str(finding.get("cause", "")),
            str(finding.get("next_step", "")),
        )
        for finding in summary.meta.preflight
    ]


def _fact(summary: Summary, name: str) -> Mapping[str, Any]:
    value = summary.facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _best(summary: Summary) -> Section:
    return summary.steady or summary.whole


def _time(value_s: float) -> str:
    factor, unit = quantity.time_unit(value_s)
    return f"{quantity.significant(value_s * factor)} {unit}"


def _percent(share: float) -> str:
    return f"{quantity.significant(share * 100)} %"


def _number(value: float) -> str:
    return quantity.significant(value)


def _impossible(summary: Summary) -> Seen | None:
    found = _fact(summary, "impossible")
    if not found:
        return None
    listed = ", ".join(f"{name}: {n}" for name, n in found.items())
    return (
        f"Values that cannot be ({listed} requests; limit 0).",
        "A stamp or a token count is wrong: a clock that stepped, a server that answers without work, or a fault of this tool.",
        "Do not use these figures. Run again; if it stays, report it with the run file.",
    )


def _little(summary: Summary) -> Seen | None:
    law = _fact(summary, "littles_law")
    if not law or law["holds"]:
        return None
    return (
        f"Little's law does not hold: {_number(law['mean_in_flight'])} in flight on average, but rate x time in system is "
        f"{_number(law['expected'])} (limit 2 % apart).",
        "Records are missing or their stamps disagree; in a run that was cut short, requests without an end do this.",
        "Compare with a complete run before using throughput.",
    )


def _incomplete(summary: Summary) -> Seen | None:
    meta = summary.meta
    if meta.complete and not meta.interrupted:
        return None
    why = f"stopped by {meta.interrupted}" if meta.interrupted else "did not end in order"
    done = summary.outcomes
    return (
        f"The run {why}: {done.attempted} of {done.planned} planned requests were sent, {done.cancelled + done.lost} of them "
        "have no answer of their own.",
        "What was measured is stored; the load of the last part was not the planned one.",
        "Read the steady window, or run again to the end.",
    )


def _failures(summary: Summary) -> Seen | None:
    done = summary.outcomes
    n = done.failed + done.timeout
    if not n:
        return None
    reasons = [reason for reason in done.reasons if reason.status in ("failed", "timeout")]
    listed = ", ".join(f"{reason.n} x {reason.reason}" for reason in reasons[:4]) + (", ..." if len(reasons) > 4 else "")
    words = next((reason.sample_detail for reason in reasons if reason.sample_detail), None)
    said = f' For example: "{words[:MAX_WORDS]}".' if words else ""
    return (
        f"{n} of {done.attempted} requests did not succeed (limit 0): {listed}.{said}",
        "Success-only percentiles leave out exactly the requests that fared worst.",
        "Read the error-adjusted percentiles; see the table of reasons, each with a sample request id.",
    )


def _unparsed(summary: Summary) -> Seen | None:
    n = sum(reason.n for reason in summary.outcomes.reasons if reason.reason.split()[0] == Reason.UNPARSED)
    n_late = _fact(summary, "row_marks").get("unknown-field", 0)
    if not n + n_late:
        return None
    none = f"{n} answers hold tokens (by the server's count) that no known field showed"
    late = f"{n_late} answers began with text in a field of unknown name: their TTFT may be too late"
    return (
        f"{'; '.join([none] * (n > 0) + [late] * (n_late > 0))} (limit 0).",
        "The server uses a name for its text that this version does not know; no TTFT is made from it.",
        "Choose the right --engine and --api, or report the server's version with one captured stream.",
    )


def _client_limited(summary: Summary) -> Seen | None:
    client, scale = summary.meta.client, summary.meta.time_scale
    ttft_s = summary.whole.stats["ttft"].p50 or 0.0
    late_limit_ms = max(MAX_LATE_MS, MAX_LATE_SHARE * ttft_s / scale * 1e3)
    lateness = summary.whole.stats["lateness"].p99
    late_ms = client.lateness_p99_ms if client.lateness_p99_ms is not None else (lateness or 0.0) / scale * 1e3
    # Kernel stamps do not suffer from a late loop, but a loop this late also empties its sockets too late.
    read_limit_ms = MAX_READ_LATE_MS if client.clock == "kernel" else late_limit_ms
    cpu_share = client.cpu_s / client.wall_s if client.wall_s >= MIN_CPU_WALL_S else 0.0
    measured = [
        (late_ms, late_limit_ms, "send lateness p99 {} ms (limit {} ms)"),
        (client.loop_lag_p99_ms or 0.0, read_limit_ms, "event loop lag p99 {} ms (limit {} ms)"),
        (client.read_lateness_p99_ms or 0.0, read_limit_ms, "read lateness p99 {} ms (limit {} ms)"),
        (cpu_share * 100, MAX_CPU_SHARE * 100, "CPU {} % of a core (limit {} %)"),
    ]
    over = [text.format(_number(value), _number(limit)) for value, limit, text in measured if value > limit]
    if not over and "client-limited" not in summary.meta.marks:
        return None
    whose = "" if scale == 1 else f" These are as measured here; in engine time they are x {scale:g}."
    return (
        f"The tool itself could not keep up: {'; '.join(over) or 'so marked when it ran'}.{whose}",
        "Late sends and late reads look like a slow server.",
        "Use a faster or idler machine, fewer requests in flight, or --count final; then run again.",
    )


def _client_rate(summary: Summary) -> Seen | None:
    sends = _fact(summary, "sends")
    share = sends.get("share")
    if share is None or share >= MIN_RATE_SHARE:
        return None
    if sends["n_held_back"] > 0.01 * sends["n"]:
        return None  # the cap was asked for: CAP-HELD says so
    return (
        f"Planned {_number(sends['planned_rate_per_s'])} requests/s, achieved {_number(sends['achieved_rate_per_s'])} "
        f"({_percent(share)}, limit {_percent(MIN_RATE_SHARE)}).",
        "The tool could not send as fast as planned, so the server saw less load.",
        "Lower the rate, or add processes: start several runs that share it.",
    )


def _cap_held(summary: Summary) -> Seen | None:
    sends, wait = _fact(summary, "sends"), summary.whole.stats["queue_wait"]
    n, held = sends.get("n", 0), sends.get("n_held_back", 0)
    if not n or held <= 0.01 * n:
        return None
    return (
        f"{held} of {n} requests waited for a place in flight, p50 {_time(wait.p50 or 0.0)}, at most {_time(wait.max or 0.0)} "
        "(limit 1 % of requests).",
        "The in-flight cap holds back an open loop that the server cannot follow; TTFT from send does not show it.",
        "Read TTFT from arrival (ttft_due), lower the rate, or raise the cap.",
    )


def _clock_step(summary: Summary) -> Seen | None:
    step_us = summary.meta.client.clock_step_max_us
    if (step_us is None or step_us <= MAX_CLOCK_STEP_US) and "clock-stepped" not in summary.meta.marks:
        return None
    size = "by an unknown amount" if step_us is None else f"by up to {_number(step_us)} us"
    return (
        f"The wall clock was stepped {size} between two samples (limit {_number(MAX_CLOCK_STEP_US)} us).",
        "Kernel stamps are on that clock; user stamps were used where it moved.",
        "Let the time service settle (chronyc tracking) and run again, or use --timestamps user.",
    )


def _server_late(summary: Summary) -> Seen | None:
    late_ms = summary.meta.client.server_lateness_p99_ms
    tpot_s = _best(summary).stats["tpot"].p50
    if late_ms is None:
        return None
    late_s = late_ms / 1e3 * summary.meta.time_scale
    limit_s = MAX_SERVER_LATE_SHARE * tpot_s if tpot_s else 5e-3 * summary.meta.time_scale
    if late_s <= limit_s:
        return None
    return (
        f"The embedded engine sent its tokens late by {_time(late_s)} at p99, in engine time (limit {_time(limit_s)}).",
        "This machine is too busy to keep the simulated clock at this speed.",
        (f"Use a smaller --time-scale than {summary.meta.time_scale:g}, " if summary.meta.time_scale > 1 else "Use ")
        + "fewer requests in flight, or an idler machine.",
    )


def _isl_mismatch(summary: Summary) -> Seen | None:
    isl = _fact(summary, "isl")
    n = isl.get("n_mismatch", 0)
    if not n and "isl-mismatch" not in summary.meta.marks:
        return None
    asked, server = isl.get("asked"), isl.get("server")
    seen = ""
    if (summary.meta.plan.get("extra") or {}).get("isl_source") == "estimate":
        cause, next_step = (
            "There was no tokenizer at hand: lengths of text are estimates.",
            "Give the model's tokenizer.json with --tokenizer, or use --prompts ids.",
        )
    else:
        cause = "The server's tokenizer or template is not the one the prompts were made for, or it cut them."
        next_step = "Give the model's own tokenizer.json, or a dialect that takes token ids; check max_model_len."
    if asked and server:
        low, mean, high = (f"{server[name]:.0f}" for name in ("min", "mean", "max"))
        seen = f" Asked {asked['mean']:.0f} on average, the server counted {low} / {mean} / {high} (min/mean/max)."
    return (
        f"{n} of {isl.get('n_server', 0)} prompts are off by more than 2 %.{seen}",
        cause,
        next_step,
    )


def _below_nominal(summary: Summary) -> Seen | None:
    for name, title in (("isl", "ISL"), ("osl", "OSL")):
        fact = _fact(summary, name)
        nominal, mean = fact.get("nominal"), _planned_mean(summary, name)
        if nominal and mean is not None and mean < (1 - LENGTH_TOLERANCE) * nominal:
            under = _percent(1 - mean / nominal)
            return (
                f"The mean {title} of the plan is {mean:.0f}, {under} under the nominal {nominal:.0f} (limit 2 %).",
                "The workload's label promises more than its lengths hold.",
                "Quote the realised mean, or change the lengths.",
            )
    return None


def _planned_mean(summary: Summary, name: str) -> float | None:
    """The plan's mean length. What was sent serves only where that is not known: a run that ends by time sends another mix."""
    planned = summary.meta.plan.get(name) or {}
    asked = _fact(summary, name).get("asked")
    mean = planned.get("mean", asked["mean"] if asked else None)
    return None if mean is None else float(mean)


def _osl_short(summary: Summary) -> Seen | None:
    osl = _fact(summary, "osl")
    share = osl.get("share")
    if share is None or abs(share - 1) <= LENGTH_TOLERANCE:
        return None
    short = "Answers stop at an end token, or the server does not honour ignore_eos or min_tokens."
    return (
        f"{_percent(share)} of the output tokens asked for were made (limit 2 % off).",
        short if share < 1 else "The server makes more than it was asked for: it does not honour max_tokens.",
        "Compare only with runs of the same realised length; see finish_reason in the rows.",
    )


def _cache_assisted(summary: Summary) -> Seen | None:
    cache = _fact(summary, "cache")
    share = cache.get("share")
    wanted = summary.meta.plan.get("shared_prefix_tokens") or 0
    if share is None or share < MIN_CACHED_SHARE or wanted > 0:
        return None
    return (
        f"{_percent(share)} of the prompt tokens came from the server's prefix cache (limit {_percent(MIN_CACHED_SHARE)}).",
        "The server has seen these prompts before: the same seed against a server that was not restarted.",
        "Change --seed, clear the cache, or turn prefix caching off.",
    )


def _count_unknown(summary: Summary) -> Seen | None:
    n = _fact(summary, "packing").get("n_unknown", 0)
    if not n:
        return None
    return (
        f"For {n} answers the tokens of each event are not known (limit 0).",
        "The server gives no token ids and no usage in each chunk, or it was not asked for them (--count final).",
        "Use TPOT; ITL leaves these answers out. --count full asks for counts where the dialect offers them.",
    )


def _count_inferred(summary: Summary) -> Seen | None:
    sources = _fact(summary, "sources")
    chunks = sources.get("chunk_token_source", {}).get("inferred", 0)
    totals = sum(sources.get("output_token_source", {}).get(name, 0) for name in ("inferred", "local"))
    if not chunks and not totals:
        return None
    return (
        f"One token an event is taken for granted in {chunks} answers, and the output length is not from the server "
        f"in {totals} (limit 0).",
        "Events came without token ids and counts: the server has none there, or was not asked (--count final).",
        "Use --count full where the dialect offers it. Without a count from the server TPOT is an estimate, and ITL always.",
    )


def _count_disagree(summary: Summary) -> Seen | None:
    packing = _fact(summary, "packing")
    n = packing.get("n_disagree", 0)
    if not n:
        return None
    return (
        f"In {n} answers the tokens of the events do not add up to the server's total, by more than 2 % (limit 0).",
        "Events were taken for one token each, or the server counts tokens that it does not show.",
        "Trust TPOT and throughput (the server's total); ITL and tokens per chunk are off by that much.",
    )


def _packing(summary: Summary) -> Seen | None:
    packing = _fact(summary, "packing")
    mean = packing.get("mean")
    if mean is None or mean <= PACKED:
        return None
    return (
        f"{_number(mean)} tokens per chunk, most often {packing['mode']} (limit {_number(PACKED)}).",
        "Speculative decoding, a stream interval or a parser packs tokens: gaps between chunks are not gaps between tokens.",
        "Compare engines by TPOT; ICG shows what a reader sees.",
    )


def _shared_reads(summary: Summary) -> Seen | None:
    share = _fact(summary, "shared_reads").get("share")
    if share is None or share < MAX_SHARED_SHARE:
        return None
    return (
        f"{_percent(share)} of the token events came in the same read as the one before (limit {_percent(MAX_SHARED_SHARE)}).",
        "The server or the network sends several events at once, or the client read late: gaps within a read are lost.",
        "Use TPOT; low percentiles of ITL and ICG mean nothing here.",
    )


def _single_chunk(summary: Summary) -> Seen | None:
    n = _fact(summary, "packing").get("n_single_chunk", 0)
    if not n:
        return None
    return (
        f"{n} answers of more than one token came in a single chunk (limit 0).",
        "The server or a proxy does not stream; TPOT and ITL do not exist for them.",
        "Turn streaming on, or take proxies that buffer out of the way; E2E stays valid.",
    )


def _itl_prefill(summary: Summary) -> Seen | None:
    itl, stalls = _best(summary).stats["itl"], _fact(summary, "stalls")
    alone = _fact(summary, "in_flight").get("peak", 0) < 2
    if alone or itl.n < FULL_P99_N or not itl.p50 or itl.p99 is None:
        return None
    n, n_with_prefill = stalls.get("n_stalls", 0), stalls.get("n_with_prefill", 0)
    by_prefill = n > 0 and n_with_prefill >= MIN_PREFILL_SHARE * n
    if itl.p99 >= ITL_TAIL * itl.p50:
        text = (
            f"ITL p99 is {_number(itl.p99 / itl.p50)} x its median ({_time(itl.p99)} vs {_time(itl.p50)}; "
            f"limit {_number(ITL_TAIL)} x)."
        )
    elif by_prefill and stalls["time_share"] >= MAX_STALLED_SHARE:
        text = (
            f"{_percent(stalls['time_share'])} of the time between tokens went by in gaps over {_number(stalls['factor'])} x "
            f"their median, {_time(stalls['median_gap_s'])} (limit {_percent(MAX_STALLED_SHARE)})."
        )
    else:
        return None
    if n == 0:
        return text, DECODE_WAITS, SMALLER_CHUNK
    text += f" In {n_with_prefill} of {n} stalls another request was before its first token"
    text += _examples(summary, stalls["longest"]) if n_with_prefill else "."
    if not by_prefill:
        return (
            text,
            "Most stalls had no prompt to wait for: preemption, other work on the machine, a pause of server or network.",
            "Look at the times of the stalls in the server's log.",
        )
    return text, DECODE_WAITS, SMALLER_CHUNK


def _examples(summary: Summary, stalls: Sequence[Mapping[str, Any]]) -> str:
    """The longest stall with a request to its name, and the longest of all where that one has none."""
    longest = max(stalls, key=_size_s)
    named = max((stall for stall in stalls if stall["next_id"]), key=_size_s, default=None)
    text = "."
    if named is not None:
        arrived = named["arrived"]
        name, did = (arrived[0], "arrived") if arrived else (named["next_id"], "was next to get its first token")
        text = f": {_when(named)}, when {name.removeprefix(f'{summary.meta.run_id}-')} {did}."
    if named is None or _size_s(longest) > _size_s(named):
        text += f" The longest of all, {_when(longest)}, had none."
    return text


def _size_s(stall: Mapping[str, Any]) -> float:
    return float(stall["size_s"])


def _when(stall: Mapping[str, Any]) -> str:
    return f"{_time(stall['size_s'])} at {_time(stall['from_s'])}"


def _degenerate(summary: Summary) -> Seen | None:
    found = _fact(summary, "degenerate")
    if not found.get("n_degenerate"):
        return None
    worst, drafts = found["worst"], summary.meta.engine_facts.get("speculative")
    name = str(worst["request_id"]).removeprefix(f"{summary.meta.run_id}-")
    flatters = f"Speculative decoding ({drafts}) is on, and" if drafts else "Where drafts are made or prefixes cached,"
    return (
        f"{found['n_degenerate']} of {found['n_judged']} answers only repeat themselves: {name} has {worst['n_distinct']} "
        f"distinct tokens in {worst['n']}, and {_percent(worst['repeated_share'])} of its 4-grams occurred before (limit "
        f"{_percent(MAX_REPEATED)}).",
        f"The model fell into a loop, as on random prompts. {flatters} such text is far easier to guess than real answers.",
        "Use prompts that make sense to the model (--prompts prose or a file), through its chat template (--api chat).",
    )


def _queueing(summary: Summary) -> Seen | None:
    section = _best(summary)
    ttft = section.stats["ttft"]
    waiting = _fact(summary, "in_flight").get(section.window, {}).get("mean_prefill") or 0.0
    if waiting < 2 or not ttft.min or ttft.p50 is None or ttft.p50 < QUEUE_FACTOR * ttft.min:
        return None
    return (
        f"TTFT p50 is {_number(ttft.p50 / ttft.min)} x the smallest TTFT ({_time(ttft.p50)} vs {_time(ttft.min)}; limit "
        f"{_number(QUEUE_FACTOR)} x), with {_number(waiting)} requests before their first token on average.",
        "Most of TTFT is waiting for other prompts, so it measures the load as much as the engine.",
        "For the engine's own prefill time run at concurrency 1; for capacity lower the load until TTFT meets its limit.",
    )


def _bimodal(summary: Summary) -> Seen | None:
    for name in ("ttft", "e2e", "tpot"):
        stat = _best(summary).stats[name]
        if stat.hint and stat.min is not None and stat.p50 is not None and stat.max is not None:
            return (
                f"{name.upper()} has two modes: {stat.hint} "
                f"(min {_time(stat.min)}, p50 {_time(stat.p50)}, max {_time(stat.max)}).",
                "Two kinds of requests are mixed: cold starts, cache hits, preemptions, or two lengths.",
                "Look at the requests of each kind before quoting a mean.",
            )
    return None


def _retried(summary: Summary) -> Seen | None:
    n = _fact(summary, "row_marks").get("retried", 0)
    if not n:
        return None
    return (
        f"{n} requests were sent a second time, since a kept connection had died before any answer (limit 0).",
        "The server or a proxy closes idle connections; the clock of these requests runs from the first attempt.",
        "Nothing, if they are few; else raise the server's keep-alive time.",
    )


def _few_requests(summary: Summary) -> Seen | None:
    n = summary.whole.stats["ttft"].n
    if not n or n >= FULL_P99_N:
        return None
    return (
        f"p99 rests on {n} requests (limit {FULL_P99_N}): it is the maximum or close to it.",
        "One odd request decides it.",
        f"Quote p50 and p90, or run at least {FULL_P99_N} requests.",
    )


def _no_steady_window(summary: Summary) -> Seen | None:
    if summary.steady is not None or not summary.outcomes.ok or not summary.meta.has_common_clock:
        return None
    return (
        "No part of the run had 90 % of its peak in flight for a tenth of its time (and 2 requests due inside).",
        "The run is too short for its load, or arrivals are bursty: ramp and drain are in every figure.",
        "Run more requests, or compare only whole runs of the same plan.",
    )


RULES: tuple[Rule, ...] = (
    Rule("IMPOSSIBLE", _impossible, "impossible-values"),
    Rule("LITTLES-LAW", _little, "self-check-failed"),
    Rule("INCOMPLETE", _incomplete, "incomplete"),
    Rule("FAILURES", _failures),
    Rule("UNPARSED", _unparsed),
    Rule("CLIENT-LIMITED", _client_limited, "client-limited"),
    Rule("CLIENT-RATE", _client_rate, "client-rate"),
    Rule("CAP-HELD", _cap_held),
    Rule("CLOCK-STEP", _clock_step, "clock-stepped"),
    Rule("SERVER-LATE", _server_late, "server-late"),
    Rule("ISL-MISMATCH", _isl_mismatch, "isl-mismatch"),
    Rule("BELOW-NOMINAL", _below_nominal),
    Rule("OSL-SHORT", _osl_short, "osl-short"),
    Rule("CACHE-ASSISTED", _cache_assisted, "cache-assisted"),
    Rule("COUNT-UNKNOWN", _count_unknown),
    Rule("COUNT-INFERRED", _count_inferred),
    Rule("COUNT-DISAGREE", _count_disagree),
    Rule("PACKING", _packing),
    Rule("SHARED-READS", _shared_reads),
    Rule("SINGLE-CHUNK", _single_chunk),
    Rule("DEGENERATE-OUTPUT", _degenerate, "degenerate-output"),
    Rule("ITL-PREFILL", _itl_prefill),
    Rule("QUEUEING", _queueing),
    Rule("BIMODAL", _bimodal),
    Rule("RETRIED", _retried),
    Rule("FEW-REQUESTS", _few_requests),
    Rule("NO-STEADY-WINDOW", _no_steady_window),
)
