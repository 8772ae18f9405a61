"""Watchdog: says which requests are in flight when nothing has moved for long.

A run that hangs looks like one that works, spinner and all. The ids make it findable in the server's log.
"""

from __future__ import annotations

QUIET_S = 60.0
NAMED = 5  # ids


class Watchdog:
    """Hears of sends and ends, and looks at the progress from time to time. The clock is the caller's, in seconds."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._open: dict[str, None] = {}  # ordered: the oldest first
        self._seen: object = None
        self._moved_s: float | None = None
        self._next_s = quiet_s

    def sent(self, request_id: str) -> None:
        """A request is on its way."""
        self._open[request_id] = None

    def ended(self, request_id: str) -> None:
        """A request has ended, in whatever way."""
        self._open.pop(request_id, None)

    def look(self, now_s: float, state: object) -> str | None:
        """A warning if `state` has not changed for too long; again after twice the time, not every look."""
        if self._moved_s is None or state != self._seen:
            self._seen, self._moved_s, self._next_s = state, now_s, self._quiet_s
            return None
        quiet_s = now_s - self._moved_s
        if quiet_s < self._next_s or not self._open:
            return None
        self._next_s *= 2
        names = list(self._open)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"Nothing was sent or has ended for {quiet_s:.0f} s. In flight: {', '.join(names[:NAMED])}{more}."
