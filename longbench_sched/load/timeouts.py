"""Timeouts: how long a request may take, stage by stage. A limit that passes makes a censored outcome, never a dropped row.

Before the first token no gap is too long: a long prompt is silent for minutes, and comments or a role chunk may come well
before it. Until the first token only `first_token_s` counts, from the send; from then on `idle_s`, between bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds; `None` is no limit."""

    connect_s: float | None = 10.0  # name look-up, TCP and TLS
    first_token_s: float | None = 1800.0  # from the send to the first token-bearing event
    idle_s: float | None = 120.0  # between bytes, once a token has come
    total_s: float | None = None  # from the send to the end of the answer

    def facts(self) -> dict[str, float | None]:
        """For the footer of a run."""
        return {
            "connect_s": self.connect_s,
            "first_token_s": self.first_token_s,
            "idle_s": self.idle_s,
            "total_s": self.total_s,
        }
