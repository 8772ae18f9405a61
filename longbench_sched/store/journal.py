"""Journal: what a run has measured so far, on disk while it is still running.

A run that is killed loses at most what came in the last two seconds: records are appended as they finish and a thread of the
journal's own writes and syncs them. The thread that measures pays for the encoding only, a JSON of the scalars and a copy of
the chunk lists (about 15 us for 500 chunks, measured on 2026-11-30 on a busy machine); it never waits for a disk. A disk that
is full or gone stops the journal, not the run (`failure` says why).

File: MAGIC, then frames of u32 length, u32 CRC-32, kind (1 byte) and payload, little endian. Kinds: F names of the fields of
a record in their order (JSON, first), M metadata (JSON, the last one counts), S a request that was sent (JSON), R a finished
record (u32 length of the JSON, JSON, then the chunk lists as raw int64, int32, int64). A frame that is torn or does not match
its CRC ends the file: what stands before it is whole.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson

from longbench_sched.errors import StoreError
from longbench_sched.record import Decoded, Reason, Status, StreamRecord, TokenSource
from longbench_sched.run import RecordTable, Run, RunMeta
from longbench_sched.store.atomic import cannot_write, lock
from longbench_sched.store.footer import decode_meta, encode_meta

ENDING = ".journal"
MAGIC = b"LBSJ\x01\n"
SYNC_EVERY_S = 2.0
MAX_WAITING_BYTES = 256 << 20  # a disk that hangs must not eat the memory of the run

_HEADER = struct.Struct("<IIc")
_LENGTH = struct.Struct("<I")
_FIELDS, _META, _SENT, _RECORD = b"F", b"M", b"S", b"R"

_LISTS = (("chunk_at_ns", "q"), ("chunk_tokens", "i"), ("chunk_lateness_ns", "q"))
_LIST_NAMES = frozenset(name for name, _ in _LISTS)
_RECORD_FIELDS = tuple(field.name for field in dataclasses.fields(StreamRecord) if field.name != "decoded")
_DECODED_FIELDS = tuple(field.name for field in dataclasses.fields(Decoded) if field.name not in _LIST_NAMES)
_record_scalars = attrgetter(*_RECORD_FIELDS)
_decoded_scalars = attrgetter(*_DECODED_FIELDS)
_ENUMS: dict[str, Any] = {
    "status": Status,
    "reason": Reason,
    **{f"{count}_token_source": TokenSource for count in ("chunk", "prompt", "output", "cached")},
}
_SWAP = sys.byteorder == "big"


class Journal:
    """The open journal of a run. Methods may be called from any thread; none of them waits for the disk but `close`."""

    def __init__(self, path: Path, meta: RunMeta, *, sync_every_s: float = SYNC_EVERY_S) -> None:
        """Open a new journal and begin to write. Raises StoreError if the file cannot be made: nothing was measured yet."""
        self.path = path
        self.failure: str | None = None  # why the journal stopped; the run goes on
        self.has_requests = False  # one was sent, or has ended
        self._sync_every_s = sync_every_s
        self._waiting: deque[bytes] = deque()
        self._appended_bytes = 0  # by those who append; what was written is counted apart, by the thread:
        self._written_bytes = 0  # one number that both change would drift
        self._stop = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(cannot_write(path, error)) from None
        try:
            self._file: BinaryIO = open(path, "xb", buffering=0)  # noqa: SIM115  # closed by close()
            lock(self._file)
            self._file.write(MAGIC)
        except FileExistsError:
            raise StoreError(f"{path} exists: another run has this id. Start again, or name another --output-dir.") from None
        except OSError as error:
            raise StoreError(cannot_write(path, error)) from None
        self._append(_FIELDS, orjson.dumps({"record": _RECORD_FIELDS, "decoded": _DECODED_FIELDS}))
        self.note_meta(meta)
        self._thread = threading.Thread(target=self._write_until_stopped, name="journal", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it; the file stays, unless an error came before the first request."""
        self.close() if error is None or self.has_requests else self.remove()

    def note_meta(self, meta: RunMeta) -> None:
        """Replace what is known of the run; a recovered run takes the last one."""
        self._append(_META, encode_meta(meta))

    def note_sent(self, record: StreamRecord) -> None:
        """Note a request that is in flight, as far as it is known: it counts as lost if nothing follows."""
        self.has_requests = True
        self._append(_SENT, _json(_record_scalars(record)))

    def append(self, record: StreamRecord) -> None:
        """Note a finished request."""
        self.has_requests = True
        decoded = record.decoded
        head = _json((_record_scalars(record), _decoded_scalars(decoded), len(decoded.chunk_at_ns)))
        lists = [_bytes_of(getattr(decoded, name), typecode) for name, typecode in _LISTS]
        self._append(_RECORD, b"".join((_LENGTH.pack(len(head)), head, *lists)))

    def close(self) -> None:
        """Write and sync what is waiting, and close the file."""
        if self._file.closed:
            return
        self._stop.set()
        self._thread.join()
        self._file.close()

    def remove(self) -> None:
        """Close the journal and delete it: its records are safe elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)

    @property
    def n_waiting_bytes(self) -> int:
        """Bytes that the disk has not taken yet."""
        return self._appended_bytes - self._written_bytes

    def _append(self, kind: bytes, payload: bytes) -> None:
        if self.failure is not None:
            return
        if self.n_waiting_bytes > MAX_WAITING_BYTES:
            self.failure = f"{self.path}: the disk did not take {MAX_WAITING_BYTES >> 20} MiB of records in time"
            return
        frame = _HEADER.pack(len(payload), zlib.crc32(payload, kind[0]), kind) + payload
        self._appended_bytes += len(frame)
        self._waiting.append(frame)

    def _write_until_stopped(self) -> None:
        while not self._stop.wait(self._sync_every_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Write and sync what is waiting. Only the journal's own thread comes here."""
        parts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not parts or self.failure is not None:
            return
        try:
            rest = memoryview(b"".join(parts))
            written = len(rest)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
            self._written_bytes += written
        except OSError as error:
            self.failure = cannot_write(self.path, error)
            self._waiting.clear()


