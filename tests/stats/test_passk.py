"""pass@k and pass^k against exact fractions, enumeration and simulation."""

from __future__ import annotations

import itertools
import warnings
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.errors import DataError
from turnscale.stats.passk import (
    CoarsePassKWarning,
    Metric,
    none_of_k,
    pass_at_k,
    pass_hat_k,
    within_cell_covariance,
)

from .helpers import REFERENCE

pytestmark = pytest.mark.filterwarnings("ignore::turnscale.stats.passk.CoarsePassKWarning")

counts_and_k = st.integers(1, 40).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)


@pytest.mark.parametrize("case", REFERENCE["pass_at_k"], ids=str)
def test_pass_at_k_reference(case):
    assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(
        float(Fraction(case["exact"])), rel=1e-13
    )
    assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["value"], rel=1e-12)


@pytest.mark.parametrize("case", REFERENCE["pass_hat_k"], ids=str)
def test_pass_hat_k_reference(case):
    assert pass_hat_k(case["n"], case["c"], case["k"]) == pytest.approx(
        float(Fraction(case["exact"])), rel=1e-13
    )
    assert pass_hat_k(case["n"], case["c"], case["k"]) == pytest.approx(case["value"], rel=1e-12)


@given(counts_and_k)
def test_matches_binomials(case):
    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), abs=1e-13)
    assert pass_hat_k(n, c, k) == pytest.approx(float(Fraction(comb(c, k), comb(n, k))), abs=1e-13)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (7, 3, 2), (6, 6, 4), (6, 0, 6), (8, 1, 5)])
def test_matches_enumeration_of_every_subset(n, c, k):
    outcomes = [1] * c + [0] * (n - c)
    drawn = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([any(d) for d in drawn]))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([all(d) for d in drawn]))


@given(counts_and_k)
def test_monotone_in_k_and_c_and_ordered(case):
    n, c, k = case
    at, hat = float(pass_at_k(n, c, k)), float(pass_hat_k(n, c, k))
    assert 0 <= hat <= c / n + 1e-12 <= at + 2e-12 <= 1 + 3e-12
    if k < n:
        assert pass_at_k(n, c, k + 1) >= at - 1e-12
        assert pass_hat_k(n, c, k + 1) <= hat + 1e-12
    if c < n:
        assert pass_at_k(n, c + 1, k) >= at
        assert pass_hat_k(n, c + 1, k) >= hat
    assert at == pytest.approx(1 - float(pass_hat_k(n, n - c, k)), abs=1e-12)


@given(st.integers(2, 20), st.floats(0, 1), st.data())
def test_unbiased_for_every_success_probability(n, p, data):
    k = data.draw(st.integers(1, n))
    c = np.arange(n + 1)
    weight = np.array([comb(n, int(i)) * p**i * (1 - p) ** (n - i) for i in c])
    assert weight @ pass_at_k(n, c, k) == pytest.approx(1 - (1 - p) ** k, abs=1e-9)
    assert weight @ pass_hat_k(n, c, k) == pytest.approx(p**k, abs=1e-9)


def test_elementwise_over_arrays_with_different_n():
    n = np.array([[5, 32], [10, 3]])
    c = np.array([[2, 8], [3, 1]])
    expected = [[0.9, 367 / 620], [1 - comb(7, 3) / comb(10, 3), 1.0]]
    np.testing.assert_allclose(pass_at_k(n, c, 3), expected, rtol=1e-13)


@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k])
def test_refuses_k_above_n_naming_both(function):
    with pytest.raises(DataError, match=r"k = 5.*one has 4"):
        function([8, 4], [1, 1], 5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 0.5, 1)])
def test_refuses_impossible_counts(n, c, k):
    with pytest.raises(DataError):
        pass_at_k(n, c, k)


def test_warns_above_half_of_the_attempts_only():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pass_at_k(32, 5, 16)
        with pytest.raises(CoarsePassKWarning, match="run at least 34"):
            pass_at_k(32, 5, 17)


def test_large_n_is_stable():
    assert pass_at_k(10**5, 3, 50_000) == pytest.approx(1 - 0.5**3, rel=1e-4)
    assert np.all(np.diff(none_of_k(10**5, 1000)) <= 0)


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from(["pass_at", "pass_hat"]), st.floats(0.02, 0.98))
def test_within_cell_covariance_is_unbiased(j, k, kind, p):
    n = j + k + max(j, k) + 1
    c = np.arange(n + 1)
    weight = np.array([comb(n, int(i)) * p**i * (1 - p) ** (n - i) for i in c])
    metrics = [Metric(kind, j), Metric(kind, k)]
    x, y = (metric.score(c, np.full_like(c, n)) for metric in metrics)
    truth = weight @ (x * y) - (weight @ x) * (weight @ y)
    found = within_cell_covariance(metrics, c, np.full_like(c, n))
    assert weight @ found[:, 0, 1] == pytest.approx(truth, abs=1e-10)
    assert np.all(found[:, 0, 0] >= -1e-15)


def test_within_cell_covariance_at_k_1_is_the_binomial_one():
    found = within_cell_covariance([Metric("pass_at", 1)], np.array([3]), np.array([10]))
    assert found[0, 0, 0] == pytest.approx(0.3 * 0.7 / 9)


def test_standard_error_near_n_matches_numeric_integration():
    """SE of pass@k on fixed Beta tasks (GAIA-like: a = .198, b = .304, 103 tasks, n = 32), known to four digits."""
    from scipy.stats import betabinom

    n, tasks = 32, 103
    c = np.arange(n + 1)
    weight = betabinom(n, 0.198, 0.304).pmf(c)
    for row in REFERENCE["passk_near_n_GAIA_like"]:
        metric = Metric("pass_at", row["k"])
        values = metric.score(c, np.full_like(c, n))
        mean = weight @ values
        assert 100 * mean == pytest.approx(row["truth"], rel=0.01)
        over_tasks = 100 * np.sqrt((weight @ values**2 - mean**2) / tasks)
        assert over_tasks == pytest.approx(row["SE_random_tasks"], rel=0.01)
        if 2 * row["k"] <= n:
            cell = within_cell_covariance([metric], c, np.full_like(c, n))[:, 0, 0]
            assert 100 * np.sqrt(weight @ cell / tasks) == pytest.approx(row["SE_fixed_tasks"], rel=0.01)
        plug_in = 1 - (1 - c / n) ** row["k"]
        assert 100 * (weight @ plug_in - mean) == pytest.approx(row["naive_plugin_bias"], abs=0.02)


def test_metric_names_round_trip():
    for metric in (Metric("pass_at", 1), Metric("pass_hat", 32)):
        assert Metric.parse(metric.name) == metric
    assert Metric.parse("pass_hat_3").label == "pass^3"
    for wrong in ("pass_at", "pass_at_x", "reward_1", "pass_at_0"):
        with pytest.raises(DataError):
            Metric.parse(wrong)
