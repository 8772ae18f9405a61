"""The metrics that are one figure of a window: throughput, goodput, shares.

Every rate is over one stated interval, the window's, and counts events inside it: a token when its chunk came, a prompt when
its first token came, a request when its last token came. Tokens are those of successes, by the server's count; what failed
requests produced is only in the figures named `..._all`. The shares are over requests due inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from longbench_sched.metrics import deadlines, latency
from longbench_sched.metrics.columns import Columns, Floats, Ints, Mask, Samples
from longbench_sched.metrics.interval import ratio_deviation, share_interval
from longbench_sched.metrics.window import Span
from longbench_sched.run import NONE
from longbench_sched.slo import Slo

_SLICES = 64  # of the steady window: what the interval of its throughput is drawn from


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rate is taken from: a window, the rows whose events count, and those due inside."""

    columns: Columns
    slo: Slo
    span: Span | None  # None: no token came at all, no rate is defined
    rows: Mask
    due: Mask
    seed: int

    @property
    def over_s(self) -> float | None:
        """Length of the window in seconds of engine time."""
        return None if self.span is None else self.span.length_ns * self.columns.scale_s


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with how many things it counts; None where it is not defined."""

    value: float | None
    n: int = 0
    over_s: float | None = None
    interval: tuple[float, float] | None = None


def _per_second(scene: Scene, at_ns: Ints, amount: Floats) -> Figure:
    """The sum of amounts at instants inside the window, per second; an interval in a steady window."""
    if scene.span is None or scene.over_s is None:
        return Figure(None)
    inside = scene.span.holds(at_ns)
    total = float(amount[inside].sum())
    value = total / scene.over_s
    interval = None
    # Over the whole run the slices would show ramp and drain, not chance.
    if scene.span.name == "steady" and total > 0:
        edges = np.linspace(scene.span.from_ns, scene.span.to_ns, _SLICES + 1)
        sums, _ = np.histogram(at_ns[inside], edges, weights=amount[inside])
        below, above = ratio_deviation(sums, np.full(_SLICES, scene.over_s / _SLICES), scene.seed)
        interval = (max(0.0, value + below), value + above)
    return Figure(value, round(total), scene.over_s, interval)


def _output_tokens(scene: Scene, rows: Mask) -> tuple[Ints, Floats]:
    """Instants and tokens of the chunks of these rows. Each row's chunks add up to its output tokens.

    Where the chunks' own counts are unknown (usage only at the end) the row's tokens are spread evenly over its chunks.
    """
    columns = scene.columns
    rows = rows & (columns.output_tokens != NONE) & (columns.n_chunks > 0)
    keep = np.repeat(rows, columns.n_chunks)
    counts = columns.n_chunks[rows]
    shown = columns.shown_tokens[rows]
    known = shown > 0
    each = np.where(np.repeat(known, counts), columns.chunk_tokens[keep], 1)
    share = columns.output_tokens[rows] / np.where(known, shown, counts)
    return columns.chunk_at_ns[keep], each * np.repeat(share, counts)


def output_throughput(scene: Scene) -> Figure:
    """Output tokens of successes per second."""
    return _per_second(scene, *_output_tokens(scene, scene.rows & scene.columns.ok))


def output_throughput_all(scene: Scene) -> Figure:
    """Output tokens of all attempts per second: what the server produced, useful or not."""
    return _per_second(scene, *_output_tokens(scene, scene.rows))


def _prompts(scene: Scene) -> tuple[Ints, Floats]:
    columns = scene.columns
    rows = scene.rows & columns.ok & (columns.first_ns != NONE) & (columns.prompt_tokens != NONE)
    return columns.first_ns[rows], columns.prompt_tokens[rows].astype(np.float64)


def input_throughput(scene: Scene) -> Figure:
    """Prompt tokens of successes per second, by the server's count; a prompt counts when its first token came."""
    return _per_second(scene, *_prompts(scene))


