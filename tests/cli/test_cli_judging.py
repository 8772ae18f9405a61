"""`compare`, `check`, `baseline` and `power` from the command line to the exit code, on runs simulated for the purpose."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from longbench_sched.cli.app import main
from longbench_sched.cli.selection import select_side, select_sides
from longbench_sched.errors import EXIT_CODES, UsageError
from longbench_sched.run import Run
from longbench_sched.store import baselines
from longbench_sched.store.catalogue import list_runs
from longbench_sched.store.meta import read_meta
from longbench_sched.store.parquet import read_run, write_run

TINY = 'title = "Tiny"\nisl = 2000\nosl = 20\nconcurrency = 4\nrequests = 16\nwarmups = 0\n'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of two targets and three blocks, `chunks`, and a third target elsewhere; times stretched by hand."""
    folder = tmp_path_factory.mktemp("judging")
    (folder / "tiny.toml").write_text(TINY)
    for flags in (["--engine", "vllm"], ["--engine", "vllm", "--max-num-batched-tokens", "512"]):
        assert main(["simulate", str(folder / "tiny.toml"), "--output-dir", str(folder / "first"), *flags]) == 0
    runs = [read_run(path) for path in list_runs(folder / "first")]
    for place, (target, run) in enumerate(zip(("whole", "chunked"), runs, strict=True)):
        for block in range(3):
            store(
                folder / "results", run, f"chunks.{target}.{block + 1}", target, place, block, 1 + 0.004 * block + 0.001 * place
            )
    return folder / "results"


def store(folder: Path, run: Run, run_id: str, target: str, place: int, block: int, stretch: float) -> None:
    """The run again, as if its clock had gone slower by `stretch`."""
    experiment = {"id": "chunks", "target": target, "target_place": place, "cell": "tiny", "block": block}
    meta = replace(run.meta, run_id=run_id, experiment=experiment, time_scale=run.meta.time_scale * stretch)
    write_run(Run(meta, run.table), folder / f"{run_id}.parquet")


def said(arguments: Sequence[str], results: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main([*arguments, "--output-dir", str(results)])
    return code, capsys.readouterr().out


def test_two_targets_are_compared_by_name_block_by_block(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["compare", "whole", "chunked"], results, capsys)
    assert code == 0
    assert "paired by block" in text
    assert re.search(r"token budget 8192 / 512", text)
    assert max(map(len, text.splitlines())) <= 80


def test_an_experiment_by_itself_is_its_targets_in_order(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["compare", "chunks"], results, capsys)
    assert (code, text.splitlines()[0]) == (0, "whole against chunked (simulated)")


def test_a_comparison_is_exported_in_every_form_it_has(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / f"out.{ending}") for ending in ("md", "csv", "json", "txt")]
    exports = [word for name in names for word in ("--export", name)]
    assert said(["compare", "whole", "chunked", *exports], results, capsys)[0] == 0
    assert json.loads(Path(names[2]).read_text())["comparison"]["base"]["runs"] == [f"chunks.whole.{i}" for i in (1, 2, 3)]
    assert said(["compare", "whole", "chunked", "--export", "x.parquet"], results, capsys)[0] == 2


def test_figures_windows_and_limits_can_be_chosen(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["compare", "whole", "chunked", "--metric", "ttft_p90", "--window", "whole"], results, capsys)
    assert code == 0
    assert "TTFT p90" in text
    twice = ["--metric", "ttft_p90", "--metric", "ttft_p90"]
    assert said(["compare", "whole", "chunked", *twice, "--window", "whole"], results, capsys) == (code, text)
    assert "E2E" not in text
    assert said(["compare", "whole", "chunked", "--metric", "ttft_p91"], results, capsys)[0] == 2
    assert said(["compare", "whole", "chunked", "--window", "middle"], results, capsys)[0] == 2


def test_one_side_alone_is_wrong_usage(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["compare", "whole"], results, capsys)[0] == 2
    assert said(["compare", "whole", "nothing"], results, capsys)[0] == 2


