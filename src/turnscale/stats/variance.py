"""Variance components of one arm's scores: training seed, task, seed × task, attempt.

Balanced two-way moments (one score per seed × task cell). Raw estimates can be negative and are reported as
they are next to the truncated ones. Intervals: χ² for a mean square; for the difference of two mean squares
the modified large-sample limits of Ting, Burdick, Graybill, Jeyaratnam and Lu (1990).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, f

from turnscale.errors import DataError
from turnscale.stats.outcomes import Counts
from turnscale.stats.passk import Floats, Metric, within_cell_covariance


@dataclass(frozen=True)
class Component:
    """A variance with its interval. `raw` may be negative; `value`, `lo` and `hi` are truncated at zero."""

    name: str
    raw: float
    value: float
    lo: float
    hi: float

    @property
    def sd(self) -> float:
        """Square root of the truncated value."""
        return float(np.sqrt(self.value))


@dataclass(frozen=True)
class VarianceComponents:
    """Components of a score's variance and the mean squares behind them.

    seed, task: across training runs and across tasks. cell: what is left in a seed × task cell, that is the
    seed × task interaction plus attempt noise of the cell's score. attempt: noise of the cell's score from its
    attempts alone (None below 2k attempts). interaction: cell − attempt.
    `seed_mean_sd` is the sd of the seed means, with the χ² interval (`seed_mean_lo`, `seed_mean_hi`): at 3
    seeds it runs from 0.52 to 6.3 times the estimate.
    """

    seed: Component
    task: Component
    cell: Component
    attempt: float | None
    interaction: float | None
    ms_seed: float
    ms_task: float
    ms_cell: float
    seed_mean_sd: float
    seed_mean_lo: float
    seed_mean_hi: float
    n_seeds: int
    n_tasks: int
    level: float

    def standard_error(self, seeds: int, tasks: int) -> float:
        """SE of the mean of a future study with this many seeds and tasks, at the same attempts per cell."""
        variance = (
            self.seed.value / seeds + self.task.value / tasks + max(self.ms_cell, 0.0) / (seeds * tasks)
        )
        return float(np.sqrt(variance))


def sd_interval(sd: float, df: float, level: float = 0.95) -> tuple[float, float]:
    """χ² limits of a normal standard deviation estimated with `df` degrees of freedom."""
    tail = (1 - level) / 2
    return sd * float(np.sqrt(df / chi2.isf(tail, df))), sd * float(np.sqrt(df / chi2.ppf(tail, df)))


def mean_square_difference_interval(
    first: float, first_df: float, second: float, second_df: float, level: float = 0.95
) -> tuple[float, float]:
    """Limits of E[first] − E[second] for two independent mean squares (modified large sample)."""
    tail = (1 - level) / 2
    infinite = np.inf

    def upper_point(share: float, a: float, b: float) -> float:
        return float(chi2.isf(share, a) / a) if b == infinite else float(f.isf(share, a, b))

    g1, g2 = (1 - 1 / upper_point(tail, df, infinite) for df in (first_df, second_df))
    h1, h2 = (1 / upper_point(1 - tail, df, infinite) - 1 for df in (first_df, second_df))
    high, low = (upper_point(share, first_df, second_df) for share in (tail, 1 - tail))
    g12 = ((high - 1) ** 2 - (g1 * high) ** 2 - h2**2) / high
    h12 = ((1 - low) ** 2 - (h1 * low) ** 2 - g2**2) / low
    below = (g1 * first) ** 2 + (h2 * second) ** 2 + g12 * first * second
    above = (h1 * first) ** 2 + (g2 * second) ** 2 + h12 * first * second
    difference = first - second
    return difference - float(np.sqrt(max(below, 0.0))), difference + float(np.sqrt(max(above, 0.0)))


def mean_squares(scores: Floats) -> tuple[float, float, float]:
    """Seed, task and residual mean squares of scores [S, T]; DataError unless S >= 2 and T >= 2."""
    if scores.ndim != 2 or min(scores.shape) < 2:
        raise DataError(
            f"variance components need two seeds and two tasks, not a table of {scores.shape}",
            remedy="train more seeds or evaluate more tasks",
        )
    seeds, tasks = scores.shape
    rows, columns, grand = scores.mean(axis=1), scores.mean(axis=0), scores.mean()
    residual = scores - rows[:, None] - columns + grand
    return (
        float(tasks * ((rows - grand) ** 2).sum() / (seeds - 1)),
        float(seeds * ((columns - grand) ** 2).sum() / (tasks - 1)),
        float((residual**2).sum() / ((seeds - 1) * (tasks - 1))),
    )


def variance_components(arm: Counts, metric: Metric, *, level: float = 0.95) -> VarianceComponents:
    """Components of `metric` for one arm. Raises DataError with one seed or one task."""
    scores = arm.scores(metric)
    ms_seed, ms_task, ms_cell = mean_squares(scores)
    seeds, tasks = scores.shape
    df = {"seed": seeds - 1, "task": tasks - 1, "cell": (seeds - 1) * (tasks - 1)}

    def difference(name: str, ms: float, divisor: int) -> Component:
        lo, hi = mean_square_difference_interval(ms, df[name], ms_cell, df["cell"], level)
        raw = (ms - ms_cell) / divisor
        return Component(name, raw, max(raw, 0.0), max(lo / divisor, 0.0), max(hi / divisor, 0.0))

    cell_lo, cell_hi = sd_interval(np.sqrt(ms_cell), df["cell"], level)
    attempt = None
    if arm.attempts >= 2 * metric.k:
        attempt = float(within_cell_covariance([metric], arm.c, arm.n).mean())
    seed_mean_sd = float(scores.mean(axis=1).std(ddof=1))
    return VarianceComponents(
        seed=difference("seed", ms_seed, tasks),
        task=difference("task", ms_task, seeds),
        cell=Component("cell", ms_cell, ms_cell, cell_lo**2, cell_hi**2),
        attempt=attempt,
        interaction=None if attempt is None else ms_cell - attempt,
        ms_seed=ms_seed,
        ms_task=ms_task,
        ms_cell=ms_cell,
        seed_mean_sd=seed_mean_sd,
        seed_mean_lo=sd_interval(seed_mean_sd, seeds - 1, level)[0],
        seed_mean_hi=sd_interval(seed_mean_sd, seeds - 1, level)[1],
        n_seeds=seeds,
        n_tasks=tasks,
        level=level,
    )
