"""Power of the two-sample t test over seeds, seeds needed, detectable effects, seed-sd tolerance.

Powers use the noncentral t distribution; the noise is the across-seed sd of one arm's score. For the
questions that draw new tasks add the task variance to the squared sd before asking.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from turnscale.errors import DataError

NORMAL_DF = 1e4  # beyond this the t and normal answers agree to four digits


def _power(ratio: float, df: float, level: float) -> float:
    """Two-sided power when the true effect is `ratio` standard errors."""
    tail = (1 - level) / 2
    if df > NORMAL_DF:
        z = -ndtri(tail)
        return float(ndtr(ratio - z) + ndtr(-z - ratio))
    critical = -stdtrit(df, tail)
    upper, lower = 1.0 - float(nctdtr(df, ratio, critical)), float(nctdtr(df, ratio, -critical))
    return upper + (0.0 if math.isnan(lower) else lower)


@lru_cache(maxsize=65536)
def detectable_ratio(df: float, level: float = 0.95, power: float = 0.8) -> float:
    """Effect, in standard errors, that a two-sided t test at 1 − level finds with probability `power`.

    2.80 at df = ∞, 3.20 at df = 8. Raises DataError for df <= 0 or power outside (1 − level, 1).
    """
    if not df > 0 or not 1 - level < power < 1:
        raise DataError(f"no detectable effect for df = {df}, level = {level}, power = {power}")
    high = 4.0
    while _power(high, df, level) < power:
        high *= 2
    from scipy.optimize import brentq

    return float(brentq(lambda ratio: _power(ratio, df, level) - power, 0.0, high, xtol=1e-9))


def minimum_detectable(se: float, df: float, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest true effect found with probability `power` by a two-sided t test with this standard error."""
    return se * detectable_ratio(df, level, power)


def power_two_sample(difference: float, sd: float, n_a: int, n_b: int, level: float = 0.95) -> float:
    """Power of the two-sided two-sample t test with n_a and n_b seeds and across-seed sd `sd` in both arms.

    Raises DataError with fewer than two seeds in an arm: one seed has no test and no power.
    """
    if min(n_a, n_b) < 2 or not sd > 0:
        raise DataError(f"no test for {n_a} and {n_b} seeds with sd {sd}", remedy="two seeds or more per arm")
    return _power(abs(difference) / (sd * math.sqrt(1 / n_a + 1 / n_b)), n_a + n_b - 2, level)


def seeds_needed(
    difference: float, sd: float, *, power: float = 0.8, level: float = 0.95, limit: int = 1_000_000
) -> int:
    """Seeds per arm for a two-sample t test to find `difference` with probability `power`.

    Raises DataError if more than `limit` would be needed, or if difference or sd is not positive.
    """
    if not (abs(difference) > 0 and sd > 0):
        raise DataError("seeds_needed takes a non-zero difference and a positive sd")

    def enough(seeds: int) -> bool:
        return power_two_sample(difference, sd, seeds, seeds, level) >= power

    high = 2
    while not enough(high):
        high *= 2
        if high > 2 * limit:
            raise DataError(f"more than {limit} seeds per arm for a difference of {difference} at sd {sd}")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, 2)


def seed_sd_tolerance(difference: float, se: float, level: float = 0.95) -> float | None:
    """Largest across-seed sd at which a one-seed-per-arm difference would still be significant.

    sqrt(((difference / z)² − se²) / 2), z the two-sided normal quantile; `se` is the standard error without
    seed noise (attempts only, or attempts and tasks). None if the difference fails without any seed noise.
    """
    slack = (difference / float(ndtri(0.5 + level / 2))) ** 2 - se**2
    return math.sqrt(slack / 2) if slack > 0 else None


LEAST_POINTS = 0.1
"""Smallest difference or spread, in points, that is taken for one; a smaller number was meant as a fraction."""


def check_points(value: float, key: str) -> float:
    """The value, a difference or spread of scores in points.

    Raises:
        DataError: it is not a number of points, or more likely a fraction.
    """
    if 0 < value < LEAST_POINTS:
        raise DataError(
            f"is {value:g} points, which no study could see.",
            key=key,
            remedy=f"give points: {100 * value:g} if that was a fraction.",
        )
    if not LEAST_POINTS <= value <= 100:
        raise DataError(f"is {value:g}.", key=key, remedy=f"give points from {LEAST_POINTS} to 100.")
    return value
