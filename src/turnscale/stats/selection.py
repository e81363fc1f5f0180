"""What choosing the best checkpoint adds to a score, and how to report without it.

Fresh attempts on the tasks that chose the checkpoint do not undo the choice: the part of its luck that
belongs to those tasks stays. Only tasks that played no part in the choice do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.stats import norm

from turnscale.errors import DataError
from turnscale.stats.passk import Floats


@lru_cache(maxsize=1024)
def expected_maximum(candidates: int) -> float:
    """E max of `candidates` independent standard normals: .564 (2), 1.16 (5), 2.04 (30)."""
    if candidates < 1:
        raise DataError("a maximum needs at least one candidate")
    if candidates == 1:
        return 0.0
    density = lambda x: x * candidates * norm.pdf(x) * norm.cdf(x) ** (candidates - 1)  # noqa: E731
    return float(quad(density, -10, 12, limit=200, epsabs=1e-12)[0])


@dataclass(frozen=True)
class Optimism:
    """Expected excess of a chosen checkpoint's score over its true value."""

    reported: float
    after_fresh_attempts: float


def expected_optimism(candidates: int, true_sd: float, task_sd: float, attempt_sd: float) -> Optimism:
    """Optimism of the best of `candidates` exchangeable checkpoints, all arguments in score units.

    true_sd: spread of their true scores; task_sd: checkpoint × task noise, the same whenever these tasks are
    used; attempt_sd: attempt noise of the score that chose. κ·(task² + attempt²)/total if that score is
    reported, κ·task²/total after fresh attempts on the same tasks, nothing on held-out tasks.
    """
    if min(true_sd, task_sd, attempt_sd) < 0:
        raise DataError("standard deviations cannot be negative")
    total = sqrt(true_sd**2 + task_sd**2 + attempt_sd**2)
    if total == 0:
        return Optimism(0.0, 0.0)
    scale = expected_maximum(candidates) / total
    return Optimism(scale * (task_sd**2 + attempt_sd**2), scale * task_sd**2)


@dataclass(frozen=True, eq=False)
class Selected:
    """A run's score under three rules. `task_scores` [T] are the cross-fitted ones: use them in comparisons.

    best: highest mean on the very tasks that chose it. last: final checkpoint, no choice. cross_fitted: each
    fold scored by the checkpoint that the other folds chose. `chosen` [folds] are checkpoint indices.
    """

    best: float
    best_checkpoint: int
    last: float
    cross_fitted: float
    task_scores: Floats
    chosen: tuple[int, ...]

    @property
    def optimism(self) -> float:
        """Best minus cross-fitted: what the choice added, in these data."""
        return self.best - self.cross_fitted


def select_checkpoint(scores: ArrayLike, *, rng: Generator, folds: int = 2) -> Selected:
    """Cross-fitted checkpoint selection for one run; scores [M, T], checkpoints in training order.

    Ties go to the earlier checkpoint. Folds are random and differ by at most one task. Raises DataError for
    fewer tasks than folds or fewer than two folds.
    """
    table = _table(scores)
    checkpoints, tasks = table.shape
    if not 2 <= folds <= tasks:
        raise DataError(
            f"{folds} folds of {tasks} tasks", key="folds", remedy="2 folds or more, one task each"
        )
    fold_of = rng.permutation(np.arange(tasks) % folds)
    task_scores = np.empty(tasks)
    chosen = []
    for fold in range(folds):
        held_out = fold_of == fold
        pick = int(table[:, ~held_out].mean(axis=1).argmax())
        task_scores[held_out] = table[pick, held_out]
        chosen.append(pick)
    means = table.mean(axis=1)
    best = int(means.argmax())
    return Selected(
        best=float(means[best]),
        best_checkpoint=best,
        last=float(means[checkpoints - 1]),
        cross_fitted=float(task_scores.mean()),
        task_scores=task_scores,
        chosen=tuple(chosen),
    )


def select_on(scores: ArrayLike, choosing: NDArray[np.bool_]) -> tuple[int, float]:
    """Nested selection: the checkpoint best on the tasks `choosing` [T], and its mean on all other tasks.

    Raises DataError unless both splits have tasks.
    """
    table = _table(scores)
    if choosing.shape != (table.shape[1],) or choosing.all() or not choosing.any():
        raise DataError("nested selection needs tasks to choose on and other tasks to report on")
    pick = int(table[:, choosing].mean(axis=1).argmax())
    return pick, float(table[pick, ~choosing].mean())


def _table(scores: ArrayLike) -> Floats:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.all(np.isfinite(table)):
        raise DataError("checkpoint selection takes a finite table of checkpoints × tasks")
    return table
