"""Arrow arrays <-> numpy arrays and lists of text, buffer by buffer.

pyarrow's own conversions (`pa.array`, `to_numpy`, `flatten`, `cast`) import pandas, where it is installed, and pyarrow.compute:
up to seconds of start-up for a command that only reads a file. The layout of the buffers is Arrow's columnar format: a validity
bitmap (least significant bit first, absent if nothing is null), int32 offsets for text and lists, then the values. Types other
than int32, int64, string and lists of them have other layouts and must be cast first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]


def int_array(values: Ints, kind: pa.DataType, null: int | None) -> pa.Array:
    """An Arrow array of a signed integer type; values equal to `null` become null."""
    valid = None if null is None else values != null
    narrow = np.ascontiguousarray(values if valid is None else np.where(valid, values, 0), dtype=f"i{kind.bit_width // 8}")
    return _build(kind, len(values), valid, [pa.py_buffer(narrow)])


def float_array(values: Floats) -> pa.Array:
    """An Arrow array of 64-bit floats without nulls."""
    return _build(pa.float64(), len(values), None, [pa.py_buffer(np.ascontiguousarray(values))])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """An Arrow array of text. Words of a server that are no Unicode (half a surrogate pair) lose what is not."""
    parts = [b"" if text is None else text.encode("utf-8", "replace") for text in texts]
    valid = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
    return _build(pa.string(), len(texts), valid, [pa.py_buffer(_offsets(map(len, parts))), pa.py_buffer(b"".join(parts))])


def list_array(lengths: Ints, items: pa.Array) -> pa.Array:
    """An Arrow array of lists, of which row i takes the next `lengths[i]` items."""
    kind = pa.list_(items.type)
    offsets = pa.py_buffer(_offsets(lengths))
    return pa.Array.from_buffers(kind, len(lengths), [None, offsets], null_count=0, children=[items])


def ints_of(column: pa.ChunkedArray, null: int) -> Ints:
    """The values of a column of any signed integer type; null becomes `null`."""
    parts = [_chunk_ints(chunk, null) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def floats_of(column: pa.ChunkedArray) -> Floats:
    """The values of a column of 64-bit floats without nulls."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.float64)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, np.float64), *parts])


def texts_of(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column of text, also of one that is stored as a dictionary: then equal texts are one object."""
    read = _chunk_coded_texts if pa.types.is_dictionary(column.type) else _chunk_texts
    return [text for chunk in column.chunks for text in read(chunk)]


def lists_of(column: pa.ChunkedArray) -> tuple[Ints, pa.ChunkedArray]:
    """Length of each row's list, and the items of all of them; a row that is null has none."""
    lengths = [_chunk_lengths(chunk) for chunk in column.chunks]
    items = pa.chunked_array([_chunk_items(chunk) for chunk in column.chunks], type=column.type.value_type)
    return np.concatenate([np.empty(0, np.int64), *lengths]), items


def _build(kind: pa.DataType, n: int, valid: _Bools | None, buffers: list[pa.Buffer]) -> pa.Array:
    if valid is None or valid.all():
        return pa.Array.from_buffers(kind, n, [None, *buffers], null_count=0)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, n, [bitmap, *buffers], null_count=n - int(valid.sum()))


def _offsets(lengths: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(np.fromiter(lengths, np.int64), dtype=np.int32)])


def _chunk_valid(chunk: pa.Array) -> _Bools | None:
    bitmap = chunk.buffers()[0]
    if bitmap is None or chunk.null_count == 0:
        return None
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(np.bool_)


def _chunk_ints(chunk: pa.Array, null: int) -> Ints:
    if not len(chunk):
        return np.empty(0, np.int64)
    stored = np.frombuffer(chunk.buffers()[1], f"i{chunk.type.bit_width // 8}")[chunk.offset : chunk.offset + len(chunk)]
    valid = _chunk_valid(chunk)
    values = stored.astype(np.int64, copy=False)
    return values if valid is None else np.where(valid, values, null)


def _chunk_offsets(chunk: pa.Array) -> Ints:
    return np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)


def _chunk_lengths(chunk: pa.Array) -> Ints:
    if not len(chunk):
        return np.empty(0, np.int64)
    return np.diff(_chunk_offsets(chunk))


def _chunk_items(chunk: pa.Array) -> pa.Array:
    """The items of all rows. A reader of Parquet gives a null row no items, so none have to be left out."""
    if not len(chunk):
        return chunk.values.slice(0, 0)
    offsets = _chunk_offsets(chunk)
    return chunk.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _chunk_texts(chunk: pa.Array) -> list[str | None]:
    if not len(chunk):
        return []
    offsets = _chunk_offsets(chunk).tolist()
    data = bytes(chunk.buffers()[2] or b"")
    valid = _chunk_valid(chunk)
    texts: list[str | None] = [data[start:stop].decode() for start, stop in itertools.pairwise(offsets)]
    if valid is not None:
        texts = [text if is_there else None for text, is_there in zip(texts, valid.tolist(), strict=True)]
    return texts


def _chunk_coded_texts(chunk: pa.DictionaryArray) -> list[str | None]:
    texts = np.array([*_chunk_texts(chunk.dictionary), None], dtype=object)
    coded: list[str | None] = texts[_chunk_ints(chunk.indices, -1)].tolist()  # -1, for null, is the last: None
    return coded
