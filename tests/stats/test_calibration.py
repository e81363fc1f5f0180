"""Self-tests under known truth: false-positive rates and coverage of the estimators as they are called.

Small and quick here; benchmarks/calibration.py prints the full tables.
"""

from __future__ import annotations

import numpy as np
import pytest

from turnscale.stats.intervals import compare
from turnscale.stats.passk import Metric
from turnscale.stats.question import NotEstimable, Question

from .helpers import counts, draw_tasks, simulate_pair

PASS1 = Metric("pass_at", 1)


def band(rate: float, studies: int, sds: float = 3.5) -> float:
    return sds * np.sqrt(rate * (1 - rate) / studies)


@pytest.mark.parametrize(("seeds", "size"), [(3, 0.035), (5, 0.044), (10, 0.049)])
def test_welch_false_positive_rate(seeds, size):
    """Gaussian seed means at the resolution of 10,000 attempts; Welch's test is conservative at 3 seeds.

    `size` is the rate of scipy's Welch test on 400,000 Gaussian studies.
    """
    rng = np.random.default_rng(seeds)
    studies = 2000
    hits = 0
    for _ in range(studies):
        a, b = np.rint(5e3 + 5e2 * rng.standard_normal((2, seeds, 1))).astype(int)
        hits += compare(counts(a, 10**4), counts(b, 10**4), PASS1, Question.METHOD_RETRAINED).p < 0.05
    assert hits / studies == pytest.approx(size, abs=band(size, studies))


@pytest.mark.parametrize(("seeds", "tasks"), [(3, 50), (5, 100)])
def test_crossed_interval_covers_on_new_tasks(seeds, tasks):
    """New seeds and new tasks each time, no true difference: at least 94 % of the intervals hold zero."""
    rng = np.random.default_rng(1)
    covered = sum(
        not compare(
            *simulate_pair(rng, seeds=seeds, tasks=tasks, attempts=1, seed_sd=0.25),
            PASS1,
            Question.METHOD_NEW_TASKS,
        ).significant
        for _ in range(1000)
    )
    assert covered / 1000 >= 0.94


def test_attempt_interval_covers_on_fixed_checkpoints_for_pass_at_k():
    rng = np.random.default_rng(2)
    studies, metric = 1000, Metric("pass_at", 4)
    p = rng.beta(0.4, 0.6, (2, 60))
    truth = np.diff(((1 - p) ** 4).mean(axis=1))[0]
    covered = 0
    for _ in range(studies):
        arms = [counts(rng.binomial(8, row)[None], 8) for row in p]
        found = compare(*arms, metric, Question.THESE_CHECKPOINTS)
        covered += found.lo <= truth <= found.hi
    assert covered / studies == pytest.approx(0.95, abs=band(0.95, studies))


def test_task_interval_covers_on_new_tasks_of_the_same_checkpoints():
    rng = np.random.default_rng(3)
    studies = 1000
    covered = sum(
        not compare(
            *simulate_pair(rng, seeds=1, tasks=80, attempts=4), PASS1, Question.TASKS_LIKE_THESE
        ).significant
        for _ in range(studies)
    )
    assert covered / studies == pytest.approx(0.95, abs=band(0.95, studies))


def test_evaluation_noise_alone_makes_false_method_claims():
    """With one seed per arm and seed noise, the attempt interval rejects often; asked about the method it refuses."""
    rng = np.random.default_rng(4)
    tasks = draw_tasks(rng, 100, method_task_sd=0.0)
    hits = 0
    for _ in range(300):
        a, b = simulate_pair(rng, seeds=1, tasks=100, attempts=32, seed_sd=0.25, fixed_tasks=tasks)
        hits += compare(a, b, PASS1, Question.THESE_CHECKPOINTS).significant
        assert isinstance(compare(a, b, PASS1, Question.METHOD_RETRAINED), NotEstimable)
        assert isinstance(compare(a, b, PASS1, Question.METHOD_NEW_TASKS), NotEstimable)
    assert hits / 300 > 0.4
