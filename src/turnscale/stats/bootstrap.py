"""Cluster bootstrap over whole seed rows, task clusters, or both, for one arm or two.

A training run is one row of the table: its scores on all tasks are drawn together. Drawing a row
independently for each task averages the seed effect away and covers 43 to 62 % where 95 % is claimed.

Every statistic here is linear or bilinear in the rows, or a function of weighted cells, so a replicate is a
vector of multiplicities and never a copied table; replicates are made in chunks of bounded memory.

Percentile intervals over few seeds are too narrow (about 80 % coverage at 3 seeds, 87 % at 5): below 10 seeds
they carry a note. Bootstrap-t is refused below 5 seeds, where some resamples have no spread at all. Attempts
are not resampled: a resampled pass@k is biased, and its variance is known in closed form
(`turnscale.stats.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.random import Generator
from scipy.special import stdtrit

from turnscale.errors import DataError
from turnscale.stats.intervals import ROUNDING, design_notes, obstacle
from turnscale.stats.outcomes import Counts, check_same_tasks
from turnscale.stats.passk import Floats, Ints, Metric
from turnscale.stats.power import minimum_detectable
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question
from turnscale.stats.spread import combine, parts_for

CHUNK_BYTES = 32 * 2**20
MIN_SEEDS_STUDENTIZED = 5
MIN_SEEDS_UNFLAGGED = 10

Method = Literal["percentile", "studentized"]


def multiplicities(rng: Generator, resamples: int, size: int) -> Ints:
    """[resamples, size] how often each of `size` units is drawn in `size` draws with replacement."""
    drawn = rng.integers(0, size, (resamples, size), dtype=np.int32)
    drawn += np.arange(0, resamples * size, size, dtype=np.int32)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size)


def chunks(resamples: int, bytes_per_replicate: int) -> Iterator[slice]:
    """Slices of at most CHUNK_BYTES of work each."""
    step = max(1, min(resamples, CHUNK_BYTES // max(1, bytes_per_replicate)))
    for start in range(0, resamples, step):
        yield slice(start, min(start + step, resamples))


def resample_rows(
    rows: int,
    resamples: int,
    rng: Generator,
    statistic: Callable[[Ints], Floats],
    bytes_per_replicate: int = 64,
) -> Floats:
    """[resamples, ...] `statistic(w)` over draws of whole rows; w is [chunk, rows] multiplicities.

    `bytes_per_replicate` is the working memory that `statistic` needs for one replicate.
    """
    cost = bytes_per_replicate + 24 * rows
    return np.concatenate(
        [statistic(multiplicities(rng, part.stop - part.start, rows)) for part in chunks(resamples, cost)]
    )


def _cluster_sums(arm: Counts, metric: Metric) -> tuple[Floats, Floats]:
    """[S, G] sums of the scores over each cluster's tasks, and [G] cluster sizes."""
    labels = arm.cluster_labels
    member = np.zeros((labels.size, int(labels.max()) + 1))
    member[np.arange(labels.size), labels] = 1.0
    return arm.scores(metric) @ member, member.sum(axis=0)


