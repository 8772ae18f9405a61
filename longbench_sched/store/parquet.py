"""Run <-> Parquet: one file a run, a row a request, everything else in the footer.

Any Parquet reader opens these files. Stamps are stored as differences (DELTA_BINARY_PACKED), both the smallest and the cheapest
to write: 64 requests of 500 chunks take about 0.2 MB. Measured on 2026-11-30: 5.9 bytes and 0.07 us an event with delta
encoding and zstd, 6.9 bytes and 0.17 us with plain encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longbench_sched.errors import StoreError
from longbench_sched.record import UNKNOWN_TOKENS
from longbench_sched.run import INT_COLUMNS, LIST_COLUMNS, NONE, TEXT_COLUMNS, RecordTable, Run
from longbench_sched.store.atomic import write_atomically
from longbench_sched.store.footer import decode_meta, encode_meta
from longbench_sched.store.schema import COLUMNS, FOOTER_KEY, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_A_GROUP = 65_536
_CHUNKS_A_GROUP = 4_000_000  # bounds the memory of a write, and keeps 32-bit list offsets far from their end

Ints = np.ndarray[Any, np.dtype[np.int64]]


def write_run(run: Run, path: Path) -> None:
    """Store a run; the file appears whole or not at all. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = run.table
    schema = arrow_schema(with_text=any(text is not None for text in table.texts["text"]))
    footer = schema.with_metadata({FOOTER_KEY: encode_meta(run.meta)})

    def write(file: Any) -> None:
        with pq.ParquetWriter(pa.PythonFile(file, mode="w"), footer, compression="zstd", **_encodings(schema)) as writer:
            for first, last in _row_groups(table):
                writer.write_table(pa.table(_columns(table, first, last, schema), schema=footer))

    write_atomically(path, write)


