"""Page -> tidy Parquet: one figure a row, for those who plot many runs at once."""

from __future__ import annotations

from longbench_sched.report.layout import Page
from longbench_sched.report.tidy import tidy_rows
from longbench_sched.store.summary import encode_summary


def render(page: Page) -> bytes:
    """The file's bytes."""
    return encode_summary(tidy_rows(page.summaries))
