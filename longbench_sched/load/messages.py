"""Messages: every request of a plan as the bytes that go over the wire, made before the clock starts.

Head and body of a request are one piece, sent in one write. Up to 256 MiB they are held in memory; what is more lies in a
temporary file that is mapped, so that sending copies from the page cache and encodes nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from longbench_sched.engine.dialect import Dialect
from longbench_sched.errors import ClientLimitError
from longbench_sched.load.request_head import encode_head, head_lines, os_words, request_path
from longbench_sched.plan import Request
from longbench_sched.target import Target

IN_MEMORY_BYTES = 256 << 20


class Messages:
    """The encoded requests of a plan, by index."""

    def __init__(self, requests: Iterable[Request], dialect: Dialect, target: Target, model: str, run_id: str) -> None:
        """Encode all requests. Raises UsageError for headers that cannot be sent, ClientLimitError for a full disk."""
        self._run_id = run_id
        self._held: dict[int, bytes] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._file: BinaryIO | None = None
        self.n_bytes = 0
        try:
            for request in requests:
                http_request = dialect.encode(request, model)
                lines = head_lines(target, http_request, self.request_id(request))
                head = encode_head(http_request.method, request_path(target, http_request), lines)
                self._add(request.index, head + http_request.body)
            self._map = self._map_file()
        except OSError as error:
            self.close()
            raise ClientLimitError(
                f"the temporary folder {tempfile.gettempdir()} does not take the encoded requests, of which "
                f"{IN_MEMORY_BYTES >> 20} MiB stay in memory ({os_words(error)}).\n"
                "Name a folder with room in TMPDIR, or send fewer or shorter prompts. No measured request was sent."
            ) from None

    def _add(self, index: int, message: bytes) -> None:
        self.n_bytes += len(message)
        if self.n_bytes <= IN_MEMORY_BYTES:
            self._held[index] = message
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="longbench-sched-")  # noqa: SIM115  # closed by close()
        self._spans[index] = (self._file.tell(), len(message))
        self._file.write(message)

    def _map_file(self) -> mmap.mmap | None:
        if self._file is None:
            return None
        self._file.flush()
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def request_id(self, request: Request) -> str:
        """What is sent as X-Request-Id: unique over runs."""
        return f"{self._run_id}-{request.id}"

    def take(self, request: Request) -> bytes | memoryview:
        """The message of a request; it is not kept after that."""
        message = self._held.pop(request.index, None)
        if message is not None:
            return message
        assert self._map is not None
        at, n_bytes = self._spans[request.index]
        return memoryview(self._map)[at : at + n_bytes]

    def close(self) -> None:
        """Give the temporary file back."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk has not taken
                self._file.close()
            self._file = None