def recover(path: Path) -> Run:
    """The run that a journal holds, as far as it came: requests that were in flight are lost, the run is not complete.

    Raises StoreError if the file is missing, is no journal, holds nothing, or belongs to a run that is still going on.
    """
    try:
        with path.open("rb") as file:
            if not lock(file):
                raise StoreError(f"{path} belongs to a run that is still going on. Wait for its end, or stop it.")
            data = file.read()
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    if not data.startswith(MAGIC):
        raise StoreError(f"{path} is not a journal of longbench-sched, or not of this version.")
    try:
        meta, records, in_flight = _replay(data, str(path))
    except (KeyError, TypeError, ValueError) as error:  # the frames are whole, so someone meant what they say
        raise StoreError(
            f"{path} was written by another version of longbench-sched ({error}). Read it with that one."
        ) from None
    if meta is None:
        raise StoreError(f"{path} holds nothing: the run ended before its first record was written. Remove it.")
    table = RecordTable.from_records([*records, *in_flight])
    return Run(_recovered(meta, [*records, *in_flight]), table)


def _replay(data: bytes, where: str) -> tuple[RunMeta | None, list[StreamRecord], list[StreamRecord]]:
    meta: RunMeta | None = None
    fields: Mapping[str, list[str]] = {}
    records: list[StreamRecord] = []
    in_flight: dict[str, StreamRecord] = {}
    for kind, payload in _frames(data):
        if kind == _FIELDS:
            fields = orjson.loads(payload)
        elif kind == _META:
            meta = decode_meta(payload, where)
        elif kind == _SENT:
            scalars = _known(_RECORD_FIELDS, fields["record"], orjson.loads(payload))
            record = StreamRecord(**scalars, decoded=Decoded(status=Status.LOST, detail="the run was killed"))
            in_flight[record.request_id] = record
        elif kind == _RECORD:
            record = _decode_record(payload, fields)
            in_flight.pop(record.request_id, None)
            records.append(record)
    return meta, records, list(in_flight.values())


def _frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each whole frame; stops at the first that is torn."""
    at = len(MAGIC)
    while at + _HEADER.size <= len(data):
        length, checksum, kind = _HEADER.unpack_from(data, at)
        payload = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload, kind[0]) != checksum:
            return
        yield kind, payload
        at += _HEADER.size + length


def _decode_record(payload: bytes, fields: Mapping[str, list[str]]) -> StreamRecord:
    (head_length,) = _LENGTH.unpack_from(payload)
    at = _LENGTH.size + head_length
    record_scalars, decoded_scalars, n_chunks = orjson.loads(payload[_LENGTH.size : at])
    decoded = _known(_DECODED_FIELDS, fields["decoded"], decoded_scalars)
    for name, kind in _ENUMS.items():
        decoded[name] = None if decoded.get(name) is None else kind(decoded[name])
    for name, typecode in _LISTS:
        values = array(typecode)
        values.frombytes(payload[at : at + n_chunks * values.itemsize])
        if _SWAP:
            values.byteswap()
        decoded[name] = values
        at += n_chunks * values.itemsize
    return StreamRecord(**_known(_RECORD_FIELDS, fields["record"], record_scalars), decoded=Decoded(**decoded))


def _known(names: Sequence[str], stored: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """The stored values under the names that this version knows: another version may have written the journal."""
    return {name: value for name, value in zip(stored, values, strict=True) if name in names}


def _json(values: Sequence[Any]) -> bytes:
    """JSON of scalars; words of a server that are no valid Unicode (half a surrogate pair) lose what is not."""
    try:
        return orjson.dumps(values)
    except orjson.JSONEncodeError:
        return orjson.dumps(_valid(values))


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value


def _recovered(meta: RunMeta, records: list[StreamRecord]) -> RunMeta:
    """The metadata with what the records say: the last instant, whose stamps they hold, that the run was not completed."""
    instants = [
        instant
        for record in records
        for instant in (record.end_ns, record.sent_ns, record.due_ns, *record.decoded.chunk_at_ns[-1:])
        if instant is not None
    ]
    clocks = {record.clock for record in records if record.decoded.status is not Status.LOST}
    clock = clocks.pop() if len(clocks) == 1 else meta.clock
    marks = tuple(dict.fromkeys([*meta.marks, "recovered", "incomplete"]))
    return dataclasses.replace(
        meta,
        complete=False,
        marks=marks,
        clock=clock,
        client=dataclasses.replace(meta.client, clock=clock),
        measured_to_ns=max([meta.measured_from_ns, meta.measured_to_ns, *instants]),
    )


def _bytes_of(values: array[int], typecode: str) -> bytes:
    """The raw little-endian bytes; an array of another kind is converted first."""
    values = values if values.typecode == typecode else array(typecode, values)
    if _SWAP:
        values = values[:]
        values.byteswap()
    return values.tobytes()
