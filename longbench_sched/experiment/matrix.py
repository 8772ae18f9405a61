"""Experiment: which targets, under which loads, how often; read from a TOML file or made of flags.

    title = "Chunk sizes at 30K"
    workload = "30k-500-c64"      # or several: ["30k-500-c64", "interference"], or [[load]] tables
    repeats = 5

    [[target]]
    name = "vllm-8k"
    engine = "vllm"
    base_url = "http://gpu7:8000"

    [[target]]
    name = "sglang-2k"
    engine = "sglang"
    embedded = true               # or simulated = true: in virtual time
    set = { chunked_prefill_size = 2048 }

    [[load]]                      # a value may be a list: one load for each
    use = "30k-500-c64"
    concurrency = [1, 8, 32, 64]

Every key is described in docs/experiments.md. Keys, tokens and values of headers have no place in it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count, rate_per_s
from longbench_sched.store.catalogue import LATEST
from longbench_sched.target import Endpoint
from longbench_sched.workload import strict
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.strict import Table

Kind = Literal["url", "embedded", "simulated"]
OrderKind = Literal["abba", "random"]
Vary = Literal["content", "schedule"]

DEFAULT_REPEATS = 5
DEFAULT_COOL_DOWN_S = 5.0
DEFAULT_DEADLINE_S = 3600.0
MAX_CELLS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,39}")
_API, _COUNT = strict.choice("completions", "chat", "generate"), strict.choice("full", "final")
_SWEPT = (
    "isl",
    "osl",
    "concurrency",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_prompts",
    "duration",
    "num_warmups",
)


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One engine with its settings."""

    name: str
    engine: str
    kind: Kind
    base_url: str | None = None
    model: str | None = None  # as served; of an embedded or simulated one, the model that is imitated
    api: str | None = None
    count: str = "full"
    api_key_env: str | None = None
    gpu: str = "H200"
    knobs: tuple[str, ...] = ()  # KNOB=VALUE, of an embedded or simulated one
    time_scale: float = 1.0
    gpus: int | None = None
    dollars_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One workload with what a sweep changed in it."""

    use: str  # name or path
    overrides: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`30k-500-c64 concurrency=8`: the name of the cell."""
        stem = self.use.rpartition("/")[2].removesuffix(".toml")
        return " ".join([stem, *(f"{name}={value}" for name, value in self.overrides.items())])

    @property
    def params(self) -> dict[str, float]:
        """What a trend can be drawn over."""
        found = {}
        for name, value in self.overrides.items():
            if isinstance(value, int | float):
                found[name] = float(value)
            elif name in ("isl", "osl"):
                found |= _as_count(name, value)
            elif name == "request_rate":
                found |= _as_rate(name, value)
        return found

    def applied(self, flags: Overrides) -> Overrides:
        """The command line's changes, with those of this load on top."""
        return replace(flags, **dict(self.overrides))  # type: ignore[arg-type]  # names and types are checked when read


@dataclass(frozen=True, slots=True)
class Experiment:
    """All that is to be measured."""

    name: str
    title: str
    targets: tuple[TargetSpec, ...]
    loads: tuple[LoadSpec, ...]
    repeats: int = DEFAULT_REPEATS
    seed: int = 0
    order: OrderKind = "abba"
    vary: Vary = "content"  # what changes from block to block: what prompts say, or lengths and due times as well
    cool_down_s: float = DEFAULT_COOL_DOWN_S
    deadline_s: float = DEFAULT_DEADLINE_S  # for each cell
    content: str = ""  # goes into what prompts say: those of another name are others

    @property
    def n_cells(self) -> int:
        """How many runs it takes."""
        return len(self.targets) * len(self.loads) * self.repeats


def is_experiment(text: str) -> bool:
    """Whether a TOML text is an experiment and not a workload: it has targets."""
    try:
        return "target" in tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False  # the reader of workloads says what is wrong


