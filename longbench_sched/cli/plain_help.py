"""Commands whose help names no type beside a flag that takes no value: `--version`, not `--version <bool>`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A command of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        return _plain(super().get_params(ctx))


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
