"""The embedded engine as the target of a run: started on a free port, measured like any other, stopped again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longbench_sched.cli.engine_flags import read_target
from longbench_sched.cli.measure import Measured, Order, measure, signals_held
from longbench_sched.engine import find_engine
from longbench_sched.errors import UsageError
from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.models import find_model

PLAYED = ("vllm", "sglang", "trtllm")
# Off by default in the engine, and without it no answer tells what was cached; it costs nothing here.
TELLING = {"sglang": ("enable_cache_report=true",)}


@dataclass(frozen=True, slots=True)
class Settings:
    """How the embedded engine is set up."""

    engine: str = "vllm"
    gpu: str = "H200"
    model: str = "Qwen2.5-Coder-7B-Instruct"
    knobs: tuple[str, ...] = ()  # KNOB=VALUE
    time_scale: float = 1.0


def measure_embedded(order: Order, settings: Settings, *, api: str | None = None, count: str = "full") -> Measured:
    """Measure the embedded engine. Raises LongbenchError."""
    if find_engine(settings.engine).name not in PLAYED:
        raise UsageError(
            f"the embedded engine does not play {settings.engine}; it plays {', '.join(PLAYED)}. "
            "Give --base-url to measure a real one."
        )
    flags = engine_flags((*TELLING.get(settings.engine, ()), *settings.knobs))
    # Asked here as well, where a mistake is one line and wrong usage; the child would only be seen to end.
    read_flags(settings.engine, flags)
    find_gpu(settings.gpu)
    find_model(settings.model)
    options = EmbeddedOptions(
        engine=settings.engine,
        model=settings.model,
        gpu=settings.gpu,
        time_scale=settings.time_scale,
        flags=flags,
    )
    with EmbeddedServer(options) as server:
        target = read_target(
            engine=settings.engine, base_url=server.base_url, model=None, api=api, count=count, headers=(), api_key=None
        )
        measured = measure(order, target)
        with signals_held():  # the run is stored, and where it lies is not yet said
            server.stop()
        return measured


def engine_flags(knobs: Sequence[str]) -> tuple[str, ...]:
    """`max_num_batched_tokens=2048` as the flag that `serve` takes. Raises UsageError."""
    for knob in knobs:
        name, equals, value = knob.partition("=")
        if not (equals and name.replace("_", "").replace("-", "").isalnum() and value):
            raise UsageError(f"--sim-set {knob!r} is not KNOB=VALUE. Write for example --sim-set max_num_batched_tokens=2048.")
    return tuple(f"--{knob}" for knob in knobs)
