"""Curves over k with one band for the whole curve."""

from __future__ import annotations

import numpy as np
import pytest

from turnscale.errors import DataError
from turnscale.stats.curves import Curve, curve
from turnscale.stats.intervals import compare
from turnscale.stats.passk import Metric
from turnscale.stats.question import NotEstimable, Question

from .helpers import counts, draw_tasks, simulate_pair

KS = (1, 2, 4, 8)


def test_points_and_errors_are_those_of_single_comparisons_and_the_band_is_wider():
    rng = np.random.default_rng(0)
    a, b = simulate_pair(rng, seeds=5, tasks=40, attempts=16, seed_sd=0.4)
    for question in Question:
        for kind in ("pass_at", "pass_hat"):
            found = curve([a, b], KS, kind, question, rng=rng)
            assert isinstance(found, Curve)
            for i, k in enumerate(KS):
                single = compare(a, b, Metric(kind, k), question)
                assert (found.value[i], found.se[i]) == pytest.approx((single.difference, single.se))
                assert found.lo[i] <= single.lo + 0.01 * single.se or single.lo == -1
                assert found.hi[i] >= single.hi - 0.01 * single.se or single.hi == 1


def test_one_arm_curve_rises_for_pass_at_and_falls_for_pass_hat():
    arm, _ = simulate_pair(np.random.default_rng(1), seeds=4, tasks=30, attempts=16)
    rng = np.random.default_rng(2)
    up = curve([arm], KS, "pass_at", Question.TASKS_LIKE_THESE, rng=rng)
    down = curve([arm], KS, "pass_hat", Question.TASKS_LIKE_THESE, rng=rng)
    assert np.all(np.diff(up.value) > 0) and np.all(np.diff(down.value) < 0)
    assert np.all(up.hi <= 1) and np.all(down.lo >= 0)


def test_a_point_that_never_varies_has_no_limits():
    c = np.array([[4, 4, 5, 4], [4, 6, 4, 7], [5, 4, 4, 6]])
    found = curve([counts(c, 8)], (1, 8), "pass_at", Question.METHOD_RETRAINED, rng=np.random.default_rng(0))
    assert np.isfinite(found.lo[0]) and np.isnan(found.lo[1]) and found.value[1] == 1


def test_refusals():
    rng = np.random.default_rng(0)
    a, b = simulate_pair(rng, seeds=1, tasks=10, attempts=8)
    assert isinstance(curve([a, b], KS, "pass_at", Question.METHOD_RETRAINED, rng=rng), NotEstimable)
    assert isinstance(curve([a, b], KS, "pass_at", Question.THESE_CHECKPOINTS, rng=rng), NotEstimable)
    assert isinstance(curve([a, b], KS[:3], "pass_at", Question.THESE_CHECKPOINTS, rng=rng), Curve)
    for ks in ((), (1, 1), (1, 9)):
        with pytest.raises(DataError):
            curve([a, b], ks, "pass_at", Question.TASKS_LIKE_THESE, rng=rng)


def test_band_covers_the_whole_curve_with_three_seeds():
    """Method question on fixed tasks without a method effect beyond the tasks: true difference from many seeds."""
    rng = np.random.default_rng(7)
    tasks = draw_tasks(rng, 30)
    many = simulate_pair(rng, seeds=4000, tasks=30, attempts=16, seed_sd=0.5, fixed_tasks=tasks)
    truth = np.array([np.subtract(*(arm.scores(Metric("pass_at", k)).mean() for arm in many)) for k in KS])
    covered = 0
    for _ in range(300):
        pair = simulate_pair(rng, seeds=3, tasks=30, attempts=16, seed_sd=0.5, fixed_tasks=tasks)
        found = curve(pair, KS, "pass_at", Question.METHOD_RETRAINED, rng=rng)
        covered += bool(np.all((found.lo <= truth) & (truth <= found.hi)))
    assert 0.91 <= covered / 300 <= 1
