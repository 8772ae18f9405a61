"""The commands as a user meets them: in a process of its own, in odd places, and as the documents show them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from scripted_server import ScriptedServer, Send, models, ok_stream, routes

from longbench_sched import __version__
from longbench_sched.cli import app as front_door
from longbench_sched.cli.app import app, main, spread_goodput
from longbench_sched.errors import EXIT_CODES
from longbench_sched.sim.flags import read_flags
from longbench_sched.store.parquet import read_run

ROOT = Path(__file__).resolve().parents[2]
TINY = 'title = "Tiny"\nisl = 32\nosl = 3\nconcurrency = 2\nrequests = 8\nwarmups = 0\n'
ENGINE = routes({"GET /v1/models": [Send(models("m"))], "POST /v1/completions": [Send(ok_stream(3, 32))]})


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def results(tmp_path: Path, workload: str) -> Path:
    """A folder with one stored run."""
    folder = tmp_path / "results"
    with ScriptedServer(ENGINE) as server:
        assert main(["run", workload, "--engine", "vllm", "--base-url", server.url, "--output-dir", str(folder)]) == 0
    return folder


def in_a_process(
    *arguments: str, env: dict[str, str] | None = None, before: str = "", after: str = "", **options: object
) -> subprocess.CompletedProcess[bytes]:
    """The command in a fresh interpreter, with code before and after it."""
    call = f"from longbench_sched.cli.app import main\ncode = main({list(arguments)!r})"
    command = [sys.executable, "-c", f"import sys\n{before}\n{call}\n{after}\nsys.exit(code)"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, **(env or {})}, **options)  # type: ignore[call-overload,no-any-return]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"longbench-sched {__version__}\n"


def test_without_a_command_the_help_is_shown_and_the_usage_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert "Usage: longbench-sched" in printed.out
    assert "Error" not in printed.err


@pytest.mark.parametrize(
    "name", ["compare", "check", "baseline", "power", "run", "show", "report", "workloads", "serve", "simulate", "headline"]
)
def test_the_help_of_every_command_begins_with_the_question_it_answers_and_ends_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    lines = [line.strip(" │") for line in printed.splitlines()]
    first = next(
        line for line in lines if line and not line.startswith("Usage:") and "COMMAND" not in line and "[OPTIONS]" not in line
    )
    assert re.match(r"(How|What|Which)\b", first)
    assert f"longbench-sched {name}" in printed.partition("Example")[2]


def test_a_mistyped_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shwo"]) == 2
    assert "Did you mean 'show'?" in capsys.readouterr().err


# show, report, workloads


@pytest.mark.parametrize("name", ["latest", "vllm-tiny", "PATH"])
def test_show_finds_a_run_by_latest_id_or_path(results: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(next(results.glob("*.parquet"))) if name == "PATH" else name
    capsys.readouterr()
    assert main(["show", name, "--output-dir", str(results)]) == 0
    assert "8 ok" in capsys.readouterr().out


def test_c03_goodput_is_judged_again_by_other_limits_without_a_new_run(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["show", "latest", "--output-dir", str(results), "--goodput", "ttft:60000", "e2e:60000"]) == 0
    assert "100 % good" in capsys.readouterr().out
    assert main(["show", "latest", "--output-dir", str(results), "--goodput", "ttft:0.000001"]) == 0
    assert "0 % good" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "latest", "--output-dir", str(tmp_path)]) == 2
    assert main(["show", "latest", "--output-dir", str(tmp_path / "none")]) == 2
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really")
    assert main(["show", str(tmp_path / "bad.parquet")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("Error: ") == 3
    assert "Traceback" not in printed.err


def test_report_writes_every_format_and_markdown_to_stdout_by_default(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / f"out.{ending}") for ending in ("md", "csv", "json", "parquet", "txt")]
    exports = [word for name in names for word in ("--export", name)]
    capsys.readouterr()
    assert main(["report", "latest", "--output-dir", str(results), *exports]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"  Written  {', '.join(names)}\n"
    assert [Path(name).stat().st_size > 100 for name in names] == [True] * 5
    assert main(["report", "latest", "--output-dir", str(results)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (Path(names[0]).read_text(), "")


def test_several_runs_stand_in_one_table(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(next(results.glob("*.parquet")))
    capsys.readouterr()
    assert main(["show", path, path]) == 0
    assert "2 runs of tiny" in capsys.readouterr().out


def test_workloads_are_listed_and_previewed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 0
    listed = capsys.readouterr().out
    assert {"30k-500-c64", "30k-500-r1", "smoke"} <= {line.split()[0] for line in listed.splitlines()}
    assert main(["workloads", "30k-500-r1", "--seed", "1"]) == 0
    previewed = capsys.readouterr().out
    assert "64 requests: 1.92M tokens in, 32.0k out" in previewed
    assert re.search(r"seed +1\n +schedule +[0-9a-f]{64}\n.*\n +plan +[0-9a-f]{64}\n", previewed)
    assert main(["workloads", "30k-500-r1", "--seed", "1"]) == 0
    assert capsys.readouterr().out == previewed
    assert main(["workloads", "nothing"]) == 2


def test_the_digests_of_a_workload_are_those_on_the_pages_of_its_runs(
    results: Path, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> dict[str, str]:
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return {
            name: digits[:6] for name, digits in re.findall(r"\b(plan|schedule) +([0-9a-f]{6,64})\b", capsys.readouterr().out)
        }

    previewed = shown("workloads", workload)
    assert set(previewed) == {"plan", "schedule"}
    assert shown("show", "latest", "--output-dir", str(results)) == previewed
    simulated = shown("simulate", workload, "--output-dir", str(tmp_path / "simulated"))
    assert simulated == {"schedule": previewed["schedule"]}


# The embedded engine


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_run_without_a_target_measures_the_embedded_engine_on_its_own_clock(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--engine", engine, "--num-prompts", "8", "--time-scale", "10", "--num-warmups", "0"]
    assert main(["run", "smoke", "--output-dir", str(tmp_path), *flags]) == 0
    printed = capsys.readouterr().out
    assert "simulated, clock x10" in printed
    kept = read_run(next(tmp_path.glob("*.parquet")))
    assert kept.meta.simulated
    assert kept.meta.time_scale == 10
    assert kept.meta.client.server_lateness_p99_ms is not None
    assert list(kept.table.texts["status"]) == ["ok"] * 8


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--engine", "triton"], "the embedded engine does not play triton"),
        (["--engine", "vlm"], "Did you mean vllm?"),
        (["--gpu", "X1"], "X1"),
        (["--sim-model", "nothing-7B"], "nothing-7B"),
        (["--sim-set", "bogus=1"], "--bogus is not a flag"),
        (["--sim-set", "max_num_seqs"], "is not KNOB=VALUE"),
        (["--time-scale", "0"], "--time-scale"),
        (["--header", "X-Team: a", "--model", "m"], "--model, --header: without --base-url the embedded engine is measured"),
        (["--api-key-env", "KEY", "--num-runs", "2"], "--api-key-env: without --base-url"),
    ],
    ids=["engine", "typo", "gpu", "model", "knob", "knob-form", "time-scale", "of-a-server", "of-a-server-in-an-experiment"],
)
def test_an_embedded_engine_that_cannot_be_is_wrong_usage(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "smoke", "--output-dir", str(tmp_path), *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert not list(tmp_path.iterdir())


# Odd places


def test_an_odd_locale_costs_characters_and_nothing_else(workload: str, tmp_path: Path) -> None:
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with ScriptedServer(ENGINE) as server:
        done = in_a_process(
            "run", workload, "--engine", "vllm", "--base-url", server.url, "--output-dir", str(tmp_path / "r"), env=env
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"closed loop, 2 in flight ? 8 requests" in done.stdout
    for arguments in (["show", "latest", "--output-dir", str(tmp_path / "r")], ["run", "--help"], ["workloads"]):
        again = in_a_process(*arguments, env=env)
        assert (again.returncode, again.stderr) == (0, b"")


def test_d01_run_and_show_do_not_import_pandas(workload: str, tmp_path: Path) -> None:
    after = "assert 'pyarrow' in sys.modules\nassert 'pandas' not in sys.modules, 'pandas'"
    with ScriptedServer(ENGINE) as server:
        done = in_a_process(
            "run", workload, "--engine", "vllm", "--base-url", server.url, "--output-dir", str(tmp_path / "r"), after=after
        )
    assert done.returncode == 0, done.stderr.decode()
    again = in_a_process("show", "latest", "--output-dir", str(tmp_path / "r"), after=after)
    assert again.returncode == 0, again.stderr.decode()


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer of single bytes, as a model's folder holds it."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(kinds.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    return folder


def test_d02_with_a_local_tokenizer_nobody_but_the_target_is_spoken_to(workload: str, tmp_path: Path) -> None:
    before = (
        "asked = set()\n"
        "def note(event, args):\n"
        "    if event == 'socket.connect': asked.add(args[1][0])\n"
        "    if event in ('socket.getaddrinfo', 'socket.gethostbyname'): asked.add(args[0])\n"
        "sys.addaudithook(note)"
    )
    flags = ["--tokenizer", str(make_tokenizer(tmp_path / "model")), "--prompts", "prose", "--output-dir", str(tmp_path / "r")]
    with ScriptedServer(ENGINE) as server:
        done = in_a_process(
            *["run", workload, "--engine", "vllm", "--base-url", server.url, *flags],
            before=before,
            after="assert asked == {'127.0.0.1'}, asked",
        )
    assert done.returncode == 0, done.stderr.decode()
    [path] = (tmp_path / "r").glob("*.parquet")
    assert read_run(path).meta.plan["prompt_source"] == "synthetic prose"  # without a tokenizer there would be random ids


def test_a_reader_that_has_seen_enough_ends_nothing_with_a_traceback(results: Path) -> None:
    show = f"{sys.executable} -m longbench_sched show latest --output-dir {shlex.quote(str(results))}"
    script = f"{show} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files, as a full disk would")
def test_a_disk_that_fills_up_costs_neither_the_page_nor_a_clear_error(tmp_path: Path) -> None:
    # The journal's first frames fit, the Parquet file does not.
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))"
    path = tmp_path / "w.toml"
    path.write_text(TINY)
    with ScriptedServer(ENGINE) as server:
        done = in_a_process(
            "run", str(path), "--engine", "vllm", "--base-url", server.url, "--output-dir", str(tmp_path / "r"), before=before
        )
    assert done.returncode == 2
    assert b"8 ok" in done.stdout
    assert b"Error: cannot write" in done.stderr
    assert b"Traceback" not in done.stderr
    assert [entry.suffix for entry in (tmp_path / "r").iterdir()] == [".journal"]


# Small things that the rest stands on


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        (["run", "w", "--goodput", "ttft:1", "tpot:2"], ["run", "w", "--goodput", "ttft:1", "--goodput", "tpot:2"]),
        (["run", "--goodput", "ttft:1", "w"], ["run", "--goodput", "ttft:1", "w"]),
        (["--goodput", "a:1", "--goodput", "b:2", "c:3"], ["--goodput", "a:1", "--goodput", "b:2", "--goodput", "c:3"]),
        (["run", "w", "--header", "a:1", "b:2"], ["run", "w", "--header", "a:1", "b:2"]),
    ],
    ids=["two", "workload-after", "repeated", "other-flag"],
)
def test_goodput_takes_several_limits_as_todays_tools_write_them(given: list[str], spread: list[str]) -> None:
    assert spread_goodput(given) == spread


@pytest.mark.parametrize(
    "command",
    [["show", "latest", "--output-dir", "LONG"], ["run", "smoke", "--output-dir", "LONG"], ["serve", "--model", "LONG"]],
    ids=lambda command: command[0],
)
def test_a_path_that_the_system_refuses_is_wrong_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A name too long, or a folder on the way that is closed to us: no defect of the tool."""
    assert main([word.replace("LONG", "a" * 300) for word in command]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Error: 'aaa")
    assert "file name too long. Give another path." in printed


def test_an_unforeseen_error_is_one_line_and_not_a_failed_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front_door.output, "emit", lambda text: 1 / 0)
    assert main(["--version"]) == 4
    printed = capsys.readouterr().err
    assert printed.startswith("Error: unexpected ZeroDivisionError: division by zero")
    assert "Traceback" not in printed