def replicates(
    arms: Sequence[Counts], metric: Metric, question: Question, resamples: int, rng: Generator
) -> tuple[Floats, Floats]:
    """[resamples] bootstrap values of one arm's mean or of a difference, and their standard errors.

    Seeds are drawn per arm, task clusters jointly for both arms. A replicate's standard error is NaN for
    METHOD_NEW_TASKS, which has no studentized form. Untrained arms keep their one row.
    Raises DataError for THESE_CHECKPOINTS.
    """
    if question is Question.THESE_CHECKPOINTS:
        raise DataError(
            "attempts are not resampled: pass@k of resampled attempts is biased",
            remedy="use turnscale.stats.intervals, whose attempt variance is exact",
        )
    tables = [_cluster_sums(arm, metric) for arm in arms]
    sums, sizes = [table[0] for table in tables], tables[0][1]
    signs = [1.0, -1.0][: len(arms)]
    draw_seeds = [question.about_method and not arm.untrained for arm in arms]
    draw_tasks = question is not Question.METHOD_RETRAINED
    groups = sizes.size
    cost = 8 * sum(part.shape[0] for part in sums) + (40 * groups if draw_tasks else 8)
    values, errors = [], []
    for part in chunks(resamples, cost):
        count = part.stop - part.start
        columns, variance = np.zeros((count, groups) if draw_tasks else (count,)), np.zeros(count)
        for table, sign, drawn in zip(sums, signs, draw_seeds, strict=True):
            rows = table.shape[0]
            summary = table if draw_tasks else table.sum(axis=1) / sizes.sum()
            if not drawn:
                columns = columns + sign * summary.mean(axis=0)
                continue
            weights = multiplicities(rng, count, rows) / rows
            columns = columns + sign * (weights @ summary)
            if not draw_tasks:
                moment = weights @ summary**2 - (weights @ summary) ** 2
                variance += np.maximum(moment, 0.0) / (rows - 1)
        if not draw_tasks:
            values.append(columns)
            errors.append(np.sqrt(variance))
            continue
        drawn_groups = multiplicities(rng, count, groups)
        total = drawn_groups @ sizes
        value = np.einsum("bg,bg->b", drawn_groups, columns) / total
        values.append(value)
        if question is Question.TASKS_LIKE_THESE:
            deviation = columns - value[:, None] * sizes
            squares = np.einsum("bg,bg,bg->b", drawn_groups, deviation, deviation)
            errors.append(np.sqrt(groups / (groups - 1) * squares) / total)
        else:
            errors.append(np.full(count, np.nan))
    return np.concatenate(values), np.concatenate(errors)


def percentile_interval(values: Floats, level: float) -> tuple[Floats, Floats]:
    """Lower and upper percentile limits over axis 0."""
    lo, hi = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return lo, hi


def studentized_interval(
    value: float, se: float, values: Floats, errors: Floats, level: float
) -> tuple[float, float]:
    """Bootstrap-t limits. A replicate without spread counts as infinitely far on its side."""
    shift = values - value
    with np.errstate(divide="ignore", invalid="ignore"):
        unbounded = np.where(np.abs(shift) > ROUNDING, np.copysign(np.inf, shift), 0.0)
        ratios = np.where(errors > ROUNDING, shift / errors, unbounded)
    low, high = np.quantile(ratios, [0.5 - level / 2, 0.5 + level / 2], method="inverted_cdf")
    return value - float(high) * se, value - float(low) * se


def _interval(
    arms: Sequence[Counts],
    metric: Metric,
    question: Question,
    method: Method,
    resamples: int,
    rng: Generator,
    level: float,
) -> tuple[float, float, float, tuple[str, ...]] | NotEstimable:
    """Limits, bootstrap standard error and notes; or the reason why there are none."""
    values = [float(arm.scores(metric).mean()) for arm in arms]
    point = values[0] - (values[1] if len(values) == 2 else 0.0)

    def refuse(reason: str, remedy: str) -> NotEstimable:
        return NotEstimable(
            question=question,
            reason=reason,
            remedy=remedy,
            value=point,
            metric=metric.name,
            n_seeds=tuple(len(arm.seeds) for arm in arms),
            n_tasks=len(arms[0].tasks),
            n_attempts=min(arm.attempts for arm in arms),
        )

    refusal = obstacle(arms, metric, question, level)
    if refusal:
        return refuse(*refusal)
    if question is Question.METHOD_RETRAINED and any(arm.untrained for arm in arms):
        return refuse("an untrained checkpoint has no rows to resample", "use the Welch interval")
    fewest = min(len(arm.seeds) for arm in arms if not arm.untrained) if question.about_method else None
    if method == "studentized":
        if question is Question.METHOD_NEW_TASKS:
            return refuse("bootstrap-t over seeds and tasks has no error per resample", "use percentile")
        if fewest is not None and fewest < MIN_SEEDS_STUDENTIZED:
            return refuse(
                f"bootstrap-t with {fewest} seeds meets resamples without spread",
                f"train {MIN_SEEDS_STUDENTIZED} seeds or more per arm, or use the Welch interval",
            )
    drawn, errors = replicates(arms, metric, question, resamples, rng)
    se = float(drawn.std(ddof=1))
    if se <= ROUNDING:
        return refuse(f"no variation between {question.resamples}", "collect more of them")
    notes = list(design_notes(arms, metric, question))
    if fewest is not None and fewest < MIN_SEEDS_UNFLAGGED:
        notes.append(f"bootstrap over {fewest} seeds: unreliable below {MIN_SEEDS_UNFLAGGED}, prefer Welch")
    if method == "percentile":
        lo, hi = (float(limit) for limit in percentile_interval(drawn, level))
    else:
        plain = float(combine(parts_for(question, arms, [metric]))[0][0])
        lo, hi = studentized_interval(point, plain, drawn, errors, level)
    return lo, hi, se, tuple(notes)


