"""Slo: the latency a request must meet to count as good.

Limits are in seconds. On the command line and in a workload they are written in milliseconds, as users of today's tools know
them: `--goodput ttft:3000 tpot:50`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longbench_sched.errors import UsageError

SLO_METRICS = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits in seconds; `None` leaves that metric free. `itl` bounds the largest ITL of a request."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, items: Iterable[str]) -> Slo:
        """Read `["ttft:3000", "tpot:50"]`, limits in ms. Raises UsageError."""
        limits: dict[str, float] = {}
        for item in items:
            name, _, text = item.partition(":")
            try:
                limit_s = float(text) / 1e3
            except ValueError:
                limit_s = -1.0
            if name not in SLO_METRICS or not 0 < limit_s < float("inf"):
                raise UsageError(
                    f"--goodput {item!r} is not METRIC:MILLISECONDS. Metrics: {', '.join(SLO_METRICS)}; "
                    "for example ttft:3000 tpot:50."
                )
            limits[f"{name}_s"] = limit_s
        return cls(**limits)

    @classmethod
    def of_limits(cls, limits: Mapping[str, float]) -> Slo:
        """The inverse of `limits`; what a later version may have added is passed over."""
        return cls(**{f"{name}_s": limits[name] for name in SLO_METRICS if name in limits})

    def limits(self) -> dict[str, float]:
        """The limits that are set, by metric name, in seconds."""
        return {name: limit for name in SLO_METRICS if (limit := getattr(self, f"{name}_s")) is not None}
