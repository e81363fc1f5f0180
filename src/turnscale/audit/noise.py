"""How noisy a published level must be, from nothing but the printed summaries.

Model: task t is solved with probability p_t ~ Beta(a, b). Two published levels of one arm fix (a, b); with one
level, the intra-class correlation icc = Var(p) / (mean (1 - mean)) = 1 / (a + b + 1) is carried over from another
arm of the same benchmark. Then, per task and for any unbiased pass@k or pass^k estimator from n rollouts,

* between = Var_t(g(p_t)), g(p) = 1 - (1-p)^k or p^k: differences between tasks;
* within = E_t[Var(estimator | p_t)]: rollout noise, divided by the number of evaluations averaged.

All quantities here are fractions, not percentages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import betabinom

from turnscale.audit.ledger import Heterogeneity
from turnscale.errors import DataError
from turnscale.stats.passk import Metric, none_of_k

_LOG_CONCENTRATION = (-12.0, 14.0)
"""log(a + b) searched: from tasks that are all solved or never solved, to tasks that are all alike."""


@dataclass(frozen=True)
class TaskMix:
    """A Beta(a, b) distribution of per-task success probabilities."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def icc(self) -> float:
        """Share of the single-rollout variance that lies between tasks."""
        return 1.0 / (self.a + self.b + 1.0)

    def pass_at(self, k: int) -> float:
        """E[1 - (1-p)^k]."""
        return -math.expm1(betaln(self.a, self.b + k) - betaln(self.a, self.b))

    def pass_hat(self, k: int) -> float:
        """E[p^k]."""
        return math.exp(betaln(self.a + k, self.b) - betaln(self.a, self.b))

    def level(self, metric: Metric) -> float:
        """The expected pass@k or pass^k."""
        return self.pass_at(metric.k) if metric.kind == "pass_at" else self.pass_hat(metric.k)


def mix_from_mean(mean: float, icc: float) -> TaskMix:
    """The Beta with this mean and intra-class correlation, both strictly between 0 and 1."""
    total = 1.0 / icc - 1.0
    return TaskMix(mean * total, (1.0 - mean) * total)


def mix_from_pass_at(pass_at_1: float, pass_at_k: float, k: int) -> TaskMix:
    """The Beta whose mean is ``pass_at_1`` and whose pass@k is ``pass_at_k``.

    Raises DataError when no Beta can do both: pass@k lies between pass@1 (all tasks 0 or 1) and
    1 - (1 - pass@1)^k (all tasks alike).
    """
    ceiling = -math.expm1(k * math.log1p(-pass_at_1))
    if not 0.0 < pass_at_1 < pass_at_k < ceiling:
        raise DataError(
            f"pass@1 = {pass_at_1:.4f} with pass@{k} = {pass_at_k:.4f} is impossible: pass@{k} must lie between "
            f"{pass_at_1:.4f} and {ceiling:.4f}.",
            key="heterogeneity",
            remedy="check the two levels and k; both must be of the same arm.",
        )

    def gap(log_total: float) -> float:
        total = math.exp(log_total)
        return TaskMix(pass_at_1 * total, (1 - pass_at_1) * total).pass_at(k) - pass_at_k

    total = math.exp(_root(gap, pass_at_1, pass_at_k, k))
    return TaskMix(pass_at_1 * total, (1.0 - pass_at_1) * total)


def mix_from_any_and_all(pass_at_k: float, pass_hat_k: float, k: int) -> TaskMix:
    """The Beta whose pass@k and pass^k are the two given levels. Raises DataError when there is none."""
    if not 0.0 < pass_hat_k < pass_at_k < 1.0:
        raise DataError(
            f"pass^{k} = {pass_hat_k:.4f} must lie below pass@{k} = {pass_at_k:.4f}, both inside (0, 1).",
            key="heterogeneity",
            remedy="check the two levels.",
        )

    metric = Metric("pass_at", k)

    def gap(log_total: float) -> float:
        return mix_from_level(metric, pass_at_k, 1.0 / (1.0 + math.exp(log_total))).pass_hat(k) - pass_hat_k

    icc = 1.0 / (1.0 + math.exp(_root(gap, pass_at_k, pass_hat_k, k)))
    return mix_from_level(metric, pass_at_k, icc)


