"""`report` and `import` from the front door: pages, pictures, another tool's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from longbench_sched.cli.app import main

FOREIGN = Path(__file__).parents[1] / "store" / "foreign"


@pytest.fixture
def results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with one run, imported."""
    folder = tmp_path / "results"
    assert main(["import", str(FOREIGN / "vllm_bench_serve.json"), "--output-dir", str(folder)]) == 0
    capsys.readouterr()
    return folder


def test_imported_results_are_stored_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(FOREIGN / "vllm_bench_serve.json"), str(FOREIGN / "sglang_bench_serving.jsonl")]
    assert main(["import", *files, "--output-dir", str(tmp_path), "--export", str(tmp_path / "out.md")]) == 0
    said = capsys.readouterr()
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert "TTFT" in said.out
    assert said.err.count("Stored ") == 2
    assert "imported from SGLang bench" in main_output(["show", "latest", "--output-dir", str(tmp_path)], capsys) + said.out
    assert (tmp_path / "out.md").read_text().startswith("# 2 runs")


def test_a_result_that_cannot_be_read_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["import", str(tmp_path / "x.json"), "--output-dir", str(tmp_path)]) == 2
    assert "no tool that is known" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize(
    "flags", [["--goodput", "ttft:1"], ["--timeline", "x.svg"], ["--trace", "x"], ["--charts", "svg", "--export", "x.md"]]
)
def test_what_a_page_of_another_tool_has_no_use_for_is_refused(
    results: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main(["report", "latest", "--output-dir", str(results), "--as", "vllm", *flags]) == 2
    assert f"{flags[0]}: a page under another tool's definitions has none" in capsys.readouterr().err


def test_imported_results_are_held_to_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--output-dir", str(tmp_path)]
    assert main(["import", str(FOREIGN / "vllm_bench_serve.json"), *folder, "--goodput", "ttft:3000"]) == 0
    assert "TTFT <= 3" in main_output(["show", "latest", *folder], capsys)
    assert main(["power", "latest", *folder, "--metric", "goodput"]) == 0


def test_power_takes_limits_that_the_pilot_had_not(results: Path) -> None:
    pilot = ["power", "latest", "--output-dir", str(results), "--metric", "goodput"]
    assert main(pilot) == 2
    assert main([*pilot, "--goodput", "ttft:3000"]) == 0


def test_a_page_with_charts_and_pictures_beside_the_markdown(results: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "out.html", tmp_path / "out.md"
    command = [
        "report",
        "latest",
        "--output-dir",
        str(results),
        "--export",
        str(page),
        "--export",
        str(text),
        "--charts",
        "svg",
    ]
    assert main(command) == 0
    assert page.read_text().count("<svg ") == 7
    shown = [line for line in text.read_text().splitlines() if line.startswith("![")]
    pictures = sorted(tmp_path.glob("out-*.svg"))
    assert len(shown) == len(pictures) == 7
    assert all(picture.name in "".join(shown) for picture in pictures)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--charts", "gif", "--export", "out.md"], "Known: svg, png"),
        (["--charts", "svg"], "draws beside a Markdown file"),
        (["--as", "wrk"], "Known: vllm, sglang, guidellm, aiperf"),
        (["--as", "vllm", "--export", "out.csv"], "no format with the suffix '.csv'"),
    ],
)
def test_what_cannot_be_drawn_or_said_is_wrong_usage(
    results: Path,
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "latest", "--output-dir", str(results), *flags]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_run_under_another_tools_definitions(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = main_output(["report", "latest", "--output-dir", str(results), "--as", "aiperf"], capsys)
    assert "Inter Chunk Latency" in said
    assert "icg" in said


def main_output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that succeeds prints."""
    assert main(arguments) == 0
    return capsys.readouterr().out
