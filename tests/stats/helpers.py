"""Known-truth data for the estimator tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from turnscale.stats.outcomes import Counts

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "reference_values.json").read_text(encoding="utf-8")
)


def counts(c, n, arm: str = "arm", **options) -> Counts:
    """Counts from nested lists or arrays; `n` may be one number."""
    successes = np.atleast_2d(np.asarray(c, dtype=np.int64))
    attempts = np.broadcast_to(np.asarray(n, dtype=np.int64), successes.shape).copy()
    rows, columns = successes.shape
    return Counts(
        arm, tuple(range(rows)), tuple(f"t{i:03d}" for i in range(columns)), successes, attempts, **options
    )


def simulate_pair(
    rng: Generator,
    *,
    seeds: int,
    tasks: int,
    attempts: int,
    seed_sd: float = 0.0,
    task_sd: float = 2.0,
    method_task_sd: float = 0.5,
    seed_task_sd: float = 0.5,
    fixed_tasks: tuple | None = None,
) -> tuple[Counts, Counts]:
    """Two arms without a method effect: logistic success with task, method × task, seed and seed × task effects.

    `fixed_tasks` = (task [T], method × task [2, T]) keeps the tasks the same over calls; otherwise drawn anew.
    """
    if fixed_tasks is None:
        task, method_task = draw_tasks(rng, tasks, task_sd, method_task_sd)
    else:
        task, method_task = fixed_tasks
    arms = []
    for arm in range(2):
        logit = (
            task
            + method_task[arm]
            + seed_sd * rng.standard_normal((seeds, 1))
            + seed_task_sd * rng.standard_normal((seeds, tasks))
        )
        c = rng.binomial(attempts, 1 / (1 + np.exp(-logit)))
        arms.append(counts(c, attempts, arm="ab"[arm]))
    return arms[0], arms[1]


def draw_tasks(rng: Generator, tasks: int, task_sd: float = 2.0, method_task_sd: float = 0.5):
    """Task effects [T] and method × task effects [2, T], on the logit scale."""
    return task_sd * rng.standard_normal(tasks), method_task_sd * rng.standard_normal((2, tasks))
