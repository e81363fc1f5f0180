"""pass@k and pass^k curves with a simultaneous band.

Values at different k are functions of the same counts: "the gain persists for every k" is one observation.
A band that covers the whole curve at once is the honest picture; its critical value is the quantile of the
largest |t| over k (sup-t), simulated from the multivariate t with the estimated correlation, a parametric
bootstrap that stays calibrated at 3 seeds, where resampling rows does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from turnscale.errors import DataError
from turnscale.stats.bootstrap import sup_t_critical
from turnscale.stats.intervals import ROUNDING, design_notes, obstacle
from turnscale.stats.outcomes import Counts, check_same_tasks
from turnscale.stats.passk import Floats, Kind, Metric
from turnscale.stats.question import NotEstimable, Question
from turnscale.stats.spread import combine, parts_for


@dataclass(frozen=True, eq=False)
class Curve:
    """Values [K] over `ks` with a band that covers all of them at once with probability `level`.

    A point that never varies (se 0) has lo = hi = NaN. `critical` is the multiple of `se` used.
    """

    ks: tuple[int, ...]
    kind: Kind
    value: Floats
    lo: Floats
    hi: Floats
    se: Floats
    critical: float
    level: float
    question: Question
    n_seeds: tuple[int, ...]
    n_tasks: int
    n_attempts: int
    notes: tuple[str, ...] = ()


def curve(
    arms: Sequence[Counts],
    ks: Sequence[int],
    kind: Kind,
    question: Question,
    *,
    rng: Generator,
    level: float = 0.95,
) -> Curve | NotEstimable:
    """The curve of one arm, or of the difference of two (first minus second), with its simultaneous band.

    Returns NotEstimable where `turnscale.stats.intervals` would for the largest k. Raises DataError for k
    above the number of attempts, no k, repeated k, or arms scored on different tasks.
    """
    if len(arms) not in (1, 2) or not ks or len(set(ks)) != len(ks):
        raise DataError("a curve takes one or two arms and at least one k, each once")
    if len(arms) == 2:
        check_same_tasks(*arms)
    metrics = [Metric(kind, int(k)) for k in ks]
    means = [np.array([arm.scores(metric).mean() for metric in metrics]) for arm in arms]
    value = means[0] - means[1] if len(arms) == 2 else means[0]
    largest = max(metrics, key=lambda metric: metric.k)
    n_seeds = tuple(len(arm.seeds) for arm in arms)
    n_tasks, n_attempts = len(arms[0].tasks), min(arm.attempts for arm in arms)

    def refuse(reason: str, remedy: str) -> NotEstimable:
        return NotEstimable(question, reason, remedy, None, f"{kind}_k", n_seeds, n_tasks, n_attempts)

    refusal = obstacle(arms, largest, question, level)
    if refusal:
        return refuse(*refusal)
    se, df, correlation = combine(parts_for(question, arms, metrics))
    if np.all(se <= ROUNDING):
        return refuse(f"no variation between {question.resamples}", "collect more of them")
    varies = se > ROUNDING
    critical = sup_t_critical(
        np.where(np.outer(varies, varies), correlation, np.nan), float(df[varies].min()), level, rng
    )
    half = np.where(varies, critical * se, np.nan)
    floor = 0.0 if len(arms) == 1 else -1.0
    return Curve(
        ks=tuple(int(k) for k in ks),
        kind=kind,
        value=value,
        lo=np.maximum(floor, value - half),
        hi=np.minimum(1.0, value + half),
        se=se,
        critical=critical,
        level=level,
        question=question,
        n_seeds=n_seeds,
        n_tasks=n_tasks,
        n_attempts=n_attempts,
        notes=design_notes(arms, largest, question),
    )
