"""Fits parameters of the cost model to what was measured: least squares over logarithms.

    minimise  sum over observations and their numbers  (log predicted - log measured)^2

in the logarithms of the parameters, so that every parameter and every number counts by ratio. Gauss-Newton with damping; the
slope is taken over several percent, because a simulation is a staircase at small scale. Each trial simulates every observation.

A parameter that the observations do not depend on cannot be fitted, and is reported as such rather than returned unchanged
without a word. With no more numbers than parameters the fit is exact whatever the model is worth: look at `n_spare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from longbench_sched.errors import UsageError
from longbench_sched.experiment.observation import Observation
from longbench_sched.sim.calibration import Calibration, to_json
from longbench_sched.sim.hardware import find_gpu

Floats = npt.NDArray[np.float64]

SLOPE_STEP = 0.12  # in logarithms: 12 %, since a schedule jumps by a tenth of a percent at the slightest change
# A parameter is identified if a number changes by 2 % of its change near the start, or by 2 % when it is four times as large.
MIN_SENSITIVITY = 0.02
MAX_ROUNDS = 25
MULTIPLES = (1, 2, 4, 8, 16)  # of a usual time, at which the search may begin
ENOUGH = 1e-4  # change of the parameters in logarithms at which the fit stops


@dataclass(frozen=True, slots=True)
class Range:
    """Where a parameter may lie, and where the search begins if the calibration does not say."""

    low: float
    high: float
    start: float


RANGES: Mapping[str, Range] = {
    "attention_eff": Range(0.02, 1.0, 0.5),
    "attention_chunk_eff": Range(0.02, 1.0, 0.4),
    "gemm_eff": Range(0.02, 1.0, 0.7),
    "kv_bandwidth_eff": Range(0.02, 1.0, 0.8),
    "host_step_s": Range(1e-6, 1.0, 2e-3),
    "host_per_request_s": Range(1e-8, 0.1, 2e-5),
    "host_per_layer_s": Range(1e-8, 0.1, 3e-5),
    "chunk_penalty_s": Range(1e-5, 1.0, 0.01),
}
DEFAULT_PARAMETERS = ("attention_eff", "kv_bandwidth_eff", "host_step_s")


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """One parameter before and after."""

    name: str
    before: float
    value: float | None  # None: not identified
    standard_error: float | None  # of the value; None where there are no numbers to spare
    sensitivity: float  # see MIN_SENSITIVITY
    is_at_bound: bool = False


@dataclass(frozen=True, slots=True)
class Residual:
    """One number of one observation."""

    observation: str
    measure: str
    measured: float
    before: float
    after: float

    @property
    def deviation_before(self) -> float:
        """Predicted over measured, less 1."""
        return self.before / self.measured - 1

    @property
    def deviation(self) -> float:
        """Fitted over measured, less 1."""
        return self.after / self.measured - 1


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration, and how good it is."""

    calibration: Calibration
    parameters: tuple[FittedParameter, ...]
    residuals: tuple[Residual, ...]
    observations: tuple[Observation, ...]

    @property
    def n_spare(self) -> int:
        """Numbers beyond the parameters fitted: only these say whether the model is right."""
        return len(self.residuals) - sum(one.value is not None for one in self.parameters)

    @property
    def worst(self) -> float:
        """The largest deviation that is left."""
        return max(abs(one.deviation) for one in self.residuals)

    def as_json(self) -> dict[str, Any]:
        """The calibration with residuals and sources, as it is stored."""
        return to_json(
            self.calibration,
            fitted=[
                {"name": one.name, "before": one.before, "value": one.value, "standard_error": one.standard_error,
                 "is_at_bound": one.is_at_bound}
                for one in self.parameters
            ],
            residuals=[
                {"observation": one.observation, "measure": one.measure, "measured": one.measured, "predicted": one.before,
                 "fitted": one.after, "deviation": one.deviation}
                for one in self.residuals
            ],
            observations=[{"name": one.name, "source": one.source} for one in self.observations],
        )  # fmt: skip


