"""Stored runs and published rows -> a fit -> a file and a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longbench_sched.cli import output
from longbench_sched.errors import StoreError, UsageError
from longbench_sched.experiment.calibrate import Fit, fit
from longbench_sched.experiment.observation import EngineSetting, Observation, observe_run, read_observation
from longbench_sched.metrics.summary import summarize
from longbench_sched.report import terminal
from longbench_sched.report.fitted import build_fit_page
from longbench_sched.run import Run
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.engine import OPTIONS
from longbench_sched.store.atomic import write_atomically
from longbench_sched.store.catalogue import find_run, read_stored


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says of the engine, in place of what a run says."""

    engine: str | None
    gpu: str | None
    model: str | None
    flags: tuple[str, ...]


def fit_runs(names: Sequence[str], folder: str, given: Given, parameters: Sequence[str], start: Calibration) -> Fit:
    """Read and fit. Raises StoreError for a run that is missing and UsageError for one that cannot be simulated."""
    observations = [_observation(name, folder, given) for name in names]
    shown = output.wants_colour(sys.stderr)
    return fit(observations, parameters, start, _count if shown else None)


def store(found: Fit, path: Path) -> None:
    """Write the calibration file. Raises StoreError."""
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: _write(file, text))


def show(found: Fit, stored: str) -> None:
    """Print the page."""
    page = build_fit_page(found, stored)
    output.emit(terminal.render(page, columns=output.columns(sys.stdout), colour=output.wants_colour(sys.stdout)))


def _write(file: Any, text: str) -> None:
    file.write(text.encode())


def _count(n: int) -> None:
    """Moves along on a terminal; nowhere else is it called."""
    sys.stderr.write(f"\r{n} simulations")
    sys.stderr.flush()


def _observation(name: str, folder: str, given: Given) -> Observation:
    if Path(name).suffix == ".json":
        return _row(Path(name))
    run = read_stored(find_run(name, Path(folder)), with_lateness=False)
    return observe_run(run, summarize(run), setting_of(run, given))


def _row(path: Path) -> Observation:
    try:
        return read_observation(json.loads(path.read_text("utf-8")), str(path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}).") from None


def setting_of(run: Run, given: Given) -> EngineSetting:
    """Engine, GPU, model and flags of a run; what the command line says comes first.

    A simulated engine tells all of it. Of a real one the GPU must be said, and the flags it was started with.
    """
    meta = run.meta
    facts: Mapping[str, Any] = meta.engine_facts
    if facts.get("disaggregation") or facts.get("data_parallel") not in (None, 1):
        raise UsageError(
            f"run {meta.run_id} was served by several engines, and a calibration is of one.\n  Give runs of one engine alone."
        )
    gpu = given.gpu or facts.get("gpu")
    if not isinstance(gpu, str):
        raise UsageError(f"run {meta.run_id} does not say on which GPU it was measured. Name it: --gpu H200.")
    model = given.model or meta.target.get("model") or facts.get("model")
    if not isinstance(model, str):
        raise UsageError(f"run {meta.run_id} does not say which model was served. Name it: --model Qwen2.5-Coder-7B.")
    engine = given.engine or str(meta.target["engine"])
    options = facts.get("options")
    told = _flags(engine, options) if isinstance(options, Mapping) and meta.simulated else ()
    return EngineSetting(engine, gpu, model, (*told, *given.flags))


def _flags(engine: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options as an engine's flags, where they differ from what it does without; none for an engine that is not played."""
    if engine not in OPTIONS:
        return ()
    default = OPTIONS[engine]()
    rows = [(name, value) for name, value in options.items() if value is not None and value != getattr(default, name, None)]
    return tuple(f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in rows)
