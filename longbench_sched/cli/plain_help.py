"""Commands whose help can be copied from: each example is one command, in lines that a shell joins where it is wide.

Typer joins the lines of what stands at the end of a help, and folds them wherever a word ends. So that part is written here.
The rest is typer's, but that no type is named beside a flag without a value: `--version`, not `--version <bool>`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from longbench_sched.cli import output
from longbench_sched.cli.prose import fold


class PlainCommand(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        return _plain(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write its help."""
        with _end_of_ours(self):
            super().format_help(ctx, formatter)


class PlainGroup(TyperGroup):
    """A command of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        return _plain(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write its help."""
        with _end_of_ours(self):
            super().format_help(ctx, formatter)


def end_text(epilog: str, columns: int) -> str:
    """What stands at the end of a help: paragraphs folded; indented lines, which are commands or a list, below each other."""
    text = ""
    was_indented = False
    for paragraph in re.split(r"\n\n+", epilog.strip("\n")):
        is_indented = paragraph.startswith("  ")
        shown = _fold_command(f" {paragraph}", columns) if is_indented else fold(" " + " ".join(paragraph.split()), columns)
        text += ("\n" if is_indented and was_indented else "\n\n") + shown
        was_indented = is_indented
    return text.lstrip("\n")


def _fold_command(line: str, columns: int) -> str:
    """A command broken before flags, into lines that end in a backslash, where it is too wide."""
    first, *flags = re.split(r" (?=--?[a-z])", line)
    lines = [first]
    for place, flag in enumerate(flags, 1):
        ending = 0 if place == len(flags) else len(" \\")
        if len(lines[-1]) + 1 + len(flag) + ending <= columns:
            lines[-1] += f" {flag}"
        else:
            lines.append(f"       {flag}")
    return " \\\n".join(lines)


@contextmanager
def _end_of_ours(command: Any) -> Iterator[None]:
    """Typer writes the help without its end within the block; the end comes after it."""
    epilog, command.epilog = command.epilog, None
    try:
        yield
    finally:
        command.epilog = epilog
    if epilog:
        output.emit(end_text(epilog, output.columns(sys.stdout)))


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
