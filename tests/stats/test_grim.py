"""GRIM: published percentages that whole numbers reach, and those that none does."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.errors import DataError
from turnscale.stats.grim import feasible_share, feasible_sizes, grim
from turnscale.stats.passk import Metric


@pytest.mark.parametrize(
    ("value", "n", "rollouts", "k", "expected"),
    [
        (69.90, 103, 32, 32, (72,)),
        (64.08, 103, 32, 32, (66,)),
        (34.00, 500, 32, 32, (170,)),
        (28.20, 500, 32, 32, (141,)),
        (75.90, 830, 32, 32, (630,)),
        (72.29, 830, 32, 32, (600,)),
        (39.47, 103, 32, 1, (1301,)),
        (46.73, 166, 32, 1, ()),
        (12.06, 600, 1, 1, ()),
        (12.06, 600, 5, 1, ()),
        (13.33, 600, 1, 1, (80,)),
        (15.00, 600, 1, 1, (90,)),
    ],
)
def test_published_values(value, n, rollouts, k, expected):
    found = grim(value, 2, n, rollouts, k)
    assert found.feasible == expected and found.consistent is bool(expected) and found.exact


def test_short_form_and_one_decimal():
    assert grim(69.90, 2, 103).feasible == (72,)
    assert grim(46.73, 2, 166 * 32).feasible == ()
    assert grim(89.1, 1, 128).feasible == (114,)
    assert not grim(89.1, 1, 134).consistent and not grim(89.1, 1, 140).consistent
    assert grim(79.7, 1, 128).feasible == (102,)


def test_benchmark_sizes_that_fit():
    assert feasible_sizes([69.90, 64.08], 2, range(20, 206)) == (103,)
    assert feasible_sizes([34.00, 28.20], 2, range(1, 844)) == (500,)
    fits = feasible_sizes([75.90, 72.29], 2, range(1, 831))
    assert [n for n in fits if n <= 692] == [83 * i for i in range(1, 9)] and fits[-1] == 830
    assert feasible_sizes([46.73, 50.32], 2, (83, 166, 249), rollouts=32) == ()
    assert feasible_sizes([39.47], 2, [103], rollouts=5) == ()


def test_chance_of_a_false_fit():
    assert feasible_share(2, 103, 32) ** 4 == pytest.approx(0.012, abs=0.001)
    assert feasible_share(2, 10_000) == 1.0


@given(st.integers(1, 400), st.integers(1, 40), st.data())
def test_every_true_proportion_is_found(n, rollouts, data):
    k = data.draw(st.integers(0, n * rollouts))
    value = f"{100 * k / (n * rollouts):.2f}"
    assert k in grim(value, 2, n, rollouts).feasible


@given(st.integers(1, 4), st.integers(2, 5), st.data(), st.sampled_from(["pass_at", "pass_hat"]))
@settings(max_examples=60, deadline=None)
def test_pass_k_sums_are_those_that_tasks_can_reach(n, rollouts, data, kind):
    """Against the list of all score sums of n tasks."""
    k = data.draw(st.integers(1, rollouts))
    import numpy as np

    c = np.arange(rollouts + 1)
    table = [
        Fraction(float(x)).limit_denominator(1000)
        for x in Metric(kind, k).score(c, np.full_like(c, rollouts))
    ]
    means = {sum(draw) / n for draw in combinations_with_replacement(table, n)}
    mean = data.draw(st.sampled_from(sorted(means)))
    shown = f"{float(100 * mean):.2f}"
    found = grim(shown, 2, n, rollouts, k, kind)
    expected = {m for m in means if abs(100 * m - Fraction(shown)) <= Fraction(1, 200)}
    assert {Fraction(x, found.denominator) for x in found.feasible} == expected


def test_large_designs_check_granularity_only():
    found = grim(50.00, 2, 830, 32, 16)
    assert found.consistent and not found.exact


def test_impossible_questions():
    for arguments in ((50.0, 2, 0), (50.0, 2, 10, 3, 4), (101.0, 2, 10), (50.123, 2, 10), (-1.0, 2, 10)):
        with pytest.raises(DataError):
            grim(*arguments)
    with pytest.raises(DataError, match="unknown estimator"):
        grim(50.0, 2, 10, 1, 1, "mean")