def _root(gap: Callable[[float], float], first: float, second: float, k: int) -> float:
    low, high = _LOG_CONCENTRATION
    if gap(low) * gap(high) > 0:
        raise DataError(
            f"no Beta distribution of tasks gives the levels {first:.4f} and {second:.4f} at k = {k}.",
            key="heterogeneity",
            remedy="check the two levels and k, or give icc instead.",
        )
    return float(brentq(gap, low, high, xtol=1e-12))


def mix_from_level(metric: Metric, level: float, icc: float) -> TaskMix:
    """The Beta with intra-class correlation ``icc`` whose pass@k or pass^k is ``level``, strictly inside (0, 1)."""
    if not 0.0 < level < 1.0:
        raise DataError(
            f"a level of {level:.4f} leaves no variance to model.",
            key="level",
            remedy="a level of exactly 0 % or 100 % cannot be bounded from summaries; use per-task outcomes.",
        )
    if metric.k == 1:
        return mix_from_mean(level, icc)

    def gap(logit: float) -> float:
        return mix_from_mean(1.0 / (1.0 + math.exp(-logit)), icc).level(metric) - level

    return mix_from_mean(1.0 / (1.0 + math.exp(-float(brentq(gap, -30.0, 30.0, xtol=1e-12)))), icc)


def fit_heterogeneity(shape: Heterogeneity) -> float:
    """Intra-class correlation implied by a ledger's heterogeneity entry (levels there are percentages)."""
    if shape.icc is not None:
        return shape.icc
    assert shape.k is not None and shape.pass_at_k is not None
    if shape.pass_at_1 is not None:
        return mix_from_pass_at(shape.pass_at_1 / 100, shape.pass_at_k / 100, shape.k).icc
    assert shape.pass_hat_k is not None
    return mix_from_any_and_all(shape.pass_at_k / 100, shape.pass_hat_k / 100, shape.k).icc


@dataclass(frozen=True)
class TaskVariance:
    """Per-task variances of one arm's published level: ``between`` tasks and ``within`` (rollouts)."""

    between: float
    within: float


def task_variance(mix: TaskMix, metric: Metric, rollouts: int, evaluations: int = 1) -> TaskVariance:
    """Variances of the unbiased estimate from ``rollouts`` attempts per task, averaged over ``evaluations``.

    Raises DataError when k exceeds the rollouts.
    """
    k = metric.k
    missing = none_of_k(rollouts, k)
    estimate = 1.0 - missing if metric.kind == "pass_at" else missing[::-1]
    weight = betabinom.pmf(np.arange(rollouts + 1), rollouts, mix.a, mix.b)
    mean = float(weight @ estimate)
    total = float(weight @ estimate**2) - mean**2
    if metric.kind == "pass_at":  # Var of (1-p)^k equals Var of 1 - (1-p)^k
        between = (1.0 - mix.pass_at(2 * k)) - (1.0 - mix.pass_at(k)) ** 2
    else:
        between = mix.pass_hat(2 * k) - mix.pass_hat(k) ** 2
    return TaskVariance(between=between, within=max(total - between, 0.0) / evaluations)


def standard_error(a: TaskVariance, b: TaskVariance, n_tasks: int, r: float | None) -> float:
    """SE of the difference of two arms over ``n_tasks`` shared tasks.

    ``r`` is the correlation over tasks of the two arms' true success; None keeps the tasks fixed, which is a lower
    bound on every other answer; 0 is unpaired.
    """
    variance = a.within + b.within
    if r is not None:
        variance += a.between + b.between - 2.0 * r * math.sqrt(a.between * b.between)
    return math.sqrt(variance / n_tasks)


def correlation_needed(a: TaskVariance, b: TaskVariance, n_tasks: int, gap: float, z: float) -> float | None:
    """Smallest r at which |gap| > z·SE over tasks; None when no r up to 1 suffices, 0.0 when none is needed."""
    spare = n_tasks * (gap / z) ** 2 - (a.within + b.within)
    cross = 2.0 * math.sqrt(a.between * b.between)
    if cross == 0.0:
        return 0.0 if spare >= a.between + b.between else None
    needed = (a.between + b.between - spare) / cross
    return None if needed > 1.0 else max(needed, 0.0)
