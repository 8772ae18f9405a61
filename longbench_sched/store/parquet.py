"""Run <-> Parquet: one file a run, a row a request, everything else in the footer.

Any Parquet reader opens these files. Stamps are stored as differences (DELTA_BINARY_PACKED), both the smallest and the cheapest
to write: 64 requests of 500 chunks take about 0.2 MB. Measured on 2026-11-30: 5.9 bytes and 0.07 us an event with delta
encoding and zstd, 6.9 bytes and 0.17 us with plain encoding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longbench_sched.errors import StoreError
from longbench_sched.record import UNKNOWN_TOKENS
from longbench_sched.run import INT_COLUMNS, LIST_COLUMNS, NONE, TEXT_COLUMNS, RecordTable, Run
from longbench_sched.store.atomic import write_atomically
from longbench_sched.store.footer import decode_meta, encode_meta
from longbench_sched.store.opened import open_for_arrow, remedy
from longbench_sched.store.schema import COLUMNS, FOOTER_KEY, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_A_GROUP = 65_536
_CHUNKS_A_GROUP = 500_000  # bounds the memory of a write, and keeps 32-bit list offsets far from their end

_LATENESS = "chunk_lateness_ns"
_SHARED_TEXTS = [column.name for column in COLUMNS if column.repeats]  # a million rows share a few texts

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
                writer.write_table(pa.Table.from_arrays(_columns(table, first, last, schema), schema=footer))

    write_atomically(path, write)
    pa.default_memory_pool().release_unused()  # tens of MB that the metrics after it would come on top of


def read_run(path: Path, *, with_lateness: bool = True) -> Run:
    """Read a stored run; columns are numpy buffers.

    Without lateness the table lacks `chunk_lateness_ns`, a third of a large run, which no metric needs. Raises StoreError:
    missing, not a run, damaged, newer than this version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a run file. Name a file in it, or a run id.")
    try:
        with open_for_arrow(path) as raw:
            found = pq.read_metadata(raw)
            names = {found.schema.column(i).path for i in range(found.num_columns)}
            if FOOTER_KEY not in (found.metadata or {}):
                raise StoreError(f"{path} is a Parquet file, but not a run of longbench-sched.")
            meta = decode_meta(found.metadata[FOOTER_KEY], str(path))  # refuses a newer schema before a row is read
            shared = [name for name in _SHARED_TEXTS if name in names]
            with pq.ParquetFile(raw, metadata=found, read_dictionary=shared) as file:
                return Run(meta, _table(file, str(path), with_lateness))
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except PermissionError:
        raise StoreError(f"{path} cannot be read: permission denied.") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not a readable Parquet file ({_first_line(error)}). {remedy(path)}") from None


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


def _columns(table: RecordTable, first: int, last: int, schema: pa.Schema) -> list[pa.Array]:
    from longbench_sched.store import buffers

    offsets = np.asarray(table.offsets, dtype=np.int64)[first : last + 1]
    lengths, begin, end = np.diff(offsets), int(offsets[0]), int(offsets[-1])
    columns: list[pa.Array] = []
    for field in schema:
        if field.name in INT_COLUMNS:
            values = np.asarray(table.ints[field.name], dtype=np.int64)[first:last]
            columns.append(buffers.int_array(values, field.type, NONE))
        elif field.name in LIST_COLUMNS:
            items = np.asarray(table.lists[field.name], dtype=np.int64)[begin:end]
            null = UNKNOWN_TOKENS if field.name == "chunk_tokens" else None
            columns.append(buffers.list_array(lengths, buffers.int_array(items, field.type.value_type, null)))
        elif field.name == "marks":
            rows = table.marks[first:last]
            marks = buffers.text_array([mark for row in rows for mark in row])
            columns.append(buffers.list_array(np.fromiter(map(len, rows), np.int64, len(rows)), marks))
        else:
            columns.append(buffers.text_array(table.texts[field.name][first:last]))
    return columns