def read_experiment(text: str, name: str, file: str) -> Experiment:
    """Read the text of an experiment; `file` is how errors name it. Raises UsageError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: this is not TOML: {error}.") from None
    try:
        strict.refuse_secrets(data)
        return checked(_read(Table(data), name))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _read(table: Table, name: str) -> Experiment:
    title = table.take("title", strict.text, name)
    uses: list[str] = table.take("workload", _texts, [])
    loads = [LoadSpec(use) for use in uses] + [load for inner in table.tables("load") for load in _read_loads(inner)]
    targets = tuple(_read_target(inner) for inner in table.tables("target"))
    some_simulated = any(target.kind == "simulated" for target in targets)
    experiment = Experiment(
        name=name,
        title=title,
        targets=targets,
        loads=tuple(loads),
        repeats=table.take("repeats", strict.whole(1), DEFAULT_REPEATS),
        seed=table.take("seed", strict.whole(0), 0),
        order="random" if table.take("order", strict.choice("abba", "random"), "abba") == "random" else "abba",
        vary=_vary(table.take("vary", strict.choice("content", "schedule"), "schedule" if some_simulated else "content")),
        cool_down_s=table.take("cool_down", _pause_s, 0.0 if some_simulated else DEFAULT_COOL_DOWN_S),
        deadline_s=table.take("deadline", strict.duration_s, DEFAULT_DEADLINE_S),
    )
    table.close()
    return experiment


def _vary(word: str) -> Vary:
    return "schedule" if word == "schedule" else "content"


def checked(experiment: Experiment) -> Experiment:
    """The experiment, if it can be run. Raises UsageError."""
    if not experiment.targets:
        raise UsageError("target: there is none. Write [[target]] with a name and an engine for each.")
    if not experiment.loads:
        raise UsageError('workload: there is none. Write workload = "30k-500-c64", or [[load]] tables.')
    for what, names in (("target", [t.name for t in experiment.targets]), ("load", [load.label for load in experiment.loads])):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UsageError(f"{what}: there are two named {twice[0]!r}. Give each its own name or values.")
    for target in experiment.targets:
        if target.base_url is not None and Endpoint.parse(target.base_url).userinfo is not None:
            raise UsageError(
                f"target {target.name}: its address holds a password, and an experiment is stored to be resumed from. "
                "Leave it out, and give --header 'Authorization: Basic ...', which is not stored."
            )
    if experiment.n_cells > MAX_CELLS:
        raise UsageError(f"{experiment.n_cells} runs are more than {MAX_CELLS}. Take fewer targets, loads or repeats.")
    return experiment


def _read_target(table: Table) -> TargetSpec:
    name = table.take("name", strict.text, "")
    if not _is_name(name):
        table.fail("name", _no_name(name))
    base_url = table.take("base_url", strict.text, None)
    is_embedded = table.take("embedded", strict.flag, False)
    is_simulated = table.take("simulated", strict.flag, False)
    knobs = table.table("set")
    target = make_target(
        name,
        table.take("engine", strict.text, ""),
        base_url=base_url,
        is_embedded=is_embedded,
        is_simulated=is_simulated,
        where=table.path(""),
        model=table.take("model", strict.text, None),
        api=table.take("api", _API, None),
        count=table.take("count", _COUNT, "full"),
        api_key_env=table.take("api_key_env", strict.text, None),
        gpu=table.take("gpu", strict.text, "H200"),
        knobs=() if knobs is None else _read_knobs(knobs),
        time_scale=table.take("time_scale", strict.number(0), 1.0),
        gpus=table.take("gpus", strict.whole(1), None),
        dollars_per_hour=table.take("dollars_per_hour", strict.number(0), None),
    )
    table.close()
    return target


def _is_name(name: str) -> bool:
    return name != LATEST and _NAME.fullmatch(name) is not None


def _no_name(name: str) -> str:
    if name == LATEST:
        return f"{name!r} means the newest run, and cannot be the name of a target as well."
    return f"{name!r} is no name for a target. Use letters (of ASCII), digits and _+-, at most 40 (vllm-8k)."


def make_target(
    name: str, engine: str, *, base_url: str | None, is_embedded: bool, is_simulated: bool, where: str, **settings: Any
) -> TargetSpec:
    """A target that is one of three kinds. Raises UsageError."""
    ways = [base_url is not None, is_embedded, is_simulated]
    if sum(ways) != 1:
        raise UsageError(f"{where}: say where {name} runs: exactly one of base_url, embedded = true, simulated = true.")
    if not engine:
        raise UsageError(f'{where}: {name} has no engine. Write for example engine = "vllm".')
    kind: Kind = "url" if base_url is not None else "embedded" if is_embedded else "simulated"
    if kind == "url" and settings.get("knobs"):
        raise UsageError(f"{where}: {name} is a running server; its settings are set where it is started, not with set.")
    return TargetSpec(name, engine, kind, base_url, **settings)


def _read_knobs(table: Table) -> tuple[str, ...]:
    """KNOB=VALUE for each key, whatever it is called: the engine's own flags are checked by whoever plays it."""
    return tuple(f"{key}={_knob(value)}" for key, value in table.rest().items())


