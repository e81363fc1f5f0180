"""The noise model: fits recover what they were made from, and variances obey the identities they must."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.audit.ledger import Heterogeneity
from turnscale.audit.noise import (
    TaskMix,
    correlation_needed,
    fit_heterogeneity,
    mix_from_any_and_all,
    mix_from_level,
    mix_from_mean,
    mix_from_pass_at,
    standard_error,
    task_variance,
)
from turnscale.errors import DataError
from turnscale.stats.passk import Metric

QUICK = settings(max_examples=40, deadline=None)
shapes = st.floats(0.05, 20.0)
levels = st.floats(0.02, 0.98)
iccs = st.floats(0.02, 0.95)
FITS = {  # published levels -> intra-class correlation to two digits
    "bcp": ({"pass_at_1": 48.08, "pass_at_k": 75.90, "k": 32}, 0.69),
    "gaia": ({"pass_at_1": 39.47, "pass_at_k": 69.90, "k": 32}, 0.67),
    "hle": ({"pass_at_1": 9.92, "pass_at_k": 34.00, "k": 32}, 0.50),
    "claw": ({"pass_at_k": 66.91, "pass_hat_k": 51.73, "k": 3}, 0.79),
    "assumed": ({"icc": 0.5}, 0.50),
}


@pytest.mark.parametrize("name", FITS)
def test_fits_of_the_published_levels(name: str) -> None:
    given_levels, icc = FITS[name]
    assert round(fit_heterogeneity(Heterogeneity(**given_levels, source="a paper")), 2) == icc  # type: ignore[arg-type]


def test_beta_parameters_of_browsecomp() -> None:
    mix = mix_from_pass_at(0.4808, 0.7590, 32)
    assert (round(mix.a, 3), round(mix.b, 3)) == (0.214, 0.231)


@QUICK
@given(shapes, shapes, st.integers(2, 32))
def test_pass_at_fit_round_trip(a: float, b: float, k: int) -> None:
    made = TaskMix(a, b)
    found = mix_from_pass_at(made.mean, made.pass_at(k), k)
    assert found.mean == pytest.approx(made.mean)
    assert found.pass_at(k) == pytest.approx(made.pass_at(k), abs=1e-9)


def test_the_fit_finds_the_shape_it_was_made_from() -> None:
    made = TaskMix(0.3, 0.7)
    assert mix_from_pass_at(made.mean, made.pass_at(8), 8).icc == pytest.approx(made.icc)
    assert mix_from_any_and_all(made.pass_at(3), made.pass_hat(3), 3).a == pytest.approx(made.a)


@QUICK
@given(shapes, shapes, st.integers(2, 8))
def test_any_and_all_fit_round_trip(a: float, b: float, k: int) -> None:
    made = TaskMix(a, b)
    found = mix_from_any_and_all(made.pass_at(k), made.pass_hat(k), k)
    assert found.pass_at(k) == pytest.approx(made.pass_at(k), abs=1e-9)
    assert found.pass_hat(k) == pytest.approx(made.pass_hat(k), abs=1e-9)


@QUICK
@given(levels, iccs, st.integers(1, 16), st.sampled_from(["pass_at", "pass_hat"]))
def test_a_level_is_reached(level: float, icc: float, k: int, kind: str) -> None:
    metric = Metric(kind, k)  # type: ignore[arg-type]
    assert mix_from_level(metric, level, icc).level(metric) == pytest.approx(level, rel=1e-6)


@QUICK
@given(levels, iccs, st.integers(1, 40))
def test_single_rollouts_have_the_textbook_variances(level: float, icc: float, rollouts: int) -> None:
    variance = task_variance(mix_from_mean(level, icc), Metric("pass_at", 1), rollouts)
    spread = level * (1 - level)
    assert variance.between == pytest.approx(icc * spread, rel=1e-6)
    assert variance.within == pytest.approx((1 - icc) * spread / rollouts, rel=1e-6)


@QUICK
@given(levels, iccs, st.integers(1, 12), st.sampled_from(["pass_at", "pass_hat"]))
def test_at_k_equal_n_the_total_is_that_of_one_coin_per_task(
    level: float, icc: float, k: int, kind: str
) -> None:
    metric = Metric(kind, k)  # type: ignore[arg-type]
    variance = task_variance(mix_from_level(metric, level, icc), metric, k)
    assert variance.between + variance.within == pytest.approx(level * (1 - level), rel=1e-6)


@QUICK
@given(levels, iccs)
def test_averaging_evaluations_divides_only_the_rollout_noise(level: float, icc: float) -> None:
    mix = mix_from_mean(level, icc)
    once, five = (task_variance(mix, Metric("pass_hat", 3), 3, evaluations) for evaluations in (1, 5))
    assert five.between == once.between
    assert five.within == pytest.approx(once.within / 5)


@QUICK
@given(levels, levels, iccs)
def test_standard_error_falls_with_pairing_and_is_lowest_with_fixed_tasks(
    p: float, q: float, icc: float
) -> None:
    a, b = (task_variance(mix_from_mean(x, icc), Metric("pass_at", 1), 8) for x in (p, q))
    errors = [standard_error(a, b, 100, r) for r in (0.0, 0.8, 0.95, 1.0, None)]
    assert all(x >= y - 1e-12 for x, y in itertools.pairwise(errors))


@QUICK
@given(levels, levels, iccs, st.floats(0.01, 0.3))
def test_correlation_needed_is_where_the_test_turns(p: float, q: float, icc: float, gap: float) -> None:
    a, b = (task_variance(mix_from_mean(x, icc), Metric("pass_at", 1), 8) for x in (p, q))
    r = correlation_needed(a, b, 100, gap, 1.96)
    if r is None:
        assert 1.96 * standard_error(a, b, 100, 1.0) >= gap - 1e-9
    elif r > 0:
        assert 1.96 * standard_error(a, b, 100, r) == pytest.approx(gap, rel=1e-6)
    else:
        assert 1.96 * standard_error(a, b, 100, 0.0) <= gap + 1e-9


def test_variances_match_a_simulation() -> None:
    rng = np.random.default_rng(7)
    mix, metric, n = TaskMix(0.2, 0.3), Metric("pass_at", 3), 8
    p = rng.beta(mix.a, mix.b, size=200_000)
    scores = metric.score(rng.binomial(n, p), np.full(p.shape, n))
    variance = task_variance(mix, metric, n)
    assert np.var(scores) == pytest.approx(variance.between + variance.within, rel=0.02)
    assert np.var(1 - (1 - p) ** 3) == pytest.approx(variance.between, rel=0.02)


@pytest.mark.parametrize(("low", "high", "k"), [(0.5, 0.4, 32), (0.5, 0.5, 2), (0.5, 0.9, 2)], ids=str)
def test_impossible_levels_are_refused(low: float, high: float, k: int) -> None:
    with pytest.raises(DataError, match="impossible"):
        mix_from_pass_at(low, high, k)


def test_all_tasks_alike_is_not_a_beta() -> None:
    with pytest.raises(DataError, match=r"impossible|no Beta"):
        mix_from_pass_at(0.1, 1 - 0.9**2, 2)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.inf])
def test_levels_without_variance_are_refused(level: float) -> None:
    with pytest.raises(DataError, match="no variance"):
        mix_from_level(Metric("pass_at", 1), level, 0.5)


def test_pass_at_k_above_the_rollouts_is_refused() -> None:
    with pytest.raises(DataError, match="at least 5"):
        task_variance(TaskMix(1, 1), Metric("pass_at", 5), 4)
