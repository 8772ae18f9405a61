"""What was run, in the words that every reader must see: load and its mode, realised lengths, engine and its settings.

The mode of the load (closed loop, open loop, burst) is named, since TTFT under each is another quantity. Realised mean lengths
stand beside the nominal ones: a workload that is "8192 tokens" by name and 7373 on average looks faster than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longbench_sched.metrics.stat import Summary
from longbench_sched.quantity import significant
from longbench_sched.report.figures import limit_text, percent_text
from longbench_sched.report.layout import TIE, Line
from longbench_sched.report.untrusted import clean
from longbench_sched.run import RunMeta

SEPARATOR = f"{TIE}· "  # a line breaks after the dot, never before it
DIGEST_DIGITS = 6
NOMINAL_TOLERANCE = 0.02  # a realised mean further from the nominal one than this is flagged

UNKNOWN_SETTINGS = "nothing is known of its settings"

# Settings of an engine that the headline shows, in this order: (fact, how it reads, the value that says nothing).
_SETTINGS: tuple[tuple[str, str, object], ...] = (
    ("token_budget", "token budget {}", None),
    ("chunked_prefill", "chunked prefill {}", None),
    ("mixed_chunk", "mixed chunk {}", None),
    ("schedule_policy", "policy {}", None),
    ("prefix_caching", "prefix cache {}", None),
    ("max_num_seqs", "at most {} at once", None),
    ("speculative", "speculative {}", None),
    ("drafter", "drafts {}", None),
    ("disaggregation", "role {}", None),
    ("gpus", "{} GPUs", 1),
    ("tensor_parallel", "TP {}", 1),
    ("pipeline_parallel", "PP {}", 1),
    ("data_parallel", "DP {}", 1),
    ("stream_interval", "an event every {} tokens", 1),
    ("kv_dtype", "KV {}", "auto"),
    ("max_model_len", "context {}", None),
)


def title(meta: RunMeta) -> str:
    """The page's title: what ran where, and whether it was simulated."""
    return f"{clean(meta.workload)} on {engine_name(meta)}{simulated_suffix(meta)}"


def simulated_suffix(meta: RunMeta) -> str:
    """` (simulated, clock x6)`, or nothing for a real engine in real time."""
    words = (["simulated"] if meta.simulated else []) + ([f"clock x{meta.time_scale:g}"] if meta.time_scale != 1 else [])
    return f" ({', '.join(words)})" if words else ""


def engine_name(meta: RunMeta) -> str:
    """Engine and version, by the server's word: `vllm 0.33.0`; spoken to as another engine, `vllm 0.33.0 as openai`."""
    asked = clean(meta.target.get("engine") or "engine?")
    said, version = meta.engine_facts.get("engine"), meta.engine_facts.get("version")
    name = clean(said, 40) if said else asked
    return name + (f" {clean(version, 40)}" if version else "") + (f" as {asked}" if name != asked else "")


def head(summary: Summary) -> tuple[Line, ...]:
    """The lines above the numbers."""
    meta = summary.meta
    lengths = [*length_texts(summary), *digest_texts(meta)]
    first, *more = [*load_lines(meta), SEPARATOR.join(lengths)]
    lines = [Line(clean(meta.workload, 40), first), *(Line("", line) for line in more)]
    lines.append(Line(engine_name(meta), SEPARATOR.join(engine_texts(summary)) or UNKNOWN_SETTINGS))
    if meta.time_scale != 1:
        words = f"every time is the engine's: as measured x {meta.time_scale:g}, since its clock is compressed so much"
        lines.append(Line("clock", words))
    lines += [Line("note", clean(note, 300)) for note in meta.plan.get("notes") or ()]
    return tuple(lines)


def digest_texts(meta: RunMeta) -> list[str]:
    """The first digits of the digests: of the plan where it has prompts, and of its schedule, which a simulated run has too."""
    schedule = schedule_digest(meta)
    named = {"plan": meta.digest if meta.digest != schedule else None, "schedule": schedule}
    return [f"{name}{TIE}{clean(digest)[:DIGEST_DIGITS]}" for name, digest in named.items() if digest]


