"""The mean over benchmarks, each with equal weight however many tasks it has.

Benchmarks are fixed and tasks are redrawn within each, so the parts of the variance that belong to tasks,
attempts and residuals add up over benchmarks with weight 1/B², while the part that belongs to seeds is that of
each seed's mean over benchmarks (a seed is one checkpoint on all of them). The parts, their combination and the
degrees of freedom are those of `turnscale.stats`; with one benchmark everything is equal to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.random import Generator
from scipy.special import stdtr, stdtrit

from turnscale.stats.bootstrap import sup_t_critical
from turnscale.stats.intervals import ESTIMATORS, ROUNDING, design_notes, obstacle
from turnscale.stats.outcomes import Counts
from turnscale.stats.passk import Floats, Metric
from turnscale.stats.power import minimum_detectable, seed_sd_tolerance
from turnscale.stats.question import NotEstimable, Question
from turnscale.stats.spread import Part, combine, parts_for, seeds_part

Arm = Mapping[str, Counts]
"""Counts of one arm by benchmark, all with the same seeds."""


class Sizes(TypedDict):
    """Seeds per arm, tasks over all benchmarks, and the smallest number of attempts."""

    n_seeds: tuple[int, ...]
    n_tasks: int
    n_attempts: int


@dataclass(frozen=True)
class Pooled:
    """Values [K] with pointwise intervals [K], two-sided p against 0, and the simultaneous band if asked for."""

    value: Floats
    lo: Floats
    hi: Floats
    p: Floats
    mde: Floats
    question: Question
    estimator: str
    n_seeds: tuple[int, ...]
    n_tasks: int
    n_attempts: int
    notes: tuple[str, ...]


def pooled(
    arms: Sequence[Arm],
    metrics: Sequence[Metric],
    question: Question,
    *,
    level: float = 0.95,
    band: Generator | None = None,
) -> Pooled | NotEstimable:
    """Equal-weight mean over benchmarks of one arm, or of the difference of two (first minus second).

    Args:
        arms: one or two arms over the same benchmarks.
        metrics: K metrics of one kind.
        question: what is redrawn.
        level: coverage.
        band: if given, lo and hi are a band over all K at once, whose critical value this generator simulates.

    Returns:
        NotEstimable, with the value if K is 1, where any benchmark alone is not estimable.
    """
    benchmarks = list(arms[0])
    means = [np.array([_mean(arm, metric) for metric in metrics]) for arm in arms]
    value = means[0] - means[1] if len(arms) == 2 else means[0]
    largest = max(metrics, key=lambda metric: metric.k)
    for benchmark in benchmarks:
        refusal = obstacle([arm[benchmark] for arm in arms], largest, question, level)
        if refusal:
            return _refuse(refusal, arms, metrics, value, question, level)
    se, df, correlation = combine(pooled_parts(question, arms, metrics))
    varies = se > ROUNDING
    if not varies.any():
        reason = f"no variation between {question.resamples}: their noise cannot be estimated"
        return _refuse((reason, "collect more of them"), arms, metrics, value, question, level)
    critical = stdtrit(df, 0.5 + level / 2)
    if band is not None:
        masked = np.where(np.outer(varies, varies), correlation, np.nan)
        critical = np.full(len(metrics), sup_t_critical(masked, float(df[varies].min()), level, band))
    half = np.where(varies, critical * se, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.where(varies, 2 * stdtr(df, -np.abs(value) / se), np.nan)
    mde = [
        minimum_detectable(float(s), float(d), level) if v else np.nan
        for s, d, v in zip(se, df, varies, strict=True)
    ]
    notes = [note for b in benchmarks for note in design_notes([arm[b] for arm in arms], largest, question)]
    return Pooled(
        value=value,
        lo=np.maximum(0.0 if len(arms) == 1 else -1.0, value - half),
        hi=np.minimum(1.0, value + half),
        p=p,
        mde=np.array(mde),
        question=question,
        estimator=ESTIMATORS[question],
        **_sizes(arms),
        notes=tuple(dict.fromkeys(notes)),
    )


def pooled_parts(question: Question, arms: Sequence[Arm], metrics: Sequence[Metric]) -> list[Part]:
    """Variance parts of the equal-weight mean over benchmarks."""
    benchmarks = list(arms[0])
    parts: list[Part] = []
    for benchmark in benchmarks:
        for part in parts_for(question, [arm[benchmark] for arm in arms], metrics):
            if part.name != "seeds":
                parts.append(replace(part, cov=part.cov / len(benchmarks) ** 2))
    if question.about_method:
        parts += [
            seeds_part(seed_means(arm, metrics)) for arm in arms if not next(iter(arm.values())).untrained
        ]
    return parts


def seed_means(arm: Arm, metrics: Sequence[Metric]) -> Floats:
    """[S, B, K] mean over the tasks of each benchmark, per seed."""
    return np.stack(
        [
            np.stack([counts.scores(metric).mean(axis=1) for metric in metrics], axis=-1)
            for counts in arm.values()
        ],
        axis=1,
    )


def _sizes(arms: Sequence[Arm]) -> Sizes:
    return Sizes(
        n_seeds=tuple(len(next(iter(arm.values())).seeds) for arm in arms),
        n_tasks=sum(len(counts.tasks) for counts in arms[0].values()),
        n_attempts=min(counts.attempts for arm in arms for counts in arm.values()),
    )


def _refuse(
    reason_and_remedy: tuple[str, str],
    arms: Sequence[Arm],
    metrics: Sequence[Metric],
    value: Floats,
    question: Question,
    level: float,
) -> NotEstimable:
    """NotEstimable with the point value and, where one seed per arm is the obstacle, the seed-sd tolerance."""
    tolerance = None
    if len(arms) == 2 and len(metrics) == 1 and question.about_method and _sizes(arms)["n_seeds"] == (1, 1):
        easier = {
            Question.METHOD_RETRAINED: Question.THESE_CHECKPOINTS,
            Question.METHOD_NEW_TASKS: Question.TASKS_LIKE_THESE,
        }[question]
        pairs = [[arm[benchmark] for arm in arms] for benchmark in arms[0]]
        if all(obstacle(pair, metrics[0], easier, level) is None for pair in pairs):
            se, _, _ = combine(pooled_parts(easier, arms, metrics))
            tolerance = seed_sd_tolerance(float(value[0]), float(se[0]), level)
    return NotEstimable(
        question,
        *reason_and_remedy,
        value=float(value[0]) if len(metrics) == 1 else None,
        metric=metrics[-1].name,
        seed_sd_tolerance=tolerance,
        **_sizes(arms),
    )


def _mean(arm: Arm, metric: Metric) -> float:
    return float(np.mean([counts.scores(metric).mean() for counts in arm.values()]))
