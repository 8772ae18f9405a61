"""One run in virtual time: the rooms joined without a network. Workload -> plan -> the driver -> the engine -> a Run.

The driver, the records and the metrics are those of a measured run; what differs is the transport and the clock. Nothing of the
machine enters: the same workload, seed and setting give the same records anywhere.
"""

from __future__ import annotations

import gc
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from longbench_sched.engine import facts
from longbench_sched.errors import TargetError
from longbench_sched.load.driver import Driver
from longbench_sched.load.execute import Progress
from longbench_sched.plan import Plan
from longbench_sched.record import StreamRecord
from longbench_sched.run import ClientHealth, RecordColumns, Run, RunMeta, plan_facts
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.clock import VirtualClock, VirtualLoop, run_virtually
from longbench_sched.sim.deployment import AnyEngine, deploy
from longbench_sched.sim.disaggregation import DisaggregatedEngine
from longbench_sched.sim.drafting import build_speculating, draft_facts
from longbench_sched.sim.engine import PLAYED, Engine, EngineOptions
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import find_gpu
from longbench_sched.sim.models import Model, find_model
from longbench_sched.sim.pools import Pools, read_pools
from longbench_sched.sim.server import DIALECTS
from longbench_sched.sim.side_by_side import SideBySide
from longbench_sched.sim.speculation import Wish
from longbench_sched.sim.transport import SimEnded, SimTransport, StepObserver
from longbench_sched.sim.wire.base import Context, ServerDialect
from longbench_sched.steps import StepFacts
from longbench_sched.transport import Ended
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.prompt import PromptMaker
from longbench_sched.workload.shape import Workload

CLOCK = "virtual"


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine to simulate."""

    engine: str
    gpu: str
    model: str
    options: EngineOptions
    calibration: Calibration | None = None  # None: what is known of this engine without a fit
    shape: Model | None = None  # of a model that is not in the table
    wish: Wish = field(default_factory=Wish)  # of a drafter, what no flag of an engine says
    pools: Pools | None = None  # engines of their own for prefill and decode
    prefill_options: EngineOptions | None = None  # of one pool alone; None: `options`
    decode_options: EngineOptions | None = None
    cell: Mapping[str, str] = field(default_factory=dict)  # what tells this run from its neighbours in a sweep


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from: what cannot be told from workload and setting."""

    run_id: str
    started: datetime
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run, and what it took to simulate it."""

    run: Run
    n_steps: int
    cpu_s: float


def plan_virtual(workload: Workload, seed: int) -> Plan:
    """The plan of a simulated run: the load of the measured one, with prompts that are lengths. Raises WorkloadError."""
    return build_plan(workload, seed, PromptMaker("lengths"))


def simulate(
    plan: Plan,
    setting: Setting,
    origin: Origin,
    *,
    observer: StepObserver | None = None,
    trace: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Simulated:
    """Run a plan in virtual time. Raises UsageError (GPU, model, flags) and TargetError (it can never fit).

    `observer` sees every step; `trace` is the name of the file in which its notes will lie.
    """
    engine = make_engine(setting, plan.seed)
    check_context(plan, engine)
    execution = _Execution(plan, engine, observer, on_progress)
    began_s = time.process_time()
    with _collector_off():
        from_ns, to_ns = run_virtually(execution.run)
    meta = _meta(plan, setting, origin, engine, from_ns, to_ns)
    if trace is not None:
        meta = replace(meta, target={**meta.target, "trace": trace})
    return Simulated(Run(meta, execution.columns.table()), engine.counters.n_steps, time.process_time() - began_s)


def read_setting(
    engine: str, gpu: str, model: str, flags: Sequence[str], pools: Mapping[str, str], shape: Model | None = None
) -> Setting:
    """A setting from the engine's own flags and from words of `POOL_KNOBS`. Raises UsageError."""
    found = read_pools(pools)
    setting = Setting(engine, gpu, model, read_flags(engine, flags), shape=shape, pools=found)
    if found is None or not (found.prefill_flags or found.decode_flags):
        return setting
    prefill, decode = (read_flags(engine, [*flags, *shlex.split(own)]) for own in (found.prefill_flags, found.decode_flags))
    return replace(setting, prefill_options=prefill, decode_options=decode)


