"""A run as a DataFrame."""

from __future__ import annotations

import subprocess
import sys

import pytest
from handmade import failed, row, run_of, steps

from longbench_sched.metrics.frame import per_request
from longbench_sched.record import Reason


def test_every_request_is_a_row_with_its_metrics_in_seconds() -> None:
    records = [row(100.0, steps(300, 10, 5), index=3), failed(Reason.RESET, sent=0, index=4), row(0, [1.0], phase="warmup")]
    frame = per_request(run_of(records, time_scale=2.0))
    assert len(frame) == 3
    first = frame[frame["request_id"] == "r3"].iloc[0]
    assert first["ttft_s"] == pytest.approx(0.4)
    assert first["due_s"] == pytest.approx(0.2)
    assert first["output_tokens"] == 5
    assert list(frame["phase"]) == ["measured", "measured", "warmup"]


def test_what_is_not_defined_is_na_and_neither_nan_nor_zero() -> None:
    frame = per_request(run_of([failed(Reason.RESET, sent=0)]))
    for name in ("ttft_s", "tpot_s", "output_tokens", "cached_tokens", "finish_reason"):
        assert frame[name].isna().all(), name
        assert str(frame[name].iloc[0]) == "<NA>", name


def test_a_summary_does_not_import_pandas() -> None:
    code = "import sys, longbench_sched.metrics.summary, longbench_sched.metrics.frame; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