def schedule_digest(meta: RunMeta) -> str | None:
    """What is equal if the same lengths were sent at the same times; None of a run that another tool made."""
    return (meta.plan.get("extra") or {}).get("schedule_digest")


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


def length_texts(summary: Summary) -> list[str]:
    """ISL and OSL: exact, or the realised mean beside the nominal one; and what the server made of them, if that differs."""
    plan, texts = summary.meta.plan, []
    for name, key, words in (("isl", "server", "the server counted {}"), ("osl", "realised", "{} came")):
        if not plan.get(name):
            continue
        came = _mean(summary.facts.get(name), key)
        asked = _mean(summary.facts.get(name), "asked")
        differs = came is not None and asked is not None and round(came, 1) != round(asked, 1)
        length = _length_text(plan[name], asked)
        if name == "isl" and (plan.get("extra") or {}).get("isl_source") == "estimate":
            length = f"{length.removesuffix(' exact')} by estimate"
        texts.append(f"{name.upper()} {length}" + (f", {words.format(f'{came:.1f}'.removesuffix('.0'))}" if differs else ""))
    return texts


def nominal_deviation(length: Mapping[str, Any]) -> float | None:
    """How far the realised mean is from the nominal one, as a share; None where it is within the tolerance."""
    nominal, mean = length.get("nominal_mean"), length.get("mean")
    if not nominal or mean is None:
        return None
    share = mean / nominal - 1
    return share if abs(share) > NOMINAL_TOLERANCE else None


def engine_texts(summary: Summary) -> list[str]:
    """Model and settings, as far as the server said, and what its prefix cache gave."""
    meta, facts = summary.meta, summary.meta.engine_facts
    model = facts.get("model") or meta.target.get("model")
    texts = [clean(model, 60)] if model else []
    if meta.target.get("api") not in (None, "completions"):
        texts.append(f"{clean(meta.target['api'])} API")
    texts += settings_texts(facts)
    cache = summary.facts.get("cache")
    if isinstance(cache, Mapping) and cache.get("share") is not None:
        share = cache["share"]
        texts.append(f"{f'under{TIE}0.01{TIE}%' if 0 < share < 0.0001 else percent_text(share)} of prompts cached")
    return texts


def settings_texts(facts: Mapping[str, Any]) -> list[str]:
    """The engine's settings that decide how it schedules, in a fixed order."""
    texts = []
    for name, words, usual in _SETTINGS:
        value = facts.get(name)
        if value is not None and value != usual:
            texts.append(
                words.format("on" if value is True else "off" if value is False else clean(value, 40)).replace(" ", TIE)
            )
    return texts


def _mean(lengths: object, key: str) -> float | None:
    spread = lengths.get(key) if isinstance(lengths, Mapping) else None
    return spread.get("mean") if isinstance(spread, Mapping) else None


def _amount(lane: Mapping[str, Any]) -> str:
    duration = lane.get("duration_s")
    requests = lane.get("requests")
    return f"for {limit_text(duration)}, at most {requests} requests" if duration else f"{requests} requests"


def _length_text(length: Mapping[str, Any], asked: float | None) -> str:
    """A plan's lengths; `asked` is the mean of what was sent, which is another mix where a run ends by time or early."""
    low, high, mean, nominal = (length.get(name) for name in ("min", "max", "mean", "nominal_mean"))
    if low is not None and low == high == nominal:
        return f"{low} exact"
    text = f"mean {round(mean)}" if mean is not None else "mean -"
    if mean is not None and asked is not None and abs(asked - mean) > NOMINAL_TOLERANCE * mean:
        text = f"mean {round(asked)} as sent (plan {round(mean)})"
    elif nominal:
        off = nominal_deviation(length)
        text += f" ({f'{100 * off:+.0f}{TIE}% vs ' if off is not None else ''}nominal {round(nominal)})"
    return text + (f", {low}{TIE}…{TIE}{high}" if low is not None and high is not None and low != high else "")
