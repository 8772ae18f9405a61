"""Something that was measured, and the simulation that should give the same.

An observation is a run of ours or a row that somebody published: arrivals, the engine's setting, and a few numbers. `predict`
replays the same arrivals on the embedded engine and gives the same numbers. A published mean is compared with a mean, a rate
with a rate; what a row does not state is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from longbench_sched.errors import UsageError
from longbench_sched.metrics.stat import Summary
from longbench_sched.run import NONE, Run
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.engine import Engine, EngineOptions, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.models import Model, find_model
from longbench_sched.sim.replay import Arrival, Served, replay, total_tokens_per_s

# What can be compared: name -> how it is computed from what was served. Times in seconds.
MEASURES: Mapping[str, Callable[[Sequence[Served]], float]] = {
    "ttft_mean_s": lambda served: float(np.mean([one.ttft_s for one in served])),
    "ttft_median_s": lambda served: float(np.median([one.ttft_s for one in served])),
    "tpot_mean_s": lambda served: float(np.mean([one.tpot_s for one in served])),
    "tpot_median_s": lambda served: float(np.median([one.tpot_s for one in served])),
    "total_tok_s": total_tokens_per_s,
}


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """Which engine, with which flags, on what."""

    engine: str
    gpu: str
    model: str | Model
    flags: tuple[str, ...] = ()  # the engine's own

    def build(self, calibration: Calibration) -> Engine:
        """An idle engine. Raises UsageError."""
        model = self.model if isinstance(self.model, Model) else find_model(self.model)
        return build_engine(self.engine, find_gpu(self.gpu), model, self.options(), calibration)

    def options(self) -> EngineOptions:
        """The flags, read. Raises UsageError."""
        return read_flags(self.engine, self.flags)


@dataclass(frozen=True, slots=True)
class Observation:
    """Numbers that were measured, and all that is needed to simulate them."""

    name: str
    setting: EngineSetting
    arrivals: tuple[Arrival, ...]
    measured: Mapping[str, float]  # by the names of MEASURES
    source: str

    def __post_init__(self) -> None:
        for measure, value in self.measured.items():
            if measure not in MEASURES:
                raise UsageError(f"{self.name}: no measure named {measure!r}. Known: {', '.join(MEASURES)}.")
            if not 0 < value < float("inf"):
                raise UsageError(f"{self.name}: {measure} is {value!r}; it is above 0.")
        if not self.measured or not self.arrivals:
            raise UsageError(f"{self.name} holds nothing that could be compared with a simulation.")

    def predict(self, calibration: Calibration) -> dict[str, float]:
        """The same numbers, simulated."""
        served = replay(self.setting.build(calibration), self.arrivals)
        return {name: MEASURES[name](served) for name in self.measured}


def benchmark_arrivals(n: int, rate_per_s: float, isl: int, osl: int, seed: int = 1) -> tuple[Arrival, ...]:
    """Arrivals as SGLang's and vLLM's serving benchmarks of 2025 draw them.

    The first request is sent at once, then a pause after each, drawn from numpy's legacy generator: exponential with mean
    1 / rate. With fixed lengths nothing else draws from that generator, so seed 1 gives every engine the same instants.
    """
    gaps = np.random.RandomState(seed).exponential(1.0 / rate_per_s, size=n - 1)
    return tuple(Arrival(float(at_s), isl, osl) for at_s in (0.0, *np.cumsum(gaps)))


def observe_run(run: Run, summary: Summary, setting: EngineSetting) -> Observation:
    """A stored run as an observation: requests as they were sent, and what its summary says of them.

    Failed requests are replayed as well, for they loaded the engine. Raises UsageError if nothing can be compared.
    """
    table, scale = run.table, run.meta.time_scale
    rows = [i for i in range(table.n) if table.texts["phase"][i] == "measured" and table.ints["sent_ns"][i] != NONE]
    sent_s = [(table.ints["sent_ns"][i] - run.meta.measured_from_ns) / 1e9 * scale for i in rows]
    first_s = min(sent_s, default=0.0)
    arrivals = sorted(
        (Arrival(at_s - first_s, _length(table.ints, "prompt_tokens", "isl", i), _length(table.ints, "output_tokens", "osl", i))
         for at_s, i in zip(sent_s, rows, strict=True)),
        key=lambda arrival: arrival.at_s,
    )  # fmt: skip
    return Observation(run.meta.run_id, setting, tuple(arrivals), _measured(rows, summary), f"run {run.meta.run_id}")


def _length(ints: Mapping[str, Sequence[int]], counted: str, planned: str, row: int) -> int:
    value = ints[counted][row]
    return max(1, value if value != NONE else ints[planned][row])


def _measured(rows: Sequence[int], summary: Summary) -> dict[str, float]:
    """Means and medians of a run's successes. Throughput only where every request succeeded: else the load was another."""
    stats, rates = summary.whole.stats, summary.whole.rates
    found = {
        "ttft_mean_s": stats["ttft"].mean,
        "ttft_median_s": stats["ttft"].p50,
        "tpot_mean_s": stats["tpot"].mean,
        "tpot_median_s": stats["tpot"].p50,
        "total_tok_s": rates["total_throughput"].value if summary.outcomes.ok == len(rows) else None,
    }
    return {name: value for name, value in found.items() if value is not None and value > 0}


FORMAT = "longbench-observation/1"


def read_observation(data: Any, where: str) -> Observation:
    """A published row from plain data. Raises UsageError naming the file and the key.

    Arrivals are those of the serving benchmarks (`requests`, `rate_per_s`, `isl`, `osl`, `seed`), or instants (`at_s`).
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{where} is no observation (its format is not {FORMAT!r}). See docs/fidelity.md for an example.")
    try:
        load = data["arrivals"]
        isl, osl = int(load["isl"]), int(load["osl"])
        if "at_s" in load:
            arrivals = tuple(Arrival(float(at_s), isl, osl) for at_s in sorted(load["at_s"]))
        else:
            arrivals = benchmark_arrivals(int(load["requests"]), float(load["rate_per_s"]), isl, osl, int(load.get("seed", 1)))
        setting = EngineSetting(data["engine"], data["gpu"], data["model"], tuple(data.get("flags", ())))
        measured = {str(name): float(value) for name, value in data["measured"].items()}
        source = str(data["source"])
    except KeyError as error:
        raise UsageError(f"{where}: the key {error} is missing.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: a value is of the wrong kind ({error}).") from None
    return Observation(str(data.get("name", where)), setting, arrivals, measured, source)


def write_observation(observation: Observation) -> dict[str, Any]:
    """Plain data that `read_observation` reads back. All requests must be of one length."""
    lengths = {(one.isl, one.osl) for one in observation.arrivals}
    assert len(lengths) == 1, "a row states one length"
    assert isinstance(observation.setting.model, str), "a row names its model"
    ((isl, osl),) = lengths
    return {
        "format": FORMAT,
        "name": observation.name,
        "source": observation.source,
        "engine": observation.setting.engine,
        "gpu": observation.setting.gpu,
        "model": observation.setting.model,
        "flags": list(observation.setting.flags),
        "arrivals": {"at_s": [one.at_s for one in observation.arrivals], "isl": isl, "osl": osl},
        "measured": dict(observation.measured),
    }


def with_measured(observation: Observation, measured: Mapping[str, float]) -> Observation:
    """The same with other numbers."""
    return replace(observation, measured=measured)
