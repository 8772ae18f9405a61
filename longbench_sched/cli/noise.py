"""The noise floor, measured: the candidate's experiment once more, the same engine under the same load (A/A).

What is measured is what the candidate's runs say of themselves: their experiment is stored with its target, its loads and its
flags. Prompts are others, since the server may remember those of the candidate; where each block had a draw of its own of
lengths and due times, these are other draws as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longbench_sched.cli import output
from longbench_sched.cli.experiments import CellMaker, new_id, opening, say_end
from longbench_sched.cli.signals import Terminated
from longbench_sched.compare.comparison import Side
from longbench_sched.compare.difference import differing_facts
from longbench_sched.compare.point import RunPoint, point_of
from longbench_sched.errors import TargetError, UsageError
from longbench_sched.experiment.conduct import conduct
from longbench_sched.experiment.matrix import Experiment
from longbench_sched.experiment.order import make_cells
from longbench_sched.experiment.resume import ENDING, Ledger, read_ledger
from longbench_sched.metrics.summary import summarize
from longbench_sched.slo import Slo
from longbench_sched.store import catalogue, schema
from longbench_sched.store.atomic import check_writable

FOLDER = "noise"  # below that of the runs, so that `latest` and the names of targets go on to mean the builds


def measure_noise(candidate: Side, n_runs: int, folder: Path, headers: Sequence[str], slo: Slo | None) -> tuple[RunPoint, ...]:
    """Measure so many more runs of the candidate under each of its loads; they are stored in a folder of their own.

    Raises UsageError if its runs are of no experiment, and TargetError if fewer than two came of it.
    """
    first = _ledger_of(candidate, folder)
    noise_folder = folder / FOLDER
    check_writable(noise_folder / "probe")
    experiment = again(first.experiment, candidate, n_runs)
    experiment = replace(experiment, content=new_id(experiment, noise_folder))
    ledger = Ledger(experiment.content, noise_folder, experiment, first.flags)
    maker = CellMaker.of({**first.flags, "header": list(headers)}, ledger)
    cells = make_cells(experiment)
    ledger.create()
    with ledger.held():
        output.say(f"Noise floor: {opening(ledger, cells)}")
        results = conduct(cells, ledger, maker, now_s=time.monotonic, pause=time.sleep, on_end=say_end)
    if stops := [result.detail for result in results if result.how == "interrupted"]:
        raise Terminated if "SIGTERM" in stops else KeyboardInterrupt
    paths = [ledger.folder / f"{result.run_id}{schema.ENDING}" for result in results if result.how == "done"]
    points = tuple(point_of(summarize(catalogue.read_stored(path), slo)) for path in paths)
    if len(points) < 2:
        reasons = "; ".join(str(result.error or result.detail).splitlines()[0] for result in results if result.how == "failed")
        raise TargetError(
            f"the noise floor could not be measured: {len(points)} of {len(cells)} runs came to an end ({reasons}).\n"
            "Is the candidate's engine still up? Without --measure-noise the check reads stored runs alone."
        )
    for fact in differing_facts([candidate.points, points]):
        output.explain(
            f"Warning: {fact.name} was {fact.values[0]} in the candidate's runs and is now {fact.values[1]}: not one build."
        )
    output.say(f"Stored; to read it again: --noise-floor '{ledger.folder}/{ledger.id}.*'")
    return points


def again(experiment: Experiment, candidate: Side, n_runs: int) -> Experiment:
    """The part of an experiment that made the candidate, so often; with draws of its own where blocks have such."""
    names, labels = {point.target for point in candidate.points}, set(candidate.cells())
    return replace(
        experiment,
        targets=tuple(target for target in experiment.targets if target.name in names),
        loads=tuple(load for load in experiment.loads if load.label in labels),
        repeats=n_runs,
        seed=experiment.seed + (experiment.repeats if experiment.vary == "schedule" else 0),
    )


def _ledger_of(candidate: Side, folder: Path) -> Ledger:
    """The ledger of the experiment that the candidate's runs are of."""
    ids = {point.experiment for point in candidate.points}
    name = next(iter(ids))
    if len(ids) > 1 or name is None or not (folder / f"{name}{ENDING}").is_file():
        raise UsageError(
            f"--measure-noise: {candidate.name} is not the runs of one experiment in {folder}: what to measure is not known.\n"
            "Measure one build with `run WORKLOAD ... --num-runs 10`, then give these runs with --noise-floor."
        )
    return read_ledger(name, folder)
