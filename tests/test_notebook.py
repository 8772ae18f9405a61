"""The notebook API: stored runs as objects with tables."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import longbench_sched as lb
from longbench_sched.errors import NotComparableError, StoreError, UsageError
from longbench_sched.run import Run
from longbench_sched.store.foreign import read_foreign
from longbench_sched.store.parquet import write_run

RESULT = Path(__file__).parent / "store" / "foreign" / "vllm_bench_serve.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of eight requests."""
    place = tmp_path_factory.mktemp("results")
    (run,) = read_foreign(RESULT)
    for name in ("2026-11-30T1000-vllm-a", "2026-11-30T1001-vllm-b"):
        write_run(Run(replace(run.meta, run_id=name), run.table), place / f"{name}.parquet")
    return place


def test_a_run_is_a_table_of_its_requests(folder: Path) -> None:
    (run,) = lb.load(folder / "2026-11-30T1000-vllm-a.parquet")
    frame = run.to_pandas()
    assert len(frame) == 8
    assert frame["ttft_s"].median() == pytest.approx(0.010225052, abs=1e-8)  # as the tool printed it
    assert frame["queue_wait_s"].isna().all()
    assert frame["due_s"].isna().all()
    assert run.summary.whole.stats["ttft"].p50 == pytest.approx(frame["ttft_s"].median())
    assert run.meta.run_id == "2026-11-30T1000-vllm-a"
    assert "TTFT" in repr(run)


def test_a_folder_or_a_pattern_gives_its_runs(folder: Path) -> None:
    runs = lb.load(folder)
    assert [run.meta.run_id for run in runs] == ["2026-11-30T1000-vllm-a", "2026-11-30T1001-vllm-b"]
    assert len(lb.load(f"{folder}/*-b.parquet")) == 1
    assert len(runs[1:]) == 1
    frame = runs.to_pandas()
    assert len(frame) == 16
    assert frame["run_id"].nunique() == 2
    with pytest.raises(StoreError, match="no run in"):
        lb.load(f"{folder}/*-c.parquet")
    with pytest.raises(StoreError, match="no such file"):
        lb.load(folder / "gone.parquet")


def test_other_limits_change_what_is_good(folder: Path) -> None:
    (run,) = lb.load(folder / "2026-11-30T1000-vllm-a.parquet", goodput=["ttft:10.5"])
    assert run.summary.whole.rates["good_share"].value == pytest.approx(run.to_pandas()["ttft_s"].le(0.0105).mean())


def test_two_sets_of_runs_are_compared(folder: Path) -> None:
    first, second = lb.load(folder)
    try:
        frame = lb.compare(first, second).to_pandas()
    except NotComparableError:
        pytest.fail("the same requests must be comparable")
    ttft = frame[frame["metric"] == "ttft_p50"]
    assert ttft["ratio"].tolist() == [pytest.approx(1.0)]
    assert "ttft" in repr(lb.compare(folder / "2026-11-30T1000-vllm-a.parquet", second)).lower()


def test_runs_of_several_targets_are_no_side(folder: Path, tmp_path: Path) -> None:
    (run,) = read_foreign(RESULT)
    for target in ("a", "b"):
        write_run(Run(replace(run.meta, experiment={"id": "x", "target": target}), run.table), tmp_path / f"{target}.parquet")
    with pytest.raises(UsageError, match="side 2 holds runs of 2 targets: a, b"):
        lb.compare(lb.load(folder), lb.load(tmp_path))


def test_a_side_without_runs_and_a_base_alone_are_no_comparison(folder: Path) -> None:
    with pytest.raises(UsageError, match="side 2 holds no runs"):
        lb.compare(lb.load(folder), lb.load())
    with pytest.raises(UsageError, match="needs a base and a candidate"):
        lb.compare(lb.load(folder))


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = lb.lod


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, longbench_sched; assert not {'numpy', 'pandas', 'pyarrow', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_worked_example_of_the_documents_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs" / "notebook.md").read_text().partition("## A worked example")[2]
    monkeypatch.chdir(root)
    exec(text.partition("```python\n")[2].partition("```")[0], {})
    assert "of the time between tokens went by in" in capsys.readouterr().out


def test_load_and_compare_can_be_called_whatever_was_imported_before(folder: Path) -> None:
    import longbench_sched.compare.comparison
    import longbench_sched.load.framing  # each binds its folder to the name in the package

    assert [run.meta.run_id for run in lb.load(folder)] == [run.meta.run_id for run in lb.load(folder / "*")]
    assert longbench_sched.compare is lb.compare
