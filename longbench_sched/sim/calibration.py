"""What an engine generation makes of the hardware: the numbers to fit when there is a measured run.

Everything else in `cost.py` is a property of a GPU's kernels or of a model. A `Calibration` is a set of named parameters, each
with the place it comes from: the default holds none that was fitted on a run of an engine, so what it gives is a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from longbench_sched.errors import UsageError

FORMAT = "longbench-calibration/1"
HOST_SOURCE = "public fit on vLLM 0.15 with an H100"
PREDICTED = "prediction"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Named parameters of the cost model. None: as the GPU's kernels were measured (`hardware.py`)."""

    attention_eff: float | None = None  # of the bf16 peak in prefill, at long key lengths
    attention_chunk_eff: float | None = None  # the same for a chunk with a prefix; None: as `attention_eff`
    attention_half_tokens: float | None = None  # effective key length at which half of it is reached
    gemm_eff: float | None = None  # of the peak in matrix products of many tokens
    kv_bandwidth_eff: float | None = None  # of the bandwidth in decode attention
    host_step_s: float = 126e-6
    host_per_request_s: float = 4e-6
    host_per_layer_s: float = 32e-6
    is_host_overlapped: bool = True  # the next step is planned while this one runs: the longer of the two counts, else the sum
    chunk_penalty_s: float = 0.0  # a step with a chunk that has a prefix takes so much longer
    tile_tokens: int = 1  # M of a matrix product is rounded up to a multiple; 1 = off
    expert_imbalance: float = 1.2  # slowest rank over the mean, under expert parallelism
    all_reduce_floor_s: float = 4.5e-6
    all_reduce_eff: float = 0.5  # of one direction of NVLink at large sizes
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)  # parameter -> where its value comes from

    def source(self, name: str) -> str:
        """Where the value of a parameter comes from."""
        return self.sources.get(name) or _DEFAULT_SOURCES[name]

    def with_values(self, source: str, **values: float | int | bool | None) -> Calibration:
        """The same with some parameters set, all from one source. Raises UsageError for a name that is none."""
        for name in values:
            _check_name(name)
        return replace(self, sources={**self.sources, **dict.fromkeys(values, source)}, **values)  # type: ignore[arg-type]  # by name

    def values(self) -> dict[str, float | int | bool | None]:
        """The parameters by name, without their sources."""
        return {name: value for name, value in asdict(self).items() if name != "sources"}


_KERNELS = "kernel timings of the GPU (hardware.py)"
_DEFAULT_SOURCES: Mapping[str, str] = {
    "attention_eff": _KERNELS,
    "attention_chunk_eff": "as attention_eff: no public measurement of chunks with a prefix",
    "attention_half_tokens": _KERNELS,
    "gemm_eff": _KERNELS,
    "kv_bandwidth_eff": _KERNELS,
    "host_step_s": HOST_SOURCE,
    "host_per_request_s": HOST_SOURCE,
    "host_per_layer_s": HOST_SOURCE,
    "is_host_overlapped": "asynchronous (vLLM V1) and overlap (SGLang) scheduling are on by default",
    "chunk_penalty_s": "none by default",
    "tile_tokens": "off: on H200 one token over a tile costs 2-5 %",
    "expert_imbalance": "assumed",
    "all_reduce_floor_s": "public timings of the engines' kernels on H100/H200, 4.4-5 us for 2-8 GPUs",
    "all_reduce_eff": "the same: 134 MB over 8 GPUs take 1.05 ms",
}
PARAMETERS = tuple(item.name for item in fields(Calibration) if item.name != "sources")


def _check_name(name: str, where: str = "calibration") -> None:
    if name not in PARAMETERS:
        near = get_close_matches(name, PARAMETERS, n=1)
        hint = f"\n  Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{where}: no parameter named {name!r}. Known: {', '.join(PARAMETERS)}.{hint}")


def _check_value(name: str, value: Any, default: Any, where: str) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{where}: parameters.{name} is {value!r}; it is true or false.")
        return
    if value is None and default is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf") or (name.endswith("_eff") and not 0 < value <= 1):
        allowed = "above 0 and at most 1" if name.endswith("_eff") else "0 or more"
        raise UsageError(f"{where}: parameters.{name} is {value!r}; it is a number {allowed}.")
    if isinstance(default, int) and (value != int(value) or value < 1):
        raise UsageError(f"{where}: parameters.{name} is {value!r}; it is a whole number from 1.")


_ISSUE_3471 = (
    "fitted on one published row: SGLang 0.4.2.post4, chunk 32768, H200, Qwen2.5-Coder-7B, 30K in and 500 out (2025-02)"
)
_H20_BLOG = "chosen with the published 128K prefill on H20 (2026-01): the same two efficiencies for both models"

# Engine generations that were compared with something published. The rest is prediction.
CALIBRATIONS: Mapping[str, Calibration] = {
    PREDICTED: Calibration(),
    "sglang-0.4.2": Calibration().with_values(_ISSUE_3471, attention_eff=0.465),
    "vllm-0.7.2": Calibration()
    .with_values(_ISSUE_3471, attention_eff=0.465)
    .with_values("the V0 loop plans between two steps, while the GPU waits", is_host_overlapped=False),
    "sglang-h20": Calibration().with_values(_H20_BLOG, attention_eff=0.90, gemm_eff=0.60, attention_half_tokens=0.0),
}


def to_json(calibration: Calibration, **more: Any) -> dict[str, Any]:
    """Plain data that `from_json` reads back; `more` (residuals, runs) is kept beside the parameters."""
    rows = {name: {"value": value, "source": calibration.source(name)} for name, value in calibration.values().items()}
    return {"format": FORMAT, "parameters": rows, **more}


def from_json(data: Any, where: str) -> Calibration:
    """A calibration from plain data. Raises UsageError naming the file and the key."""
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("parameters"), dict):
        raise UsageError(f"{where} is no calibration of this tool (its format is not {FORMAT!r}). Make one: `calibrate RUN`.")
    calibration = Calibration()
    for name, row in data["parameters"].items():
        _check_name(name, where)
        if not isinstance(row, dict) or "value" not in row:
            raise UsageError(f"{where}: parameters.{name} is not an object with value and source.")
        value, default = row["value"], getattr(calibration, name)
        _check_value(name, value, default, where)
        calibration = calibration.with_values(str(row.get("source", where)), **{name: value})
    return calibration