def make_engine(setting: Setting, seed: int = 0) -> AnyEngine:
    """The engine of a setting, idle; the seed decides which drafts hold. Raises UsageError."""
    model, gpu = setting.shape or find_model(setting.model), find_gpu(setting.gpu)

    def build(options: EngineOptions | None) -> Engine:
        options = options or setting.options
        return build_speculating(setting.engine, gpu, model, options, setting.calibration, wish=setting.wish, seed=seed)

    return deploy(setting.pools, lambda: build(setting.prefill_options), lambda: build(setting.decode_options))


def step_facts(meta: RunMeta) -> StepFacts:
    """What a trace of that run's steps must say to be read."""
    said = meta.engine_facts
    return StepFacts(
        run_id=meta.run_id,
        engine=str(meta.target["engine"]),
        gpu=str(said["gpu"]),
        model=str(meta.target["model"]),
        kv_tokens=int(said["kv_tokens"]),
        measured_from_ns=meta.measured_from_ns,
    )


def check_context(plan: Plan, engine: AnyEngine) -> None:
    """Raises TargetError if the engine would refuse: a request longer than its context, or a priority."""
    longest = max(plan.requests, key=lambda request: request.isl + request.osl)
    needed = longest.isl + longest.osl
    if needed > engine.context:
        raise TargetError(
            f"the simulated {engine.name} accepts {engine.context} tokens of {engine.model.name} on {engine.where}; "
            f"the workload needs {needed} ({longest.isl} + {longest.osl}).\n"
            "Give it a longer context (the engine's own flag), or lower isl/osl. Nothing was simulated."
        )
    one = engine if isinstance(engine, Engine) else engine.first
    takes_priorities = PLAYED[one.name].dialect == "sglang" or one.state.is_by_priority
    if not takes_priorities and any(request.priority for request in plan.requests):
        raise TargetError(
            f"the simulated {engine.name} refuses requests with a priority as it is set. Nothing was simulated.\n"
            "vllm takes them with --scheduling-policy priority; sglang heeds them with --enable-priority-scheduling."
        )


