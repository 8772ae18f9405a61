"""What the server carried and how far the figures can be trusted: throughput, goodput, outcomes, the client's own health."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from longbench_sched.metrics.stat import Section, Summary
from longbench_sched.quantity import significant
from longbench_sched.report.figures import duration_text, limit_text, ms_text, percent_text, rate_text
from longbench_sched.report.headline import SEPARATOR
from longbench_sched.report.layout import NULL, TIE, Line
from longbench_sched.report.outcomes import counts_text, outcome_text
from longbench_sched.report.untrusted import clean

WINDOW_NAMES = {"whole": "whole run", "steady": "steady window"}

_SayWindow = Callable[[Summary, Section], str]
_SLO_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def lines(summary: Summary) -> Iterator[Line]:
    """The labelled lines below the tables of one run."""
    sections = [section for section in (summary.steady, summary.whole) if section is not None]
    for label, text in _BY_WINDOW:
        words = [f"{said}   ({window_text(section, label)})" for section in sections if (said := text(summary, section))]
        yield from _continued(label, words)
        if label == "Goodput" and words:
            yield Line("", f"SLO: {slo_text(summary)}")
    if summary.steady is None:
        yield Line("Steady", "no steady window: the load was not near its peak for long enough")
    yield from _continued("Sends", sends_texts(summary))
    yield Line("Outcomes", outcome_text(summary.outcomes))
    if summary.outcomes.ok != summary.outcomes.attempted:
        yield Line("", counts_text(summary.outcomes))
    yield Line("Client", client_text(summary))
    if summary.meta.client.server_lateness_p99_ms is not None:
        yield Line("Server", server_text(summary))
    if summary.marks:
        yield Line("Marks", SEPARATOR.join(clean(mark) for mark in summary.marks))


def _continued(label: str, texts: Sequence[str]) -> Iterator[Line]:
    for place, text in enumerate(texts):
        yield Line(label if place == 0 else "", text)


def window_text(section: Section, label: str = "Throughput") -> str:
    """The window a figure is over; beside a throughput with its length, since it is a rate over just that interval."""
    name = WINDOW_NAMES.get(section.window, section.window)
    return f"{name}, {duration_text(section.to_s - section.from_s)}" if label == "Throughput" else name


def throughput_text(summary: Summary, section: Section) -> str:
    """Tokens a second, in and out together and out alone."""
    rates = section.rates
    return f"{rate_text(rates.get('total_throughput'))} in+out{SEPARATOR}{rate_text(rates.get('output_throughput'))} out"


def goodput_text(summary: Summary, section: Section) -> str:
    """Good requests a second of all that succeeded; nothing without limits."""
    if not summary.meta.slo:
        return ""
    share = section.rates.get("good_share")
    of = f" of {rate_text(section.rates.get('request_rate'))}"
    good = f", {percent_text(share.value)} good" if share is not None and share.value is not None else ""
    return f"{rate_text(section.rates.get('goodput'))}{of}{good}"


def slo_text(summary: Summary) -> str:
    """The limits that make a request good: `TTFT <= 15 s, TPOT <= 50 ms`."""
    return ", ".join(
        f"{_SLO_NAMES.get(name, clean(name))} <= {limit_text(limit_s)}" for name, limit_s in summary.meta.slo.items() if limit_s
    )


def client_text(summary: Summary) -> str:
    """Whose stamps, how late the tool was (in engine time, as everything here), how busy."""
    client, scale = summary.meta.client, summary.meta.time_scale
    parts = [f"{clean(client.clock)} stamps"]
    if client.lateness_p99_ms is not None:
        parts.append(f"sends late p99 {ms_text(client.lateness_p99_ms * scale)}")
    if client.read_lateness_p99_ms is not None:
        parts.append(f"reads late p99 {ms_text(client.read_lateness_p99_ms * scale)}")
    if client.loop_lag_p99_ms is not None:
        parts.append(f"loop lag p99 {ms_text(client.loop_lag_p99_ms * scale)}")
    if client.wall_s > 0:
        parts.append(f"{significant(100 * client.cpu_s / client.wall_s, 2)}{TIE}% of a core")
    return SEPARATOR.join(parts)


def server_text(summary: Summary) -> str:
    """How late the embedded engine was against its own plan; empty for any other engine."""
    lateness_ms = summary.meta.client.server_lateness_p99_ms
    return "" if lateness_ms is None else f"embedded engine, late p99 {ms_text(lateness_ms * summary.meta.time_scale)}"


def in_flight_text(summary: Summary, section: Section) -> str:
    """Mean number of requests in flight, split into those that wait for a first token and those that decode."""
    in_flight = summary.facts.get("in_flight")
    means = in_flight.get(section.window) if isinstance(in_flight, Mapping) else None
    if not isinstance(means, Mapping) or means.get("mean") is None:
        return ""
    mean, prefill, decode = (_number(means, name) for name in ("mean", "mean_prefill", "mean_decode"))
    return f"mean {mean}: {prefill} in prefill, {decode} in decode"


def sends_texts(summary: Summary) -> list[str]:
    """How well an open loop was kept: rate and irregularity (CV of the gaps) as planned and as achieved."""
    sends = summary.facts.get("sends")
    if not isinstance(sends, Mapping) or sends.get("achieved_rate_per_s") is None:
        return []
    texts = []
    for which in ("planned", "achieved"):
        rate, cv = (_number(sends, f"{which}_{name}") for name in ("rate_per_s", "cv"))
        texts.append(f"{which} {rate}/s, CV {cv}")
    held = sends.get("n_held_back")
    return [SEPARATOR.join(texts), *([f"{held} held back by the in-flight cap"] if held else [])]


def _number(values: Mapping[str, object], name: str) -> str:
    value = values.get(name)
    return significant(value) if isinstance(value, int | float) else NULL


_BY_WINDOW: tuple[tuple[str, _SayWindow], ...] = (
    ("Throughput", throughput_text),
    ("Goodput", goodput_text),
    ("In flight", in_flight_text),
)
