"""Step traces in Parquet."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from handmade_steps import FACTS, trace
from stored_runs import make_record, make_run

from longbench_sched.errors import StoreError
from longbench_sched.steps import STEP_COLUMNS, PoolFacts
from longbench_sched.store import catalogue
from longbench_sched.store.parquet import write_run
from longbench_sched.store.trace import FOOTER_KEY, columns_table, find_steps, read_steps, write_steps

STEPS = trace(
    (1000, 1200, "prefill", {"prefill_tokens": 8192, "n_waiting": 3, "flop": 1e14, "arithmetic_intensity": 2000.5}),
    (1200, 1210, "decode", {"decode_tokens": 4, "bound": "memory"}),
)


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    write_steps(STEPS, tmp_path / "steps.parquet")
    assert read_steps(tmp_path / "steps.parquet") == STEPS


def test_a_trace_of_version_1_is_read_as_one_engine_with_one_stage(tmp_path: Path) -> None:
    """Written as version 1 did: without the columns that say whose a step is, and without pools in the footer."""
    path, old = tmp_path / "steps.parquet", tmp_path / "old.parquet"
    write_steps(STEPS, path)
    table = pq.read_table(path)
    facts = json.loads(table.schema.metadata[FOOTER_KEY]) | {"version": 1}
    del facts["pools"]
    later = ["pool", "instance", "stage", "micro_batch", "transfer_tokens", "transfer_bytes"]
    assert later == [column.name for column in STEP_COLUMNS if column.since > 1]
    pq.write_table(table.drop_columns(later).replace_schema_metadata({FOOTER_KEY: json.dumps(facts)}), old)
    steps = read_steps(old)
    assert list(steps.ints["micro_batch"]) == [0, 1]
    assert replace(steps, ints={**steps.ints, "micro_batch": STEPS.ints["micro_batch"]}) == STEPS
    assert steps.facts.engines == (PoolFacts("", 1, 1, FACTS.kv_tokens),)
    write_steps(steps, tmp_path / "again.parquet")
    assert read_steps(tmp_path / "again.parquet") == steps
    pq.write_table(table.drop_columns(["pool"]), old)  # of version 2
    with pytest.raises(StoreError, match="lacks the column 'pool'"):
        read_steps(old)


def test_the_documentation_lists_every_column_with_its_unit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "columns.md").read_text(encoding="utf-8")
    assert page.partition("<!-- steps -->\n")[2].partition("<!-- /steps -->")[0] == columns_table()


def test_pools_are_read_back(tmp_path: Path) -> None:
    facts = replace(FACTS, pools=(PoolFacts("prefill", 2, 1, 500), PoolFacts("decode", 1, 1, 1000)))
    steps = trace((1000, 1200, "transfer", {"pool": "prefill", "instance": 1, "transfer_bytes": 1 << 40}), facts=facts)
    write_steps(steps, tmp_path / "steps.parquet")
    assert read_steps(tmp_path / "steps.parquet") == steps


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names must be text")
def test_a_name_that_is_no_utf_8_is_written_and_read(tmp_path: Path) -> None:
    run_id, path = STEPS.facts.run_id, tmp_path / os.fsdecode(b"caf\xe9.parquet")  # as Latin-1 writes it
    write_steps(STEPS, path.with_name(f"{path.stem}.steps.parquet"))
    found = find_steps(path, make_run([], run_id=run_id).meta)
    assert found is not None
    assert read_steps(found) == STEPS


def test_a_trace_without_steps_is_read_back(tmp_path: Path) -> None:
    write_steps(trace(), tmp_path / "steps.parquet")
    assert read_steps(tmp_path / "steps.parquet") == trace()


def test_plain_tools_read_it(tmp_path: Path) -> None:
    write_steps(STEPS, tmp_path / "steps.parquet")
    with duckdb.connect() as connection:
        rows = connection.execute(
            "select phase, bound, prefill_tokens, arithmetic_intensity from read_parquet(?) order by begin_ns",
            [str(tmp_path / "steps.parquet")],
        ).fetchall()
    assert rows == [("prefill", "compute", 8192, 2000.5), ("decode", "memory", 0, 0.0)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda path: None, "no such file", id="missing"),
        pytest.param(lambda path: path.write_bytes(b"PAR1 not"), "not a readable Parquet", id="damaged"),
        pytest.param(lambda path: write_run(make_run([make_record(0)]), path), "not a step trace", id="a run"),
        pytest.param(lambda path: write_steps(replace(STEPS, facts=replace(FACTS, version=99)), path), "newer", id="newer"),
    ],
)
def test_what_is_no_trace_is_an_error_with_a_remedy(make: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    make(path)  # type: ignore[operator]
    with pytest.raises(StoreError, match=said):
        read_steps(path)


def test_a_trace_is_found_beside_its_run_and_only_its_own(tmp_path: Path) -> None:
    run = make_run([make_record(0)])
    path = tmp_path / "mine.parquet"
    own = replace(STEPS, facts=replace(FACTS, run_id=run.meta.run_id))
    assert find_steps(path, run.meta) is None
    write_steps(STEPS, tmp_path / "mine.steps.parquet")  # of another run
    assert find_steps(path, run.meta) is None
    write_steps(own, tmp_path / "mine.steps.parquet")
    assert find_steps(path, run.meta) == tmp_path / "mine.steps.parquet"
    named = replace(run.meta, target={**run.meta.target, "trace": "x.steps.parquet"})
    write_steps(own, tmp_path / "x.steps.parquet")
    (tmp_path / "mine.steps.parquet").unlink()
    assert find_steps(path, named) == tmp_path / "x.steps.parquet"
    (tmp_path / "x.steps.parquet").write_bytes(b"no trace")
    assert find_steps(path, named) is None


def test_a_trace_is_never_taken_for_a_run(tmp_path: Path) -> None:
    write_run(make_run([make_record(0)]), tmp_path / "2026-11-30T1000-vllm-x.parquet")
    write_steps(STEPS, tmp_path / "2026-11-30T1000-vllm-x.steps.parquet")
    write_steps(STEPS, tmp_path / "steps.parquet")
    assert [path.name for path in catalogue.list_runs(tmp_path)] == ["2026-11-30T1000-vllm-x.parquet"]
    assert catalogue.find_run("latest", tmp_path).name == "2026-11-30T1000-vllm-x.parquet"
