"""Random draws and elementary functions that come out the same, to the last bit, on every machine and Python.

A plan's digest must not depend on where it was built. Three things usually spoil that, and are avoided here and by every
caller: the C library's `log`, `exp` and `cos` (their last bit differs between platforms), the methods of `random.Random`
other than `random()` and `getrandbits()` (their streams change between versions), and `sum()` of floats (compensated since
Python 3.12; use `math.fsum` or a running total). What is left, + - * / and the square root, IEEE 754 rounds correctly
everywhere.
"""

from __future__ import annotations

import hashlib
import math
import random

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476

# Rational approximation of the normal quantile, relative error below 1.2e-9 (P. J. Acklam, 2003); lengths are whole numbers, so
# that is ample.
_CENTRE_P = (
    -3.969683028665376e01,
    2.209460984245205e02,
    -2.759285104469687e02,
    1.383577518672690e02,
    -3.066479806614716e01,
    2.506628277459239e00,
)
_CENTRE_Q = (
    -5.447609879822406e01,
    1.615858368580409e02,
    -1.556989798598866e02,
    6.680131188771972e01,
    -1.328068155288572e01,
    1.0,
)
_TAIL_P = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_TAIL_Q = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)
_TAIL = 0.02425


def _key(seed: int, purpose: tuple[object, ...]) -> bytes:
    return "\x1f".join([str(seed), *map(str, purpose)]).encode()


def rng(seed: int, *purpose: object) -> random.Random:
    """A generator for one purpose: `rng(seed, "due", lane)`. Call only `random()` and `getrandbits()` on it."""
    return random.Random(int.from_bytes(hashlib.sha256(_key(seed, purpose)).digest(), "big"))


def random_bytes(n: int, seed: int, *purpose: object) -> bytes:
    """`n` bytes for one purpose, from SHAKE-256: the same everywhere, and fast (about 0.25 GB/s)."""
    return hashlib.shake_256(_key(seed, purpose)).digest(n)


def ln(x: float) -> float:
    """Natural logarithm of x > 0: 2 artanh((m - 1) / (m + 1)) + e ln 2, where x = m 2^e and m is near 1."""
    m, e = math.frexp(x)
    if m < _SQRT_HALF:
        m, e = 2 * m, e - 1
    s = (m - 1) / (m + 1)
    total = 0.0
    for k in range(29, 0, -2):
        total = total * (s * s) + 1 / k
    return e * _LN2 + 2 * s * total


def exp(x: float) -> float:
    """The exponential function, by Taylor's series on what is left after halving."""
    halvings = round(x / _LN2)
    r = x - halvings * _LN2
    total = 1.0
    for k in range(18, 0, -1):
        total = total * r / k + 1
    return math.ldexp(total, halvings)


def normal_quantile(p: float) -> float:
    """The standard normal quantile of 0 < p < 1."""
    if p > 0.5:
        return -normal_quantile(1 - p)
    if p < _TAIL:
        q = math.sqrt(-2 * ln(p))
        return _horner(_TAIL_P, q) / _horner(_TAIL_Q, q)
    q = p - 0.5
    return q * _horner(_CENTRE_P, q * q) / _horner(_CENTRE_Q, q * q)


def unit(source: random.Random) -> float:
    """A uniform draw from the open interval (0, 1): a logarithm of it exists."""
    return (source.getrandbits(52) + 0.5) / (1 << 52)


def strata(source: random.Random, n: int) -> list[float]:
    """`n` uniform draws, one from each n-th of (0, 1), in random order.

    Each alone is uniform, and together they are as even as n allows: the mean of lengths drawn with them is close to the
    nominal one, so that two seeds offer the same load.
    """
    draws = [(i + unit(source)) / n for i in range(n)]
    for i in range(n - 1, 0, -1):  # Fisher and Yates; random.shuffle may change its stream
        j = int(source.random() * (i + 1))
        draws[i], draws[j] = draws[j], draws[i]
    return draws


def _horner(coefficients: tuple[float, ...], x: float) -> float:
    total = 0.0
    for c in coefficients:
        total = total * x + c
    return total
