"""Student's t distribution: probabilities and quantiles, for whole and fractional degrees of freedom.

Few runs are the rule here, and with 4 degrees of freedom the normal quantile is 30 % too small. The distribution function is
a regularised incomplete beta function, evaluated by its continued fraction (DiDonato & Morris, ACM TOMS 18, 1992, eq. 9;
modified Lentz method); the quantile is its inverse by bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_EPSILON = 1e-15
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


@lru_cache(maxsize=4096)
def quantile(share: float, df: float) -> float:
    """The value that T stays below with this probability, 0 < share < 1."""
    if share < 0.5:
        return -quantile(1 - share, df)
    tail = 1 - share
    low, high = 0.0, 1.0
    while upper_tail(high, df) > tail:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if upper_tail(middle, df) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2
