"""A stored run: gives back what was written, opens elsewhere, says what is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import as_plain, make_meta, make_record, make_run, stream_records

from longbench_sched.errors import StoreError
from longbench_sched.record import UNKNOWN_TOKENS, StreamRecord
from longbench_sched.run import RecordTable, Run
from longbench_sched.store import parquet
from longbench_sched.store.meta import read_meta
from longbench_sched.store.parquet import read_run, write_run
from longbench_sched.store.schema import COLUMNS, FOOTER_KEY

DATA = Path(__file__).parent / "data"


@settings(max_examples=60)
@given(st.lists(stream_records(), max_size=6))
def test_parquet_gives_back_the_run_that_was_written(records: list[StreamRecord]) -> None:
    run = make_run(records)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        write_run(run, path)
        read = read_run(path)
    assert read.meta == run.meta
    assert as_plain(read.table) == as_plain(run.table)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names must be text")
def test_a_name_that_is_no_utf_8_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.parquet")  # as Latin-1 writes it
    write_run(make_run([make_record(0)], run_id="r"), path)
    assert read_run(path).table.n == 1
    assert read_meta(path).run_id == "r"


def test_a_run_without_requests_is_stored(tmp_path: Path) -> None:
    write_run(make_run([]), tmp_path / "run.parquet")
    assert read_run(tmp_path / "run.parquet").table.n == 0


def test_columns_read_are_numpy_buffers(tmp_path: Path) -> None:
    write_run(make_run([make_record(0)]), tmp_path / "run.parquet")
    table = read_run(tmp_path / "run.parquet").table
    for column in (table.ints["due_ns"], table.lists["chunk_at_ns"], table.offsets):
        assert isinstance(column, np.ndarray)
        assert column.dtype == np.int64


def test_a_run_read_is_stored_again_unchanged(tmp_path: Path) -> None:
    write_run(make_run([make_record(0), make_record(1, n_chunks=0)]), tmp_path / "one.parquet")
    read = read_run(tmp_path / "one.parquet")
    write_run(read, tmp_path / "two.parquet")
    assert as_plain(read_run(tmp_path / "two.parquet").table) == as_plain(read.table)


def test_several_row_groups_read_as_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_CHUNKS_A_GROUP", 7)
    records = [make_record(k, n_chunks=n) for k, n in enumerate([3, 0, 9, 2, 5, 1, 1])]
    run = make_run(records)
    write_run(run, tmp_path / "run.parquet")
    assert pq.ParquetFile(tmp_path / "run.parquet").num_row_groups == 4  # 3+0 | 9 | 2+5 | 1+1
    assert as_plain(read_run(tmp_path / "run.parquet").table) == as_plain(run.table)


def test_c11_a_run_of_64_requests_of_500_chunks_takes_less_than_2_mb(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    records = []
    for k in range(64):
        record = make_record(k, n_chunks=500)
        for i, (jitter, lateness) in enumerate(
            zip(rng.integers(0, 10**7, 500), rng.integers(2_000, 900_000, 500), strict=True)
        ):
            record.decoded.chunk_at_ns[i] += int(jitter)
            record.decoded.chunk_lateness_ns[i] = int(lateness)
        records.append(record)
    write_run(make_run(records), tmp_path / "run.parquet")
    assert (tmp_path / "run.parquet").stat().st_size < 5_000_000 / 5  # a folder of five such cells


def test_text_is_a_column_only_if_it_was_kept(tmp_path: Path) -> None:
    write_run(make_run([make_record(0)]), tmp_path / "without.parquet")
    write_run(make_run([make_record(0, text="hello")]), tmp_path / "with.parquet")
    assert "text" not in pq.read_schema(tmp_path / "without.parquet").names
    assert pq.read_schema(tmp_path / "with.parquet").names == [column.name for column in COLUMNS]


def test_every_field_carries_its_unit_and_meaning(tmp_path: Path) -> None:
    write_run(make_run([make_record(0)]), tmp_path / "run.parquet")
    schema = pq.read_schema(tmp_path / "run.parquet")
    assert schema.field("due_ns").metadata[b"unit"] == b"ns"
    assert schema.field("prompt_tokens").metadata[b"unit"] == b"tokens"
    assert all(field.metadata[b"meaning"] for field in schema)


class TestOtherReaders:
    """The file opens without our code; nulls are nulls, and nested lists keep their values."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        records = [make_record(0), make_record(1)]
        records[1].decoded.chunk_tokens[2] = UNKNOWN_TOKENS
        records[1].decoded.output_tokens = None
        write_run(make_run(records), tmp_path / "run.parquet")
        return tmp_path / "run.parquet"

    stamps = (
        [86_401_000_000_000, 86_401_020_000_000, 86_401_040_000_000],
        [86_402_000_000_000, 86_402_020_000_000, 86_402_040_000_000],
    )

    def test_pandas(self, path: Path) -> None:
        import pandas as pd

        frame = pd.read_parquet(path)
        assert [list(row) for row in frame["chunk_at_ns"]] == list(self.stamps)
        assert np.isnan(frame["chunk_tokens"][1][2])
        assert frame["output_tokens"].isna().tolist() == [False, True]
        assert frame["status"].tolist() == ["ok", "ok"]

    def test_duckdb(self, path: Path) -> None:
        import duckdb

        query = f"select chunk_at_ns, chunk_tokens, output_tokens, status, chunk_lateness_ns from '{path}' order by index"
        rows = duckdb.sql(query).fetchall()
        late = [4_000] * 3
        assert rows == [(self.stamps[0], [1, 1, 1], 3, "ok", late), (self.stamps[1], [1, 1, None], None, "ok", late)]

    def test_polars(self, path: Path) -> None:
        import polars as pl

        frame = pl.read_parquet(path)
        assert frame["chunk_at_ns"].to_list() == list(self.stamps)
        assert frame["chunk_tokens"].to_list() == [[1, 1, 1], [1, 1, None]]
        assert frame["output_tokens"].to_list() == [3, None]
        assert frame["due_ns"].dtype == pl.Int64


