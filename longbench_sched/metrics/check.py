"""Self-check: numbers that cannot be, and whether the records agree with themselves.

Little's law (J. D. C. Little, Operations Research 9, 1961): the mean number in flight equals the rate of completions times
the mean time in system. Over the whole run the three are computed in different ways from the same stamps, so a disagreement
above 2 % means that stamps or rows are wrong, not that the engine is odd.
"""

from __future__ import annotations

from longbench_sched.metrics import latency, window
from longbench_sched.metrics.columns import Columns, Mask, Samples, sum_rows
from longbench_sched.metrics.window import Flight
from longbench_sched.run import NONE, RunMeta
from longbench_sched.slo import Slo

LITTLE_TOLERANCE = 0.02
# Far above what any engine does for one request; a figure beyond comes from a wrong stamp or a wrong count.
MAX_OUTPUT_SPEED = 100_000.0  # tok/s and request; the fastest public engines are at some thousands
MAX_PREFILL_RATE = 10_000_000.0  # tok/s and request


def check_run(meta: RunMeta, columns: Columns) -> dict[str, object]:
    """What `Summary.facts` says under `littles_law` and `impossible` (cause -> number of requests, empty if all is well)."""
    return {"littles_law": littles_law(meta, columns), "impossible": impossible(columns)}


def littles_law(meta: RunMeta, columns: Columns) -> dict[str, float | bool] | None:
    """Both sides of Little's law from the first send to the last end; None without a request that was sent.

    None too of a killed run, or of another tool's, that does not say when every request ended.
    """
    starts, stops = window.stays(columns, meta.measured_to_ns)
    sent, end = columns.ints("sent_ns"), columns.ints("end_ns")
    ended = columns.measured & (sent != NONE) & (end != NONE)
    if (meta.origin or not meta.complete) and (columns.measured & (sent != NONE) & (end == NONE)).any():
        return None
    if not ended.any() or stops.max() <= starts.min():
        return None
    length_s = float(stops.max() - starts.min()) * columns.scale_s
    rate_per_s = float(ended.sum()) / length_s
    stay_s = float((end - sent)[ended].mean()) * columns.scale_s
    seen, expected = Flight.of(starts, stops).mean, rate_per_s * stay_s
    return {
        "mean_in_flight": seen,
        "rate_per_s": rate_per_s,
        "mean_stay_s": stay_s,
        "expected": expected,
        "holds": abs(seen - expected) <= LITTLE_TOLERANCE * max(seen, expected),
    }


def impossible(columns: Columns) -> dict[str, int]:
    """How many requests show each thing that cannot be."""
    sent, end, body_sent = (columns.ints(name) for name in ("sent_ns", "end_ns", "body_sent_ns"))
    rows = columns.measured & (sent != NONE)
    has = rows & (columns.n_chunks > 0)
    speed, prefill = latency.output_speed(columns, Slo()), latency.prefill_rate(columns, Slo())
    found = {
        "token-before-send": has & (columns.first_ns <= sent),
        "token-after-end": has & (end != NONE) & (columns.last_ns > end),
        "chunks-out-of-order": rows & columns.disordered,
        "end-before-send": rows & (end != NONE) & (end < sent),
        "upload-below-zero": rows & (body_sent != NONE) & (body_sent < sent),
        "tokens-without-event": columns.ok & (columns.n_chunks == 0) & (columns.output_tokens > 0),
        "output-speed": columns.ok & _above(speed, MAX_OUTPUT_SPEED),
        "prefill-rate": columns.ok & _above(prefill, MAX_PREFILL_RATE),
    }
    return {name: int(mask.sum()) for name, mask in found.items() if mask.any()}


def _above(samples: Samples, limit: float) -> Mask:
    """Rows with a value above the limit."""
    return sum_rows(samples.values > limit, samples.counts) > 0
