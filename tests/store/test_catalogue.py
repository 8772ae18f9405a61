"""Runs are found by what people have at hand: a path, an id or a part of it, `latest`."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from stored_runs import make_meta, make_record, make_run

from longbench_sched.errors import StoreError
from longbench_sched.store.catalogue import find_run, find_runs, is_taken, list_runs, make_run_id, read_stored
from longbench_sched.store.journal import Journal
from longbench_sched.store.parquet import write_run

STARTED = datetime(2026, 11, 30, 10, 12, 59, tzinfo=UTC)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Four runs: three by id, of which one killed, and one under another name, written on 2026-12-02."""
    for name in ("2026-11-30T1012-vllm-30k-500-c64", "2026-12-01T0900-sglang-smoke"):
        write_run(make_run([make_record(0)]), tmp_path / f"{name}.parquet")
    Journal(tmp_path / "2026-12-01T0900-vllm-smoke.journal", make_meta()).close()
    write_run(make_run([]), tmp_path / "kept.parquet")
    stamp = datetime(2026, 12, 2, tzinfo=UTC).timestamp()
    os.utime(tmp_path / "kept.parquet", (stamp, stamp))
    (tmp_path / ".half.parquet").write_bytes(b"")
    (tmp_path / "notes.md").write_text("no run")
    return tmp_path


class TestRunId:
    def test_it_says_when_which_engine_and_which_workload(self) -> None:
        assert make_run_id(STARTED, "vllm", "30k-500-c64") == "2026-11-30T1012-vllm-30k-500-c64"

    def test_it_is_in_utc(self) -> None:
        local = datetime(2026, 11, 30, 23, 30, tzinfo=timezone(timedelta(hours=-3)))
        assert make_run_id(local, "vllm", "smoke") == "2026-12-01T0230-vllm-smoke"

    def test_a_taken_id_gets_a_number(self) -> None:
        taken = {"2026-11-30T1012-vllm-smoke", "2026-11-30T1012-vllm-smoke-2"}
        assert make_run_id(STARTED, "vllm", "smoke", taken.__contains__) == "2026-11-30T1012-vllm-smoke-3"

    @pytest.mark.parametrize(
        ("workload", "word"),
        [
            ("../../etc/passwd", "etc-passwd"),
            ("a b\n\x1b[31mc", "a-b-31mc"),
            ("..", "x"),
            ("lång 文", "l-ng"),
            ("w" * 500, "w" * 60),
        ],
        ids=["path", "control", "dots", "letters", "long"],
    )
    def test_it_is_a_plain_file_name(self, workload: str, word: str) -> None:
        assert make_run_id(STARTED, "vllm", workload) == f"2026-11-30T1012-vllm-{word}"

    def test_a_run_that_was_killed_takes_its_id_too(self, results: Path) -> None:
        assert is_taken(results, "2026-12-01T0900-vllm-smoke")
        assert is_taken(results, "2026-12-01T0900-sglang-smoke")
        assert not is_taken(results, "2026-12-01T0900-trtllm-smoke")


class TestListRuns:
    def test_runs_are_listed_by_age_drafts_and_other_files_left_out(self, results: Path) -> None:
        names = [path.name for path in list_runs(results)]
        assert names[0] == "2026-11-30T1012-vllm-30k-500-c64.parquet"
        assert set(names[1:3]) == {"2026-12-01T0900-sglang-smoke.parquet", "2026-12-01T0900-vllm-smoke.journal"}
        assert names[3] == "kept.parquet"
        assert len(names) == 4

    def test_a_stored_run_takes_the_place_of_its_journal(self, results: Path) -> None:
        write_run(make_run([]), results / "2026-12-01T0900-vllm-smoke.parquet")
        assert results / "2026-12-01T0900-vllm-smoke.journal" not in list_runs(results)

    def test_a_folder_that_is_not_there_holds_none(self, tmp_path: Path) -> None:
        assert list_runs(tmp_path / "gone") == []


class TestFindRun:
    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("latest", "kept.parquet"),
            ("kept", "kept.parquet"),
            ("2026-11-30T1012-vllm-30k-500-c64", "2026-11-30T1012-vllm-30k-500-c64.parquet"),
            ("2026-11-30T1012-vllm-30k-500-c64.parquet", "2026-11-30T1012-vllm-30k-500-c64.parquet"),
            ("2026-11", "2026-11-30T1012-vllm-30k-500-c64.parquet"),
            ("2026-12-01T0900-s", "2026-12-01T0900-sglang-smoke.parquet"),
            ("sglang-smoke", "2026-12-01T0900-sglang-smoke.parquet"),
            ("2026-12-01T0900-vllm-smoke", "2026-12-01T0900-vllm-smoke.journal"),
        ],
    )
    def test_a_run_is_found(self, results: Path, name: str, file: str) -> None:
        assert find_run(name, results) == results / file

    def test_a_path_is_a_path_wherever_it_is(self, results: Path, tmp_path: Path) -> None:
        assert find_run(str(results / "kept.parquet"), tmp_path / "elsewhere") == results / "kept.parquet"

    def test_an_exact_id_wins_over_ids_that_begin_with_it(self, results: Path) -> None:
        write_run(make_run([]), results / "kept-2.parquet")
        assert find_run("kept", results) == results / "kept.parquet"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("2026-12", r"'2026-12' could be any of 2 in .*\. Write more of the id.*:\n  2026-12-01T0900-"),
            ("smoke", r"no run 'smoke' in .*\. It is only a part of 2 ids; write the id:\n  2026-12-01T0900-"),
            ("e", r"no run 'e' in .*\. It is only a part of 3 ids"),
            ("2026*", "'2026\\*' means 3 runs, and one is wanted here. Name one of them:"),
            ("2026-11-30T1012-vllm-30k-500-c65", "Did you mean 2026-11-30T1012-vllm-30k-500-c64?"),
            ("xyzzy", "The latest is kept."),
        ],
    )
    def test_a_name_that_is_no_run_is_answered_with_one_that_is(self, results: Path, name: str, message: str) -> None:
        with pytest.raises(StoreError, match=message):
            find_run(name, results)

    def test_a_path_that_is_not_there_names_its_neighbour(self, results: Path) -> None:
        with pytest.raises(StoreError, match=r"kepd.parquet: no such file. Did you mean .*kept.parquet"):
            find_run(str(results / "kepd.parquet"), results)

    def test_an_empty_folder_and_a_missing_one(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="holds none"):
            find_run("latest", tmp_path)
        with pytest.raises(StoreError, match=r"'latest': .*gone is not there"):
            find_run("latest", tmp_path / "gone")


