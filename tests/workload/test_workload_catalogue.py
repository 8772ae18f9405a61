from pathlib import Path

import pytest

from longbench_sched.errors import WorkloadError
from longbench_sched.workload.catalogue import find_workload, list_workloads, shipped_folder

FILE = 'title = "{}"\nisl = 1\nosl = 1\nconcurrency = 1\nrequests = 1\n'


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    here, shipped = tmp_path / "here", tmp_path / "shipped"
    for folder, name in ((shipped, "smoke"), (shipped, "ladder"), (here, "mine")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(FILE.format(f"The {name}"), "utf-8")
    return here, shipped


def test_shipped_workloads_and_those_at_hand_are_listed_by_name(folders: tuple[Path, Path]) -> None:
    listed = [(entry.name, entry.title, entry.origin) for entry in list_workloads(*folders)]
    assert listed == [("ladder", "The ladder", "shipped"), ("mine", "The mine", "here"), ("smoke", "The smoke", "shipped")]


def test_a_broken_file_is_listed_with_the_reason(folders: tuple[Path, Path]) -> None:
    (folders[0] / "mine.toml").write_text("isl =", "utf-8")
    assert [entry.title for entry in list_workloads(*folders) if entry.name == "mine"] == ["(cannot be read: TOMLDecodeError)"]


def test_a_workload_is_found_by_name(folders: tuple[Path, Path]) -> None:
    found = find_workload("smoke", *folders)
    assert (found.name, found.path, found.note) == ("smoke", folders[1] / "smoke.toml", None)


def test_a_workload_is_found_by_path(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "mine.toml"
    assert find_workload(str(path), *folders).path == path


def test_a_file_at_hand_stands_before_a_shipped_one_and_says_so(folders: tuple[Path, Path]) -> None:
    (folders[0] / "smoke.toml").write_text(FILE.format("Another"), "utf-8")
    found = find_workload("smoke", *folders)
    assert found.path == folders[0] / "smoke.toml"
    assert found.note is not None
    assert "differs from the shipped workload of that name" in found.note


def test_an_equal_copy_at_hand_needs_no_note(folders: tuple[Path, Path]) -> None:
    (folders[0] / "smoke.toml").write_bytes((folders[1] / "smoke.toml").read_bytes())
    assert find_workload("smoke", *folders).note is None


def test_an_unknown_name_lists_the_known_ones(folders: tuple[Path, Path]) -> None:
    with pytest.raises(WorkloadError) as caught:
        find_workload("smok", *folders)
    assert str(caught.value) == (
        "no workload named 'smok'. Did you mean smoke? Known: ladder, mine, smoke; or give the path of a TOML file."
    )


def test_a_missing_file_is_named(folders: tuple[Path, Path]) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere/x\.toml: no such file"):
        find_workload("nowhere/x.toml", *folders)


def test_a_folder_is_answered_with_the_files_in_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"here is a folder, and a workload is a file\. Name one .*: .*here/mine\.toml\.$"):
        find_workload(str(folders[0]), *folders)
    (tmp_path / "none").mkdir()
    with pytest.raises(WorkloadError, match=r"It holds no \.toml file\. .* a name: ladder, mine, smoke\.$"):
        find_workload(str(tmp_path / "none"), *folders)


def test_the_shipped_folder_holds_the_workloads_of_the_readme() -> None:
    names = {path.stem for path in shipped_folder().glob("*.toml")}
    assert names >= {"30k-500-c64", "30k-500-r1", "interference", "context-ladder", "decode-heavy", "prefill-heavy", "smoke"}
