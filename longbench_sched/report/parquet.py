"""Page -> tidy Parquet: one figure a row, for those who plot many runs at once."""

from __future__ import annotations

from longbench_sched.errors import UsageError
from longbench_sched.report.layout import Page
from longbench_sched.report.tidy import tidy_rows
from longbench_sched.store.summary import encode_summary


def render(page: Page) -> bytes:
    """The file's bytes. Raises UsageError for a comparison."""
    if page.comparison is not None or page.verdict is not None:
        raise UsageError("a comparison has no Parquet form. Export it as .csv or .json, or the runs themselves with `report`.")
    return encode_summary(tidy_rows(page.summaries))
