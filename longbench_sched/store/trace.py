"""Step traces <-> Parquet: a row a step, what is needed to read them in the footer.

A trace lies beside its run as `<run_id>.steps.parquet`, or wherever it was asked for; the footer names the run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from longbench_sched.errors import StoreError
from longbench_sched.run import RunMeta
from longbench_sched.steps import STEP_COLUMNS, STEPS_VERSION, PoolFacts, StepColumn, StepFacts, StepTable
from longbench_sched.store.atomic import write_atomically
from longbench_sched.store.opened import open_for_arrow

ENDING = "steps.parquet"  # no run file has it: `list_runs` passes over these
FOOTER_KEY = b"longbench_sched_steps"

_DELTAS = [column.name for column in STEP_COLUMNS if column.type == "int"]
_WORDS = [column.name for column in STEP_COLUMNS if column.type == "text"]


def write_steps(steps: StepTable, path: Path) -> None:
    """Store a trace; the file appears whole or not at all. Raises StoreError."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    from longbench_sched.store import buffers

    kinds = _kinds()
    schema = pa.schema(
        [pa.field(c.name, kinds[c.type], metadata={"unit": c.unit, "meaning": c.meaning}) for c in STEP_COLUMNS],
        metadata={FOOTER_KEY: orjson.dumps(asdict(steps.facts))},
    )
    columns: list[pa.Array] = []
    for column in STEP_COLUMNS:
        if column.type == "int":
            columns.append(buffers.int_array(np.asarray(steps.ints[column.name], dtype=np.int64), pa.int64(), None))
        elif column.type == "float":
            columns.append(buffers.float_array(np.asarray(steps.floats[column.name], dtype=np.float64)))
        else:
            columns.append(buffers.text_array(steps.texts[column.name]))

    def write(file: Any) -> None:
        encodings = dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED")
        with pq.ParquetWriter(
            pa.PythonFile(file, mode="w"), schema, compression="zstd", use_dictionary=_WORDS, column_encoding=encodings
        ) as writer:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))

    write_atomically(path, write)


def read_steps(path: Path) -> StepTable:
    """Read a trace, an older one in today's form. Raises StoreError: missing, not a trace, damaged, newer than this version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from longbench_sched.store import buffers

    try:
        with open_for_arrow(path) as raw, pq.ParquetFile(raw) as file:
            facts = _facts((file.schema_arrow.metadata or {}).get(FOOTER_KEY), path)
            stored = file.read()
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except (OSError, pa.ArrowException):
        raise StoreError(f"{path} is not a readable Parquet file. Make the trace again: simulate ... --trace FILE.") from None
    for column in STEP_COLUMNS:
        if column.since > facts.version:
            stored = stored.append_column(column.name, pa.array(_before(column, stored.num_rows), _kinds()[column.type]))
    if missing := {column.name for column in STEP_COLUMNS} - set(stored.column_names):
        raise StoreError(f"{path} is damaged: it lacks the column {sorted(missing)[0]!r}. Make the trace again.")
    ints: dict[str, Sequence[int]] = {}
    floats: dict[str, Sequence[float]] = {}
    texts: dict[str, Sequence[str]] = {}
    for column in STEP_COLUMNS:
        values = stored.column(column.name)
        if column.type == "int":
            ints[column.name] = array("q", buffers.ints_of(values, 0).tobytes())
        elif column.type == "float":
            floats[column.name] = array("d", buffers.floats_of(values).tobytes())
        else:
            texts[column.name] = [text or "" for text in buffers.texts_of(values)]
    return StepTable(replace(facts, version=STEPS_VERSION), stored.num_rows, ints, floats, texts)


def columns_table() -> str:
    """The table of columns as Markdown, for `docs/columns.md`."""
    kinds = {"int": "int64", "float": "double", "text": "string"}
    rows = [f"| `{column.name}` | {kinds[column.type]} | {column.unit} | {column.meaning} |" for column in STEP_COLUMNS]
    return "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _kinds() -> dict[str, Any]:
    import pyarrow as pa

    return {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}


def _before(column: StepColumn, n_rows: int) -> list[int] | list[str]:
    """A column that an older trace lacks: that was always of one engine with one stage, step after step."""
    if column.type == "text":
        return [""] * n_rows
    return list(range(n_rows)) if column.name == "micro_batch" else [0] * n_rows


def find_steps(run_path: Path, meta: RunMeta) -> Path | None:
    """The trace of a stored run, if there is one: beside it, or under the name it was given, beside it or here."""
    candidates = [run_path.with_name(f"{run_path.stem}.{ENDING}")]
    name = meta.target.get("trace")
    if isinstance(name, str) and name:
        candidates += [run_path.with_name(Path(name).name), Path(Path(name).name)]
    return next((path for path in candidates if path.is_file() and _belongs(path, meta.run_id)), None)


def _belongs(path: Path, run_id: str) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_for_arrow(path) as raw, pq.ParquetFile(raw) as file:
            return _facts((file.schema_arrow.metadata or {}).get(FOOTER_KEY), path).run_id == run_id
    except (OSError, pa.ArrowException, StoreError):
        return False


def _facts(footer: bytes | None, path: Path) -> StepFacts:
    import orjson

    if footer is None:
        raise StoreError(f"{path} is a Parquet file, but not a step trace of longbench-sched.")
    try:
        known = orjson.loads(footer)
        facts = StepFacts(**{item.name: known[item.name] for item in fields(StepFacts) if item.name in known})
        if facts.version <= STEPS_VERSION:
            facts = replace(facts, pools=tuple(PoolFacts(**pool) for pool in facts.pools))  # type: ignore[arg-type]  # still JSON
    except (ValueError, TypeError):
        raise StoreError(f"{path} is damaged: its footer cannot be read. Make the trace again.") from None
    if facts.version > STEPS_VERSION:
        raise StoreError(f"{path} was written by a newer longbench-sched. Install a newer one to read it.")
    return facts
