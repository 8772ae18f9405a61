"""Server-sent events, byte by byte: pieces of a body in, complete events out.

Works on bytes, since a piece may end in the middle of a character, and never looks at a byte twice, however long a line is
and however small the pieces are: prompts of a million tokens come back as single lines of megabytes. Line ends are LF, CRLF
or CR, as the standard allows; an event that the body leaves unfinished is dropped, as the standard asks.
"""

from __future__ import annotations

from longbench_sched.engine.dialect import MAX_EVENT_BYTES

Event = tuple[bytes, bytes]  # payload without surrounding white space, and event name (b"" = unnamed)

_BOM = b"\xef\xbb\xbf"
_LF = 10
_CR = 13


class EventSplitter:
    """Cuts one body into events.

    `idle` is true while nothing is held back: the next byte then begins a new event, and a caller may read a piece that holds
    exactly one event by itself.
    """

    __slots__ = (
        "_after_cr", "_data", "_data_size", "_held", "_held_size", "_max_bytes", "_name", "_start", "idle", "n_comments",
        "too_large",
    )  # fmt: skip

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._start: bytes | None = b""  # what has come of a byte order mark; None once past it
        self._held: list[bytes] = []  # pieces of the line that has not ended
        self._held_size = 0
        self._data: list[bytes] = []  # data lines of the event that has not ended
        self._data_size = 0
        self._name = b""
        self._after_cr = False  # the last byte was CR: a LF that follows belongs to it
        self.idle = False  # the first piece may begin with a byte order mark
        self.n_comments = 0
        self.too_large = False

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes, in order. Nothing more comes once an event was too large."""
        events: list[Event] = []
        if self.too_large:
            return events
        lines = self._unify_line_ends(piece).split(b"\n")
        rest = lines.pop()
        if lines and self._held:
            self._held.append(lines[0])
            lines[0] = b"".join(self._held)
            self._held.clear()
            self._held_size = 0
        data = self._data
        for line in lines:
            if not line:
                if data:
                    if self._data_size > self._max_bytes:
                        return self._give_up(events)
                    payload = data[0] if len(data) == 1 else b"\n".join(line.removeprefix(b" ") for line in data)
                    events.append((payload.strip(), self._name))
                    data.clear()
                    self._data_size = 0
                self._name = b""
            elif line[:5] == b"data:":
                data.append(line[5:])
                self._data_size += len(line)
            elif len(line) > self._max_bytes:
                return self._give_up(events)
            else:
                self._take_field(line)
        if rest:
            self._held.append(rest)
            self._held_size += len(rest)
        if self._held_size > self._max_bytes or self._data_size > self._max_bytes:
            return self._give_up(events)
        self.idle = not (rest or self._held or data or self._name or self._after_cr or self._start)
        return events

    @property
    def is_unfinished(self) -> bool:
        """Part of an event is held back (part of a comment is nothing)."""
        return bool(self._data) or bool(self._held and not self._held[0].startswith(b":"))

    def _take_field(self, line: bytes) -> None:
        """A line without data."""
        if line.startswith(b":"):
            self.n_comments += 1
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif line == b"data":
            self._data.append(b"")
        # id, retry and unknown fields say nothing about what came.

    def _unify_line_ends(self, data: bytes) -> bytes:
        """The piece with LF line ends only, without a byte order mark at the start of the body."""
        if self._start is not None:
            data = self._start + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._start = data
                return b""
            data = data.removeprefix(_BOM)
            self._start = None
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == _LF:
                data = data[1:]
        if _CR in data:
            self._after_cr = data[-1] == _CR
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _give_up(self, events: list[Event]) -> list[Event]:
        self.too_large = True
        self.idle = False
        self._held.clear()
        self._data.clear()
        return events