@contextmanager
def _collector_off() -> Iterator[None]:
    """Records and sequences form no cycles: looking for some costs a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Execution:
    """The driver over the engine, on a virtual loop."""

    def __init__(
        self, plan: Plan, engine: AnyEngine, observer: StepObserver | None, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._observer = observer
        self._on_progress = on_progress
        self._lanes = {i: lane.name for i, lane in enumerate(plan.lanes)} | {-1: "warmup"}
        self._planned = len(plan.requests)
        self._n_done = 0
        self._n_ok = 0
        self._began_s = time.monotonic()
        self.columns = RecordColumns()

    async def run(self, loop: VirtualLoop) -> tuple[int, int]:
        """Warm up and measure; from when to when the measured phase was."""
        transport = SimTransport(self._engine, loop, lambda request: self._lanes[request.lane], self._observer)
        self._driver = Driver(transport, VirtualClock(loop), self._on_ended)
        try:
            await self._driver.warm_up(self._plan.warmups, self._plan.warmup_concurrency)
            from_ns = loop.now_ns
            await self._driver.run(self._plan, from_ns)
            return from_ns, loop.now_ns
        finally:
            await transport.aclose()

    def _on_ended(self, ended: Ended) -> None:
        assert isinstance(ended, SimEnded)
        record = ended.record()
        self.columns.add(record)
        if record.phase == "measured":
            self._count(record)

    def _count(self, record: StreamRecord) -> None:
        self._n_done += 1
        self._n_ok += record.status == "ok"
        if self._on_progress is None:
            return
        elapsed_s = time.monotonic() - self._began_s
        self._on_progress(
            Progress(
                phase="measured",
                planned=self._planned,
                sent=self._driver.n_sent,
                done=self._n_done,
                ok=self._n_ok,
                in_flight=self._driver.n_in_flight,
                lateness_ms=None,
                elapsed_s=elapsed_s,
                left_s=elapsed_s / self._n_done * (self._planned - self._n_done),
            )
        )


def _meta(plan: Plan, setting: Setting, origin: Origin, engine: AnyEngine, from_ns: int, to_ns: int) -> RunMeta:
    return RunMeta(
        run_id=origin.run_id,
        started_at=origin.started.astimezone(UTC).isoformat(timespec="milliseconds"),
        wall_anchor_ns=int(origin.started.timestamp() * 1000) * 1_000_000,
        mono_anchor_ns=from_ns,
        measured_from_ns=from_ns,
        measured_to_ns=to_ns,
        workload=plan.workload,
        workload_text=plan.workload_text,
        seed=plan.seed,
        digest=plan.digest,
        plan=plan_facts(plan),
        target={
            "engine": setting.engine,
            "api": "completions",
            "base_url": None,
            "model": setting.model,
            "count": "full",
            "transport": "simulated",
            "timestamps": CLOCK,
            "cell": dict(setting.cell),
        },
        engine_facts=engine_facts(engine, setting.model),
        host={},
        versions=origin.versions,
        client=ClientHealth(clock=CLOCK, cpu_s=0.0, wall_s=0.0),
        clock=CLOCK,
        simulated=True,
        slo=plan.slo.limits() if plan.slo is not None else {},
    )


def engine_facts(engine: AnyEngine, served_model: str) -> dict[str, object]:
    """What the engine would say of itself to a client that asks, in the same keys, and what it is made of."""
    all_engines, engine = engine, engine if isinstance(engine, Engine) else engine.first
    played = PLAYED[engine.name]
    dialect = DIALECTS[played.dialect]()
    context = Context(engine, served_model, started=0)
    found: dict[str, object] = {}
    if (metrics := _body(dialect, context, "/metrics")) is not None:
        found |= facts.read_metrics(metrics.decode())
    if (info := _body(dialect, context, "/server_info")) is not None:
        found |= facts.read_server_info(info)
    if (models := _body(dialect, context, "/v1/models")) is not None:
        found |= facts.model_facts(facts.read_models(models)[0])
    if "version" not in found and (version := _body(dialect, context, "/version")) is not None:
        found["version"] = facts.read_version(version)
    found = facts.read_announcement({"options": asdict(engine.options)}) | found  # what the engine played would not tell
    if engine.name != played.dialect:  # it only borrows an interface: neither the name nor the version is its own
        release = played.title.rpartition(" ")[2]
        found |= {"engine": engine.name, "version": f"{release}+simulated" if release[:1].isdigit() else None}
    made_of: dict[str, object] = {
        "gpu": engine.gpu.name,
        "gpus": all_engines.n_gpus,
        "tensor_parallel": engine.layout.tp,
        "pipeline_parallel": engine.layout.pp,
        "kv_tokens": all_engines.kv_tokens,
        "options": asdict(engine.options),
        "calibration": asdict(engine.cost.calibration),
    }
    if isinstance(all_engines, SideBySide):
        made_of["data_parallel"] = len(all_engines.engines)
    if isinstance(all_engines, DisaggregatedEngine):
        found["prefix_caching"] = False  # left out between pools
        made_of["disaggregation"] = str(all_engines.pools)
        if not all_engines.is_alike:
            made_of["tensor_parallel"] = None
        made_of["kv_transfer"] = asdict(all_engines.plan)
    speculator = engine.cost.speculator
    if speculator is not None:
        made_of |= draft_facts(speculator)
    return found | {"simulated": True} | made_of


def _body(dialect: ServerDialect, context: Context, path: str) -> bytes | None:
    answer = dialect.get(context, path, {})
    return answer.body if answer is not None and answer.status == 200 else None