class TestFooter:
    def test_it_is_json_with_a_schema_version(self, tmp_path: Path) -> None:
        write_run(make_run([]), tmp_path / "run.parquet")
        meta = json.loads(pq.read_schema(tmp_path / "run.parquet").metadata[FOOTER_KEY])
        assert meta["schema_version"] == 1
        assert meta["client"]["lateness_p99_ms"] == 0.3

    def test_b10_infinity_and_nan_become_null(self, tmp_path: Path) -> None:
        meta = make_meta(engine_facts={"ratio": float("nan"), "list": [float("inf"), 1.5]})
        write_run(Run(meta, RecordTable.from_records([])), tmp_path / "run.parquet")
        text = pq.read_schema(tmp_path / "run.parquet").metadata[FOOTER_KEY].decode()
        assert read_run(tmp_path / "run.parquet").meta.engine_facts == {"ratio": None, "list": [None, 1.5]}
        assert "NaN" not in text
        assert "Infinity" not in text

    def test_c09_secrets_that_slipped_in_are_not_stored(self, tmp_path: Path) -> None:
        meta = make_meta(
            target={
                "base_url": "http://bob:hunter2@gpu7:8000/v1",
                "proxy": "socks5://u:hunter2@[::1]:1080",
                "api_key": "hunter2",
                "nested": {"Authorization": "Bearer hunter2", "headers": ["X-Team"]},
            },
            workload_text="# from https://x:hunter2@example.org/w.toml",
            preflight=({"id": "X", "text": "GET http://me:hunter2@gpu7/ said 401"},),
        )
        write_run(Run(meta, RecordTable.from_records([])), tmp_path / "run.parquet")
        assert b"hunter2" not in (tmp_path / "run.parquet").read_bytes()
        read = read_run(tmp_path / "run.parquet").meta
        assert read.target["base_url"] == "http://***@gpu7:8000/v1"
        assert read.target["nested"] == {"Authorization": "***", "headers": ["X-Team"]}

    def test_counts_under_a_secret_looking_name_are_kept(self, tmp_path: Path) -> None:
        write_run(make_run([], engine_facts={"token": 7}), tmp_path / "run.parquet")
        assert read_run(tmp_path / "run.parquet").meta.engine_facts == {"token": 7}

    def test_fields_of_a_later_version_are_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        _write_with_footer(path, lambda meta: meta | {"weather": "fine", "client": meta["client"] | {"mood": 1}})
        assert read_run(path).meta == make_meta()


def _write_with_footer(path: Path, change: object) -> None:
    """A run whose footer was changed by other hands."""
    write_run(make_run([make_record(0)]), path)
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[FOOTER_KEY])
    changed = change(meta) if callable(change) else change
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    pq.write_table(table.replace_schema_metadata({FOOTER_KEY: text}), path)


