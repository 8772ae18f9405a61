"""Grids of simulated runs."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longbench_sched.errors import ClientLimitError, TargetError, UsageError
from longbench_sched.experiment.sweep import Axis, Base, Cell, Done, make_cells, read_axis, run_cells
from longbench_sched.experiment.virtual_run import Origin, make_engine
from longbench_sched.sim.pools import Pools
from longbench_sched.store.parquet import read_run
from longbench_sched.workload.overrides import Overrides

TINY = 'title = "Tiny"\nisl = 300\nosl = 5\nconcurrency = 2\nrequests = 8\nwarmups = 0\n'


@pytest.fixture
def base(tmp_path: Path) -> Base:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return Base(str(path), Overrides(), 0, "sglang", "H200", "Qwen2.5-Coder-7B", ("--max-running-requests", "9"))


def places(cells: list[Cell], folder: Path) -> list[tuple[Origin, Path]]:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    return [(Origin(f"run{i}", now, {}), folder / f"run{i}.parquet") for i in range(len(cells))]


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("chunked_prefill_size=2048,8192", Axis("chunked_prefill_size", ("2048", "8192"))),
        ("--chunked-prefill-size=2048", Axis("chunked_prefill_size", ("2048",))),
        ("gpu = H200, B200", Axis("gpu", ("H200", "B200"))),
    ],
)
def test_an_axis_is_read(text: str, axis: Axis) -> None:
    assert read_axis(text) == axis


@pytest.mark.parametrize("text", ["chunked_prefill_size", "=1,2", "x=", "x=1,,2", "x=1,1"])
def test_what_is_no_axis_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--sweep"):
        read_axis(text)


def test_a_grid_is_every_combination_with_the_last_knob_fastest(base: Base) -> None:
    cells = make_cells(base, [Axis("chunked_prefill_size", ("64", "128")), Axis("concurrency", ("1", "2", "3"))])
    assert [cell.label for cell in cells] == [
        f"chunked_prefill_size={chunk} concurrency={n}" for chunk in (64, 128) for n in (1, 2, 3)
    ]
    assert {cell.setting.options.max_running_requests for cell in cells} == {9}  # type: ignore[union-attr]
    assert [cell.setting.options.chunked_prefill_size for cell in cells] == [64] * 3 + [128] * 3  # type: ignore[union-attr]
    assert [cell.workload.lanes[0].load.concurrency for cell in cells] == [1, 2, 3] * 2  # type: ignore[union-attr]


def test_load_setting_and_engine_can_all_be_knobs(base: Base) -> None:
    (cell,) = make_cells(
        replace_flags(base),
        [
            Axis("engine", ("vllm",)),
            Axis("gpu", ("B200",)),
            Axis("seed", ("7",)),
            Axis("isl", ("1k",)),
            Axis("block_size", ("32",)),
        ],
    )
    assert (cell.setting.engine, cell.setting.gpu, cell.seed) == ("vllm", "B200", 7)
    assert cell.workload.lanes[0].isl.nominal_mean == 1000
    assert cell.setting.options.block_size == 32  # type: ignore[union-attr]


def replace_flags(base: Base) -> Base:
    return Base(base.workload, base.overrides, 0, "sglang", base.gpu, base.model, ())


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        pytest.param(Axis("chunked_prefil_size", ("64",)), "Did you mean", id="a mistyped knob"),
        pytest.param(Axis("gpu", ("H200", "H201")), "H201", id="a value in the second cell"),
        pytest.param(Axis("concurrency", ("many",)), "many", id="no number"),
    ],
)
def test_every_cell_is_checked_before_the_first_one_runs(axis: Axis, said: str, base: Base) -> None:
    with pytest.raises(UsageError, match=said):
        make_cells(base, [axis])


def test_a_knob_is_given_once(base: Base) -> None:
    with pytest.raises(UsageError, match="seed was given twice"):
        make_cells(base, [Axis("seed", ("1",)), Axis("seed", ("2",))])


@pytest.mark.parametrize("n_workers", [1, 2])
def test_cells_are_stored_and_come_back_in_their_order(n_workers: int, base: Base, tmp_path: Path) -> None:
    cells = make_cells(base, [Axis("chunked_prefill_size", ("64", "128", "512"))])
    seen: list[Done] = []
    done = run_cells(cells, places(cells, tmp_path), n_workers, seen.append)
    assert [one.place for one in done] == [0, 1, 2]
    assert {one.place for one in seen} == {0, 1, 2}
    for place, one in enumerate(done):
        stored = read_run(tmp_path / f"run{place}.parquet")
        assert one.summary is not None
        assert stored.meta.target["cell"] == one.summary.meta.target["cell"] == cells[place].setting.cell
    # 300 tokens: five chunks of 64, three of 128, one of 512.
    ttft = [one.summary.whole.stats["ttft"].min for one in done if one.summary is not None]
    assert ttft == sorted(ttft, reverse=True)


def test_a_cell_that_is_impossible_costs_no_other(base: Base, tmp_path: Path) -> None:
    cells = make_cells(base, [Axis("isl", ("300", "40k"))])
    fine, bad = run_cells(cells, places(cells, tmp_path), 1)
    assert fine.summary is not None
    assert bad.summary is None
    assert isinstance(bad.failure, TargetError)
    assert str(bad.failure).startswith("isl=40k: the simulated sglang accepts 32768 tokens")


def test_an_interrupt_ends_the_workers_at_once(base: Base, tmp_path: Path) -> None:
    cells = make_cells(base, [Axis("seed", ("1", "2", "3", "4"))])

    def interrupt(done: Done) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, places(cells, tmp_path), 2, interrupt)
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_an_error_with_a_remedy(base: Base, tmp_path: Path) -> None:
    cells = make_cells(base, [Axis("seed", tuple(map(str, range(40)))), Axis("num_prompts", ("400",))])

    def kill(done: Done) -> None:
        for worker in multiprocessing.active_children():
            worker.kill()

    with pytest.raises(ClientLimitError, match="worker process was killed"):
        run_cells(cells, places(cells, tmp_path), 2, kill)


def test_parallel_sizes_and_pools_can_be_knobs(base: Base) -> None:
    cells = make_cells(base, [Axis("tp_size", ("1", "2")), Axis("pp", ("1", "4"))])
    assert [make_engine(cell.setting).n_gpus for cell in cells] == [1, 4, 2, 8]
    cells = make_cells(base, [Axis("disaggregation", ("none", "dynamo-like")), Axis("decode_engines", ("1", "3"))])
    assert [make_engine(cell.setting).n_gpus for cell in cells] == [2, 4, 2, 4]
    apart = replace(base, pools={"disaggregation": "mooncake-like", "prefill_engines": "2"})
    assert [cell.setting.pools for cell in make_cells(apart, [Axis("decode_engines", ("1", "2"))])] == [
        Pools("mooncake-like", 2, 1), Pools("mooncake-like", 2, 2),
    ]  # fmt: skip
    cells = make_cells(apart, [Axis("prefill_flags", ("-tp 1", "-tp 2 --chunked-prefill-size 4096"))])
    assert [make_engine(cell.setting).n_gpus for cell in cells] == [3, 5]
    assert [cell.setting.prefill_options.chunked_prefill_size for cell in cells] == [None, 4096]  # type: ignore[union-attr]
    assert {cell.setting.decode_options for cell in cells} == {cells[0].setting.options}
    with pytest.raises(UsageError, match="--decode-engines is of prefill and decode apart"):
        make_cells(base, [Axis("decode_engines", ("1", "2"))])