def fit(
    observations: Sequence[Observation],
    parameters: Sequence[str] = DEFAULT_PARAMETERS,
    start: Calibration | None = None,
    on_trial: Callable[[int], None] | None = None,
) -> Fit:
    """Fit these parameters; the others stay as `start` has them. Raises UsageError for a name that cannot be fitted."""
    if not observations:
        raise UsageError("nothing to fit: name at least one run or published row.")
    start = start if start is not None else Calibration()
    for name in parameters:
        if name not in RANGES:
            raise UsageError(f"--fit {name}: cannot be fitted. Known: {', '.join(RANGES)}.")
    trial = _Trial(observations, start, on_trial)
    before = trial.predict({})
    names, sensitivity = _identified(trial, parameters)
    if not names:
        raise UsageError(
            f"none of {', '.join(parameters)} changes what was measured by {MIN_SENSITIVITY:.0%}.\n"
            "Add runs that depend on them: one long prompt, decodes of a large batch, one decode alone."
        )
    x, jacobian, residuals = _search(trial, names, *_begin(trial, names))
    if (shown := _shown(names, x, jacobian)) and len(shown) < len(names):
        x = np.asarray([x[names.index(name)] for name in shown])
        names = shown
        x, jacobian, residuals = _search(trial, names, x, trial.residuals(names, x))
    values = dict(zip(names, (float(value) for value in np.exp(x)), strict=True))
    source = f"fitted on {', '.join(one.name for one in observations)}"
    calibration = start.with_values(source, **values)
    after = trial.predict(values)
    errors = _standard_errors(jacobian, residuals)
    fitted = []
    for name in parameters:
        first = float(np.exp(trial.start_of(name)))
        if name not in values:
            fitted.append(FittedParameter(name, first, None, None, sensitivity[name]))
            continue
        error = None if errors is None else values[name] * float(errors[names.index(name)])
        limits = RANGES[name]
        at_bound = values[name] <= limits.low * 1.001 or values[name] >= limits.high / 1.001
        fitted.append(FittedParameter(name, first, values[name], error, sensitivity[name], at_bound))
    rows = [
        Residual(observation.name, measure, value, float(old), float(new))
        for (observation, measure, value), old, new in zip(trial.rows, np.exp(before), np.exp(after), strict=True)
    ]
    return Fit(calibration, tuple(fitted), tuple(rows), tuple(observations))


class _Trial:
    """Simulates all observations with some parameters set."""

    def __init__(self, observations: Sequence[Observation], start: Calibration, on_trial: Callable[[int], None] | None) -> None:
        self.observations, self.start, self.on_trial = observations, start, on_trial
        self.rows = [(one, measure, value) for one in observations for measure, value in one.measured.items()]
        self.targets: Floats = np.log([value for _, _, value in self.rows])
        self.n = 0

    def start_of(self, name: str) -> float:
        """Logarithm of where the search begins: what the calibration says, else what the GPU's kernels were measured at."""
        limits = RANGES[name]
        value = getattr(self.start, name)
        if value is None:
            gpu = find_gpu(self.observations[0].setting.gpu)
            attention = self.start.attention_eff or gpu.attention.prefill_eff
            value = {
                "attention_eff": attention,
                "attention_chunk_eff": attention,
                "gemm_eff": gpu.gemm["bf16"].compute_eff,
                "kv_bandwidth_eff": gpu.attention.decode_kv_eff,
            }[name]
        # Nothing has no logarithm.
        return float(np.log(min(max(value or limits.start, limits.low), limits.high)))

    def predict(self, values: Mapping[str, float]) -> Floats:
        """Logarithms of all numbers."""
        self.n += 1
        if self.on_trial is not None:
            self.on_trial(self.n)
        calibration = self.start.with_values("trial", **values)
        found = [one.predict(calibration) for one in self.observations]
        return np.log([found[self.observations.index(one)][measure] for one, measure, _ in self.rows])

    def residuals(self, names: Sequence[str], x: Floats) -> Floats:
        """Predicted less measured, in logarithms."""
        return self.predict(dict(zip(names, (float(value) for value in np.exp(x)), strict=True))) - self.targets


