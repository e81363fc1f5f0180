"""Can a published percentage be the mean of whole numbers? (GRIM, Brown and Heathers 2017)

A mean success over n tasks × R attempts is k/(n·R); pass@R is k/n; pass@k in between is a mean of n values of
C-ratios. A rounded percentage that no integer reaches was not computed the way it is said to have been.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from turnscale.errors import DataError
from turnscale.stats.passk import Kind

MAX_STATES = 20_000_000


@dataclass(frozen=True)
class Grim:
    """Integers k for which 100·k/denominator rounds to the published value (ties may round either way).

    `exact` is False where only the granularity was checked and not which sums the tasks can reach.
    """

    value: float
    decimals: int
    denominator: int
    feasible: tuple[int, ...]
    exact: bool

    @property
    def consistent(self) -> bool:
        """True if at least one integer fits."""
        return bool(self.feasible)


def grim(
    value: float | str, decimals: int, n: int, rollouts: int = 1, k: int = 1, estimator: Kind = "pass_at"
) -> Grim:
    """Feasible integers behind a percentage published with `decimals` digits.

    n tasks (or benchmark size), `rollouts` attempts each, pass@k (`pass_at`) or pass^k (`pass_hat`).
    At k = 1 the denominator is n·rollouts, at k = rollouts it is n; in between it is n times the common
    denominator of the per-task values. Raises DataError for impossible designs, a value outside 0…100, or a
    value with more digits than `decimals`.
    """
    if n < 1 or rollouts < 1 or not 1 <= k <= rollouts or decimals < 0:
        raise DataError(
            f"no such design: n = {n}, rollouts = {rollouts}, k = {k}, decimals = {decimals}.",
            remedy="n and rollouts are at least 1, k is from 1 to rollouts, decimals at least 0.",
        )
    if estimator not in ("pass_at", "pass_hat"):
        raise DataError(f"unknown estimator {estimator!r}", remedy="pass_at or pass_hat")
    published = Fraction(str(value))
    if not 0 <= published <= 100 or (published * 10**decimals).denominator != 1:
        raise DataError(
            f"{value} is not a percentage with {decimals} decimals.",
            key="value",
            remedy="give it as printed, from 0 to 100.",
        )
    units, whole = _task_values(rollouts, k, estimator)
    denominator = n * whole
    half = Fraction(1, 2 * 10**decimals)
    low = max(0, math.ceil((published - half) * denominator / 100))
    high = min(denominator, math.floor((published + half) * denominator / 100))
    candidates = range(low, high + 1)
    if len(units) == whole + 1 or not candidates:
        return Grim(float(value), decimals, denominator, tuple(candidates), True)
    if high > MAX_STATES or len(candidates) > 100_000:
        step = math.gcd(*units)
        fits = tuple(m for m in candidates[:100_000] if m % step == 0)
        return Grim(float(value), decimals, denominator, fits, False)
    fewest = _fewest_tasks(units, high)
    fits = tuple(m for m in candidates if fewest[m] <= n)
    return Grim(float(value), decimals, denominator, fits, True)


def _task_values(rollouts: int, k: int, estimator: Kind) -> tuple[tuple[int, ...], int]:
    """Distinct values one task can take, as integers over a common whole (0 and the whole included)."""
    total = math.comb(rollouts, k)
    hits = {math.comb(c, k) for c in range(rollouts + 1)}
    values = {total - x for x in hits} if estimator == "pass_at" else hits
    shared = math.gcd(total, *values)
    return tuple(sorted(x // shared for x in values)), total // shared


def _fewest_tasks(units: tuple[int, ...], highest: int) -> np.ndarray:
    """[highest + 1] smallest number of tasks whose values sum to each integer (a large number if none do)."""
    never = np.iinfo(np.int32).max // 2
    fewest = np.full(highest + 1, never, dtype=np.int32)
    fewest[0] = 0
    coins = [unit for unit in units if 0 < unit <= highest]
    reached, tasks = np.array([0], dtype=np.int64), 0
    while reached.size:
        tasks += 1
        nxt = np.unique(np.concatenate([reached + coin for coin in coins])) if coins else reached[:0]
        nxt = nxt[nxt <= highest]
        reached = nxt[fewest[nxt] == never]
        fewest[reached] = tasks
    return fewest


def feasible_sizes(
    values: Iterable[float | str],
    decimals: int,
    sizes: Iterable[int],
    rollouts: int = 1,
    k: int = 1,
    estimator: Kind = "pass_at",
) -> tuple[int, ...]:
    """The benchmark sizes n for which every published value is feasible."""
    published = list(values)
    return tuple(
        n
        for n in sizes
        if all(grim(value, decimals, n, rollouts, k, estimator).consistent for value in published)
    )


def feasible_share(decimals: int, n: int, rollouts: int = 1) -> float:
    """Share of all percentages with `decimals` digits that k/(n·rollouts) can reach: the chance of a false fit."""
    grid, total = 100 * 10**decimals, n * rollouts
    reached = {Fraction(m * grid, total) for m in range(total + 1)}
    rounded = {
        point for m in reached for point in (math.floor(m + Fraction(1, 2)), math.ceil(m - Fraction(1, 2)))
    }
    return len(rounded) / (grid + 1)
