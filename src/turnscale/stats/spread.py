"""Where the variance of a mean score comes from: one list of parts per question.

Everything is written for K metrics at once (K = 1 for a single number, K > 1 for a pass@k curve): a part is a
[K, K] covariance with its degrees of freedom, added or subtracted. The scores of clustered tasks are first
turned into one column per cluster, so that a cluster is never split.

Sources: clustered standard errors, Miller 2024 (arXiv 2411.00640); crossed seeds × tasks by moments,
Owen 2007 ("The pigeonhole bootstrap"); degrees of freedom, Satterthwaite 1946.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turnscale.stats.outcomes import Counts
from turnscale.stats.passk import Floats, Metric, within_cell_covariance
from turnscale.stats.question import Question


@dataclass(frozen=True)
class Part:
    """One contribution to the covariance [K, K] of a value [K]; `sign` is −1 for a double count removed."""

    name: Literal["attempts", "tasks", "seeds", "residual"]
    cov: Floats
    df: float
    sign: int = 1


def cluster_columns(scores: Floats, labels: NDArray[np.int64]) -> Floats:
    """[S, T, K] scores to [S, G, K] cluster contributions with the same row means.

    Column g is m + (G/T)·Σ_{t in g} (y_t − m), m the grand mean of the arm: the variance of the column means
    over G is then the cluster-robust variance of the task mean. Singleton clusters return the scores.
    """
    tasks, groups = labels.size, int(labels.max()) + 1
    if groups == tasks:
        return scores[:, np.argsort(labels)]
    grand = scores.mean(axis=(0, 1))
    member = np.zeros((tasks, groups))
    member[np.arange(tasks), labels] = groups / tasks
    return np.asarray(grand + np.einsum("stk,tg->sgk", scores - grand, member))


def attempts_part(arms: Sequence[Counts], metrics: Sequence[Metric]) -> Part:
    """Attempt noise, stratified by cell: tasks and checkpoints fixed. Needs n >= 2k in every cell."""
    total = sum(
        within_cell_covariance(metrics, arm.c, arm.n).sum(axis=(0, 1)) / arm.c.size**2 for arm in arms
    )
    return Part("attempts", np.asarray(total), np.inf)


def tasks_part(columns: Sequence[Floats]) -> Part:
    """Noise of redrawing tasks (clusters): paired difference of the first and second arm's column means."""
    per_cluster = columns[0].mean(axis=0)
    if len(columns) == 2:
        per_cluster = per_cluster - columns[1].mean(axis=0)
    groups = per_cluster.shape[0]
    return Part("tasks", _cov(per_cluster) / groups, groups - 1)


def seeds_part(columns: Floats) -> Part:
    """Noise of retraining one arm: sample covariance of its seed means over S."""
    means = columns.mean(axis=1)
    return Part("seeds", _cov(means) / means.shape[0], means.shape[0] - 1)


def residual_part(columns: Floats) -> Part:
    """Residual mean square of one arm over S·G: counted once in the seeds part and once in the tasks part."""
    seeds, groups, metrics = columns.shape
    interaction = (
        columns - columns.mean(axis=0) - columns.mean(axis=1, keepdims=True) + columns.mean(axis=(0, 1))
    ).reshape(-1, metrics)
    df = (seeds - 1) * (groups - 1)
    return Part("residual", interaction.T @ interaction / df / (seeds * groups), df, sign=-1)


def parts_for(question: Question, arms: Sequence[Counts], metrics: Sequence[Metric]) -> list[Part]:
    """The variance parts of the mean of one arm, or of the difference of two, for one question.

    The caller has checked that the data can answer it: two seeds or more in each trained arm for a question
    about the method, two clusters or more where tasks are redrawn, n >= 2k where attempts are. An untrained
    arm contributes attempt noise in place of seed noise.
    """
    if question is Question.THESE_CHECKPOINTS:
        return [attempts_part(arms, metrics)]
    columns = [
        cluster_columns(np.stack([arm.scores(metric) for metric in metrics], axis=-1), arm.cluster_labels)
        for arm in arms
    ]
    if question is Question.TASKS_LIKE_THESE:
        return [tasks_part(columns)]
    trained = [column for arm, column in zip(arms, columns, strict=True) if not arm.untrained]
    seeds = [seeds_part(column) for column in trained]
    if question is Question.METHOD_RETRAINED:
        fixed = [arm for arm in arms if arm.untrained]
        return seeds + ([attempts_part(fixed, metrics)] if fixed else [])
    return [*seeds, tasks_part(columns), *(residual_part(column) for column in trained)]


def combine(parts: Sequence[Part]) -> tuple[Floats, Floats, Floats]:
    """Standard error [K], Satterthwaite degrees of freedom [K] and correlation [K, K] of the summed parts.

    The variance is floored at the larger of its seed and its task component (a moment estimate can fall below
    either by chance); a floored value takes the degrees of freedom of the component that it is floored at.
    The correlation is that of the added parts, which is always positive semidefinite.
    """
    variance, df = _satterthwaite(parts)
    for names in (("seeds", "attempts"), ("tasks",)):
        floor, floor_df = _satterthwaite([part for part in parts if part.name in names])
        df = np.where(floor > variance, floor_df, df)
        variance = np.maximum(variance, floor)
    added = np.sum([part.cov for part in parts if part.sign > 0], axis=0)
    scale = np.sqrt(np.diag(added))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = added / np.outer(scale, scale)
    return np.sqrt(variance), df, correlation


def _satterthwaite(parts: Sequence[Part]) -> tuple[Floats, Floats]:
    """Signed sum of the variances and its degrees of freedom, (Σ ±v)² / Σ v²/df."""
    if not parts:
        return np.asarray(0.0), np.asarray(np.inf)
    variances = np.stack([np.diag(part.cov) for part in parts])
    total = np.sum([part.sign * v for part, v in zip(parts, variances, strict=True)], axis=0)
    spread = np.sum([v**2 / part.df for part, v in zip(parts, variances, strict=True)], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        df = np.where(spread > 0, total**2 / spread, np.inf)
    return np.asarray(total, dtype=np.float64), df


def _cov(rows: Floats) -> Floats:
    """[K, K] sample covariance of rows [N, K]."""
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / (rows.shape[0] - 1))
