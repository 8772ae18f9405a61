"""Every command that README, docs and --help show is one that the command line takes; those that need no server run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from longbench_sched.cli.app import app, main, spread_goodput

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAME = "longbench-sched"
GROUP = typer.main.get_command(app)

# They run in this order, in one folder: what one stores the next ones show.
NEEDS_NO_SERVER = ("workloads", "simulate", "show latest", "calibrate latest", "report latest")


def commands_of(text: str, *, is_help: bool = False) -> Iterator[str]:
    """The commands that stand in code: in fences or indented by four spaces; in --help by two.

    Continued lines are joined, and words that the page has set (`W=file`) stand for themselves.
    """
    text = text.replace("\\\n", " ")
    for word, value in re.findall(r"^ *([A-Z]+)=(\S+)$", text, re.MULTILINE):
        text = text.replace(f"${word}", value)
    in_fence = False
    for line in text.splitlines():
        if line.startswith("```"):
            in_fence = not in_fence
        elif (is_help or in_fence or line.startswith("    ")) and (found := re.match(rf" *(?:\$ )?({NAME} .*)", line)):
            yield " ".join(found[1].split())


def shown() -> list[tuple[str, str]]:
    """(where, command) of all pages and of the examples in --help, each command once."""
    found: dict[str, str] = {}
    for page in PAGES:
        for command in commands_of(page.read_text("utf-8")):
            found.setdefault(command, page.name)
    for name, command in GROUP.commands.items():  # type: ignore[attr-defined]
        for example in commands_of(command.epilog or "", is_help=True):
            found.setdefault(example, f"{name} --help")
    return [(where, command) for command, where in found.items()]


def arguments_of(command: str) -> list[str]:
    words = shlex.split(command, comments=True)[1:]
    in_tree = [str(ROOT / word) if word.endswith(".toml") and (ROOT / word).exists() else word for word in words]
    return spread_goodput([word for word in in_tree if word != "..."])


SHOWN = shown()


def test_commands_are_found_in_pages_and_in_help() -> None:
    where = {page for page, _ in SHOWN}
    assert {"README.md", "check.md", "simulator.md", "run --help", "compare --help"} <= where
    assert list(commands_of("text\n```\n$ longbench-sched run \\\n  smoke\n```\nlongbench-sched sends")) == [
        "longbench-sched run smoke"
    ]


def test_the_readme_leads_to_every_page() -> None:
    linked = re.findall(r"\]\((docs/[^)#]+)", PAGES[0].read_text("utf-8"))
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= set(linked)
    assert all((ROOT / page).is_file() for page in linked)


@pytest.mark.parametrize("command", [pytest.param(command, id=f"{where}: {command}") for where, command in SHOWN])
def test_every_command_that_is_shown_is_taken(command: str) -> None:
    """Names and types of all flags; nothing is run."""
    context = GROUP.make_context(NAME, arguments_of(command), resilient_parsing=False)
    while isinstance(context.command, typer.core.TyperGroup):
        name, inner, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None, name
        context = inner.make_context(name, rest, parent=context)
    assert context.command.name not in (None, NAME)


def _helps(command: typer.core.TyperCommand, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    yield path, command.epilog or ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _helps(inner, *path, name)


@pytest.mark.parametrize(("path", "epilog"), list(_helps(GROUP)), ids=lambda value: " ".join(value)[:30])
def test_a_help_fits_80_columns_and_its_examples_can_be_copied(
    path: tuple[str, ...], epilog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown, "nothing is cut, a default least of all"
    examples = list(commands_of(epilog, is_help=True))
    assert bool(examples) == bool(path)  # each command has some
    assert list(commands_of(shown, is_help=True))[-len(examples) :] == examples or not examples


def test_every_command_that_needs_no_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [command for start in NEEDS_NO_SERVER for _, command in SHOWN if command.startswith(f"{NAME} {start}")]
    assert len(commands) > 30
    # A run with a trace, made first, is what `latest` would be: it is made again before it is shown.
    traced = next(command for command in commands if "--trace steps.parquet" in command and " simulate " in command)
    fitted = next(command for command in commands if " calibrate " in command)
    for command in [traced, fitted, *commands]:
        if " latest" in command and " simulate " not in command:
            assert main(arguments_of(traced)) == 0
            capsys.readouterr()
        code = main(arguments_of(command))
        said = capsys.readouterr()
        assert code == 0, f"{command}\n{said.err}"
        assert (said.out or said.err).strip(), command


def outputs_of(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """(commands, lines of the output that the page shows) of each fence of commands with a fence of output right behind it."""
    parts = text.split("```\n")  # outside, inside, outside, ...
    for inside in range(1, len(parts) - 2, 2):
        commands = list(commands_of(f"```\n{parts[inside]}```"))
        lines = [line for line in parts[inside + 2].splitlines() if line.strip() != "..."]
        if commands and not parts[inside + 1].strip() and not list(commands_of(f"```\n{parts[inside + 2]}```")):
            yield commands, lines


OUTPUTS = [(page.name, *shown) for page in PAGES for shown in outputs_of(page.read_text("utf-8"))]


@pytest.mark.parametrize(("commands", "lines"), [pytest.param(*shown, id=f"{page}: {shown[0][0]}") for page, *shown in OUTPUTS])
def test_what_a_page_shows_of_a_simulation_is_what_is_printed(
    commands: list[str], lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line of it, in this order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for command in commands:
        assert main(arguments_of(command)) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    missing = next((line for line in lines if line not in printed), None)
    assert missing is None, f"not printed, or not in this place: {missing}"


def test_shown_outputs_are_found() -> None:
    pages = [page for page, *_ in OUTPUTS]
    assert pages.count("parallel.md") > 4
    assert "simulator.md" in pages


def test_the_demonstration_ends_with_the_verdicts_that_its_page_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two blocks instead of five: what the verdicts rest on is far larger than what the blocks differ by."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    gate = (ROOT / "docs/demonstration/gate.toml").read_text("utf-8").replace("min_runs = 5", "min_runs = 2")
    (tmp_path / "gate.toml").write_text(gate)
    assert main(["run", "docs/demonstration/sglang-chunks.toml", "--num-runs", "2"]) == 0
    assert main(["baseline", "save", "main", "sglang-8k", "--reason", "8K chunks, as today"]) == 0
    capsys.readouterr()
    page = (ROOT / "docs/demonstration.md").read_text("utf-8")
    for target in ("sglang-8k-mixed", "vllm", "trtllm"):
        assert main(["check", target, "--baseline", "main", "--policy", "gate.toml"]) == 1
        said = capsys.readouterr().out
        assert [line.split()[:2] for line in said.splitlines() if line.endswith("FAIL")] == [["ITL", "p99"]]
        assert re.search(rf"\| {target} \|.*\| failed \|", page)
    assert main(["compare", "sglang-8k", "sglang-32k", "--metric", "itl_max", "--metric", "tpot_p50"]) == 0
