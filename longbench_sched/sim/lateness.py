"""How late the server was: a histogram of fixed size, fine enough to tell 1 ms from 1.05 ms.

Lateness is actual minus scheduled emission in wall seconds, taken when the last token of a step has been handed to the kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_LEAST_S = 1e-6
_GROWTH = 1.05
_N = 400  # up to about 300 s


@dataclass(slots=True)
class Lateness:
    """Counts by logarithmic bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * _N)
    n: int = 0
    max_s: float = 0.0

    def add(self, lateness_s: float) -> None:
        """Note one step."""
        self.n += 1
        self.max_s = max(self.max_s, lateness_s)
        bucket = int(math.log(lateness_s / _LEAST_S) / math.log(_GROWTH)) + 1 if lateness_s > _LEAST_S else 0
        self.counts[min(bucket, _N - 1)] += 1

    def quantile_s(self, q: float) -> float | None:
        """Quantile `q` by nearest rank, rounded up by at most 5 %; None if nothing was noted."""
        if not self.n:
            return None
        rank, seen = math.ceil(q * self.n), 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return min(_LEAST_S * _GROWTH**bucket, self.max_s)
        return self.max_s

    def summary(self) -> dict[str, float | int | None]:
        """For people and headers: milliseconds."""

        def ms(value_s: float | None) -> float | None:
            return None if value_s is None else round(value_s * 1e3, 4)

        return {
            "n_steps": self.n,
            "p50_ms": ms(self.quantile_s(0.5)),
            "p99_ms": ms(self.quantile_s(0.99)),
            "max_ms": ms(self.max_s) if self.n else None,
        }