def bootstrap_estimate(
    arm: Counts,
    metric: Metric,
    question: Question,
    *,
    rng: Generator,
    resamples: int = 10_000,
    method: Method = "percentile",
    level: float = 0.95,
) -> Estimate | NotEstimable:
    """Bootstrap interval of one arm's mean metric; NotEstimable where the units are too few.

    Raises DataError for THESE_CHECKPOINTS (see the module's docstring).
    """
    found = _interval([arm], metric, question, method, resamples, rng, level)
    if isinstance(found, NotEstimable):
        return found
    lo, hi, se, notes = found
    return Estimate(
        value=float(arm.scores(metric).mean()),
        lo=max(0.0, lo),
        hi=min(1.0, hi),
        se=se,
        df=np.inf,
        level=level,
        question=question,
        estimator=f"bootstrap_{method}",
        metric=metric.name,
        n_seeds=len(arm.seeds),
        n_tasks=len(arm.tasks),
        n_attempts=arm.attempts,
        mde=minimum_detectable(se, np.inf, level),
        notes=notes,
    )


def bootstrap_compare(
    a: Counts,
    b: Counts,
    metric: Metric,
    question: Question,
    *,
    rng: Generator,
    resamples: int = 10_000,
    method: Method = "percentile",
    level: float = 0.95,
) -> Comparison | NotEstimable:
    """Bootstrap interval of the difference `a` − `b`; tasks paired, seeds drawn per arm. `p` is None."""
    check_same_tasks(a, b)
    found = _interval([a, b], metric, question, method, resamples, rng, level)
    if isinstance(found, NotEstimable):
        return found
    lo, hi, se, notes = found
    return Comparison(
        difference=float(a.scores(metric).mean() - b.scores(metric).mean()),
        lo=max(-1.0, lo),
        hi=min(1.0, hi),
        p=None,
        se=se,
        df=np.inf,
        level=level,
        question=question,
        estimator=f"bootstrap_{method}",
        metric=metric.name,
        n_seeds_a=len(a.seeds),
        n_seeds_b=len(b.seeds),
        n_tasks=len(a.tasks),
        n_attempts=min(a.attempts, b.attempts),
        mde=minimum_detectable(se, np.inf, level),
        notes=notes,
    )


def sup_t_critical(
    correlation: Floats, df: float, level: float, rng: Generator, draws: int = 20_000
) -> float:
    """Critical value of max |t_k| over K correlated statistics, by simulation from the multivariate t.

    K = 1 gives the ordinary t quantile up to simulation error; the value grows with K and falls with the
    correlation. `correlation` [K, K] is positive semidefinite; rows that are not finite are left out.
    """
    kept = np.isfinite(np.diag(correlation))
    if not kept.any():
        raise DataError("no statistic of the curve varies, so it has no band")
    matrix = correlation[np.ix_(kept, kept)]
    eigenvalues, vectors = np.linalg.eigh(matrix)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    normal = np.abs(rng.standard_normal((draws, matrix.shape[0])) @ root.T).max(axis=1)
    scale = np.ones(draws) if np.isinf(df) else np.sqrt(rng.chisquare(df, draws) / df)
    simulated = float(np.quantile(normal / scale, level))
    return max(simulated, float(stdtrit(df, 0.5 + level / 2)))
