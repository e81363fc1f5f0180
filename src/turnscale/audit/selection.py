"""What choosing the best checkpoint, or the best of several configurations, does to a reported level or ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnscale.errors import DataError
from turnscale.stats.selection import Optimism, expected_optimism


def selection_optimism(
    level: float, icc: float, n_tasks: int, rollouts: int, checkpoints: int, correlation: float
) -> Optimism:
    """Bias, in points, of the best of equally good checkpoints chosen by success on the evaluation tasks.

    ``level`` and ``icc`` describe single-rollout success as fractions; ``correlation`` is that of per-task success
    between neighbouring checkpoints. Task luck has variance (1-r)·icc·p(1-p)/T, rollout noise (1-icc)·p(1-p)/(R·T).
    """
    spread = level * (1.0 - level) / n_tasks
    return expected_optimism(
        checkpoints,
        true_sd=0.0,
        task_sd=100.0 * math.sqrt((1.0 - correlation) * icc * spread),
        attempt_sd=100.0 * math.sqrt((1.0 - icc) * spread / rollouts),
    )


def best_everywhere_bound(configurations: Sequence[int], competitors: int) -> float:
    """Chance that one method wins every metric although all methods are equal.

    ``configurations`` holds, for each independent training run behind the metrics, how many configurations the
    authors could have picked from; metrics of one run are taken as fully correlated. The product of H / (H + K).
    """
    if competitors < 1 or any(h < 1 for h in configurations):
        raise DataError(
            "needs at least one competitor and one configuration per run.",
            key="competitors",
            remedy="give counts of 1 or more.",
        )
    return math.prod(h / (h + competitors) for h in configurations)
