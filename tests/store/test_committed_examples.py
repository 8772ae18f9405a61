"""The runs that are kept in the repository stay readable, and hold nothing of the machine they were made on but its kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from longbench_sched.metrics.summary import summarize
from longbench_sched.store.parquet import read_run

EXAMPLES = sorted((Path(__file__).parents[2] / "results" / "examples").glob("*/*.parquet"))


def test_there_is_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_is_read_and_measured(path: Path) -> None:
    run = read_run(path)
    summary = summarize(run)
    assert summary.outcomes.ok == summary.outcomes.attempted > 0
    assert summary.whole.stats["ttft"].p50
    assert not set(summary.marks) & {"impossible-values", "self-check-failed"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_names_no_host_user_or_folder(path: Path) -> None:
    said = b" ".join(pq.read_schema(path).metadata.values()).decode()
    assert not [word for word in ("/home/", "/root", "/tmp", "/Users/", "/work", "hostname", "@") if word in said]
    assert read_run(path).meta.target["base_url"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_comes_with_its_report_and_its_command(path: Path) -> None:
    assert "longbench-sched run " in (path.parent / "README.md").read_text(encoding="utf-8")
    assert read_run(path).meta.workload in (path.parent / "report.md").read_text(encoding="utf-8")
