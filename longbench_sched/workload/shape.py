"""Workload: what is asked for, before a seed turns it into a plan.

One lane is the common case. An interference workload has several that run side by side, each with lengths and a load of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longbench_sched.plan import Sampling
from longbench_sched.slo import Slo
from longbench_sched.workload.arrivals import ArrivalProcess, Burst, Gamma, RateStage
from longbench_sched.workload.lengths import Lengths

ONLY_LANE = "main"  # of a workload that names no lanes
DEFAULT_IDS = (1000, 8000)  # see `prompt.IdWriter` for why


@dataclass(frozen=True, slots=True)
class ConcurrencyStage:
    """So many requests in flight, for a time; `None` = to the end."""

    concurrency: int
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """A fixed number in flight; more than one stage makes a ramp."""

    stages: tuple[ConcurrencyStage, ...]

    @property
    def concurrency(self) -> int:
        """The most that is in flight."""
        return max(stage.concurrency for stage in self.stages)

    def describe(self) -> str:
        """`closed loop, 64 in flight`: the mode is always named."""
        if len(self.stages) == 1:
            return f"closed loop, {self.concurrency} in flight"
        return f"closed loop, ramp {' > '.join(str(stage.concurrency) for stage in self.stages)} in flight"


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests at planned times. No stages: all at once."""

    process: ArrivalProcess
    stages: tuple[RateStage, ...]
    max_in_flight: int | None = None

    def describe(self) -> str:
        """`open loop, poisson, 1/s`: the mode is always named."""
        capped = f", at most {self.max_in_flight} in flight" if self.max_in_flight else ""
        process = self.process
        if isinstance(process, Burst):
            if not self.stages or process.size is None:
                return f"burst, all at once{capped}"
            return f"burst, {process.size} every {process.size / self.stages[0].rate_per_s:g} s{capped}"
        spread = f"gamma, CV {process.cv:g}" if isinstance(process, Gamma) else process.name
        return f"open loop, {spread}, {' > '.join(f'{stage.rate_per_s:.4g}' for stage in self.stages)}/s{capped}"


Load = ClosedLoad | OpenLoad


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane: it ends when its requests or its time are used up, whichever comes first."""

    name: str
    isl: Lengths
    osl: Lengths
    load: Load
    requests: int | None
    duration_s: float | None
    max_requests: int | None = None  # prompts made ahead for a closed loop that is limited by time alone
    shared_prefix: int = 0  # tokens that all prompts of the lane begin with
    priority: int = 0  # sent with its requests


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload file as read, with the command line's changes."""

    name: str
    title: str
    lanes: tuple[LaneSpec, ...]
    prompts: str = "synthetic"  # a word of `prompt.SOURCES`, or the path of a text file or folder
    id_range: tuple[int, int] = DEFAULT_IDS  # where `ids` are drawn from, [low, high)
    warmups: int | None = None  # None: one for each place in flight, at most 4
    slo: Slo | None = None
    sampling: Sampling = field(default_factory=Sampling)
    text: str = ""  # the TOML, with overrides below it as comments
    file: str = ""  # where that is from, as people are told
    notes: tuple[str, ...] = ()