def read_run(path: Path) -> Run:
    """Read a stored run; columns are numpy buffers. Raises StoreError: missing, not a run, damaged, newer than this version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a run file. Name a file in it, or a run id.")
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            metadata = file.schema_arrow.metadata or {}
            if FOOTER_KEY not in metadata:
                raise StoreError(f"{path} is a Parquet file, but not a run of longbench-sched.")
            meta = decode_meta(metadata[FOOTER_KEY], str(path))  # refuses a newer schema before a row is read
            return Run(meta, _table(file.read(), str(path)))
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except PermissionError:
        raise StoreError(f"{path} cannot be read: permission denied.") from None
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} is not a readable Parquet file ({_first_line(error)}). Restore it from a copy.") from None


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    paths = {
        column.name: f"{column.name}.list.element" if column.type.startswith("list") else column.name for column in COLUMNS
    }
    by_dictionary = {column.name for column in COLUMNS if column.repeats} | {"chunk_tokens", "marks"}
    deltas = {column.name for column in COLUMNS if column.unit == "ns"} | {"index", "n_body_bytes"}
    return {
        "use_dictionary": [paths[name] for name in schema.names if name in by_dictionary],
        "column_encoding": {paths[name]: "DELTA_BINARY_PACKED" for name in schema.names if name in deltas},
    }


def _row_groups(table: RecordTable) -> Iterator[tuple[int, int]]:
    """Row ranges that bound both the rows and the chunks of a group; one empty range for an empty table."""
    if table.n == 0:
        yield 0, 0
        return
    offsets = np.asarray(table.offsets)
    first = 0
    while first < table.n:
        by_chunks = int(np.searchsorted(offsets, offsets[first] + _CHUNKS_A_GROUP, side="right")) - 1
        last = min(max(by_chunks, first + 1), first + _ROWS_A_GROUP, table.n)
        yield first, last
        first = last


def _columns(table: RecordTable, first: int, last: int, schema: pa.Schema) -> dict[str, pa.Array]:
    import pyarrow as pa

    offsets = np.asarray(table.offsets, dtype=np.int64)[first : last + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    list_offsets = pa.array((offsets - begin).astype(np.int32))
    columns: dict[str, pa.Array] = {}
    for field in schema:
        name = field.name
        if name in INT_COLUMNS:
            values = np.asarray(table.ints[name], dtype=np.int64)[first:last]
            columns[name] = pa.array(values, mask=values == NONE).cast(field.type)
        elif name in LIST_COLUMNS:
            items = np.asarray(table.lists[name], dtype=np.int64)[begin:end]
            mask = items == UNKNOWN_TOKENS if name == "chunk_tokens" else None
            values_array = pa.array(items, mask=mask).cast(field.type.value_type)
            columns[name] = pa.ListArray.from_arrays(list_offsets, values_array)
        elif name == "marks":
            columns[name] = pa.array([list(marks) for marks in table.marks[first:last]], type=field.type)
        else:
            columns[name] = _text_array(table.texts[name][first:last])
    return columns


def _text_array(texts: Sequence[str | None]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(texts, type=pa.string())
    except UnicodeEncodeError:  # words of a server with half a surrogate pair, which is no Unicode
        valid = [text if text is None else text.encode("utf-8", "replace").decode() for text in texts]
        return pa.array(valid, type=pa.string())


def _table(stored: pa.Table, where: str) -> RecordTable:
    """Columns as buffers. A column that the file does not have (older than the column) is null in every row."""
    n = stored.num_rows
    names = set(stored.column_names)
    if missing := {"request_id", "status", "due_ns", "chunk_at_ns"} - names:
        raise StoreError(f"{where} is damaged: it lacks the column {sorted(missing)[0]!r}. Restore it from a copy.")
    ints = {name: _ints(stored, name) if name in names else np.full(n, NONE, dtype=np.int64) for name in INT_COLUMNS}
    texts = {name: stored.column(name).to_pylist() if name in names else [None] * n for name in TEXT_COLUMNS}
    offsets, stamps = _lists(stored, "chunk_at_ns")
    lists = {"chunk_at_ns": stamps}
    for name, filler in (("chunk_tokens", UNKNOWN_TOKENS), ("chunk_lateness_ns", 0)):
        if name not in names:
            lists[name] = np.full(len(stamps), filler, dtype=np.int64)
            continue
        own_offsets, lists[name] = _lists(stored, name)
        if not np.array_equal(own_offsets, offsets):
            raise StoreError(f"{where} is damaged: {name} is not parallel to chunk_at_ns. Restore it from a copy.")
    marks = [tuple(row or ()) for row in stored.column("marks").to_pylist()] if "marks" in names else [()] * n
    return RecordTable(n, _as_ints(ints), texts, _as_sequence(offsets), _as_ints(lists), marks)


def _ints(stored: pa.Table, name: str) -> Ints:
    import pyarrow as pa

    column = stored.column(name).cast(pa.int64())
    return _numpy(column.fill_null(NONE).combine_chunks() if column.null_count else column.combine_chunks())


def _lists(stored: pa.Table, name: str) -> tuple[Ints, Ints]:
    """Offsets and values of a list column; a null in chunk_tokens is UNKNOWN_TOKENS."""
    import pyarrow as pa

    chunks = stored.column(name).chunks
    lengths = [chunk.value_lengths().fill_null(0) for chunk in chunks]
    counts = np.concatenate([np.zeros(1, np.int64), *(_numpy(part) for part in lengths)])
    values = pa.chunked_array([chunk.flatten() for chunk in chunks], type=stored.schema.field(name).type.value_type)
    values = values.cast(pa.int64())
    values = values.fill_null(UNKNOWN_TOKENS) if values.null_count else values
    return np.cumsum(counts, dtype=np.int64), _numpy(values.combine_chunks())


def _numpy(column: pa.Array) -> Ints:
    values: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _as_sequence(values: Ints) -> Sequence[int]:
    return values  # type: ignore[return-value]  # a buffer that numpy reads as it is: what RecordTable asks for


def _as_ints(columns: dict[str, Ints]) -> dict[str, Sequence[int]]:
    return {name: _as_sequence(values) for name, values in columns.items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
