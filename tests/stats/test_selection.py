"""Checkpoint selection: the formula, cross-fitting without bias, the remainder after fresh attempts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnscale.errors import DataError
from turnscale.stats.selection import expected_maximum, expected_optimism, select_checkpoint, select_on


@pytest.mark.parametrize(
    ("candidates", "expected"), [(5, 1.16), (10, 1.54), (20, 1.87), (30, 2.04), (60, 2.32), (270, 2.84)]
)
def test_expected_maximum(candidates, expected):
    assert expected_maximum(candidates) == pytest.approx(expected, abs=0.006)


def test_expected_maximum_in_closed_form():
    assert expected_maximum(1) == 0
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    with pytest.raises(DataError):
        expected_maximum(0)


# Mean success, intraclass correlation over tasks, tasks; neighbouring checkpoints correlate .95 over tasks.
BENCHMARKS = {
    "gaia": (0.3944, 0.67, 103, {1: (5.97, 0.54), 4: (3.37, 0.96), 32: (2.06, 1.57)}),
    "hle": (0.0992, 0.50, 500, {1: (1.95, 0.09), 4: (1.04, 0.17), 32: (0.54, 0.33)}),
    "bcp": (0.4808, 0.69, 830, {1: (2.06, 0.21), 4: (1.18, 0.37), 32: (0.74, 0.58)}),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_optimism_of_thirty_checkpoints(name):
    mean, correlation, tasks, table = BENCHMARKS[name]
    spread = mean * (1 - mean)
    task_sd = 100 * math.sqrt(0.05 * correlation * spread / tasks)
    for attempts, (reported, after) in table.items():
        attempt_sd = 100 * math.sqrt((1 - correlation) * spread / attempts / tasks)
        found = expected_optimism(30, 0.0, task_sd, attempt_sd)
        assert found.reported == pytest.approx(reported, rel=0.03)
        assert found.after_fresh_attempts == pytest.approx(after, rel=0.06, abs=0.006)


def test_optimism_formula_matches_simulation():
    rng = np.random.default_rng(0)
    shape, true_sd, task_sd, attempt_sd = (40_000, 8), 0.5, 0.7, 1.1
    truth = true_sd * rng.standard_normal(shape)
    on_tasks = truth + task_sd * rng.standard_normal(shape)
    seen = on_tasks + attempt_sd * rng.standard_normal(shape)
    rows, pick = np.arange(shape[0]), seen.argmax(axis=1)
    found = expected_optimism(8, true_sd, task_sd, attempt_sd)
    assert (seen - truth)[rows, pick].mean() == pytest.approx(found.reported, abs=0.02)
    assert (on_tasks - truth)[rows, pick].mean() == pytest.approx(found.after_fresh_attempts, abs=0.02)
    assert expected_optimism(8, 0, 0, 0).reported == 0
    with pytest.raises(DataError):
        expected_optimism(8, -1, 0, 0)


@pytest.mark.parametrize("folds", [2, 5])
def test_cross_fitting_is_unbiased_for_exchangeable_checkpoints(folds):
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(400):
        p = np.clip(
            0.4 + 0.2 * rng.standard_normal((1, 60)) + 0.1 * rng.standard_normal((20, 60)), 0.02, 0.98
        )
        found = select_checkpoint(rng.binomial(4, p) / 4, rng=rng, folds=folds)
        runs.append((found.cross_fitted - p.mean(), found.best - p.mean(), found.optimism))
    bias, error = np.mean(runs, axis=0), np.std(runs, axis=0) / 20
    assert abs(bias[0]) < 2.5 * error[0]
    assert bias[1] > 10 * error[1] and bias[2] > 10 * error[2]


def test_a_clear_winner_is_found_whatever_the_split():
    rng = np.random.default_rng(2)
    scores = np.tile(rng.random(30), (4, 1)) * 0.1
    scores[2] += 0.5
    found = select_checkpoint(scores, rng=rng, folds=3)
    assert found.chosen == (2, 2, 2) and found.best_checkpoint == 2
    assert found.best == pytest.approx(found.cross_fitted) and found.optimism == pytest.approx(0)
    np.testing.assert_allclose(found.task_scores, scores[2])
    assert found.last == pytest.approx(scores[3].mean())


def test_nested_selection_reports_on_the_other_tasks():
    scores = np.array([[1.0, 1, 0, 0], [0, 0.5, 1, 0.5]])
    assert select_on(scores, np.array([True, True, False, False])) == (0, 0.0)
    assert select_on(scores, np.array([False, False, True, True])) == (1, 0.25)
    for choosing in (np.ones(4, dtype=bool), np.zeros(4, dtype=bool), np.ones(3, dtype=bool)):
        with pytest.raises(DataError):
            select_on(scores, choosing)


def test_impossible_selections():
    rng = np.random.default_rng(0)
    for scores, folds in (([[1.0, 2.0]], 3), ([[1.0, 2.0]], 1), ([[1.0, float("nan")]], 2), ([1.0, 2.0], 2)):
        with pytest.raises(DataError):
            select_checkpoint(scores, rng=rng, folds=folds)
