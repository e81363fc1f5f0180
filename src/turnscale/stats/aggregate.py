"""Robust aggregates over runs × tasks, with intervals that resample whole seed rows.

Interquartile mean, optimality gap, probability of improvement and performance profiles as in Agarwal et al.
2021 (arXiv 2108.13264). There a separate run was trained for each game, so runs are drawn independently per
task; here one checkpoint is scored on every task, so a run's row is drawn whole.

The interquartile mean is another estimand than the mean, and is meaningless on 0/1 cells (a mean of .1 becomes
0): it takes success rates from 8 attempts or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from turnscale.errors import DataError
from turnscale.stats.bootstrap import (
    MIN_SEEDS_UNFLAGGED,
    percentile_interval,
    resample_rows,
    sup_t_critical,
)
from turnscale.stats.intervals import ROUNDING
from turnscale.stats.outcomes import Counts, check_same_tasks
from turnscale.stats.passk import Floats, Ints, Metric
from turnscale.stats.question import Estimate, NotEstimable, Question

MIN_ATTEMPTS_IQM = 8


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all cells of scores [S, T] (25 % trimmed at each end, whole cells).

    Raises DataError if every cell is 0 or 1.
    """
    values, hist = _histogram(_table(scores))
    return float(_iqm_of_weights(np.ones((1, hist.shape[0]), dtype=np.int64), values, hist)[0])


def optimality_gap(scores: ArrayLike, gamma: float = 1.0) -> float:
    """gamma − mean(min(score, gamma)): how far the cells fall short of `gamma` on average."""
    return float(gamma - np.minimum(_table(scores), gamma).mean())


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """Mean over tasks of P(a run of x beats a run of y), ties one half; x [S_x, T], y [S_y, T].

    With one run per arm this is the share of tasks won.
    """
    return float(_win_matrix(_table(x), _table(y)).mean())


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """[K] share of cells strictly above each threshold."""
    return np.asarray(
        (_table(scores)[..., None] > np.asarray(thresholds, dtype=np.float64)).mean(axis=(0, 1))
    )


def iqm_interval(
    arm: Counts, metric: Metric, *, rng: Generator, resamples: int = 10_000, level: float = 0.95
) -> Estimate | NotEstimable:
    """Interquartile mean of one arm, percentile interval over whole seed rows (question: METHOD_RETRAINED).

    Raises DataError below 8 attempts per task.
    """
    if arm.attempts < MIN_ATTEMPTS_IQM:
        raise DataError(
            f"arm {arm.arm!r}: an interquartile mean of {arm.attempts} attempts per task is mostly rounding",
            key=arm.arm,
            remedy=f"run at least {MIN_ATTEMPTS_IQM} attempts per task, or report the mean",
        )
    scores = arm.scores(metric)
    values, hist = _histogram(scores)
    return _rows_interval(
        "iqm",
        interquartile_mean(scores),
        [arm],
        metric,
        lambda: resample_rows(
            len(arm.seeds), resamples, rng, lambda w: _iqm_of_weights(w, values, hist), 24 * values.size
        ),
        level,
    )


def optimality_gap_interval(
    arm: Counts,
    metric: Metric,
    *,
    rng: Generator,
    gamma: float = 1.0,
    resamples: int = 10_000,
    level: float = 0.95,
) -> Estimate | NotEstimable:
    """Optimality gap of one arm, percentile interval over whole seed rows (question: METHOD_RETRAINED)."""
    rows = gamma - np.minimum(arm.scores(metric), gamma).mean(axis=1)
    return _rows_interval(
        "optimality_gap",
        float(rows.mean()),
        [arm],
        metric,
        lambda: resample_rows(rows.size, resamples, rng, lambda w: w @ rows / rows.size),
        level,
    )


def improvement_interval(
    a: Counts, b: Counts, metric: Metric, *, rng: Generator, resamples: int = 10_000, level: float = 0.95
) -> Estimate | NotEstimable:
    """Probability that a retrained `a` beats a retrained `b` on these tasks; both arms' rows are resampled."""
    check_same_tasks(a, b)
    wins = _win_matrix(a.scores(metric), b.scores(metric))

    def draw() -> Floats:
        first = resample_rows(wins.shape[0], resamples, rng, lambda w: w / wins.shape[0])
        second = resample_rows(wins.shape[1], resamples, rng, lambda w: w / wins.shape[1])
        return np.einsum("bi,ij,bj->b", first, wins, second, optimize=True)

    return _rows_interval("probability_of_improvement", float(wins.mean()), [a, b], metric, draw, level)


@dataclass(frozen=True, eq=False)
class Profile:
    """Share of cells above each threshold [K], with a band that covers the whole profile at once."""

    thresholds: Floats
    value: Floats
    lo: Floats
    hi: Floats
    critical: float
    level: float
    n_seeds: int
    question: Question = Question.METHOD_RETRAINED


