"""Policy: what a change must not do, read from gate.toml.

    min_runs = 3

    [[rule]]
    metric = "ttft_p50"     # any figure of docs/metrics.md
    relative = "5%"         # worse by more than this ...
    absolute = "5ms"        # ... and by more than this: 5 % of next to nothing is no regression
    min_runs = 5            # a side; the rule is undecided with fewer
    direction = "lower"     # which way is better; the catalogue knows it for every metric that has one

    [[rule]]
    metric = "error_rate"
    at_most = "1%"          # of the candidate itself, whatever the base had

A rule may be for some loads only (`cell = "30k-*"`) and for one lane (`lane = "decode"`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from longbench_sched import quantity
from longbench_sched.compare.figure import Figure, find_figure
from longbench_sched.errors import UsageError
from longbench_sched.metrics.definitions import Better
from longbench_sched.workload import strict
from longbench_sched.workload.strict import Table

MIN_RUNS = 3

DEFAULT_TEXT = """\
min_runs = 3

[[rule]]
metric = "ttft_p50"
relative = "5%"
absolute = "5ms"

[[rule]]
metric = "ttft_p99"
relative = "10%"
absolute = "20ms"

[[rule]]
metric = "tpot_p50"
relative = "5%"
absolute = "0.5ms"

[[rule]]
metric = "itl_p99"
relative = "10%"
absolute = "2ms"

[[rule]]
metric = "e2e_p99"
relative = "10%"
absolute = "50ms"

[[rule]]
metric = "total_throughput"
relative = "5%"

[[rule]]
metric = "error_rate"
at_most = "1%"
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit. `relative` and `absolute` bound how much worse the candidate may be; both must be passed to fail."""

    figure: Figure
    better: Better
    relative: float = 0.0  # 0.05 = 5 %
    absolute: float = 0.0  # in the figure's unit
    at_most: float | None = None  # of the candidate's own value
    at_least: float | None = None
    min_runs: int = MIN_RUNS
    cell: str = "*"
    lane: str | None = None

    @property
    def is_on_value(self) -> bool:
        """Whether it bounds the candidate's value, not a change."""
        return self.at_most is not None or self.at_least is not None

    def covers(self, cell: str, window: str) -> bool:
        """Whether the rule is about this load and window."""
        wanted = f"lane {self.lane}" if self.lane is not None else None
        in_window = window == wanted if wanted is not None else not window.startswith("lane ")
        return in_window and fnmatchcase(cell, self.cell)


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules of a gate."""

    name: str
    rules: tuple[Rule, ...]


def default_policy() -> Policy:
    """What is checked where no policy is given."""
    return read_policy(DEFAULT_TEXT, "the built-in policy")


def read_policy(text: str, name: str) -> Policy:
    """Read the text of a policy; `name` names the file in errors. Raises UsageError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: this is not TOML: {error}.") from None
    try:
        return Policy(name, _read_rules(Table(data)))
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _read_rules(table: Table) -> tuple[Rule, ...]:
    min_runs = table.take("min_runs", strict.whole(1), MIN_RUNS)
    rules = tuple(_read_rule(rule, min_runs) for rule in table.tables("rule"))
    table.close()
    if not rules:
        table.fail("rule", "there is none. Write [[rule]] with a metric and a limit for each thing that must hold.")
    return rules


def _read_rule(table: Table, min_runs: int) -> Rule:
    key = table.take("metric", strict.text, "")
    if not key:
        table.fail("metric", 'is missing. Write for example metric = "ttft_p50".')
    figure = find_figure(key)
    direction = table.take("direction", strict.choice("lower", "higher"), str(figure.better or ""))
    if not direction:
        table.fail("direction", f'{key} has no better way of its own. Write direction = "lower" or "higher".')
    amount = _amount(figure)
    rule = Rule(
        figure=figure,
        better="lower" if direction == "lower" else "higher",
        relative=table.take("relative", read_share, 0.0),
        absolute=table.take("absolute", amount, 0.0),
        at_most=table.take("at_most", amount, None),
        at_least=table.take("at_least", amount, None),
        min_runs=table.take("min_runs", strict.whole(1), min_runs),
        cell=table.take("cell", strict.text, "*"),
        lane=table.take("lane", strict.text, None),
    )
    table.close()
    if rule.is_on_value and (rule.relative or rule.absolute):
        table.fail("at_most", "a rule bounds a change or a value, not both. Write two rules.")
    if rule.at_least is not None and rule.at_most is not None and rule.at_least > rule.at_most:
        table.fail("at_least", "is more than at_most: no value keeps both.")
    if rule.better == "higher" and rule.relative >= 1:
        table.fail(
            "relative", 'nothing can fall by more than all of it, so this rule would never fail. Write for example "5%".'
        )
    if not rule.is_on_value and not rule.relative and not rule.absolute:
        table.fail("relative", 'there is no limit. Write relative = "5%" (and absolute = "5ms"), or at_most.')
    return rule


def read_share(value: Any, path: str) -> float:
    """Read a share: "5%" or 0.05. Raises UsageError."""
    if isinstance(value, str) and value.strip().endswith("%"):
        value = _float(value.strip()[:-1], value, path) / 100
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise UsageError(f'{path}: {value!r} is not a share. Write for example "5%" (or 0.05).')
    if value >= 1 and isinstance(value, int):
        raise UsageError(f'{path}: {value} would be {value * 100} %. Write "{value}%" if that is what is meant.')
    return float(value)


def _amount(figure: Figure) -> Callable[[Any, str], float]:
    """Reads an amount in the figure's unit: "5ms" for times, "1%" for shares, 100 or "1.5k" for the rest."""

    def read(value: Any, path: str) -> float:
        if figure.unit == "s":
            return _time(value, path)
        if figure.unit == "1" and isinstance(value, str):
            return read_share(value, path)
        if isinstance(value, str):
            return float(quantity.count(value, path))
        return strict.number(0, is_open=False)(value, path)

    return read


def _time(value: Any, path: str) -> float:
    if not isinstance(value, str) or value.strip()[-1:].isdigit():  # "5" is a duration elsewhere, but 5 ms are meant here
        raise UsageError(f'{path}: {value!r} has no unit. Write for example "5ms" or "0.2s".')
    return quantity.duration_s(value, path)


def _float(text: str, value: Any, path: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f'{path}: {value!r} is not a percentage. Write for example "5%".') from None