def _table(file: pq.ParquetFile, where: str, with_lateness: bool) -> RecordTable:
    """Columns as buffers. A column that the file does not have (older than the column) is null in every row."""
    from longbench_sched.store import buffers

    names = set(file.schema_arrow.names)
    if missing := {"request_id", "status", "due_ns", "chunk_at_ns"} - names:
        raise StoreError(f"{where} is damaged: it lacks the column {sorted(missing)[0]!r}. Restore it from a copy.")
    lengths, lists = _lists(file, where, with_lateness)
    stored = _in_our_types(file.read(columns=[name for name in names if name not in LIST_COLUMNS]), where)
    n = stored.num_rows
    ints = {
        name: buffers.ints_of(stored.column(name), NONE) if name in names else np.full(n, NONE, dtype=np.int64)
        for name in INT_COLUMNS
    }
    texts = {name: buffers.texts_of(stored.column(name)) if name in names else [None] * n for name in TEXT_COLUMNS}
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    marks = _marks(stored) if "marks" in names else [()] * n
    return RecordTable(n, _as_ints(ints), texts, _as_sequence(offsets), _as_ints(lists), marks)


def _lists(file: pq.ParquetFile, where: str, with_lateness: bool) -> tuple[Ints, dict[str, Ints]]:
    """Chunks of each row, and the columns of chunks; row group by row group, so that a large run is in memory once."""
    names = [name for name in LIST_COLUMNS if name in file.schema_arrow.names]
    if not with_lateness and _LATENESS in names:
        names.remove(_LATENESS)
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    places = {group.column(i).path_in_schema.partition(".")[0]: i for group in groups[:1] for i in range(group.num_columns)}
    # Parquet counts an empty list as a value too: never fewer than there are chunks.
    most = sum(group.column(places["chunk_at_ns"]).num_values for group in groups)
    # Tokens are few and stay as narrow as they are stored.
    columns = {name: np.empty(most, np.int32 if name == "chunk_tokens" else np.int64) for name in names}
    lengths, n = [np.empty(0, np.int64)], 0
    for place in range(len(groups)):
        group_lengths = _read_group(file, place, columns, n, where)
        lengths.append(group_lengths)
        n += int(group_lengths.sum())
    lists = {name: column[:n] for name, column in columns.items()}
    for name, filler in (("chunk_tokens", UNKNOWN_TOKENS), (_LATENESS, 0)):
        if name not in lists and (with_lateness or name != _LATENESS):
            lists[name] = np.full(n, filler, dtype=np.int64)
    return np.concatenate(lengths), lists


def _read_group(file: pq.ParquetFile, place: int, columns: dict[str, Ints], begin: int, where: str) -> Ints:
    """Read one row group's chunks into the columns, from `begin` on; returns how many each row has."""
    from longbench_sched.store import buffers

    part = _in_our_types(file.read_row_group(place, columns=list(columns), use_threads=False), where)
    lengths, _ = buffers.lists_of(part.column("chunk_at_ns"))
    for name, column in columns.items():
        own_lengths, items = buffers.lists_of(part.column(name))
        if not np.array_equal(own_lengths, lengths):
            raise StoreError(f"{where} is damaged: {name} is not parallel to chunk_at_ns. Restore it from a copy.")
        null = {"chunk_at_ns": NONE, "chunk_tokens": UNKNOWN_TOKENS}.get(name, 0)
        column[begin : begin + len(items)] = buffers.ints_of(items, null)
    return lengths


def _in_our_types(stored: pa.Table, where: str) -> pa.Table:
    """The columns that we know, in the types that we write: others may have written the file again (large strings, int32)."""
    import pyarrow as pa

    ours = arrow_schema(with_text=True)
    kept = stored.select([name for name in ours.names if name in stored.column_names])
    for place, field in enumerate(kept.schema):
        wanted = ours.field(field.name).type
        if field.type != wanted and not (pa.types.is_dictionary(field.type) and field.type.value_type == wanted):
            try:
                kept = kept.set_column(place, field.name, kept.column(place).cast(wanted))
            except pa.ArrowException:
                message = f"{where} is damaged: {field.name} is of type {field.type}, not {wanted}. Restore it from a copy."
                raise StoreError(message) from None
    return kept


def _marks(stored: pa.Table) -> list[tuple[str, ...]]:
    from longbench_sched.store import buffers

    lengths, items = buffers.lists_of(stored.column("marks"))
    if not len(items):
        return [()] * len(lengths)
    marks = iter(buffers.texts_of(items))
    return [tuple(mark for mark in itertools.islice(marks, length) if mark is not None) for length in lengths.tolist()]


def _as_sequence(values: Ints) -> Sequence[int]:
    return values  # type: ignore[return-value]  # a buffer that numpy reads as it is: what RecordTable asks for


def _as_ints(columns: dict[str, Ints]) -> dict[str, Sequence[int]]:
    return {name: _as_sequence(values) for name, values in columns.items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