def test_other_loads_are_not_compared(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.toml").write_text(TINY.replace("2000", "3000"))
    assert main(["simulate", str(tmp_path / "other.toml"), "--output-dir", str(tmp_path)]) == 0
    code = main(["compare", "whole", str(next(tmp_path.glob("*.parquet"))), "--output-dir", str(results)])
    assert code == 3
    assert "plans-differ" in capsys.readouterr().err


def test_a_check_passes_fails_or_does_not_know_and_its_exit_code_says_so(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(["check", "whole", "--baseline", "whole"], results, capsys)
    assert (code, "PASSED" in text) == (0, True)
    report = tmp_path / "verdict.xml"
    code, text = said(["check", "chunked", "--baseline", "whole", "--export", str(report)], results, capsys)
    assert (code, "FAILED" in text) == (1, True)
    assert int(ET.parse(report).getroot().get("failures") or 0) >= 1
    code, text = said(["check", "chunks.whole.1", "--baseline", "whole"], results, capsys)
    assert (code, "need >= 3 runs" in text) == (3, True)


def test_a_policy_of_ones_own_decides(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "gate.toml"
    policy.write_text('[[rule]]\nmetric = "error_rate"\nat_most = "1%"\n')
    code, text = said(["check", "chunked", "--baseline", "whole", "--policy", str(policy)], results, capsys)
    assert (code, "1 rule." in text) == (0, True)
    assert said(["check", "chunked", "--baseline", "whole", "--policy", str(tmp_path / "none.toml")], results, capsys)[0] == 2
    policy.write_text("[[rule]]\n")
    assert said(["check", "chunked", "--baseline", "whole", "--policy", str(policy)], results, capsys)[0] == 2


def test_the_noise_floor_is_read_from_runs_of_one_build(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["check", "whole", "--baseline", "whole", "--noise-floor", "whole"], results, capsys)
    assert code == 0
    assert "Noise floor" in text
    # Values 1, 1.004, 1.008: a standard deviation of 0.398 % in logarithms.
    assert re.search(r"TTFT p50\s+0\.398 %", text)


def test_the_exit_codes_stand_in_the_help_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_no_baseline_is_called_latest_and_a_damaged_one_hides_no_other(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", "save", "latest", str(results / "whole"), "--reason", "x", "--output-dir", str(tmp_path)]) == 2
    assert "that is the newest run" in capsys.readouterr().err
    assert said(["baseline", "save", "good", str(results / "whole"), "--reason", "why"], tmp_path, capsys)[0] == 0
    (tmp_path / "baselines" / "bad.json").write_text("{}")
    code = main(["baseline", "list", "--output-dir", str(tmp_path)])
    shown = capsys.readouterr()
    assert code == 2
    assert "good  3 runs" in shown.out
    assert "bad.json is damaged" in shown.err


def test_baselines_promoted_at_once_keep_each_other_in_the_history(results: Path, tmp_path: Path) -> None:
    """The second to come waits until the first has written, and then reads what that wrote."""
    where = [str(results / "whole"), "--output-dir", str(tmp_path)]
    assert main(["baseline", "save", "main", "--reason", "first", *where]) == 0
    command = [sys.executable, "-m", "longbench_sched", "baseline", "promote", "main", *where, "--reason"]
    with baselines.held(tmp_path):
        waiting = [subprocess.Popen([*command, reason], stdout=subprocess.DEVNULL) for reason in ("second", "third")]
    assert [process.wait() for process in waiting] == [0, 0]
    kept = json.loads((tmp_path / "baselines" / "main.json").read_text())
    assert {kept["reason"], *(entry["reason"] for entry in kept["history"])} == {"first", "second", "third"}


def test_a_baseline_is_saved_listed_used_and_replaced(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["baseline", "save", "main", "whole", "--reason", "first"], results, capsys)[0] == 0
    assert said(["baseline", "save", "main", "whole", "--reason", "again"], results, capsys)[0] == 2
    code, text = said(["check", "chunked", "--baseline", "main"], results, capsys)
    assert (code, "chunked checked against main" in text) == (1, True)
    assert said(["baseline", "promote", "main", "chunked", "--reason", "accepted"], results, capsys)[0] == 0
    assert said(["check", "chunked", "--baseline", "main"], results, capsys)[0] == 0
    code, text = said(["baseline", "list"], results, capsys)
    assert (code, "accepted" in text, "simulated · 1 before it" in text) == (0, True, True)
    assert main(["check", "chunked", "--baseline", "trunk", "--output-dir", str(results)]) == 2
    assert "Known baselines: main." in capsys.readouterr().err
    for wrong in (["promote", "nope"], ["save", "../x"]):
        assert said(["baseline", *wrong, "whole", "--reason", "x"], results, capsys)[0] == 2


def test_power_says_runs_and_time(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["power", "whole", "--precision", "1%"], results, capsys)
    assert (code, "of measuring for" in text) == (0, True)
    assert said(["power", "whole", "--precision", "0.01"], results, capsys) == (code, text)
    for wrong in ("2", "nan", "x", "0"):
        assert said(["power", "whole", "--precision", wrong], results, capsys)[0] == 2
    assert said(["power", "whole", "--metric", "goodput"], results, capsys)[0] == 2


def test_names_mean_files_folders_patterns_ids_targets_and_lists(results: Path) -> None:
    one = str(results / "chunks.whole.1.parquet")
    for name, runs in (
        (one, 1),
        ("chunks.whole.1", 1),
        ("chunks.whole", 3),
        ("chunks.whole.*", 3),
        ("whole", 3),
        ("chunks.whole.1,chunks.whole.3", 2),
        ("latest", 0),
        (str(results), 0),
    ):
        if runs:
            assert len(select_side(name, results).points) == runs, name
        else:
            assert [len(side.points) for side in select_sides([name], results)] == [3, 3], name
    with pytest.raises(UsageError, match="2 targets: whole, chunked"):
        select_side("chunks", results)


@pytest.mark.parametrize(
    "words",
    [
        ["show", "NAME"], ["report", "NAME"], ["compare", "NAME", "whole"], ["compare", "whole", "NAME"], ["power", "NAME"],
        ["check", "NAME", "--baseline", "whole"], ["check", "whole", "--baseline", "NAME"],
        ["baseline", "promote", "kept", "NAME", "--reason", "x"],
    ],
    ids=["show", "report", "base", "candidate", "power", "check", "baseline", "promote"],
)  # fmt: skip
def test_every_command_means_the_same_by_a_name(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A target means its runs; a letter inside ids, or a beginning that several have, means none of them."""
    for path in results.glob("*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if "kept" in words:
        assert said(["baseline", "save", "kept", "whole", "--reason", "x"], tmp_path, capsys)[0] == 0

    def code_of(name: str) -> int:
        return main([*(word.replace("NAME", name) for word in words), "--output-dir", str(tmp_path)])

    assert code_of("whole") == 0
    capsys.readouterr()
    assert code_of("o") == 2
    assert "only a part of 3 ids" in capsys.readouterr().err
    assert code_of("chunks.w") == 2
    assert "'chunks.w' could be any of 3 in" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["chunks.whole.1-2", "chunks.whole.0"], ids=["later", "earlier"])
def test_an_attempt_that_was_cut_short_does_not_stand_beside_the_complete_one(results: Path, tmp_path: Path, name: str) -> None:
    for path in results.glob("chunks.whole.*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run = read_run(tmp_path / "chunks.whole.1.parquet")
    write_run(Run(replace(run.meta, run_id=name, complete=False), run.table), tmp_path / f"{name}.parquet")
    points = select_side("whole", tmp_path).points
    assert {point.run_id for point in points} == {f"chunks.whole.{i}" for i in (1, 2, 3)}
    assert len(points) == 3


def test_a_target_is_meant_before_a_folder_of_its_name(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(select_side("whole", results).points) == 3


def test_what_is_no_run_beside_the_runs_costs_nothing(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in results.glob("chunks.*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    newest = str(tmp_path / "zz.parquet")
    assert main(["report", str(tmp_path / "chunks.whole.1.parquet"), "--export", newest]) == 0  # tidy rows
    (tmp_path / "0.parquet").write_bytes(b"PAR1 and no more")
    assert said(["compare", "whole", "chunked"], tmp_path, capsys)[0] == 0
    assert said(["compare", newest, "chunked"], tmp_path, capsys)[0] == 2


def test_many_ids_and_words_too_long_for_a_file_are_no_defects(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = ",".join([f"chunks.whole.{i}" for i in (1, 2, 3)] * 20)
    assert len(select_side(many, results).points) == 3
    long = "x" * 5000
    for words in (
        ["compare", long, "whole"], ["check", "whole", "--baseline", long], ["power", long], ["report", long], ["import", long],
        ["baseline", "save", "b", long, "--reason", "x"], ["run", f"{long}.toml"], ["run", "--resume", long],
        ["compare", ",", "whole"], ["compare", "", "whole"],
    ):  # fmt: skip
        capsys.readouterr()
        assert main([*words, *([] if words[0] == "import" else ["--output-dir", str(results)])]) == 2, words[:2]
        assert "defect" not in capsys.readouterr().err


def test_metadata_is_read_without_the_rows(results: Path) -> None:
    assert read_meta(results / "chunks.whole.2.parquet").experiment["block"] == 1