def total_throughput(scene: Scene) -> Figure:
    """Input and output tokens of successes per second."""
    (prompt_at, prompts), (output_at, outputs) = _prompts(scene), _output_tokens(scene, scene.rows & scene.columns.ok)
    return _per_second(scene, np.concatenate([prompt_at, output_at]), np.concatenate([prompts, outputs]))


def request_rate(scene: Scene) -> Figure:
    """Successes per second; a request counts when its last token came."""
    rows = scene.rows & scene.columns.ok & (scene.columns.last_ns != NONE)
    return _per_second(scene, scene.columns.last_ns[rows], np.ones(int(rows.sum())))


def completion_rate(scene: Scene) -> Figure:
    """(successes - 1) / (last end - first end): the pace of completions, without the time the pipeline takes to fill."""
    rows = scene.rows & scene.columns.ok & (scene.columns.last_ns != NONE)
    ends = scene.columns.last_ns[rows]
    if scene.span is not None:
        ends = ends[scene.span.holds(ends)]
    over_s = float(ends.max() - ends.min()) * scene.columns.scale_s if len(ends) > 1 else 0.0
    return Figure((len(ends) - 1) / over_s, len(ends), over_s) if over_s > 0 else Figure(None, len(ends))


def good(columns: Columns, slo: Slo) -> Mask:
    """Successes that meet every limit of the SLO.

    TPOT and ITL of an answer that came in a single chunk do not exist and cannot be missed. With more chunks but unknown token
    counts they cannot be judged, and the request is not good: nothing is credited that is not known.
    """
    met = columns.ok.copy()
    judges: dict[str, Callable[[Columns, Slo], Samples]] = {
        "ttft": latency.ttft_s,
        "tpot": latency.tpot_s,
        "itl": latency.itl_s,
        "e2e": latency.e2e_s,
    }
    for name, limit_s in slo.limits().items():
        worst_s = _worst(judges[name](columns, slo))
        if name in ("tpot", "itl"):
            worst_s[columns.n_chunks == 1] = 0.0
        # A nanosecond of slack: limits are decimal, stamps are not.
        met &= worst_s <= limit_s + 1e-9
    return met


def _worst(samples: Samples) -> Floats:
    """The largest value of each row, infinite where there is none."""
    worst = np.full(len(samples.counts), np.inf)
    filled = samples.counts > 0
    if filled.any():
        starts = np.cumsum(samples.counts) - samples.counts
        worst[filled] = np.maximum.reduceat(samples.values, starts[filled])
    return worst


def goodput(scene: Scene) -> Figure:
    """Requests per second that met the SLO; only successes can."""
    if not scene.slo.limits():
        return Figure(None)
    rows = scene.rows & good(scene.columns, scene.slo)
    return _per_second(scene, scene.columns.last_ns[rows], np.ones(int(rows.sum())))


def good_share(scene: Scene) -> Figure:
    """Good requests of those that came to an end of their own (ok, failed, timed out)."""
    if not scene.slo.limits():
        return Figure(None)
    return _share(good(scene.columns, scene.slo), _ended(scene))


def success_rate(scene: Scene) -> Figure:
    """Successes of the requests that came to an end of their own; what we cancelled or lost is not judged."""
    return _share(scene.columns.ok, _ended(scene))


def deadline_misses(scene: Scene) -> Figure:
    """Missed token deadlines of all token deadlines, over the tokens of successes; see `deadlines.py`."""
    missed, total = deadlines.count(scene.columns, scene.slo)
    rows = scene.due & scene.columns.ok
    n = int(total[rows].sum())
    return Figure(float(missed[rows].sum() / n), n) if n else Figure(None)


def _ended(scene: Scene) -> Mask:
    return scene.due & (scene.columns.ok | scene.columns.failed)


def _share(yes: Mask, of: Mask) -> Figure:
    n_yes, n = int((yes & of).sum()), int(of.sum())
    return Figure(n_yes / n, n, interval=share_interval(n_yes, n)) if n else Figure(None)
