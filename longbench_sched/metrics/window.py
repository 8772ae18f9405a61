"""Windows: which part of a run a figure is taken over.

The whole run goes from the first send to the last token of measured requests. It holds the ramp (caches empty, batch small)
and the drain (batch shrinking), neither of which is the load that was asked for. The steady window is the longest stretch in
which at least 90 % of the peak was in flight. Quantiles there are over requests *due* inside; choosing by completion would
drop exactly the slow requests. Rates are over events inside. What opens the window is not yet inside: (from, to]. So the burst
that fills a closed loop is left out however close together its requests come, in virtual time all at one instant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longbench_sched.metrics.columns import Columns, Ints, Mask
from longbench_sched.run import NONE

STEADY_SHARE = 0.9  # of the peak in flight
MIN_STEADY_SHARE = 0.1  # of the whole run; a shorter window says little
MIN_STEADY_REQUESTS = 2  # due inside
# In a closed loop one request's end and the next one's send are a moment apart. A dip shorter than this share of the mean
# time in system is such a moment, not the end of the load.
BRIDGED_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the run on the run's own clock."""

    name: str
    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is, in measured ns."""
        return self.to_ns - self.from_ns

    def holds(self, at_ns: Ints) -> Mask:
        """Which instants are events inside: (from, to]; NONE is not."""
        return (at_ns > self.from_ns) & (at_ns <= self.to_ns)

    def mean_inside(self, start_ns: Ints, stop_ns: Ints) -> float:
        """How many of these stays [start, stop) were going on, on average over the span."""
        overlap = np.minimum(stop_ns, self.to_ns) - np.maximum(start_ns, self.from_ns)
        return float(np.maximum(overlap, 0).sum() / self.length_ns)


@dataclass(frozen=True, slots=True)
class Flight:
    """How many requests were in flight: `level[i]` from `at_ns[i]` to `at_ns[i + 1]`. Shapes: (k,) and (k - 1,)."""

    at_ns: Ints
    level: Ints

    @classmethod
    def of(cls, start_ns: Ints, stop_ns: Ints) -> Flight:
        """Count stays from start to stop. An end and a start at one instant cancel: no dip is seen."""
        at_ns, position = np.unique(np.concatenate([start_ns, stop_ns]), return_inverse=True)
        step = np.bincount(position[: len(start_ns)], minlength=len(at_ns))
        step = step - np.bincount(position[len(start_ns) :], minlength=len(at_ns))
        return cls(at_ns, np.cumsum(step)[:-1])

    @property
    def peak(self) -> int:
        """The most that were in flight at once."""
        return int(self.level.max(initial=0))

    @property
    def mean(self) -> float:
        """The mean from the first start to the last stop."""
        return float((self.level * np.diff(self.at_ns)).sum() / (self.at_ns[-1] - self.at_ns[0]))

    def longest_above(self, level: float, bridged_ns: float) -> tuple[int, int] | None:
        """The longest stretch with at least `level` in flight, dips of at most `bridged_ns` overlooked."""
        high = self.level >= level
        edge = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(np.int8)))
        if not len(edge):
            return None
        begins, ends = self.at_ns[edge[::2]], self.at_ns[edge[1::2]]
        new = np.concatenate([[True], begins[1:] - ends[:-1] > bridged_ns])
        begins, ends = begins[new], ends[np.concatenate([new[1:], [True]])]
        at = int(np.argmax(ends - begins))
        return int(begins[at]), int(ends[at])


def stays(columns: Columns, measured_to_ns: int) -> tuple[Ints, Ints]:
    """Send and end of every measured request that was sent. A lost request's end is unknown: it stays until the run's end."""
    sent, end = columns.ints("sent_ns"), columns.ints("end_ns")
    rows = columns.measured & (sent != NONE)
    last = np.where(columns.last_ns != NONE, columns.last_ns, sent)
    stop = np.where(end != NONE, end, np.maximum(last, measured_to_ns))
    return sent[rows], np.maximum(stop, sent)[rows]


def whole(columns: Columns) -> Span | None:
    """First send to last token of measured requests, failed ones included; None without a token."""
    sent = columns.ints("sent_ns")
    sends, lasts = sent[columns.measured & (sent != NONE)], columns.last_ns[columns.measured & (columns.last_ns != NONE)]
    if not len(sends) or not len(lasts) or lasts.max() <= sends.min():
        return None
    return Span("whole", int(sends.min()), int(lasts.max()))


def steady(columns: Columns, flight: Flight, mean_stay_ns: float, run: Span) -> Span | None:
    """The longest stretch with 90 % of the peak in flight; None if it is too short or holds too few requests."""
    if not flight.peak:
        return None
    stretch = flight.longest_above(STEADY_SHARE * flight.peak, BRIDGED_SHARE * mean_stay_ns)
    if stretch is None or stretch[1] - stretch[0] < MIN_STEADY_SHARE * run.length_ns:
        return None
    span = Span("steady", *stretch)
    return span if int(due_inside(columns, span).sum()) >= MIN_STEADY_REQUESTS else None


def due_inside(columns: Columns, span: Span) -> Mask:
    """Measured requests whose planned arrival lies in the span: (from, to]."""
    return columns.measured & span.holds(columns.ints("due_ns"))
