"""Results as text: a page is built once (`page.build_page`) and rendered by the format that a file's suffix asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longbench_sched.errors import UsageError
from longbench_sched.report import csv, html, junit, machine, markdown, parquet, terminal
from longbench_sched.report.layout import Page


@dataclass(frozen=True, slots=True)
class Format:
    """A form that a page can take."""

    name: str
    render: Callable[[Page], str | bytes]


FORMATS: Mapping[str, Format] = {
    ".md": Format("markdown", markdown.render),
    ".html": Format("html", html.render),
    ".csv": Format("csv", csv.render),
    ".tidy.csv": Format("tidy", csv.render_tidy),
    ".json": Format("json", machine.render),
    ".txt": Format("text", terminal.render),
    ".parquet": Format("parquet", parquet.render),
}
# A comparison's rows are figures already, and it has none of a run.
COMPARISON_FORMATS: Mapping[str, Format] = {
    suffix: form for suffix, form in FORMATS.items() if form.name not in ("tidy", "parquet")
}
VERDICT_FORMATS: Mapping[str, Format] = {**COMPARISON_FORMATS, ".xml": Format("junit", junit.render)}
TEXT_FORMATS: Mapping[str, Format] = {suffix: FORMATS[suffix] for suffix in (".md", ".txt")}


def find_format(name: str, formats: Mapping[str, Format] = FORMATS) -> Format:
    """The format of a file of that name; `-` is Markdown. Raises UsageError for a suffix that is not among `formats`."""
    suffix = ".md" if name == "-" else _suffix_of(name)
    if suffix not in formats:
        raise UsageError(f"{name}: no format with the suffix {suffix!r}. Known: {', '.join(formats)}.")
    return formats[suffix]


def render_for(name: str, page: Page) -> str | bytes:
    """The page in the format of a file of that name. Raises UsageError for a suffix without a format."""
    return find_format(name).render(page)


def _suffix_of(name: str) -> str:
    """The last part of the name, or the last two where they are one of the formats."""
    two = "".join(Path(name.lower()).suffixes[-2:])
    return two if two in FORMATS else Path(name).suffix.lower()