def _knob(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_loads(table: Table) -> list[LoadSpec]:
    use = table.take("use", strict.text, "")
    if not use:
        table.fail("use", 'is missing. Write for example use = "30k-500-c64".')
    axes = [(name, values) for name in _SWEPT if (values := table.take(name, _values, None)) is not None]
    table.close()
    names = [name for name, _ in axes]
    return [LoadSpec(use, dict(zip(names, row, strict=True))) for row in itertools.product(*(values for _, values in axes))]


def _values(value: Any, path: str) -> list[str | int | float]:
    """One value or a list of them."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise UsageError(f"{path}: {value!r} is neither a number nor a list of numbers. Write for example [1, 8, 64].")
    return list(values)


def _texts(value: Any, path: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [strict.text(item, path) for item in values]


def _pause_s(value: Any, path: str) -> float:
    return 0.0 if value in (0, "0", "0s") and value is not False else strict.duration_s(value, path)


def _as_count(name: str, value: str) -> dict[str, float]:
    try:
        return {name: float(count(value))}
    except UsageError:  # a range of lengths is no number
        return {}


def _as_rate(name: str, value: str) -> dict[str, float]:
    try:
        return {name: rate_per_s(value)}
    except UsageError:  # inf
        return {}


def read_target_flag(text: str) -> TargetSpec:
    """Read `--target name=URL,engine=vllm,gpus=2`; in the place of the URL `embedded` or `simulated`. Raises UsageError.

    Settings of an embedded or simulated engine are `set.KNOB=VALUE`.
    """
    first, *rest = text.split(",")
    name, equals, where = first.partition("=")
    settings: dict[str, str] = {}
    for part in rest:
        key, sign, value = part.partition("=")
        if not sign or not value:
            raise UsageError(f"--target {text!r}: {part!r} is not KEY=VALUE. Write name=URL,engine=vllm,gpus=2.")
        settings[key.strip()] = value.strip()
    if equals and name and not _is_name(name):
        raise UsageError(f"--target {text!r}: {_no_name(name)}")
    if not equals or not name or not where:
        raise UsageError(f"--target {text!r} is not NAME=URL,engine=ENGINE. Write a=http://gpu7:8000,engine=vllm.")
    knobs = tuple(f"{key.removeprefix('set.')}={settings.pop(key)}" for key in list(settings) if key.startswith("set."))
    known = {"engine", "model", "api", "count", "api_key_env", "gpu", "time_scale", "gpus", "dollars_per_hour"}
    for key in settings:
        if key not in known:
            hint = strict.did_you_mean(key, known)
            raise UsageError(f"--target {name}: no setting {key!r}. {hint}Known: {', '.join(sorted(known))}, set.KNOB.")
    what = f"--target {name}"
    return make_target(
        name,
        settings.get("engine", ""),
        base_url=where if where not in ("embedded", "simulated") else None,
        is_embedded=where == "embedded",
        is_simulated=where == "simulated",
        where=what,
        model=settings.get("model"),
        api=_API(settings["api"], f"{what}: api") if "api" in settings else None,
        count=_COUNT(settings.get("count", "full"), f"{what}: count"),
        api_key_env=settings.get("api_key_env"),
        gpu=settings.get("gpu", "H200"),
        knobs=knobs,
        time_scale=_float(settings.get("time_scale", "1"), f"{what}: time_scale"),
        gpus=strict.whole(1)(count(settings["gpus"], f"{what}: gpus"), f"{what}: gpus") if "gpus" in settings else None,
        dollars_per_hour=_float(settings["dollars_per_hour"], f"{what}: dollars_per_hour")
        if "dollars_per_hour" in settings
        else None,
    )


def _float(text: str, what: str) -> float:
    try:
        return strict.number(0)(float(text), what)
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a number.") from None


def encode_experiment(experiment: Experiment) -> dict[str, Any]:
    """Plain data, for the file that a run is resumed from."""
    plain = {item.name: getattr(experiment, item.name) for item in fields(experiment)}
    plain["targets"] = [{item.name: getattr(target, item.name) for item in fields(target)} for target in experiment.targets]
    plain["loads"] = [{"use": load.use, "overrides": dict(load.overrides)} for load in experiment.loads]
    return plain


def decode_experiment(plain: Mapping[str, Any]) -> Experiment:
    """The experiment of plain data. Raises TypeError or KeyError if it is none."""
    targets = tuple(TargetSpec(**{**target, "knobs": tuple(target["knobs"])}) for target in plain["targets"])
    loads = tuple(LoadSpec(**load) for load in plain["loads"])
    return Experiment(**{**plain, "targets": targets, "loads": loads})


def share_a_server(targets: Sequence[TargetSpec]) -> set[str]:
    """Names of the targets that listen where another does, however the address is spelt. Raises UsageError."""
    servers: dict[object, list[str]] = {}
    for target in targets:
        if target.base_url is not None:
            end = Endpoint.parse(target.base_url)
            host = "localhost" if end.host.lower() in ("127.0.0.1", "::1") else end.host.lower()
            servers.setdefault((host, end.port, end.prefix), []).append(target.name)
    return {name for names in servers.values() if len(names) > 1 for name in names}
