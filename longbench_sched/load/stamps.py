"""Kernel receive stamps, turned into the run's monotonic clock.

Linux stamps each TCP segment when it arrives (SO_TIMESTAMPNS), on CLOCK_REALTIME. A busy client reads late, but the stamp
does not move. To put it on CLOCK_MONOTONIC the difference REALTIME - MONOTONIC is sampled at the start, each second and at
the end. Between two samples the difference is interpolated (NTP slews it slowly); if it moved by more than 100 us between them
the clock was stepped, and what was read in between keeps its user-space stamp.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

# linux: asm-generic/socket.h (SO_TIMESTAMPNS_OLD). The ancillary data is a struct timespec of two C longs.
SO_TIMESTAMPNS = 35
ANCILLARY_BYTES = 64
STAMP_PATIENCE_S = 1.0  # the kernel switches stamping on in the background when the first socket asks for it
STEP_LIMIT_NS = 100_000
NO_LATENESS = -1  # in place of a lateness where there is no kernel stamp; null in Parquet

unpack_timespec = struct.Struct("@ll").unpack


def kernel_stamps_work() -> bool:
    """Whether this system stamps TCP segments, tried on a loopback connection."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2) as client,
        ):
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            client.settimeout(2)
            peer, _ = server.accept()
            with peer:
                until_s = time.monotonic() + STAMP_PATIENCE_S
                while time.monotonic() < until_s:
                    peer.sendall(b"x")
                    _, ancillary, _, _ = client.recvmsg(1, ANCILLARY_BYTES)
                    if ancillary:
                        return len(ancillary[0][2]) == 16
                    time.sleep(0.001)
    except OSError:
        return False
    return False


class RealtimeOffset:
    """Samples of CLOCK_REALTIME - CLOCK_MONOTONIC over a run."""

    __slots__ = ("_at_ns", "_offset_ns", "step_max_ns", "stepped")

    def __init__(self, samples: Iterable[tuple[int, int]] | None = None) -> None:
        """Begin with a sample of now, or with these (at_ns, offset_ns), ascending."""
        self._at_ns = array("q")
        self._offset_ns = array("q")
        self.step_max_ns = 0
        self.stepped = False
        if samples is None:
            self.sample()
        else:
            for at_ns, offset_ns in samples:
                self.add(at_ns, offset_ns)

    def sample(self) -> None:
        """Take a sample now: the narrowest of five readings."""
        best: tuple[int, int, int] | None = None
        for _ in range(5):
            before = time.monotonic_ns()
            real = time.clock_gettime_ns(time.CLOCK_REALTIME)
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, before + (after - before) // 2, real)
        assert best is not None
        _, at, real = best
        self.add(at, real - at)

    def add(self, at_ns: int, offset_ns: int) -> None:
        """Take note of a sample: at this monotonic instant REALTIME was ahead by so much."""
        if self._offset_ns:
            step = abs(offset_ns - self._offset_ns[-1])
            self.step_max_ns = max(self.step_max_ns, step)
            self.stepped = self.stepped or step > STEP_LIMIT_NS
        self._at_ns.append(at_ns)
        self._offset_ns.append(offset_ns)

    def instant_ns(self, kernel_ns: int, read_ns: int) -> int:
        """One kernel stamp on the monotonic clock, or the instant of its read: `monotonic_ns` for a single read, made quick."""
        if not kernel_ns:
            return read_ns
        if read_ns > self._at_ns[-1]:
            self.sample()
        after = bisect_left(self._at_ns, read_ns)
        before = max(after - 1, 0)
        low, high = self._offset_ns[before], self._offset_ns[after]
        if abs(high - low) > STEP_LIMIT_NS:
            return read_ns
        span_ns = max(self._at_ns[after] - self._at_ns[before], 1)
        share = min(max((read_ns - self._at_ns[before]) / span_ns, 0.0), 1.0)
        return min(kernel_ns - (low + round((high - low) * share)), read_ns)

    def monotonic_ns(self, kernel_ns: array[int], read_ns: array[int]) -> tuple[list[int], list[int]]:
        """Kernel stamps on the monotonic clock, and how much later each read was. `read_ns` is monotonic and ascending.

        Where the instant cannot be known (no stamp (0), the clock stepped around then, a stamp later than its own read) it is
        that of the read, and the lateness is NO_LATENESS.
        """
        if not read_ns:
            return [], []
        if read_ns[-1] > self._at_ns[-1]:
            self.sample()
        kernel, read = np.frombuffer(kernel_ns, np.int64), np.frombuffer(read_ns, np.int64)
        sampled_at, offsets = np.frombuffer(self._at_ns, np.int64), np.frombuffer(self._offset_ns, np.int64)
        after = np.searchsorted(sampled_at, read)
        before = np.maximum(after - 1, 0)
        low, high = offsets[before], offsets[after]
        span = np.maximum(sampled_at[after] - sampled_at[before], 1)
        share = np.clip((read - sampled_at[before]) / span, 0.0, 1.0)
        at = kernel - (low + np.rint((high - low) * share).astype(np.int64))
        known = (kernel != 0) & (np.abs(high - low) <= STEP_LIMIT_NS) & (at <= read)
        # Bytes of one segment read in two goes have one stamp but two offsets, some ns apart; and a read without a stamp may
        # come before one with an earlier stamp. A stream's bytes arrive in their order all the same.
        at = np.maximum.accumulate(np.where(known, at, read))
        return at.tolist(), np.where(known, read - at, NO_LATENESS).tolist()