class TestFindRuns:
    @pytest.fixture
    def several(self, tmp_path: Path) -> Path:
        """Targets `a` and `b` of two experiments, and a run by itself whose id begins with a target's name."""
        for when, names in (("2026-11-30T1000-x", ("a", "b")), ("2026-11-30T1100-x", ("a", "c"))):
            for name in names:
                for block in (1, 2):
                    run = make_run([])
                    meta = replace(run.meta, experiment={"id": when, "target": name, "block": block})
                    write_run(replace(run, meta=meta), tmp_path / f"{when}.{name}.{block}.parquet")
        write_run(make_run([]), tmp_path / "cherry.parquet")
        return tmp_path

    @pytest.mark.parametrize(
        ("name", "ids"),
        [
            ("a", ["2026-11-30T1100-x.a.1", "2026-11-30T1100-x.a.2"]),
            ("b", ["2026-11-30T1000-x.b.1", "2026-11-30T1000-x.b.2"]),
            ("c", ["2026-11-30T1100-x.c.1", "2026-11-30T1100-x.c.2"]),
            ("ch", ["cherry"]),
            ("2026-11-30T1000-x.a", ["2026-11-30T1000-x.a.1", "2026-11-30T1000-x.a.2"]),
            ("2026-11-30T1000-x.a.2", ["2026-11-30T1000-x.a.2"]),
            ("2026-11-30T11", [f"2026-11-30T1100-x.{name}.{block}" for name in "ac" for block in (1, 2)]),
            ("cherry,2026-11-30T1000-x.a.1", ["cherry", "2026-11-30T1000-x.a.1"]),
            ("*.b.*", ["2026-11-30T1000-x.b.1", "2026-11-30T1000-x.b.2"]),
        ],
    )
    def test_a_name_means_one_thing(self, several: Path, name: str, ids: list[str]) -> None:
        assert [path.stem for path in find_runs(name, several)] == ids
        if "," not in name:
            assert [path.stem for path in find_runs(f"{several}/{name}", several / "elsewhere")] == ids

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("2026-11-30", r"could be any of 2 .*:\n  2026-11-30T1000-x\n  2026-11-30T1100-x$"),
            ("2026-11-30T1000-x.a.", r"could be any of 2 .*:\n  2026-11-30T1000-x.a.1\n  2026-11-30T1000-x.a.2$"),
            ("x", r"'x' could be any of 2 .*:\n  2026-11-30T1000-x\n  2026-11-30T1100-x$"),
            ("err", "no run 'err' in .* It is only a part of an id; write the id:\n  cherry"),
        ],
    )
    def test_a_name_that_could_mean_several_things_is_an_error_that_lists_them(
        self, several: Path, name: str, message: str
    ) -> None:
        with pytest.raises(StoreError, match=message):
            find_runs(name, several)

    def test_a_folder_means_its_runs_and_one_without_any_says_what_is_there(self, several: Path, tmp_path: Path) -> None:
        assert len(find_runs(str(several))) == 9
        (tmp_path / "above" / "within").mkdir(parents=True)
        (tmp_path / "above" / "empty").mkdir()
        (tmp_path / "above" / "files").mkdir()
        (tmp_path / "above" / "files" / "notes.md").touch()
        write_run(make_run([]), tmp_path / "above" / "within" / "one.parquet")
        with pytest.raises(StoreError, match=r"above is a folder without runs of its own.*:\n  .*above/within \(1\)"):
            find_runs(str(tmp_path / "above"))
        with pytest.raises(StoreError, match=r"empty is a folder without a run \(it is empty\)"):
            find_runs(str(tmp_path / "above" / "empty"))
        with pytest.raises(StoreError, match=r"files is a folder without a run \(it holds notes.md\)"):
            find_runs(str(tmp_path / "above" / "files"))


def test_a_stored_run_and_a_killed_one_are_read_alike(results: Path) -> None:
    assert read_stored(results / "kept.parquet").meta.complete
    assert not read_stored(results / "2026-12-01T0900-vllm-smoke.journal").meta.complete
