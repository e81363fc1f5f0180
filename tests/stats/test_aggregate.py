"""Robust aggregates and their whole-row intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from turnscale.errors import DataError
from turnscale.stats.aggregate import (
    improvement_interval,
    interquartile_mean,
    iqm_interval,
    optimality_gap,
    optimality_gap_interval,
    performance_profile,
    probability_of_improvement,
    profile_band,
)
from turnscale.stats.passk import Metric
from turnscale.stats.question import Estimate, NotEstimable, Question

from .helpers import REFERENCE, counts, draw_tasks, simulate_pair

X = np.array(REFERENCE["variance_components"]["Y"])
Y = np.array(REFERENCE["PoI_y"])
PASS1 = Metric("pass_at", 1)


def test_reference_values():
    assert interquartile_mean(X) == pytest.approx(REFERENCE["IQM"])
    assert optimality_gap(X) == pytest.approx(REFERENCE["optimality_gap_gamma1"])
    assert probability_of_improvement(X, Y) == pytest.approx(REFERENCE["PoI"])
    profile = REFERENCE["perf_profile_tau"]
    np.testing.assert_allclose(
        performance_profile(X, [float(tau) for tau in profile]), list(profile.values())
    )


@given(st.integers(1, 6), st.integers(1, 30), st.integers(2, 9), st.integers(0, 1000))
def test_iqm_is_the_quarter_trimmed_mean(rows, columns, levels, seed):
    table = np.random.default_rng(seed).integers(0, levels + 1, (rows, columns)) / levels
    if np.all((table == 0) | (table == 1)):
        with pytest.raises(DataError, match="0/1 cells"):
            interquartile_mean(table)
    else:
        assert interquartile_mean(table) == pytest.approx(trim_mean(table, 0.25, axis=None))


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_probability_of_improvement_is_mean_mann_whitney(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 5, (4, 6)), rng.integers(0, 5, (3, 6))
    expected = np.mean([mannwhitneyu(x[:, t], y[:, t]).statistic / 12 for t in range(6)])
    assert probability_of_improvement(x, y) == pytest.approx(expected)
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)
    assert probability_of_improvement(x, x) == pytest.approx(0.5)


def test_one_run_per_arm_is_the_share_of_tasks_won():
    assert probability_of_improvement([[1, 2, 3, 4]], [[0, 2, 5, 1]]) == pytest.approx(2.5 / 4)


def test_iqm_refuses_binary_cells_and_few_attempts():
    with pytest.raises(DataError, match="0/1 cells"):
        interquartile_mean([[0, 1, 1], [1, 0, 0]])
    with pytest.raises(DataError, match="at least 8"):
        iqm_interval(counts([[1, 2], [3, 4]], 7), PASS1, rng=np.random.default_rng(0))


def brute_rows(arm, statistic, rng, resamples=3000):
    table = arm.scores(PASS1)
    return np.array([statistic(table[rng.integers(0, len(table), len(table))]) for _ in range(resamples)])


def test_intervals_match_a_loop_over_copied_rows():
    rng = np.random.default_rng(3)
    arm, other = simulate_pair(rng, seeds=12, tasks=40, attempts=16, seed_sd=0.5)
    for found, statistic in (
        (iqm_interval(arm, PASS1, rng=rng), interquartile_mean),
        (optimality_gap_interval(arm, PASS1, rng=rng, gamma=0.8), lambda x: optimality_gap(x, 0.8)),
    ):
        slow = brute_rows(arm, statistic, rng)
        assert isinstance(found, Estimate) and found.question is Question.METHOD_RETRAINED
        assert found.value == pytest.approx(statistic(arm.scores(PASS1)))
        assert found.se == pytest.approx(slow.std(), rel=0.06)
        assert (found.lo, found.hi) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.2 * slow.std())
        assert found.notes == ()
    x, y = arm.scores(PASS1), other.scores(PASS1)
    slow = [
        probability_of_improvement(x[rng.integers(0, 12, 12)], y[rng.integers(0, 12, 12)])
        for _ in range(2000)
    ]
    found = improvement_interval(arm, other, PASS1, rng=rng)
    assert found.se == pytest.approx(np.std(slow), rel=0.08)
    assert 0 <= found.lo <= found.value <= found.hi <= 1


def test_few_seeds_are_flagged_one_is_refused_none_has_zero_width():
    rng = np.random.default_rng(4)
    three, one = (simulate_pair(rng, seeds=s, tasks=20, attempts=16, seed_sd=0.5)[0] for s in (3, 1))
    assert "unreliable below 10" in iqm_interval(three, PASS1, rng=rng).notes[0]
    assert isinstance(iqm_interval(one, PASS1, rng=rng), NotEstimable)
    assert isinstance(profile_band(one, PASS1, [0.5], rng=rng), NotEstimable)
    same = counts(np.tile([3, 7, 9, 1], (10, 1)), 12)
    assert isinstance(iqm_interval(same, PASS1, rng=rng), NotEstimable)
    assert isinstance(profile_band(same, PASS1, [0.5], rng=rng), NotEstimable)


def test_profile_band_falls_and_covers_its_points():
    arm, _ = simulate_pair(np.random.default_rng(5), seeds=6, tasks=40, attempts=16, seed_sd=0.5)
    thresholds = np.linspace(0, 0.95, 20)
    found = profile_band(arm, PASS1, thresholds, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.value, performance_profile(arm.scores(PASS1), thresholds))
    assert np.all(np.diff(found.value) <= 0)
    known = np.isfinite(found.lo)
    assert np.all(found.lo[known] <= found.value[known]) and np.all(found.value[known] <= found.hi[known])


def test_whole_rows_cover_where_independent_rows_per_task_do_not():
    """Seed effects make the cells of a row move together; drawing each task's run alone averages them away."""
    rng = np.random.default_rng(6)
    tasks = draw_tasks(rng, 60)
    truth = np.mean(
        [
            simulate_pair(rng, seeds=3000, tasks=60, attempts=16, seed_sd=0.6, fixed_tasks=tasks)[0].scores(
                PASS1
            )
        ]
    )
    whole = independent = 0
    for _ in range(150):
        arm, _ = simulate_pair(rng, seeds=10, tasks=60, attempts=16, seed_sd=0.6, fixed_tasks=tasks)
        table = arm.scores(PASS1)
        found = optimality_gap_interval(arm, PASS1, rng=rng, resamples=1000)
        whole += found.lo <= 1 - truth <= found.hi
        drawn = table[rng.integers(0, 10, (300, 10, 60)), np.arange(60)].mean(axis=(1, 2))
        lo, hi = np.quantile(drawn, [0.025, 0.975])
        independent += lo <= truth <= hi
    assert whole / 150 >= 0.85
    assert independent / 150 <= 0.6
