"""The tidy table of figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq

from longbench_sched.store.summary import FOOTER_KEY, SummaryRow, write_summary

ROW = SummaryRow(
    run_id="r", workload="w", engine="vllm", engine_version=None, window="whole", metric="ttft", unit="s", figure="p50",
    value=1.5, low=1.25, high=None, n=7, over_s=60.0,
)  # fmt: skip


def test_rows_are_read_back_by_any_reader(tmp_path: Path) -> None:
    import duckdb
    import polars as pl

    path = tmp_path / "summary.parquet"
    write_summary([ROW], path)
    assert pq.read_table(path).to_pylist() == [dataclasses.asdict(ROW)]
    assert pl.read_parquet(path).rows() == [dataclasses.astuple(ROW)]
    assert duckdb.sql(f"from '{path}'").fetchall() == [dataclasses.astuple(ROW)]


def test_d04_it_states_its_schema_version(tmp_path: Path) -> None:
    write_summary([], tmp_path / "summary.parquet")
    schema = pq.read_schema(tmp_path / "summary.parquet")
    assert json.loads(schema.metadata[FOOTER_KEY]) == {"schema_version": 1}
    assert schema.names == [field.name for field in dataclasses.fields(SummaryRow)]


def test_b10_what_is_not_finite_is_null(tmp_path: Path) -> None:
    rows = [dataclasses.replace(ROW, value=value, low=value) for value in (float("nan"), float("inf"), None)]
    write_summary(rows, tmp_path / "summary.parquet")
    assert pq.read_table(tmp_path / "summary.parquet")["value"].to_pylist() == [None] * 3
    assert pq.read_table(tmp_path / "summary.parquet")["low"].null_count == 3