def test_the_exit_codes_in_the_documents_are_those_of_the_program() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE))
    assert {int(code) for code in table} == set(EXIT_CODES)


def documented_commands() -> list[str]:
    """Every command line of ours in the README, the documents and the examples of the help."""
    texts = [path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]
    texts += [module.EXAMPLES for module in (front_door.run, front_door.show, front_door.report, front_door.workloads)]
    texts += [module.EXAMPLES for module in (front_door.compare, front_door.check, front_door.baseline, front_door.power)]
    texts += [front_door.serve.EXAMPLES, front_door.simulate.EXAMPLES]
    found = set()
    for text in texts:
        fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(r"^ {2,}longbench-sched .*", text, re.MULTILINE)
        for line in [line.strip(" $") for block in fenced for line in block.splitlines()] + [line.strip() for line in indented]:
            if line.startswith("longbench-sched ") and "..." not in line and not line.endswith("\\"):
                found.add(line.partition("  #")[0].rstrip())
    return sorted(found)


@pytest.mark.parametrize("line", documented_commands())
def test_a_documented_command_has_only_flags_that_exist(line: str) -> None:
    _, name, *words = spread_goodput(shlex.split(line))
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    while hasattr(command, "commands"):  # baseline save
        name, *words = words
        command = command.commands[name]
    if name in ("serve", "simulate"):  # the engine's own flags are what is left over
        context = command.make_context(name, words, resilient_parsing=True)
        read_flags(context.params["engine"], context.args)
        return
    known = {option: parameter for parameter in command.params for option in parameter.opts}
    flags = [word for word in words if word.startswith("--")]
    assert set(flags) <= set(known)
    n_values = sum(not getattr(known[flag], "is_flag", False) for flag in flags)
    arguments = len(words) - len(flags) - n_values
    assert arguments >= sum(p.required for p in command.params if p.param_type_name == "argument")


@pytest.mark.parametrize("command", [[], ["run"], ["claims"], ["baseline"], ["baseline", "save"]], ids=" ".join)
def test_the_help_names_no_type_beside_a_flag_that_takes_no_value(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--help" in printed
    assert not re.search(r"<bool>|BOOLEAN", printed)
