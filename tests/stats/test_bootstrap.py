"""The cluster bootstrap: agreement with brute force, whole rows, refusals, bounded memory, speed."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.errors import DataError
from turnscale.stats import bootstrap
from turnscale.stats.bootstrap import (
    bootstrap_compare,
    bootstrap_estimate,
    multiplicities,
    replicates,
    studentized_interval,
    sup_t_critical,
)
from turnscale.stats.intervals import compare
from turnscale.stats.passk import Metric
from turnscale.stats.question import Comparison, NotEstimable, Question

from .helpers import counts, simulate_pair

PASS1 = Metric("pass_at", 1)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 1000))
def test_multiplicities_are_draws_with_replacement(resamples, size, seed):
    drawn = multiplicities(np.random.default_rng(seed), resamples, size)
    assert drawn.shape == (resamples, size)
    assert np.all(drawn.sum(axis=1) == size) and drawn.min() >= 0


def test_replicates_follow_the_enumerated_distribution_over_seed_rows():
    arm = counts([[9, 5, 1], [2, 4, 0], [7, 7, 7]], 10)
    means = arm.scores(PASS1).mean(axis=1)
    every = sorted(np.mean(draw) for draw in itertools.product(means, repeat=3))
    drawn, errors = replicates([arm], PASS1, Question.METHOD_RETRAINED, 60_000, np.random.default_rng(0))
    for value in np.unique(np.round(every, 12)):
        exact = np.mean(np.isclose(every, value))
        assert np.mean(np.isclose(drawn, value)) == pytest.approx(exact, abs=0.01)
    assert np.mean(errors == 0) >= 3 / 27 - 0.01


def brute(arms, question, resamples, rng):
    """One explicit loop over resampled tables."""
    out = []
    tables = [arm.scores(PASS1) for arm in arms]
    labels = arms[0].cluster_labels
    groups = labels.max() + 1
    for _ in range(resamples):
        columns = np.arange(labels.size)
        if question is not Question.METHOD_RETRAINED:
            columns = np.concatenate([np.flatnonzero(labels == g) for g in rng.integers(0, groups, groups)])
        means = []
        for table in tables:
            rows = np.arange(table.shape[0])
            if question is not Question.TASKS_LIKE_THESE:
                rows = rng.integers(0, rows.size, rows.size)
            means.append(table[np.ix_(rows, columns)].mean())
        out.append(means[0] - means[1])
    return np.array(out)


@pytest.mark.parametrize("question", list(Question)[1:])
def test_replicates_match_a_loop_over_copied_tables(question):
    rng = np.random.default_rng(2)
    a, b = simulate_pair(rng, seeds=6, tasks=15, attempts=8, seed_sd=0.5)
    labels = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 9])
    a, b = (counts(arm.c, arm.n, arm=arm.arm, clusters=labels) for arm in (a, b))
    fast, _ = replicates([a, b], PASS1, question, 20_000, rng)
    slow = brute([a, b], question, 6_000, rng)
    assert fast.mean() == pytest.approx(slow.mean(), abs=5 * slow.std() / np.sqrt(6_000))
    assert fast.std() == pytest.approx(slow.std(), rel=0.05)
    np.testing.assert_allclose(
        np.quantile(fast, [0.1, 0.9]), np.quantile(slow, [0.1, 0.9]), atol=0.12 * slow.std()
    )


def test_same_generator_same_interval_and_chunks_do_not_change_it(monkeypatch):
    a, b = simulate_pair(np.random.default_rng(4), seeds=10, tasks=20, attempts=8, seed_sd=0.5)

    def run():
        return bootstrap_compare(
            a, b, PASS1, Question.METHOD_NEW_TASKS, rng=np.random.default_rng(9), resamples=500
        )

    assert run() == run()
    assert run() != bootstrap_compare(
        a, b, PASS1, Question.METHOD_NEW_TASKS, rng=np.random.default_rng(10), resamples=500
    )
    whole = run()
    monkeypatch.setattr(bootstrap, "CHUNK_BYTES", 50_000)
    assert run().se == pytest.approx(whole.se, rel=0.1)


@pytest.mark.parametrize("question", list(Question)[1:3])
@pytest.mark.parametrize("method", ["percentile", "studentized"])
def test_close_to_the_analytic_interval_with_many_units(question, method):
    rng = np.random.default_rng(6)
    a, b = simulate_pair(rng, seeds=40, tasks=60, attempts=8, seed_sd=0.4)
    analytic = compare(a, b, PASS1, question)
    found = bootstrap_compare(a, b, PASS1, question, rng=rng, resamples=8_000, method=method)
    assert isinstance(found, Comparison) and found.p is None
    assert (found.lo, found.hi) == pytest.approx((analytic.lo, analytic.hi), abs=0.12 * analytic.se * 2)


def test_few_seeds_are_flagged_or_refused():
    rng = np.random.default_rng(0)
    for seeds, flagged in ((3, True), (9, True), (10, False)):
        a, b = simulate_pair(rng, seeds=seeds, tasks=20, attempts=8, seed_sd=0.5)
        found = bootstrap_compare(a, b, PASS1, Question.METHOD_RETRAINED, rng=rng, resamples=200)
        assert isinstance(found, Comparison)
        assert any("bootstrap over" in note for note in found.notes) is flagged
    for seeds in (2, 4):
        a, b = simulate_pair(rng, seeds=seeds, tasks=20, attempts=8, seed_sd=0.5)
        found = bootstrap_compare(
            a, b, PASS1, Question.METHOD_RETRAINED, rng=rng, resamples=200, method="studentized"
        )
        assert isinstance(found, NotEstimable) and "without spread" in found.reason
    one, _ = simulate_pair(rng, seeds=1, tasks=20, attempts=8)
    assert isinstance(bootstrap_estimate(one, PASS1, Question.METHOD_RETRAINED, rng=rng), NotEstimable)
    same = counts(np.tile([3, 7, 9], (10, 1)), 12)
    found = bootstrap_estimate(same, PASS1, Question.METHOD_RETRAINED, rng=rng, resamples=100)
    assert isinstance(found, NotEstimable) and "no variation" in found.reason


def test_what_has_no_bootstrap_says_so():
    rng = np.random.default_rng(0)
    a, b = simulate_pair(rng, seeds=10, tasks=20, attempts=8, seed_sd=0.5)
    base = counts(b.c[:1], 8, arm="base", untrained=True)
    with pytest.raises(DataError, match="attempts are not resampled"):
        bootstrap_compare(a, b, PASS1, Question.THESE_CHECKPOINTS, rng=rng)
    found = bootstrap_compare(a, b, PASS1, Question.METHOD_NEW_TASKS, rng=rng, method="studentized")
    assert isinstance(found, NotEstimable)
    assert isinstance(bootstrap_compare(a, base, PASS1, Question.METHOD_RETRAINED, rng=rng), NotEstimable)
    found = bootstrap_compare(a, base, PASS1, Question.METHOD_NEW_TASKS, rng=rng, resamples=300)
    assert isinstance(found, Comparison)


def test_replicates_without_spread_count_as_infinite():
    values, errors = np.array([0.0, 1.0, -1.0, 0.5]), np.array([0.0, 0.0, 0.0, 1.0])
    lo, hi = studentized_interval(0.0, 1.0, values, errors, 0.5)
    assert lo == -0.5 and hi == np.inf


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(bootstrap, "CHUNK_BYTES", 4 * 2**20)
    rng = np.random.default_rng(0)
    a = counts(rng.integers(0, 33, (10, 400)), 32, arm="a")
    b = counts(rng.integers(0, 33, (10, 400)), 32, arm="b")
    tracemalloc.start()
    found = bootstrap_compare(a, b, PASS1, Question.METHOD_NEW_TASKS, rng=rng, resamples=5_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, Comparison)
    assert peak < 16 * 2**20  # all replicates at once would take 5,000 × 400 × 40 bytes = 80 MB


@given(st.integers(0, 500))
@settings(max_examples=10, deadline=None)
def test_sup_t_critical_lies_between_one_test_and_bonferroni(seed):
    from scipy.stats import t

    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((5, 8))
    cov = factor @ factor.T
    scale = np.sqrt(np.diag(cov))
    found = sup_t_critical(cov / np.outer(scale, scale), 7, 0.95, rng, draws=40_000)
    assert t.ppf(0.975, 7) <= found <= 1.03 * t.ppf(1 - 0.025 / 5, 7)


def test_sup_t_critical_of_one_statistic_and_of_copies_is_the_t_quantile():
    from scipy.stats import t

    rng = np.random.default_rng(1)
    for size in (1, 6):
        found = sup_t_critical(np.ones((size, size)), 5, 0.95, rng, draws=200_000)
        assert found == pytest.approx(t.ppf(0.975, 5), rel=0.02)
