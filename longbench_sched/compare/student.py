"""Student's t distribution: probabilities and quantiles, for whole and fractional degrees of freedom.

Few runs are the rule here, and with 4 degrees of freedom the normal quantile is 30 % too small. The distribution function is
a regularised incomplete beta function, evaluated by its continued fraction (DiDonato & Morris, ACM TOMS 18, 1992, eq. 9;
modified Lentz method); the quantile is its inverse by Newton's steps, kept between bounds.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_EPSILON = 1e-14
_MAX_TERMS = 10_000


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0 and 0 <= x <= 1."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast below the mean of the distribution; above it the other tail is taken.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MAX_TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + factor / c
            c = c if abs(c) > _TINY else _TINY
            value *= d * c
        if abs(d * c - 1) < _EPSILON:
            break
    return value


def upper_tail(t: float, df: float) -> float:
    """P(T > t) with `df` degrees of freedom."""
    if math.isinf(df):
        return 0.5 * math.erfc(t / math.sqrt(2))
    if t < 0:
        return 1 - upper_tail(-t, df)
    if math.isinf(t):
        return 0.0
    return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t))


def two_sided(t: float, df: float) -> float:
    """P(|T| > |t|)."""
    return min(1.0, 2 * upper_tail(abs(t), df))


def density(t: float, df: float) -> float:
    """The density of T at t."""
    if math.isinf(df):
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df))


@lru_cache(maxsize=4096)
def quantile(share: float, df: float) -> float:
    """The value that T stays below with this probability, 0 < share < 1."""
    if share < 0.5:
        return -quantile(1 - share, df)
    tail = 1 - share
    low, high, t = 0.0, math.inf, 2.0
    for _ in range(200):
        excess = upper_tail(t, df) - tail
        low, high = (t, high) if excess > 0 else (low, t)
        step = excess / density(t, df)
        after = t + step
        if abs(step) <= 1e-13 * t:
            return after
        if not low < after < high:  # a step of Newton's too far: halve, or double while there is no upper end
            after = 2 * t if math.isinf(high) else (low + high) / 2
        t = after
    return t
