"""Seed looks: boundaries that keep the level, e-values that are e-values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from turnscale.errors import DataError
from turnscale.stats.sequential import (
    SequentialPlan,
    e_value,
    e_value_from_scores,
    obrien_fleming_levels,
    obrien_fleming_spending,
    plan_power,
)

from .helpers import REFERENCE

LOOKS = tuple(range(3, 11))


@pytest.mark.parametrize("case", REFERENCE["evalue_two_sample_t"], ids=str)
def test_e_value_reference(case):
    assert e_value(case["t"], case["n"], case["g"]) == pytest.approx(case["e"], rel=1e-12)


def test_mean_e_value_under_the_null_is_one():
    from scipy.integrate import quad

    for seeds, g in ((5, 1.0), (3, 4.0)):
        t = scipy_stats.t(2 * seeds - 2)
        mean = 2 * quad(lambda x, n=seeds, v=g, d=t: e_value(x, n, v) * d.pdf(x), 0, np.inf)[0]
        assert mean == pytest.approx(REFERENCE["evalue_null_expectation_n5_g1"], rel=1e-6)


@given(st.floats(0, 50), st.integers(2, 40), st.floats(0.1, 10))
def test_e_value_grows_with_the_statistic_and_ignores_its_sign(t, seeds, g):
    assert e_value(t, seeds, g) == e_value(-t, seeds, g)
    assert e_value(t + 0.5, seeds, g) > e_value(t, seeds, g)


def test_e_value_from_scores_uses_the_two_sample_t():
    a, b = REFERENCE["welch"]["A"], REFERENCE["welch"]["B"]
    t = scipy_stats.ttest_ind(a, b).statistic
    assert e_value_from_scores(a, b, 1.0) == pytest.approx(e_value(t, 3, 1.0))
    for bad in (([1.0, 1.0], [1.0, 1.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0], [2.0])):
        with pytest.raises(DataError):
            e_value_from_scores(*bad)


def test_spending_ends_at_alpha_and_starts_near_zero():
    spent = obrien_fleming_spending(np.array(LOOKS) / 10, 0.05)
    assert np.all(np.diff(spent) > 0)
    assert spent[-1] == pytest.approx(0.05)
    assert spent[0] == pytest.approx(3.46e-4, rel=0.01)


def test_levels_of_three_to_ten_seeds():
    """Simulated elsewhere on 40,000 studies: .0002, .0017, .0044, .0088, .013, .018, .024, .029."""
    found = obrien_fleming_levels(LOOKS)
    assert found == obrien_fleming_levels(LOOKS)
    assert np.all(np.diff(found) > 0) and found[-1] < 0.05
    np.testing.assert_allclose(found[1:], [0.0017, 0.0044, 0.0088, 0.013, 0.018, 0.024, 0.029], rtol=0.08)
    assert found[0] == pytest.approx(obrien_fleming_spending(0.3, 0.05))


def test_one_look_is_the_plain_test():
    assert obrien_fleming_levels((10,)) == pytest.approx((0.05,))


def null_p_values(looks, studies, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, studies, looks[-1]))
    return np.stack(
        [scipy_stats.ttest_ind(a[:, :n], b[:, :n], axis=1, equal_var=False).pvalue for n in looks], axis=1
    ), (a, b)


@pytest.mark.parametrize("looks", [LOOKS, (5, 10), (2, 4, 6, 20), (3, 5)])
def test_level_is_kept_and_naive_looking_breaks_it(looks):
    p, _ = null_p_values(looks, 40_000, 5)
    rate = np.mean((p <= np.array(obrien_fleming_levels(looks))).any(axis=1))
    assert 0.035 <= rate <= 0.055
    assert np.mean((p < 0.05).any(axis=1)) > rate


def test_e_values_keep_the_level_at_any_time():
    looks = tuple(range(2, 21))
    _, (a, b) = null_p_values(looks, 5_000, 6)
    reached = np.zeros(5_000, dtype=bool)
    for n in looks:
        t = scipy_stats.ttest_ind(a[:, :n], b[:, :n], axis=1).statistic
        reached |= np.array([e_value(value, n, 4.0) for value in t]) >= 20
    assert 0 < reached.mean() <= 0.05


def test_a_plan_judges_looks_in_order():
    plan = SequentialPlan((3, 5, 8))
    early = plan.judge([0.5])
    assert [look.verdict for look in early] == ["continue"]
    assert [look.verdict for look in plan.judge([0.5, 0.5, 0.5])] == [
        "continue",
        "continue",
        "stop: not shown",
    ]
    taken = plan.judge([0.5, 1e-6])
    assert taken[-1].verdict == "reject" and taken[-1].seeds == 5 and taken[-1].needed == plan.levels[1]
    assert plan.judge([0.049])[0].verdict == "continue"
    with pytest.raises(DataError, match="after the rejection"):
        plan.judge([0.5, 1e-6, 0.5])
    with pytest.raises(DataError, match="4 looks taken, 3 planned"):
        plan.judge([0.5] * 4)


@pytest.mark.parametrize("looks", [(), (1, 5), (5, 5), (6, 3)])
def test_impossible_plans(looks):
    with pytest.raises(DataError):
        obrien_fleming_levels(looks)


def test_a_plan_finds_nothing_where_nothing_is():
    assert plan_power(LOOKS, "obrien_fleming", 0.05, 0.0)[0] == pytest.approx(0.05, abs=0.003)
    assert plan_power((10,), "fixed", 0.05, 0.0)[0] == pytest.approx(0.05, abs=0.003)
    assert plan_power(LOOKS, "e_value", 0.05, 0.0)[0] <= 0.05


@pytest.mark.parametrize(("effect", "power"), [(1.0, 0.22), (1.5, 0.56), (2.0, 0.86)])
def test_power_of_e_values_from_three_to_ten_seeds(effect, power):
    assert plan_power(LOOKS, "e_value", 0.05, effect)[0] == pytest.approx(power, abs=0.01)


def test_one_look_has_the_power_of_the_noncentral_t():
    from turnscale.stats.power import power_two_sample

    shown, seeds = plan_power((10,), "fixed", 0.05, 1.0)
    assert shown == pytest.approx(power_two_sample(1.0, 1.0, 10, 10), abs=0.006)
    assert seeds == 10


def test_spending_costs_little_power_and_saves_seeds():
    fixed = plan_power((10,), "fixed", 0.05, 2.0)
    spent = plan_power((3, 5, 10), "obrien_fleming", 0.05, 2.0)
    assert fixed[0] - 0.01 < spent[0] <= fixed[0]
    assert spent[1] < 9
