"""Simulated runs as commands make them: an id, a progress line, a file in the folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from longbench_sched.cli import output
from longbench_sched.cli.measure import Measured
from longbench_sched.cli.progress import ProgressLine
from longbench_sched.cli.provenance import versions
from longbench_sched.errors import StoreError
from longbench_sched.experiment.virtual_run import Origin, Setting, Simulated, plan_virtual, simulate
from longbench_sched.quantity import significant
from longbench_sched.store import catalogue, schema
from longbench_sched.store.atomic import check_writable
from longbench_sched.store.parquet import write_run
from longbench_sched.workload.shape import Workload


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be simulated, and where it is stored."""

    workload: Workload
    seed: int
    folder: Path


def simulate_one(order: Order, setting: Setting) -> Measured:
    """Simulate one run and store it. Raises LongbenchError."""
    check_writable(order.folder / "probe")
    plan = plan_virtual(order.workload, order.seed)
    now = datetime.now(UTC)
    run_id = catalogue.make_run_id(now, setting.engine, plan.workload, lambda name: catalogue.is_taken(order.folder, name))
    with ProgressLine() as line:
        done = simulate(plan, setting, Origin(run_id, now, versions()), on_progress=line.update)
    output.say(_cost_text(done))
    return _stored(done, order.folder)


def _stored(done: Simulated, folder: Path) -> Measured:
    path = folder / f"{done.run.meta.run_id}{schema.ENDING}"
    try:
        write_run(done.run, path)
    except StoreError as error:
        return Measured(done.run, path, str(error))
    return Measured(done.run, path)


def _cost_text(done: Simulated) -> str:
    meta = done.run.meta
    span_s = (meta.measured_to_ns - meta.measured_from_ns) / 1e9
    return f"  {significant(span_s)} s of load, {done.n_steps} steps, simulated in {significant(done.cpu_s)} s"
