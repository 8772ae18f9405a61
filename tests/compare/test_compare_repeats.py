"""Several runs together: mean, spread and the interval between runs."""

from __future__ import annotations

import pytest
from handmade_points import make_side

from longbench_sched.compare.figure import find_figure
from longbench_sched.compare.repeats import over_runs, repeats_of
from longbench_sched.report.repeats import repeats_table


def test_c01_five_medians_give_mean_sd_and_a_t_interval() -> None:
    """1000, 1040, 980, 1020, 995 ms: mean 1007, sd sqrt(2180 / 4) = 23.3; t(0.975, 4) x 23.3 / sqrt(5) = 29.0."""
    found = over_runs(find_figure("ttft_p50"), [1.000, 1.040, 0.980, 1.020, 0.995])
    assert found.mean == pytest.approx(1.007)
    assert found.sd == pytest.approx(0.0233, abs=5e-5)
    assert found.cv == pytest.approx(0.0232, abs=5e-5)
    assert (found.high - found.low) / 2 == pytest.approx(0.0290, abs=5e-5)


def test_c01_the_table_has_them_in_one_unit_a_row() -> None:
    points = make_side("a", {"ttft_p50": [1.000, 1.040, 0.980, 1.020, 0.995], "goodput": [0.0] * 5}).points
    table = repeats_table(points)
    assert table is not None
    assert table.title == "5 runs of 30k-500-c64 together, whole run"
    assert [tuple(cell.replace("\u00a0", " ") for cell in row) for row in table.rows] == [
        ("TTFT p50", "1.01 s", "0.0233", "2.32 %", "0.978 … 1.04")
    ]


def test_one_run_has_no_spread() -> None:
    assert repeats_of(make_side("a", {"ttft_p50": [1.0]}).points) == ("whole", [])
    assert repeats_table(make_side("a", {"ttft_p50": [1.0]}).points) is None
