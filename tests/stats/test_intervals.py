"""Known answers, invariances and refusals of the four interval estimators."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from turnscale.errors import DataError
from turnscale.stats.intervals import compare, estimate
from turnscale.stats.passk import Metric
from turnscale.stats.power import seed_sd_tolerance
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question
from turnscale.stats.spread import cluster_columns, combine, parts_for

from .helpers import REFERENCE, counts, simulate_pair

PASS1 = Metric("pass_at", 1)
tables = st.integers(0, 10_000).map(
    lambda seed: simulate_pair(np.random.default_rng(seed), seeds=4, tasks=12, attempts=8, seed_sd=0.3)
)


def test_welch_reference():
    """Seed means of 48.1, 46.9, 49.4 against 44.0, 45.1, 42.7 per cent, spread over 1,000 attempts of one task."""
    case = REFERENCE["welch"]
    a, b = ([[round(10 * x)] for x in case[arm]] for arm in "AB")
    found = compare(counts(a, 1000, arm="a"), counts(b, 1000, arm="b"), PASS1, Question.METHOD_RETRAINED)
    assert isinstance(found, Comparison)
    assert found.difference / found.se == pytest.approx(case["t"], rel=1e-12)
    assert found.df == pytest.approx(case["df"], rel=1e-12)
    assert found.p == pytest.approx(case["p"], rel=1e-10)
    assert [100 * found.lo, 100 * found.hi] == pytest.approx(case["ci"], rel=1e-9)
    assert (found.n_seeds_a, found.n_seeds_b, found.n_tasks, found.n_attempts) == (3, 3, 1, 1000)


def test_one_arm_reference_standard_errors():
    case = REFERENCE["variance_components"]
    arm = counts(np.round(10 * np.array(case["Y"])), 10)
    errors = {
        Question.METHOD_RETRAINED: case["SE_seeds_only"],
        Question.TASKS_LIKE_THESE: case["SE_tasks_only"],
        Question.METHOD_NEW_TASKS: case["SE_both"],
    }
    for question, se in errors.items():
        found = estimate(arm, PASS1, question)
        assert isinstance(found, Estimate)
        assert found.se == pytest.approx(se, rel=1e-9)
        assert found.value == pytest.approx(0.5)


@given(tables)
@settings(max_examples=20)
def test_questions_agree_with_direct_formulae(pair):
    a, b = pair
    x, y = a.scores(PASS1), b.scores(PASS1)
    welch = scipy_stats.ttest_ind(x.mean(axis=1), y.mean(axis=1), equal_var=False)
    found = compare(a, b, PASS1, Question.METHOD_RETRAINED)
    assert found.p == pytest.approx(welch.pvalue, rel=1e-9)
    paired = scipy_stats.ttest_rel(x.mean(axis=0), y.mean(axis=0))
    found = compare(a, b, PASS1, Question.TASKS_LIKE_THESE)
    assert found.p == pytest.approx(paired.pvalue, rel=1e-9)
    fixed = compare(a, b, PASS1, Question.THESE_CHECKPOINTS)
    n = a.attempts
    variance = sum((s * (1 - s) / (n - 1)).sum() / s.size**2 for s in (x, y))
    assert fixed.se == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert fixed.df == math.inf
    crossed = compare(a, b, PASS1, Question.METHOD_NEW_TASKS)
    assert crossed.se >= compare(a, b, PASS1, Question.METHOD_RETRAINED).se - 1e-12
    assert crossed.se >= found.se - 1e-12


@given(tables, st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_order_of_seeds_and_tasks_does_not_matter_and_arms_are_antisymmetric(pair, random):
    a, b = pair
    rows = random.sample(range(4), 4)
    columns = random.sample(range(12), 12)
    moved = [
        counts(arm.c[np.ix_(rows, columns)], arm.n[np.ix_(rows, columns)], arm=arm.arm) for arm in (a, b)
    ]
    for question in Question:
        for metric in (PASS1, Metric("pass_at", 3), Metric("pass_hat", 4)):
            here, there = compare(a, b, metric, question), compare(*moved, metric, question)
            back = compare(b, a, metric, question)
            assert (here.difference, here.se, here.df) == pytest.approx(
                (there.difference, there.se, there.df)
            )
            assert (here.lo, here.hi, here.p) == pytest.approx((-back.hi, -back.lo, back.p))


def test_crossed_estimator_removes_the_double_count():
    rng = np.random.default_rng(5)
    a, b = simulate_pair(rng, seeds=5, tasks=40, attempts=16, seed_sd=0.5)
    x, y = a.scores(PASS1), b.scores(PASS1)
    d = x.mean(axis=0) - y.mean(axis=0)

    def residual(z):
        e = z - z.mean(axis=0) - z.mean(axis=1, keepdims=True) + z.mean()
        return (e**2).sum() / ((z.shape[0] - 1) * (z.shape[1] - 1))

    by_hand = (
        (x.mean(axis=1).var(ddof=1) + y.mean(axis=1).var(ddof=1)) / 5
        + d.var(ddof=1) / 40
        - (residual(x) + residual(y)) / 200
    )
    assert compare(a, b, PASS1, Question.METHOD_NEW_TASKS).se == pytest.approx(math.sqrt(by_hand))


def test_clusters_are_never_split():
    """Doubling every task inside a cluster adds no information about new clusters."""
    rng = np.random.default_rng(1)
    a, b = simulate_pair(rng, seeds=3, tasks=20, attempts=16)
    labels = np.repeat(np.arange(20), 2)
    doubled = [counts(np.repeat(arm.c, 2, axis=1), 16, arm=arm.arm, clusters=labels) for arm in (a, b)]
    blind = [counts(np.repeat(arm.c, 2, axis=1), 16, arm=arm.arm) for arm in (a, b)]
    for question in (Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS):
        single, kept = compare(a, b, PASS1, question), compare(*doubled, PASS1, question)
        assert (single.se, single.df) == pytest.approx((kept.se, kept.df))
        assert kept.notes[0] == "40 tasks in 20 clusters"
    assert compare(*blind, PASS1, Question.TASKS_LIKE_THESE).se < 0.8 * kept.se


@given(st.integers(0, 1000), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_cluster_columns_keep_means_and_give_the_robust_variance(seed, raw):
    labels = np.unique(raw, return_inverse=True)[1]
    groups = labels.max() + 1
    scores = np.random.default_rng(seed).random((3, 8, 1))
    columns = cluster_columns(scores, labels)
    np.testing.assert_allclose(columns.mean(axis=1), scores.mean(axis=1))
    if groups > 1:
        means = scores.mean(axis=0)[:, 0]
        sums = np.array([(means - means.mean())[labels == g].sum() for g in range(groups)])
        robust = groups / (groups - 1) * (sums**2).sum() / 64
        assert columns.mean(axis=0)[:, 0].var(ddof=1) / groups == pytest.approx(robust, abs=1e-15)


def test_one_seed_never_makes_a_method_claim():
    rng = np.random.default_rng(0)
    a, b = simulate_pair(rng, seeds=1, tasks=50, attempts=32)
    five, _ = simulate_pair(rng, seeds=5, tasks=50, attempts=32)
    for question in (Question.METHOD_RETRAINED, Question.METHOD_NEW_TASKS):
        assert isinstance(estimate(a, PASS1, question), NotEstimable)
        for pair in ((a, b), (five, b), (a, five)):
            found = compare(*pair, PASS1, question)
            assert isinstance(found, NotEstimable)
            assert "one seed" in found.reason and "seeds" in found.remedy
    assert isinstance(compare(a, b, PASS1, Question.THESE_CHECKPOINTS), Comparison)
    assert isinstance(compare(a, b, PASS1, Question.TASKS_LIKE_THESE), Comparison)


def test_seed_sd_tolerance_comes_with_the_refusal():
    a = counts([[40, 20, 30, 35]], 50, arm="a")
    b = counts([[20, 15, 20, 30]], 50, arm="b")
    found = compare(a, b, PASS1, Question.METHOD_RETRAINED)
    easier = compare(a, b, PASS1, Question.THESE_CHECKPOINTS)
    assert found.seed_sd_tolerance == pytest.approx(seed_sd_tolerance(found.value, easier.se))
    assert f"{found.seed_sd_tolerance:.4f}" in str(found)
    same = compare(a, a, PASS1, Question.METHOD_RETRAINED)
    assert same.seed_sd_tolerance is None and "not distinguishable" in same.notes[-1]


def test_few_attempts_have_no_attempt_interval():
    arm = counts([[1, 0, 1], [0, 1, 1]], 1)
    found = estimate(arm, PASS1, Question.THESE_CHECKPOINTS)
    assert isinstance(found, NotEstimable) and found.value == pytest.approx(4 / 6)
    arm = counts([[3, 0, 7], [4, 1, 2]], 8)
    assert isinstance(estimate(arm, Metric("pass_at", 5), Question.THESE_CHECKPOINTS), NotEstimable)
    assert isinstance(estimate(arm, Metric("pass_at", 4), Question.THESE_CHECKPOINTS), Estimate)
    coarse = estimate(arm, Metric("pass_at", 5), Question.TASKS_LIKE_THESE)
    assert "run at least 10" in coarse.notes[0]
    with pytest.raises(DataError, match="k = 9"):
        estimate(arm, Metric("pass_at", 9), Question.TASKS_LIKE_THESE)


def test_no_interval_of_zero_width():
    failed = counts(np.zeros((1, 10)), 32)
    found = estimate(failed, PASS1, Question.THESE_CHECKPOINTS)
    assert (found.lo, found.hi) == pytest.approx((0, 1 - 0.05 ** (1 / 320)))
    won = estimate(counts(np.full((1, 10), 32), 32), PASS1, Question.THESE_CHECKPOINTS)
    assert (won.lo, won.hi) == pytest.approx((0.05 ** (1 / 320), 1))
    for question in (Question.METHOD_RETRAINED, Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS):
        assert isinstance(estimate(counts(np.full((3, 10), 7), 32), PASS1, question), NotEstimable)
    rows = counts(np.tile([3, 7, 9, 11, 1], (3, 1)), 12)
    for found in (
        estimate(rows, PASS1, Question.METHOD_RETRAINED),
        compare(rows, rows, PASS1, Question.METHOD_RETRAINED),
        compare(rows, rows, PASS1, Question.TASKS_LIKE_THESE),
        estimate(counts([[0, 12, 12]], 12), PASS1, Question.THESE_CHECKPOINTS),
    ):
        assert isinstance(found, NotEstimable) and "no variation" in found.reason


def test_one_task_or_one_cluster_says_nothing_about_other_tasks():
    arm = counts([[1, 5, 3], [2, 6, 4]], 8, clusters=np.array([4, 4, 4]))
    for question in (Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS):
        assert isinstance(estimate(arm, PASS1, question), NotEstimable)
    assert isinstance(estimate(arm, PASS1, Question.METHOD_RETRAINED), Estimate)


def test_an_untrained_checkpoint_is_held_fixed():
    rng = np.random.default_rng(3)
    arm, other = simulate_pair(rng, seeds=5, tasks=30, attempts=16, seed_sd=0.4)
    base = counts(other.c[:1], 16, arm="base", untrained=True)
    found = compare(arm, base, PASS1, Question.METHOD_RETRAINED)
    seed_part = arm.scores(PASS1).mean(axis=1).var(ddof=1) / 5
    p = base.scores(PASS1)
    assert found.se**2 == pytest.approx(seed_part + (p * (1 - p) / 15).sum() / 30**2)
    assert found.df >= 4 and "base is an untrained checkpoint, held fixed" in found.notes
    assert isinstance(compare(arm, base, PASS1, Question.METHOD_NEW_TASKS), Comparison)
    assert isinstance(estimate(base, PASS1, Question.METHOD_RETRAINED), NotEstimable)
    assert isinstance(compare(base, base, PASS1, Question.METHOD_RETRAINED), NotEstimable)


def test_limits_stay_inside_the_possible_and_level_widens():
    arm = counts([[8, 8, 7], [8, 2, 8]], 8)
    narrow, wide = (estimate(arm, PASS1, Question.METHOD_RETRAINED, level=level) for level in (0.5, 0.99))
    assert 0 <= wide.lo < narrow.lo < narrow.value < narrow.hi < wide.hi == 1
    assert narrow.mde < wide.mde
    with pytest.raises(DataError, match="level"):
        estimate(arm, PASS1, Question.METHOD_RETRAINED, level=95)


def test_variance_is_floored_at_its_larger_component():
    """A negative task-and-seed estimate cannot shrink the error below the seed part or the task part."""
    checker = counts([[10, 0] * 4, [0, 10] * 4], 10)
    parts = parts_for(Question.METHOD_NEW_TASKS, [checker], [PASS1])
    residual = next(part for part in parts if part.name == "residual")
    assert residual.cov[0, 0] > 0
    se, df, _ = combine(parts)
    assert se[0] == 0 or df[0] > 0
    shifted = counts([[10, 0] * 4, [0, 9] * 4], 10)
    parts = parts_for(Question.METHOD_NEW_TASKS, [shifted], [PASS1])
    se, df, _ = combine(parts)
    largest = max((part for part in parts if part.sign > 0), key=lambda part: part.cov[0, 0])
    assert se[0] == pytest.approx(math.sqrt(largest.cov[0, 0]))
    assert df[0] == pytest.approx(largest.df)


def test_mde_is_found_four_times_in_five():
    """Shifting one arm by the reported detectable effect rejects about 80 % of the time."""
    rng = np.random.default_rng(11)
    se, df = 1.0, 8.0
    from turnscale.stats.power import minimum_detectable

    shift = minimum_detectable(se, df)
    t = (rng.standard_normal(40_000) + shift) / np.sqrt(rng.chisquare(df, 40_000) / df)
    assert np.mean(np.abs(t) > scipy_stats.t.ppf(0.975, df)) == pytest.approx(0.8, abs=0.01)
