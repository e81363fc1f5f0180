"""Adding seeds after looking: alpha spending with a declared maximum, e-values without one.

"Add a seed per arm until p < 0.05", from 3 to 10, rejects a true null in 16 % of studies. With a maximum
declared beforehand, O'Brien-Fleming spending (Lan and DeMets 1983) keeps 5 %; without one, the t e-value may be
looked at whenever one likes (Pérez-Ortiz, Lardy, de Heide, Grünwald 2024; Grünwald et al., arXiv 1906.07801).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from turnscale.errors import DataError
from turnscale.stats.passk import Floats

PATHS = 1_000_000
BLOCK = 100_000
STREAM = 19_830_101  # the boundaries are constants: always the same simulated paths


def obrien_fleming_spending(fraction: ArrayLike, alpha: float) -> Floats:
    """Two-sided error spent when a share `fraction` of the planned seeds is in: 2 − 2Φ(z_{α/2} / √fraction)."""
    return np.asarray(2 * ndtr(ndtri(alpha / 2) / np.sqrt(np.asarray(fraction, dtype=np.float64))))


@lru_cache(maxsize=64)
def obrien_fleming_levels(looks: tuple[int, ...], alpha: float = 0.05) -> tuple[float, ...]:
    """Nominal two-sided p level of each look, for the two-sample t test with `looks` seeds per arm.

    The last look is the declared maximum. The first level is exact; the others come from one million fixed
    simulated studies of the t statistic itself (relative error about 1 %), because levels from the normal
    recursion spend 5.5 % where 5 % is meant at these sample sizes.
    Raises DataError unless looks increase strictly from 2 or more.
    """
    if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
        raise DataError(f"looks {looks} must increase from at least 2 seeds per arm", key="looks")
    if not 0 < alpha < 1:
        raise DataError(f"alpha {alpha} is not between 0 and 1", key="alpha")
    spent = obrien_fleming_spending(np.array(looks) / looks[-1], alpha)
    statistics = np.concatenate([_null_paths(looks, block) for block in range(PATHS // BLOCK)])
    running = np.ones(len(statistics), dtype=bool)
    levels: list[float] = []
    for look, seeds in enumerate(looks):
        if look == 0:
            critical = -float(stdtrit(2 * seeds - 2, spent[0] / 2))
        else:
            stopped = len(statistics) - int(running.sum())
            quota = max(0, round(spent[look] * len(statistics)) - stopped)
            values = statistics[running, look]
            critical = float(np.partition(values, values.size - quota - 1)[values.size - quota - 1])
        running &= statistics[:, look] <= critical
        levels.append(float(2 * stdtr(2 * seeds - 2, -critical)))
    return tuple(levels)


def _null_paths(looks: tuple[int, ...], block: int) -> Floats:
    """[BLOCK, looks] |t| of growing samples of two equal normal arms."""
    return np.abs(_paths(looks, block, 0.0))


def _paths(looks: tuple[int, ...], block: int, effect: float) -> Floats:
    """[BLOCK, looks] t of growing samples of two normal arms of sd 1 whose means differ by `effect`."""
    rng = np.random.default_rng([STREAM, block])
    sums = np.zeros((2, BLOCK))
    squares = np.zeros((2, BLOCK))
    out = np.empty((BLOCK, len(looks)))
    previous = 0
    for index, seeds in enumerate(looks):
        drawn = rng.standard_normal((seeds - previous, 2, BLOCK))
        sums += drawn.sum(axis=0)
        squares += (drawn**2).sum(axis=0)
        spread = (squares - sums**2 / seeds).sum(axis=0) / (seeds - 1)
        out[:, index] = ((sums[0] - sums[1]) / seeds + effect) / np.sqrt(spread / seeds)
        previous = seeds
    return out


def plan_power(
    looks: tuple[int, ...], rule: Literal["fixed", "obrien_fleming", "e_value"], alpha: float, effect: float
) -> tuple[float, float]:
    """Probability that a plan shows a true difference of `effect` seed sds, and the mean seeds per arm it takes.

    From 100,000 fixed simulated studies of two normal arms with equal spread (standard error at most .0016).
    """
    statistics = _paths(looks, 0, effect)
    crossed = np.empty(statistics.shape, dtype=bool)
    levels = obrien_fleming_levels(looks, alpha) if rule == "obrien_fleming" else (alpha,) * len(looks)
    for index, seeds in enumerate(looks):
        if rule == "e_value":
            crossed[:, index] = e_values(statistics[:, index], seeds) >= 1 / alpha
        else:
            crossed[:, index] = np.abs(statistics[:, index]) >= -stdtrit(2 * seeds - 2, levels[index] / 2)
    shown = crossed.any(axis=1)
    ended = np.where(shown, crossed.argmax(axis=1), len(looks) - 1)
    return float(shown.mean()), float(np.array(looks)[ended].mean())


@dataclass(frozen=True)
class Look:
    """One look at the data: seeds per arm, p value, the level it had to reach, and what follows."""

    seeds: int
    p: float
    needed: float
    verdict: Literal["reject", "continue", "stop: not shown"]


@dataclass(frozen=True)
class SequentialPlan:
    """Seeds per arm at each look, declared before the first; the last is the maximum."""

    looks: tuple[int, ...]
    alpha: float = 0.05

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """Nominal p level of each look."""
        return obrien_fleming_levels(self.looks, self.alpha)

    def judge(self, p_values: Sequence[float]) -> tuple[Look, ...]:
        """The looks taken so far, in order, one p value each (Welch or Student t at that many seeds).

        Raises DataError for more looks than planned, or for any look after a rejection.
        """
        if len(p_values) > len(self.looks):
            raise DataError(f"{len(p_values)} looks taken, {len(self.looks)} planned", key="looks")
        taken: list[Look] = []
        for seeds, p, needed in zip(self.looks, p_values, self.levels, strict=False):
            if taken and taken[-1].verdict == "reject":
                raise DataError(
                    f"look at {seeds} seeds after the rejection at {taken[-1].seeds}", key="looks"
                )
            last = "stop: not shown" if seeds == self.looks[-1] else "continue"
            verdict: Literal["reject", "continue", "stop: not shown"] = (
                "reject" if p <= needed else last  # type: ignore[assignment]
            )
            taken.append(Look(seeds, p, needed, verdict))
        return tuple(taken)


def e_value(t_statistic: float, seeds: int, prior_variance: float = 4.0) -> float:
    """e-value of the two-sample t statistic with `seeds` per arm: reject at any time once it reaches 1/α.

    (1 + n g)^{-1/2} [(1 + t²/ν) / (1 + t²/(ν (1 + n g)))]^{(ν + 1)/2} with n = seeds/2, ν = 2·seeds − 2 and a
    normal prior of variance g on the standardised effect. Its mean under the null is 1; e-values of
    independent studies multiply. Raises DataError below two seeds or for g <= 0.
    """
    return float(e_values(t_statistic, seeds, prior_variance))


def e_values(t_statistic: ArrayLike, seeds: int, prior_variance: float = 4.0) -> Floats:
    """`e_value` of each of many t statistics. Raises DataError as it does."""
    if seeds < 2 or not prior_variance > 0:
        raise DataError(f"no e-value for {seeds} seeds per arm and prior variance {prior_variance}")
    growth, df = 1 + seeds / 2 * prior_variance, 2 * seeds - 2
    square = np.asarray(t_statistic, dtype=np.float64) ** 2 / df
    log = -0.5 * math.log(growth) + (df + 1) / 2 * (np.log1p(square) - np.log1p(square / growth))
    return np.asarray(np.exp(log))


def e_value_from_scores(a: ArrayLike, b: ArrayLike, prior_variance: float = 4.0) -> float:
    """e-value of two arms' seed scores, the same number of seeds in each (DataError otherwise)."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.size < 2:
        raise DataError("the e-value takes two lists of equal length, two seeds or more")
    se = math.sqrt((x.var(ddof=1) + y.var(ddof=1)) / x.size)
    if se == 0:
        raise DataError("no seed-to-seed variation: the t statistic does not exist")
    return e_value(float(x.mean() - y.mean()) / se, x.size, prior_variance)