def profile_band(
    arm: Counts, metric: Metric, thresholds: ArrayLike, *, rng: Generator, level: float = 0.95
) -> Profile | NotEstimable:
    """Performance profile with a simultaneous sup-t band over whole seed rows (question: METHOD_RETRAINED)."""
    grid = np.asarray(thresholds, dtype=np.float64)
    rows = (arm.scores(metric)[..., None] > grid).mean(axis=1)
    refusal = _few_rows([arm], metric, float(rows.mean()))
    if refusal:
        return refusal
    centred = rows - rows.mean(axis=0)
    cov = centred.T @ centred / (rows.shape[0] - 1) / rows.shape[0]
    se = np.sqrt(np.diag(cov))
    varies = se > ROUNDING
    if not varies.any():
        return _no_variation([arm], metric, float(rows.mean()))
    correlation = np.full(cov.shape, np.nan)
    both = np.ix_(varies, varies)
    correlation[both] = cov[both] / np.outer(se[varies], se[varies])
    critical = sup_t_critical(correlation, rows.shape[0] - 1, level, rng)
    half = np.where(varies, critical * se, np.nan)
    value = rows.mean(axis=0)
    return Profile(
        thresholds=grid,
        value=value,
        lo=np.maximum(0.0, value - half),
        hi=np.minimum(1.0, value + half),
        critical=critical,
        level=level,
        n_seeds=rows.shape[0],
    )


def _table(scores: ArrayLike) -> Floats:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.all(np.isfinite(table)):
        raise DataError("aggregates take a finite table of runs × tasks")
    return table


def _histogram(scores: Floats) -> tuple[Floats, Ints]:
    """Distinct cell values [V], ascending, and how many cells of each row have them [S, V]."""
    if np.all((scores == 0) | (scores == 1)):
        raise DataError(
            "the interquartile mean of 0/1 cells is not an estimate of success",
            remedy="use success rates over 8 attempts or more, or the mean",
        )
    values, where = np.unique(scores, return_inverse=True)
    rows = np.arange(scores.shape[0])[:, None]
    flat = (where.reshape(scores.shape) + rows * values.size).ravel()
    hist = np.bincount(flat, minlength=scores.shape[0] * values.size).reshape(scores.shape[0], values.size)
    return values, hist.astype(np.int64)


def _iqm_of_weights(weights: Ints, values: Floats, hist: Ints) -> Floats:
    """[b] interquartile means when row s counts weights[b, s] times; every draw has the same number of cells."""
    total = int(weights[0].sum()) * int(hist[0].sum())
    cut = total // 4
    cumulative = np.cumsum(weights.astype(np.float64) @ hist, axis=1)
    np.clip(cumulative, cut, total - cut, out=cumulative)
    kept = np.diff(cumulative, axis=1, prepend=float(cut))
    return np.asarray(kept @ values / (total - 2 * cut))


def _win_matrix(x: Floats, y: Floats) -> Floats:
    """[S_x, S_y] share of tasks on which run i of x beats run j of y, ties one half."""
    if x.shape[1] != y.shape[1]:
        raise DataError(f"arms with {x.shape[1]} and {y.shape[1]} tasks are not comparable")
    out = np.empty((x.shape[0], y.shape[0]))
    for i, row in enumerate(x):
        out[i] = (row > y).mean(axis=1) + 0.5 * (row == y).mean(axis=1)
    return out


def _few_rows(arms: Sequence[Counts], metric: Metric, value: float) -> NotEstimable | None:
    lone = next((arm for arm in arms if len(arm.seeds) < 2), None)
    if lone is None:
        return None
    return _refusal(arms, metric, value, f"arm {lone.arm!r} has one seed", "train more seeds")


def _no_variation(arms: Sequence[Counts], metric: Metric, value: float) -> NotEstimable:
    return _refusal(arms, metric, value, "no variation between seeds", "train more seeds")


def _refusal(arms: Sequence[Counts], metric: Metric, value: float, reason: str, remedy: str) -> NotEstimable:
    return NotEstimable(
        question=Question.METHOD_RETRAINED,
        reason=reason,
        remedy=remedy,
        value=value,
        metric=metric.name,
        n_seeds=tuple(len(arm.seeds) for arm in arms),
        n_tasks=len(arms[0].tasks),
        n_attempts=min(arm.attempts for arm in arms),
    )


def _rows_interval(
    name: str,
    value: float,
    arms: Sequence[Counts],
    metric: Metric,
    draw: Callable[[], Floats],
    level: float,
) -> Estimate | NotEstimable:
    refusal = _few_rows(arms, metric, value)
    if refusal:
        return refusal
    drawn = draw()
    se = float(drawn.std(ddof=1))
    if se <= ROUNDING:
        return _no_variation(arms, metric, value)
    lo, hi = percentile_interval(drawn, level)
    fewest = min(len(arm.seeds) for arm in arms)
    notes = (f"bootstrap over {fewest} seeds: unreliable below {MIN_SEEDS_UNFLAGGED}",)
    return Estimate(
        value=value,
        lo=float(lo),
        hi=float(hi),
        se=se,
        df=np.inf,
        level=level,
        question=Question.METHOD_RETRAINED,
        estimator="bootstrap_percentile",
        metric=f"{name}_{metric.name}",
        n_seeds=fewest,
        n_tasks=len(arms[0].tasks),
        n_attempts=min(arm.attempts for arm in arms),
        notes=notes if fewest < MIN_SEEDS_UNFLAGGED else (),
    )
