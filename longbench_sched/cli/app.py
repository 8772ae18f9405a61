"""The front door: the table of commands, and the one place where errors become a line on stderr and an exit code.

`--version` and `--help` answer at once: nothing heavy is imported here, each command imports its rooms when it is called.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from longbench_sched import __version__
from longbench_sched.cli import (
    baseline,
    calibrate,
    check,
    claims,
    compare,
    headline,
    imports,
    output,
    power,
    report,
    run,
    serve,
    show,
    simulate,
    workloads,
)
from longbench_sched.cli.plain_help import PlainCommand, PlainGroup
from longbench_sched.cli.signals import Terminated, termination_told
from longbench_sched.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_MEASURED,
    EXIT_OK,
    EXIT_TERMINATED,
    EXIT_USAGE,
    LongbenchError,
)


class _Commands(PlainGroup):
    """The commands; one that is interrupted says so, which typer would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            with termination_told():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # its words, if any, tell what is stored
            output.explain(f"Interrupted. {interrupt}".strip())
            return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED


app = typer.Typer(
    cls=_Commands,
    name="longbench-sched",
    help="Which engine, and which scheduler settings, serve my long-context workload best, by how much, and how sure is that?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command("run", cls=PlainCommand, epilog=run.EXAMPLES)(run.run)
app.command("show", cls=PlainCommand, epilog=show.EXAMPLES)(show.show)
app.command("report", cls=PlainCommand, epilog=report.EXAMPLES)(report.report)
app.command("import", cls=PlainCommand, epilog=imports.EXAMPLES)(imports.import_results)
app.command("compare", cls=PlainCommand, epilog=compare.EXAMPLES)(compare.compare)
app.command("check", cls=PlainCommand, epilog=check.EXAMPLES)(check.check)
app.add_typer(baseline.app, cls=PlainGroup, name="baseline", epilog=baseline.EXAMPLES)
app.command("power", cls=PlainCommand, epilog=power.EXAMPLES)(power.power)
app.command("workloads", cls=PlainCommand, epilog=workloads.EXAMPLES)(workloads.workloads)
app.command("serve", cls=PlainCommand, epilog=serve.EXAMPLES, context_settings=serve.CONTEXT_SETTINGS)(serve.serve)
app.command("simulate", cls=PlainCommand, epilog=simulate.EXAMPLES, context_settings=simulate.CONTEXT_SETTINGS)(
    simulate.simulate
)
app.command("calibrate", cls=PlainCommand, epilog=calibrate.EXAMPLES, context_settings=calibrate.CONTEXT_SETTINGS)(
    calibrate.calibrate
)
app.command("claims", cls=PlainCommand, epilog=claims.EXAMPLES)(claims.claims)
app.command("headline", cls=PlainCommand, epilog=headline.EXAMPLES)(headline.headline)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.emit(f"longbench-sched {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Options of every command."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code (see errors.EXIT_CODES)."""
    output.prepare_streams()
    # Wherever it stands, so that it can be added to the end of a line that has just failed.
    debug = "--debug" in arguments
    arguments = spread_goodput([argument for argument in arguments if argument != "--debug"])
    try:
        code = app(arguments, prog_name="longbench-sched", standalone_mode=False)
    except LongbenchError as error:
        return _fail(str(error), error.exit_code, debug)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        if not isinstance(error.filename, str | bytes):
            return _fail(_bug(error), EXIT_NOT_MEASURED, debug)
        # A path that the system does not even look at: a name too long, a folder on the way that is closed to us.
        why = (error.strerror or type(error).__name__).lower()
        return _fail(f"{os.fsdecode(error.filename)[:200]!r} cannot be used: {why}. Give another path.", EXIT_USAGE, debug)
    except Exception as error:
        if not hasattr(error, "format_message"):
            return _fail(_bug(error), EXIT_NOT_MEASURED, debug)
        if not error.format_message():  # no command given: the help has been printed
            return EXIT_USAGE
        return _fail(_wrong_usage(error), EXIT_USAGE, debug)
    return code if isinstance(code, int) else EXIT_OK


def spread_goodput(arguments: Sequence[str]) -> list[str]:
    """`--goodput ttft:3000 tpot:50`, as today's tools write it, becomes the flag once for each limit."""
    spread: list[str] = []
    takes = False
    for argument in arguments:
        is_limit = re.fullmatch(r"[a-z0-9]+:[0-9.]+", argument) is not None
        if takes and is_limit and spread[-1] != "--goodput":
            spread.append("--goodput")
        takes = argument == "--goodput" or (takes and is_limit)
        spread.append(argument)
    return spread


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        output.say(traceback.format_exc())
    first, *rest = message.strip().splitlines() or ["failed without a message"]
    output.explain("\n".join([f"Error: {first}", *(f"  {line.strip()}" for line in rest)]))
    return code


def _wrong_usage(error: Any) -> str:
    """Words of the option parser (typer carries it inside under a private name, so it is known by its shape)."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "longbench-sched"
    return f"{error.format_message().strip()}\nSee: `{command} --help`"


def _bug(error: Exception) -> str:
    """An error nobody foresaw: one line that can be reported, without a traceback."""
    where = traceback.extract_tb(sys.exc_info()[2])[-1]
    return (
        f"unexpected {type(error).__name__}: {error} ({where.name}, line {where.lineno}).\n"
        "This is a defect of longbench-sched. Run the same command with --debug and report what it prints."
    )
