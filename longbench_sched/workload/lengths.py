"""Length distributions: how many tokens go in and come out of each request.

Ranges are given as min and max, spreads as mean and sd, never as a ratio: the same ratio flag means [rL, L] in one tool and
[(1 - r) L, (1 + r) L] in another. Draws are stratified (`exact.strata`), so the realised mean is near the nominal one;
where a clip or a range pulls it down, the plan says by how much.

To add a distribution: one dataclass here, and its line in `read_lengths`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from longbench_sched.errors import UsageError
from longbench_sched.workload import exact, strict

DISTRIBUTIONS = ("uniform", "normal", "lognormal", "list")
_NO_VALUES: tuple[int, ...] = ()
MAX_TOKENS = 1 << 24  # far above any context window; keeps a slip of the pen from filling the memory


class Lengths(Protocol):
    """A distribution of token counts."""

    @property
    def nominal_mean(self) -> float:
        """The length that the workload is known by: what the realised mean is held against."""
        ...

    @property
    def largest(self) -> int:
        """No draw is above this."""
        ...

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """`n` lengths, each at least 1."""
        ...

    def describe(self) -> str:
        """The distribution in a few words."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every request alike."""

    tokens: int

    @property
    def nominal_mean(self) -> float:
        """The length itself."""
        return float(self.tokens)

    @property
    def largest(self) -> int:
        """The length itself."""
        return self.tokens

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """`n` times the length."""
        return [self.tokens] * n

    def describe(self) -> str:
        """`30000`."""
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from `min` to `max` alike."""

    min: int
    max: int
    nominal: int | None = None  # the length it is advertised by, if that is not the middle

    @property
    def nominal_mean(self) -> float:
        """The advertised length, else the middle of the range."""
        return float(self.nominal) if self.nominal is not None else (self.min + self.max) / 2

    @property
    def largest(self) -> int:
        """The upper end."""
        return self.max

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """Stratified draws from the range."""
        return [self.min + int(u * (self.max - self.min + 1)) for u in exact.strata(rng, n)]

    def describe(self) -> str:
        """`512..1024`."""
        return f"{self.min}..{self.max}"


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with mean and sd in tokens, clipped to [min, max]: what falls outside is set to the nearer end."""

    mean: float
    sd: float
    min: int
    max: int

    @property
    def nominal_mean(self) -> float:
        """The mean before clipping."""
        return self.mean

    @property
    def largest(self) -> int:
        """The upper clip."""
        return self.max

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """Stratified draws, clipped."""
        return [_clip(self.mean + self.sd * exact.normal_quantile(u), self.min, self.max) for u in exact.strata(rng, n)]

    def describe(self) -> str:
        """`normal, mean 1000, sd 100, clipped to 1..2000`."""
        return f"normal, mean {self.mean:g}, sd {self.sd:g}, clipped to {self.min}..{self.max}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal with the mean and sd of the lengths themselves (not of their logarithms), clipped to [min, max].

    sigma^2 = ln(1 + (sd / mean)^2), mu = ln(mean) - sigma^2 / 2.
    """

    mean: float
    sd: float
    min: int
    max: int

    @property
    def nominal_mean(self) -> float:
        """The mean before clipping."""
        return self.mean

    @property
    def largest(self) -> int:
        """The upper clip."""
        return self.max

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """Stratified draws, clipped."""
        variance = exact.ln(1 + (self.sd / self.mean) * (self.sd / self.mean))
        mu, sigma = exact.ln(self.mean) - variance / 2, math.sqrt(variance)
        return [_clip(exact.exp(mu + sigma * exact.normal_quantile(u)), self.min, self.max) for u in exact.strata(rng, n)]

    def describe(self) -> str:
        """`lognormal, mean 1000, sd 800, clipped to 1..8000`."""
        return f"lognormal, mean {self.mean:g}, sd {self.sd:g}, clipped to {self.min}..{self.max}"


@dataclass(frozen=True, slots=True)
class Listed:
    """Lengths that were seen somewhere: `cycle` takes them in order over and over, `sample` each alike in random order."""

    values: tuple[int, ...]
    order: Literal["cycle", "sample"] = "cycle"

    @property
    def nominal_mean(self) -> float:
        """The mean of the list."""
        return math.fsum(self.values) / len(self.values)

    @property
    def largest(self) -> int:
        """The largest of the list."""
        return max(self.values)

    def draw(self, rng: random.Random, n: int) -> list[int]:
        """The list in order, or stratified draws from it."""
        k = len(self.values)
        if self.order == "cycle":
            return [self.values[i % k] for i in range(n)]
        return [self.values[int(u * k)] for u in exact.strata(rng, n)]

    def describe(self) -> str:
        """`4096, 8192, ... 1048576 in turn`."""
        shown = [str(v) for v in self.values]
        if len(shown) > 4:
            shown = [*shown[:2], "...", shown[-1]]
        return f"{', '.join(shown)} {'in turn' if self.order == 'cycle' else 'sampled'}"


def read_lengths(value: Any, path: str) -> Lengths:
    """Read the value of `isl` or `osl`: a number, "512..1024", a list, or a table. Raises UsageError naming the path."""
    if isinstance(value, dict):
        return _read_table(value, path)
    if isinstance(value, list):
        return _listed([_tokens(item, path) for item in value], path)
    if isinstance(value, str) and ".." in value:
        low, _, high = value.partition("..")
        return _uniform(_tokens(low.strip(), path), _tokens(high.strip(), path), None, path)
    if isinstance(value, str) and "," in value:
        return _listed([_tokens(part.strip(), path) for part in value.split(",") if part.strip()], path)
    return Fixed(_tokens(value, path))


def _read_table(data: dict[str, Any], path: str) -> Lengths:
    table = strict.Table(data, path)
    guessed = next(
        (kind for key, kind in (("values", "list"), ("mean", "normal"), ("min", "uniform")) if key in table), "uniform"
    )
    kind = table.take("distribution", strict.choice(*DISTRIBUTIONS), guessed)
    if kind == "list":
        values = table.take("values", _token_list, _NO_VALUES)
        order = table.take("order", strict.choice("cycle", "sample"), "cycle")
        table.close()
        return Listed(values, "cycle" if order == "cycle" else "sample") if values else _no_values(path)
    low = table.take("min", _tokens, 1 if kind != "uniform" else 0)
    high = table.take("max", _tokens, 0)
    if kind == "uniform":
        nominal = table.take("nominal", _tokens, 0)
        table.close()
        if not low or not high:
            raise UsageError(f"{path}: a range needs min and max. Write for example {{ min = 512, max = 1024 }}.")
        return _uniform(low, high, nominal or None, path)
    mean = table.take("mean", _mean, 0.0)
    sd = table.take("sd", strict.number(0, most=MAX_TOKENS, is_open=False), -1.0)
    table.close()
    if not mean or sd < 0:
        raise UsageError(f"{path}: {kind} lengths need mean and sd. Write for example {{ mean = 1000, sd = 200, min = 16 }}.")
    high = high or min(MAX_TOKENS, math.ceil(mean + 8 * sd))
    if not low <= mean <= high:
        raise UsageError(f"{path}: the mean {mean:g} lies outside min..max, {low}..{high}. Widen them, or move the mean.")
    return (LogNormal if kind == "lognormal" else Normal)(mean, sd, low, high)


def _uniform(low: int, high: int, nominal: int | None, path: str) -> Lengths:
    if low > high:
        raise UsageError(f"{path}: min {low} is above max {high}. Swap them.")
    return Uniform(low, high, nominal)


def _listed(values: list[int], path: str) -> Lengths:
    return Listed(tuple(values)) if values else _no_values(path)


def _no_values(path: str) -> Lengths:
    raise UsageError(f"{path}: the list of lengths is empty. Give at least one length.")


def _tokens(value: Any, path: str) -> int:
    tokens = strict.whole(1)(value, path)
    if tokens > MAX_TOKENS:
        raise UsageError(f"{path}: {tokens} tokens are more than the {MAX_TOKENS} that a prompt may have here.")
    return tokens


def _mean(value: Any, path: str) -> float:
    return float(_tokens(value, path)) if isinstance(value, str) else strict.number(0, most=MAX_TOKENS)(value, path)


def _token_list(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{path}: {value!r} is not a list. Write for example values = [1000, 2000].")
    return tuple(_tokens(item, path) for item in value)


def _clip(value: float, low: int, high: int) -> int:
    return min(max(round(value), low), high)


def mean_of(lengths: Sequence[int]) -> float:
    """The mean of a plan's lengths."""
    return math.fsum(lengths) / len(lengths)


def parse_lengths(flag: str, value: str | int) -> Lengths:
    """Read --isl or --osl: `30000`, `128Ki`, `512..1024` (each alike) or `4Ki,8Ki,16Ki` (in turn). Raises UsageError."""
    try:
        return read_lengths(value, flag)
    except UsageError as error:
        raise UsageError(f"{error} {flag} takes 30000, 128Ki, 512..1024 or 4Ki,8Ki,16Ki.") from None