def _identified(trial: _Trial, parameters: Sequence[str]) -> tuple[list[str], dict[str, float]]:
    """The parameters on which some number depends, and how much.

    Looked at from the start of the search and far from it: host time that is hidden at the start may show later.
    """
    sensitivity: dict[str, float] = {}
    for name in parameters:
        limits, begin = RANGES[name], trial.start_of(name)
        here, nearby = (trial.predict({name: float(np.exp(begin + step))}) for step in (0.0, -SLOPE_STEP))
        far = max(4 * float(np.exp(begin)), 4 * limits.start)
        far = far if far <= limits.high else float(np.exp(begin)) / 4
        change = float(np.abs(trial.predict({name: far}) - here).max())
        sensitivity[name] = max(float(np.abs(nearby - here).max()) / SLOPE_STEP, change)
    return [name for name in parameters if sensitivity[name] >= MIN_SENSITIVITY], sensitivity


def _shown(names: Sequence[str], x: Floats, jacobian: Floats) -> list[str]:
    """Without those on which nothing depends where the search has ended: the GPU's behind the host, or the host's behind it."""
    low, high = (np.log([getattr(RANGES[name], end) for name in names]) for end in ("low", "high"))
    is_inside = (x > low + 0.001) & (x < high - 0.001)
    is_hidden = is_inside & (np.abs(jacobian).max(axis=0) < MIN_SENSITIVITY)
    return [name for name, hidden in zip(names, is_hidden, strict=True) if not hidden]


def _search(trial: _Trial, names: Sequence[str], x: Floats, residuals: Floats) -> tuple[Floats, Floats, Floats]:
    """Gauss-Newton with damping (Marquardt) between bounds; where it ends, with the slopes and residuals there."""
    low = np.log([RANGES[name].low for name in names])
    high = np.log([RANGES[name].high for name in names])
    damping = 1e-3
    jacobian = _slopes(trial, names, x, residuals, high)
    for _ in range(MAX_ROUNDS):
        square = jacobian.T @ jacobian
        # Damped by each parameter's own slope: one that matters little moves as freely as one that matters much.
        damped = square + damping * np.diag(np.maximum(np.diag(square), 1e-8))
        step = -np.linalg.lstsq(damped, jacobian.T @ residuals, rcond=None)[0]
        there = np.clip(x + np.clip(step, -1.5, 1.5), low, high)
        moved = float(np.abs(there - x).max())
        if moved < ENOUGH:
            break
        found = trial.residuals(names, there)
        if found @ found < residuals @ residuals:
            x, residuals = there, found
            damping = max(damping / 5, 1e-9)
            jacobian = _slopes(trial, names, x, residuals, high)
        else:
            damping *= 10
            if damping > 1e6:
                break
    return x, jacobian, residuals


def _begin(trial: _Trial, names: Sequence[str]) -> tuple[Floats, Floats]:
    """Where the search begins: as the calibration says, or at usual values, and for times at multiples, where that is nearer.

    Time of the host that the GPU hides changes nothing at all until it is long enough: no slope leads there.
    """
    x: Floats = np.asarray([trial.start_of(name) for name in names])
    residuals = trial.residuals(names, x)
    for i, name in enumerate(names):
        limits = RANGES[name]
        for multiple in MULTIPLES if name.endswith("_s") else (1,):
            there = x.copy()
            there[i] = np.log(min(limits.start * multiple, limits.high))
            found = trial.residuals(names, there)
            if found @ found < residuals @ residuals:
                x, residuals = there, found
    return x, residuals


def _slopes(trial: _Trial, names: Sequence[str], x: Floats, residuals: Floats, high: Floats) -> Floats:
    """Change of each number by each parameter, shape (numbers, parameters)."""
    columns = []
    for i in range(len(names)):
        # Away from the upper bound: beyond it there is nothing to simulate.
        step = SLOPE_STEP if x[i] + SLOPE_STEP <= high[i] else -SLOPE_STEP
        there = x.copy()
        there[i] += step
        columns.append((trial.residuals(names, there) - residuals) / step)
    return np.stack(columns, axis=1)


def _standard_errors(jacobian: Floats, residuals: Floats) -> Floats | None:
    """Relative standard error of each parameter; None without numbers to spare."""
    spare = len(residuals) - jacobian.shape[1]
    if spare <= 0:
        return None
    variance = float(residuals @ residuals) / spare
    errors: Floats = np.sqrt(np.maximum(0.0, np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance))
    return errors
