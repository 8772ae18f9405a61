"""Exports are opened before anything is measured, and what they held is kept until there is something new."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longbench_sched.cli.app import main
from longbench_sched.cli.exports import open_exports, uses_stdout, write_each
from longbench_sched.errors import StoreError, UsageError


def test_an_export_replaces_the_old_content_only_when_written(tmp_path: Path) -> None:
    old = tmp_path / "old.md"
    old.write_text("a longer text from the run before")
    with open_exports([str(old)]) as [export]:
        assert old.read_text() == "a longer text from the run before"
        export.write("new\n")
    assert old.read_text() == "new\n"


def test_an_export_that_is_never_written_leaves_no_trace(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("kept")
    with open_exports([str(old), str(tmp_path / "new.md")]):
        assert (tmp_path / "new.md").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.csv"]
    assert old.read_text() == "kept"


@pytest.mark.parametrize(
    "name", ["no/such/folder/out.md", "/proc/out.md", "out.md/out.csv"], ids=["missing", "proc", "file-as-folder"]
)
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out.md").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="nothing was done"), open_exports(["-", name]):
        pytest.fail("the block must not be entered")


@pytest.mark.parametrize("name", ["out", "out.xlsx", "-.parquet"])
def test_an_export_without_a_known_format_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--export"), open_exports([name]):
        pytest.fail("the block must not be entered")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_is_one_error_that_says_where_the_run_is(tmp_path: Path) -> None:
    full = tmp_path / "out.md"
    full.symlink_to("/dev/full")
    with open_exports([str(full)]) as [export], pytest.raises(StoreError, match=r"No space left.*Runs that are stored stay so"):
        export.write("x" * 100_000)


def test_every_place_that_cannot_be_opened_is_named_in_one_error(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("no/a.md", "good.md", "b.xlsx")]
    with pytest.raises(StoreError) as failure, open_exports(names):
        pytest.fail("the block must not be entered")
    first, *rest = str(failure.value).splitlines()
    assert first == "2 of 3 exports cannot be written."
    assert [line.split(":")[0] for line in rest] == [f"--export {names[0]}", f"--export {names[2]}"]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_one_that_cannot_be_written_costs_none_of_the_others(tmp_path: Path) -> None:
    """The first, the third: what comes between and after them is written all the same."""
    names = [str(tmp_path / f"{name}.md") for name in "abcd"]
    for full in (names[0], names[2]):
        Path(full).symlink_to("/dev/full")
    with open_exports(names) as exports, pytest.raises(StoreError) as failure:
        write_each(exports, lambda export: export.write("x" * 100_000))
    assert str(failure.value).splitlines() == [
        "2 of 4 exports were not written.",
        f"cannot write {names[0]}: No space left on device.",
        f"cannot write {names[2]}: No space left on device.",
        "Runs that are stored stay so: export again to another place.",
    ]
    assert [Path(name).stat().st_size for name in (names[1], names[3])] == [100_000] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("command", ["report", "compare", "import", "claims"])
def test_every_command_writes_what_it_can_and_names_what_it_could_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    foreign = str(Path(__file__).parents[1] / "store" / "foreign" / "vllm_bench_serve.json")
    folder = ["--output-dir", str(tmp_path / "results")]
    assert main(["import", foreign, *folder]) == 0
    full, good = tmp_path / "full.md", tmp_path / "good.json"
    full.symlink_to("/dev/full")
    words = {
        "report": ["report", "latest", *folder],
        "compare": ["compare", "latest", "latest", "--anyway", *folder],
        "import": ["import", foreign, *folder],
        "claims": ["claims", "C04"],
    }[command]
    capsys.readouterr()
    assert main([*words, "--export", str(full), "--export", str(good)]) == 2
    said = capsys.readouterr().err
    assert good.stat().st_size > 100
    assert f"  Written  {good}\n" in said
    assert f"Error: cannot write {full}: No space left on device." in said


@pytest.mark.parametrize(("names", "taken"), [(["-"], True), (["a.md", "-.csv"], True), (["a-.md"], False), ([], False)])
def test_a_dash_takes_stdout(names: list[str], taken: bool) -> None:
    assert uses_stdout(names) is taken


def test_a_dash_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with open_exports(["-.json"]) as [export]:
        assert export.format.name == "json"
        export.write("{}")
    assert capsys.readouterr().out == "{}\n"
