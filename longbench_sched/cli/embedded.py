"""The embedded engine as the target of a run: started on a free port, measured like any other, stopped again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from longbench_sched.cli.engine_flags import read_target
from longbench_sched.cli.measure import Measured, Order, measure
from longbench_sched.cli.model_flag import read_model
from longbench_sched.cli.signals import signals_held
from longbench_sched.engine import find_engine
from longbench_sched.errors import UsageError
from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer
from longbench_sched.sim.draft_knobs import DRAFT_KNOBS, check_drafts, draft_flag, read_drafts
from longbench_sched.sim.drafting import build_speculating
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
    check_embedded(settings)
    drafts, own = split_knobs((*TELLING.get(settings.engine, ()), *settings.knobs), DRAFT_KNOBS)
    options = EmbeddedOptions(
        engine=settings.engine,
        model=settings.model,
        gpu=settings.gpu,
        time_scale=settings.time_scale,
        flags=(*engine_flags(own), *(f"{draft_flag(knob)}={value}" for knob, value in drafts.items())),
    )
    with EmbeddedServer(options) as server:
        target = read_target(
            engine=settings.engine, base_url=server.base_url, model=None, api=api, count=count, headers=(), api_key=None
        )
        measured = measure(order, target)
        with signals_held():  # the run is stored, and where it lies is not yet said
            server.stop()
        return measured


def check_embedded(settings: Settings) -> None:
    """Raise UsageError for settings that the child would refuse, where a mistake is one line and wrong usage."""
    drafts, own = split_knobs(settings.knobs, DRAFT_KNOBS)
    options = read_flags(settings.engine, engine_flags(own))
    wish = read_drafts(drafts, read_model)
    check_drafts(wish, options)
    build_speculating(settings.engine, find_gpu(settings.gpu), find_model(settings.model), options, wish=wish)


def split_knobs(knobs: Sequence[str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Those of `KNOB=VALUE` with these names, as words by their name; and the others as they are."""
    words: dict[str, str] = {}
    others = []
    for knob in knobs:
        name, _, value = knob.partition("=")
        if (name := name.replace("-", "_")) in names:
            words[name] = value
        else:
            others.append(knob)
    return words, others


def engine_flags(knobs: Sequence[str]) -> tuple[str, ...]:
    """`max_num_batched_tokens=2048` as the flag that `serve` takes. Raises UsageError."""
    for knob in knobs:
        name, equals, value = knob.partition("=")
        if not (equals and name.replace("_", "").replace("-", "").isalnum() and value):
            raise UsageError(f"--sim-set {knob!r} is not KNOB=VALUE. Write for example --sim-set max_num_batched_tokens=2048.")
    return tuple(f"--{knob}" for knob in knobs)
