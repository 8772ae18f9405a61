"""Results as text: a page is built once (`page.build_page`) and rendered by the format that a file's suffix asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from longbench_sched.errors import UsageError
from longbench_sched.report import csv, html, machine, markdown, parquet, terminal
from longbench_sched.report.layout import Page

RenderPage = Callable[[Page], str | bytes]

FORMATS: dict[str, RenderPage] = {
    ".md": markdown.render,
    ".html": html.render,
    ".csv": csv.render,
    ".tidy.csv": csv.render_tidy,
    ".json": machine.render,
    ".txt": terminal.render,
    ".parquet": parquet.render,
}


def suffix_of(name: str) -> str:
    """The suffix that chooses a format: the last part of the name, or the last two where they are one of the formats."""
    two = "".join(Path(name.lower()).suffixes[-2:])
    return two if two in FORMATS else Path(name).suffix.lower()


def render_for(name: str, page: Page) -> str | bytes:
    """The page in the format of a file of that name; `-` is Markdown. Raises UsageError for a suffix without a format."""
    suffix = ".md" if name == "-" else suffix_of(name)
    if suffix not in FORMATS:
        raise UsageError(f"{name}: no format with the suffix {suffix!r}. Known: {', '.join(FORMATS)}.")
    return FORMATS[suffix](page)
