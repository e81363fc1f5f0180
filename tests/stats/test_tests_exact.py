"""Exact tests: known p values, floors, refusals, exactness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from turnscale.errors import DataError
from turnscale.stats.passk import Metric
from turnscale.stats.question import NotEstimable, Question
from turnscale.stats.tests_exact import (
    ExactTest,
    flip_seed_pairs,
    flip_task_clusters,
    mcnemar,
    mcnemar_counts,
    permutation_floor,
    permute_seeds,
    sign_flip_floor,
)

from .helpers import REFERENCE, counts, simulate_pair

PASS1 = Metric("pass_at", 1)
scores = st.lists(st.integers(0, 20).map(float), min_size=2, max_size=5)


def test_reference_permutation_and_floor():
    case = REFERENCE["welch"]
    found = permute_seeds(case["A"], case["B"], alpha=0.1)
    assert isinstance(found, ExactTest)
    assert found.p == pytest.approx(case["exact_permutation_p_two_sided"])
    assert found.p == found.floor == found.attainable and found.arrangements == 20


@pytest.mark.parametrize(("seeds", "floor"), REFERENCE["min_two_sided_p_permutation_seeds"].items())
def test_permutation_floors(seeds, floor):
    assert permutation_floor(int(seeds), int(seeds)) == pytest.approx(floor)


@pytest.mark.parametrize(("pairs", "floor"), REFERENCE["min_two_sided_p_signflip_pairs"].items())
def test_sign_flip_floors(pairs, floor):
    assert sign_flip_floor(int(pairs)) == pytest.approx(floor)


def test_a_level_below_the_floor_is_refused_with_the_seeds_that_would_do():
    found = permute_seeds([1.0, 2, 3], [7.0, 8, 9], alpha=0.05)
    assert isinstance(found, NotEstimable)
    assert "0.1" in found.reason and "4 seeds per arm" in found.remedy
    found = flip_seed_pairs([1.0, 2, 3, 4, 5], [7.0, 8, 9, 9, 9], alpha=0.05)
    assert isinstance(found, NotEstimable) and "6 seed pairs" in found.remedy
    assert isinstance(permute_seeds([1.0, 2, 3, 4], [7.0, 8, 9, 9], alpha=0.05), ExactTest)


@given(scores, scores)
@settings(max_examples=60)
def test_permutation_p_is_the_share_of_listed_splits(a, b):
    found = permute_seeds(a, b, alpha=1.0)
    pooled = np.array(a + b)
    observed = abs(np.mean(a) - np.mean(b))
    stats = []
    for chosen in combinations(range(len(pooled)), len(a)):
        mask = np.zeros(len(pooled), dtype=bool)
        mask[list(chosen)] = True
        stats.append(abs(pooled[mask].mean() - pooled[~mask].mean()))
    assert found.p == pytest.approx(np.mean(np.array(stats) >= observed - 1e-9))
    assert found.attainable == pytest.approx(np.mean(np.array(stats) >= max(stats) - 1e-9))
    assert found.floor <= found.attainable + 1e-12 and found.attainable <= found.p + 1e-12


@given(scores, st.floats(-5, 5), st.floats(0.1, 10))
@settings(max_examples=30)
def test_permutation_p_ignores_shift_and_scale(values, shift, scale):
    a, b = np.array(values), np.array(values[::-1]) + 1.5
    base = permute_seeds(a, b, alpha=1.0)
    moved = permute_seeds(scale * a + shift, scale * b + shift, alpha=1.0)
    assert base.p == pytest.approx(moved.p)


def test_permutation_is_exact_under_the_null():
    """With continuous data and p attainable in steps of 2/70, P(p <= 4/70) is exactly 4/70."""
    rng = np.random.default_rng(0)
    p = np.array([permute_seeds(*rng.standard_normal((2, 4)), alpha=1.0).p for _ in range(3000)])
    for steps in (2, 4, 14):
        assert np.mean(p <= steps / 70 + 1e-9) == pytest.approx(
            steps / 70, abs=4 * np.sqrt(steps / 70 / 3000)
        )


def test_too_many_seeds_to_list():
    with pytest.raises(DataError, match="too many"):
        permute_seeds(np.arange(13.0), np.arange(13.0), alpha=0.05)


def test_sign_flip_agrees_with_wilcoxon_on_signs_and_with_listing():
    rng = np.random.default_rng(1)
    d = rng.standard_normal(10) + 0.5
    found = flip_seed_pairs(d, np.zeros(10))
    signs = np.array(np.meshgrid(*[[-1, 1]] * 10)).reshape(10, -1)
    assert found.p == pytest.approx(np.mean(np.abs(signs.T @ d) >= abs(d.sum()) - 1e-9))
    assert found.attainable == pytest.approx(2 / 1024)


def test_task_clusters_flip_together():
    rng = np.random.default_rng(2)
    a, b = simulate_pair(rng, seeds=2, tasks=9, attempts=16)
    single = flip_task_clusters(a, b, PASS1)
    labels = np.repeat(np.arange(9), 3)
    tripled = [counts(np.repeat(arm.c, 3, axis=1), 16, arm=arm.arm, clusters=labels) for arm in (a, b)]
    kept = flip_task_clusters(*tripled, PASS1)
    assert single.question is Question.TASKS_LIKE_THESE
    assert (single.p, single.difference) == pytest.approx((kept.p, kept.difference))
    blind = [counts(arm.c, 16, arm=arm.arm) for arm in tripled]
    assert flip_task_clusters(*blind, PASS1, rng=rng).p < kept.p


def test_many_clusters_need_a_generator_and_agree_with_the_t_test():
    rng = np.random.default_rng(3)
    a, b = simulate_pair(rng, seeds=3, tasks=120, attempts=16)
    with pytest.raises(DataError, match="too many to flip"):
        flip_task_clusters(a, b, PASS1)
    found = flip_task_clusters(a, b, PASS1, rng=rng)
    x, y = (arm.scores(PASS1).mean(axis=0) for arm in (a, b))
    assert not found.exact and found.arrangements == 99_999
    assert found.p == pytest.approx(scipy_stats.ttest_rel(x, y).pvalue, abs=0.02)


@pytest.mark.parametrize(("case", "p"), REFERENCE["mcnemar_exact"].items())
def test_mcnemar_reference(case, p):
    won, lost = (int(part.split("=")[1]) for part in case.split(","))
    assert mcnemar(won, lost) == pytest.approx(p)
    assert mcnemar(won, lost) == mcnemar(lost, won)


def test_mcnemar_from_counts_takes_one_attempt_only():
    a, b = counts([[1, 1, 1, 1, 1, 1, 0, 1]], 1, arm="a"), counts([[0, 0, 0, 0, 0, 0, 0, 1]], 1, arm="b")
    found = mcnemar_counts(a, b)
    assert (found.p, found.floor, found.difference) == pytest.approx((0.03125, 0.03125, 6 / 8))
    assert mcnemar_counts(a, a).p == 1.0
    for other in (counts([[1] * 8], 2, arm="b"), counts([[1] * 8] * 2, 1, arm="b")):
        with pytest.raises(DataError, match="one attempt per task"):
            mcnemar_counts(a, other)
