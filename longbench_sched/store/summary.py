"""Summary as a tidy table: one figure a row, in Parquet, for those who plot many runs at once.

Every row says of which run and window it is, which metric and which figure of it (mean, p50, ... or the value of a rate), in
which unit, and over how many values. A figure that is not defined has no value: null, never 0 or NaN.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from longbench_sched.run import SCHEMA_VERSION
from longbench_sched.store.atomic import write_atomically

FOOTER_KEY = b"longbench_sched_summary"  # {"schema_version": 1}


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One figure of one run. The order of the fields is the order of the columns."""

    run_id: str
    workload: str
    engine: str
    engine_version: str | None
    window: str  # whole or steady; "lane NAME" for the whole run of one lane
    metric: str
    unit: str
    figure: str  # mean, p50, p90, p95, p99, min, max, value
    value: float | None
    low: float | None  # 95 % interval of this figure, where there is one
    high: float | None
    n: int
    over_s: float | None  # length of the window


def write_summary(rows: Sequence[SummaryRow], path: Path) -> None:
    """Store the rows; the file appears whole or not at all. Raises StoreError."""
    data = encode_summary(rows)

    def write(file: BinaryIO) -> None:
        file.write(data)

    write_atomically(path, write)


def encode_summary(rows: Sequence[SummaryRow]) -> bytes:
    """The Parquet file as bytes, for a file that is already open."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"str": pa.string(), "str | None": pa.string(), "float | None": pa.float64(), "int": pa.int64()}
    columns = [(field.name, types[str(field.type)]) for field in fields(SummaryRow)]
    schema = pa.schema(columns, metadata={FOOTER_KEY: f'{{"schema_version":{SCHEMA_VERSION}}}'})
    table = pa.table({name: [_finite(getattr(row, name)) for row in rows] for name, _ in columns}, schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
