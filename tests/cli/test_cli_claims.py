"""`claims` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longbench_sched.cli.app import main


def test_a_claim_is_a_line_that_begins_with_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "C08", "c01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines if line.startswith("C")] == ["C08", "C01"]


def test_explain_and_figures_add_words_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "C05", "--explain", "--figures"]) == 0
    printed = capsys.readouterr().out
    assert "Source:" in printed
    assert "131072" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_table_alone_answers_no_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--table", "static-waste"]) == 0
    printed = capsys.readouterr().out
    assert "closed form" in printed
    assert "verdict" not in printed


def test_everything_is_exported_as_markdown_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / "a.md"), str(tmp_path / "a.json")]
    assert main(["claims", "C14", "--export", files[0], "--export", files[1]]) == 0
    assert "Qwen3-235B" in Path(files[0]).read_text()
    assert json.loads(Path(files[1]).read_text())["claims"][0]["answer"]["finding"] == "holds"
    capsys.readouterr()
    assert main(["claims", "C14", "--export", "-.json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["C77"], "no claim 'C77'", id="no such claim"),
        pytest.param(["--table", "prices"], "--table 'prices' is not known", id="no such table"),
        pytest.param(["C01", "--export", "x.csv"], "written as .md or .json", id="another format"),
    ],
)
def test_a_mistake_is_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", *arguments]) == 2
    assert words in capsys.readouterr().err
