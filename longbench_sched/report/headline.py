"""What was run, in the words that every reader must see: load and its mode, realised lengths, engine and its settings.

The mode of the load (closed loop, open loop, burst) is named, since TTFT under each is another quantity. Realised mean lengths
stand beside the nominal ones: a workload that is "8192 tokens" by name and 7373 on average looks faster than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longbench_sched.quantity import significant
from longbench_sched.report.layout import Line
from longbench_sched.report.untrusted import clean
from longbench_sched.run import RunMeta

SEPARATOR = " · "
DIGEST_DIGITS = 6
NOMINAL_TOLERANCE = 0.02  # a realised mean further from the nominal one than this is flagged

_MAX_ENGINE_FACTS = 6

# Settings of an engine that the headline shows, in this order: (names under which engines give them, how they read).
_SETTINGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("max_num_batched_tokens", "token_budget", "max_num_tokens"), "token budget {}"),
    (("chunked_prefill_size", "chunk_size"), "chunk {}"),
    (("enable_chunked_prefill", "chunked_prefill"), "chunked prefill {}"),
    (("enable_mixed_chunk", "mixed_chunk"), "mixed chunk {}"),
    (("schedule_policy", "scheduling_policy", "policy"), "policy {}"),
    (("max_num_seqs", "max_running_requests", "max_batch_size"), "batch {}"),
    (("enable_prefix_caching", "prefix_cache", "prefix_caching"), "prefix cache {}"),
    (("max_model_len", "context_length"), "context {}"),
    (("tensor_parallel_size", "tp_size", "tp"), "TP {}"),
    (("gpu",), "{}"),
)


def title(meta: RunMeta) -> str:
    """The page's title: what ran where, and whether it was simulated."""
    return f"{clean(meta.workload)} on {engine_name(meta)}{simulated_suffix(meta)}"


def simulated_suffix(meta: RunMeta) -> str:
    """` (simulated, clock x6)`, or nothing for a real engine in real time."""
    words = (["simulated"] if meta.simulated else []) + ([f"clock x{meta.time_scale:g}"] if meta.time_scale != 1 else [])
    return f" ({', '.join(words)})" if words else ""


def engine_name(meta: RunMeta) -> str:
    """Engine and version: `vllm 0.33.0`; the version is the server's word."""
    name = clean(meta.target.get("engine") or "engine?")
    version = meta.engine_facts.get("version")
    return f"{name} {clean(version, 40)}" if version else name


def head(meta: RunMeta) -> tuple[Line, ...]:
    """The lines above the numbers."""
    first, *more = load_lines(meta)
    lines = [Line(clean(meta.workload), first), *(Line("", line) for line in more)]
    lines.append(Line("", SEPARATOR.join([*length_texts(meta.plan), f"plan {clean(meta.digest)[:DIGEST_DIGITS]}"])))
    lines.append(Line(engine_name(meta), SEPARATOR.join(engine_texts(meta)) or "nothing is known of its settings"))
    if meta.time_scale != 1:
        lines.append(
            Line(
                "time",
                f"engine time: measured times x {meta.time_scale:g}, since the server runs on a clock compressed so much",
            )
        )
    lines += [Line("note", clean(note, 300)) for note in meta.plan.get("notes") or ()]
    return tuple(lines)


def load_lines(meta: RunMeta) -> list[str]:
    """One line a lane: the mode of its load and how much of it there was."""
    lanes = meta.plan.get("lanes") or []
    if not lanes:
        return [f"{meta.plan.get('requests', '?')} requests"]
    named = len(lanes) > 1
    return [
        (f"{clean(lane.get('name'))}: " if named else "") + f"{loop_text(lane)}{SEPARATOR}{_amount(lane)}" for lane in lanes
    ]


def loop_text(lane: Mapping[str, Any]) -> str:
    """The mode of a lane's load."""
    if lane.get("loop") == "closed":
        steps = lane.get("steps") or []
        if len(steps) > 1:
            return "closed loop, ramp " + " → ".join(f"{concurrency}" for _, concurrency in steps) + " in flight"
        return f"closed loop, {lane.get('concurrency')} in flight"
    process, rate = clean(lane.get("process") or "?"), lane.get("rate_per_s")
    if process.startswith("burst"):
        words = "burst" + (f", {significant(rate)}/s on average" if rate else ", all at once")
    else:
        words = f"open loop, {process}" + (f" {significant(rate)}/s" if rate else "")
    cap = lane.get("max_in_flight")
    return words + (f", at most {cap} in flight" if cap else "")


def length_texts(plan: Mapping[str, Any]) -> list[str]:
    """ISL and OSL of the plan: exact, or the realised mean beside the nominal one."""
    return [f"{name.upper()} {_length_text(plan[name])}" for name in ("isl", "osl") if plan.get(name)]


def nominal_deviation(length: Mapping[str, Any]) -> float | None:
    """How far the realised mean is from the nominal one, as a share; None where it is within the tolerance."""
    nominal, mean = length.get("nominal_mean"), length.get("mean")
    if not nominal or mean is None:
        return None
    share = mean / nominal - 1
    return share if abs(share) > NOMINAL_TOLERANCE else None


def engine_texts(meta: RunMeta) -> list[str]:
    """Model and settings, as far as the server said."""
    facts = meta.engine_facts
    model = facts.get("model") or meta.target.get("model")
    texts = [clean(model, 60)] if model else []
    if meta.target.get("api") not in (None, "completions"):
        texts.append(f"{clean(meta.target['api'])} API")
    return texts + settings_texts(facts)[:_MAX_ENGINE_FACTS]


def settings_texts(facts: Mapping[str, Any]) -> list[str]:
    """The engine's settings that decide how it schedules, in a fixed order."""
    texts = []
    for names, words in _SETTINGS:
        value = next((facts[name] for name in names if facts.get(name) is not None), None)
        if value is not None and not isinstance(value, Mapping | list):
            texts.append(words.format("on" if value is True else "off" if value is False else clean(value, 40)))
    return texts


def _amount(lane: Mapping[str, Any]) -> str:
    duration = lane.get("duration_s")
    requests = lane.get("requests")
    return f"for {significant(duration)} s, at most {requests} requests" if duration else f"{requests} requests"


def _length_text(length: Mapping[str, Any]) -> str:
    low, high, mean, nominal = (length.get(name) for name in ("min", "max", "mean", "nominal_mean"))
    if low is not None and low == high == nominal:
        return f"{low} exact"
    text = f"mean {round(mean)}" if mean is not None else "mean -"
    if nominal:
        off = nominal_deviation(length)
        text += f" ({f'{100 * off:+.0f} % vs ' if off is not None else ''}nominal {round(nominal)})"
    return text + (f", {low} … {high}" if low is not None and high is not None and low != high else "")