class TestErrors:
    def test_d04_a_newer_schema_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        _write_with_footer(path, lambda meta: meta | {"schema_version": 2})
        with pytest.raises(
            StoreError, match=r"newer longbench-sched \(schema 2; this one reads up to 1\).*Install a newer one"
        ):
            read_run(path)

    @pytest.mark.parametrize("version", [None, "1", 0, True, 1.0], ids=repr)
    def test_d04_a_version_that_is_no_version_is_refused(self, tmp_path: Path, version: object) -> None:
        path = tmp_path / "run.parquet"
        _write_with_footer(path, lambda meta: meta | {"schema_version": version})
        with pytest.raises(StoreError, match="does not state a schema version"):
            read_run(path)

    @pytest.mark.parametrize(
        ("footer", "message"),
        [
            (b"{", "metadata is not a JSON object"),
            (b"[1]", "metadata is not a JSON object"),
            (b'{"schema_version": 1, "client": {}}', "metadata lacks a field"),
            (b'{"schema_version": 1, "client": 3}', "metadata lacks a field"),
        ],
        ids=["torn", "list", "empty", "wrong-type"],
    )
    def test_a_damaged_footer_is_one_clear_line(self, tmp_path: Path, footer: bytes, message: str) -> None:
        path = tmp_path / "run.parquet"
        _write_with_footer(path, footer)
        with pytest.raises(StoreError, match=message) as caught:
            read_run(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"measured_to_ns": None}, "measured_to_ns"),
            ({"seed": "x"}, "seed"),
            ({"plan": None}, "plan"),
            ({"simulated": 1}, "simulated"),
            ({"time_scale": 0}, "time_scale"),
            ({"time_scale": True}, "time_scale"),
            ({"marks": "abc"}, "marks"),
            ({"preflight": ["x"]}, "preflight"),
            ({"slo": {"ttft": "fast"}}, "slo"),
            ({"client": {"clock": "user", "cpu_s": None, "wall_s": 1}}, "cpu_s"),
            ({"plan": {"lanes": None}}, "plan.lanes"),
            ({"plan": {"lanes": [3]}}, "plan.lanes"),
            ({"plan": {"lanes": [{"name": "main"}, {"requests": "many"}]}}, "plan.lanes[1].requests"),
            ({"plan": {"lanes": [{"steps": [[0, None]]}]}}, "plan.lanes[0].steps"),
            ({"plan": {"isl": 300}}, "plan.isl"),
            ({"plan": {"osl": {"mean": "long"}}}, "plan.osl"),
            ({"plan": {"notes": "one"}}, "plan.notes"),
            ({"plan": {"extra": None}}, "plan.extra"),
            ({"target": {"cell": ["a"]}}, "target.cell"),
            ({"experiment": {"target_place": "first"}}, "experiment.target_place"),
            ({"origin": {"unknown": None}}, "origin.unknown"),
        ],
        ids=str,
    )
    def test_a_footer_of_other_types_is_damaged(self, tmp_path: Path, changes: dict[str, object], name: str) -> None:
        path = tmp_path / "run.parquet"
        _write_with_footer(path, lambda meta: meta | changes)
        with pytest.raises(StoreError, match=f"is damaged: {re.escape(name)} in its metadata is no "):
            read_run(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no such file"):
            read_run(tmp_path / "gone.parquet")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="is a folder"):
            read_run(tmp_path)

    def test_a_parquet_file_of_someone_else(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
        with pytest.raises(StoreError, match="not a run of longbench-sched"):
            read_run(tmp_path / "other.parquet")

    def test_a_file_that_is_not_parquet(self, tmp_path: Path) -> None:
        (tmp_path / "x.parquet").write_text("hello, this is no table")
        with pytest.raises(StoreError, match="not a readable Parquet file"):
            read_run(tmp_path / "x.parquet")
        (tmp_path / "x.csv").write_text("hello, this is no table")
        with pytest.raises(StoreError, match=r"A stored run ends in .parquet"):
            read_run(tmp_path / "x.csv")

    @pytest.mark.parametrize("keep", [0, 3, 100, 2_000, -1])
    def test_a_file_that_was_cut(self, tmp_path: Path, keep: int) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(k) for k in range(20)]), path)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(StoreError, match="not a readable Parquet file"):
            read_run(path)

    def test_a_column_that_is_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(0)]), path)
        pq.write_table(pq.read_table(path).drop_columns(["chunk_at_ns"]), path)
        with pytest.raises(StoreError, match="lacks the column 'chunk_at_ns'"):
            read_run(path)

    def test_lists_that_are_not_parallel(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(0)]), path)
        table = pq.read_table(path)
        position = table.column_names.index("chunk_tokens")
        pq.write_table(table.set_column(position, "chunk_tokens", pa.array([[1, 1]], pa.list_(pa.int32()))), path)
        with pytest.raises(StoreError, match="chunk_tokens is not parallel"):
            read_run(path)

    def test_a_column_added_later_is_null_in_old_files(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(0)]), path)
        pq.write_table(pq.read_table(path).drop_columns(["reasoning_tokens", "marks", "chunk_lateness_ns", "lane"]), path)
        table = read_run(path).table
        assert as_plain(table)["marks"] == [()]
        assert list(table.lists["chunk_lateness_ns"]) == [0, 0, 0]
        assert list(table.texts["lane"]) == [None]
        assert list(table.ints["reasoning_tokens"]) == [-(2**63)]

    def test_a_file_that_others_wrote_again_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        run = make_run([make_record(0), make_record(1, n_chunks=0)])
        write_run(run, path)
        table = pq.read_table(path)
        for place, field in enumerate(table.schema):
            other = {"string": pa.large_string(), "int64": pa.int64(), "list<element: int64>": pa.large_list(pa.int64())}
            if (kind := other.get(str(field.type))) is not None:
                table = table.set_column(place, field.name, table.column(place).cast(kind))
        table = table.append_column("theirs", pa.array([1, 2]))
        pq.write_table(table.replace_schema_metadata(pq.read_schema(path).metadata), path)
        assert as_plain(read_run(path).table) == as_plain(run.table)

    def test_a_column_of_another_type(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(0)]), path)
        table = pq.read_table(path)
        place = table.column_names.index("due_ns")
        pq.write_table(table.set_column(place, "due_ns", pa.array(["soon"])), path)
        with pytest.raises(StoreError, match="due_ns is of type string, not int64"):
            read_run(path)

    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "run.parquet"
        write_run(make_run([make_record(0)]), path)
        before = path.read_bytes()
        bad = make_run([make_record(1)])
        bad.table.texts["status"][0] = 3  # type: ignore[index]
        with pytest.raises(AttributeError):  # a bug of ours, not a failure of the disk: it is not dressed up
            write_run(bad, path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["run.parquet"]


class TestStoredSample:
    """D-04: a run that version 1 of the schema wrote stays readable. The file is never written again."""

    def test_d04_the_stored_sample_of_version_1_reads(self) -> None:
        run = read_run(DATA / "v1.parquet")
        assert run.meta.schema_version == 1
        assert run.meta.workload == "30k-500-c64"
        assert run.table.n == 4
        assert list(run.table.texts["status"]) == ["ok", "ok", "failed", "timeout"]
        assert list(run.table.texts["reason"]) == [None, None, "http-status", "timeout-idle"]
        assert [int(x) for x in run.table.offsets] == [0, 3, 6, 6, 8]
        assert [int(x) for x in run.table.lists["chunk_tokens"]] == [1, 1, 1, 1, -1, 1, 1, 1]
        assert int(run.table.lists["chunk_at_ns"][0]) == 86_401_000_000_000
        assert run.table.marks[0] == ("retried",)


def test_pandas_and_compute_are_not_imported_to_write_and_read(tmp_path: Path) -> None:
    """They cost up to seconds; `run` and `show` need neither."""
    program = (
        "import sys; from pathlib import Path; from longbench_sched.store.parquet import read_run, write_run;"
        "write_run(read_run(Path(sys.argv[1])), Path(sys.argv[2]));"
        "print(sorted({'pandas', 'pyarrow.compute', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", program, str(DATA / "v1.parquet"), str(tmp_path / "again.parquet")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_arrow_reads_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads let go of the file when the interpreter may be ending: one of Python's would end that in an abort."""
    path = tmp_path / "run.parquet"
    write_run(make_run([make_record(index=0)]), path)
    opened = []
    whole = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda source, **kwargs: opened.append(type(source)) or whole(source, **kwargs))
    read_run(path)
    assert opened == [pa.OSFile]
    monkeypatch.setattr(os, "fsencode", lambda name: str(name).encode("latin-1"))
    read_run(path.rename(tmp_path / "\u00e9t\u00e9.parquet"))
    assert opened[1:] == [io.BufferedReader], "Arrow would look for another name"
