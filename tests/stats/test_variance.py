"""Variance components: the worked example, coverage of the limits, and the parts' meaning."""

from __future__ import annotations

import numpy as np
import pytest

from turnscale.errors import DataError
from turnscale.stats.passk import Metric
from turnscale.stats.variance import (
    mean_square_difference_interval,
    mean_squares,
    sd_interval,
    variance_components,
)

from .helpers import REFERENCE, counts

PASS1 = Metric("pass_at", 1)


def test_reference_table():
    case = REFERENCE["variance_components"]
    assert mean_squares(np.array(case["Y"])) == pytest.approx(
        (case["MS_seed"], case["MS_task"], case["MS_resid"]), rel=1e-9
    )
    found = variance_components(counts(np.round(10 * np.array(case["Y"])), 10), PASS1)
    assert (found.seed.raw, found.task.raw, found.cell.raw) == pytest.approx(
        (case["var_seed"], case["var_task"], case["var_resid"]), rel=1e-9
    )
    assert found.standard_error(3, 4) == pytest.approx(
        np.sqrt(case["var_seed"] / 3 + case["var_task"] / 4 + case["var_resid"] / 12)
    )
    assert found.standard_error(3, 4) == pytest.approx(case["SE_both"], rel=1e-9)
    assert found.seed_mean_sd / np.sqrt(3) == pytest.approx(case["SE_seeds_only"])


def test_a_seed_sd_from_three_seeds_is_hardly_known():
    lo, hi = sd_interval(1.0, 2)
    assert (lo, hi) == pytest.approx((0.52, 6.3), abs=0.02)
    found = variance_components(counts([[1, 2, 3, 5], [2, 2, 5, 6], [0, 3, 3, 7]], 8), PASS1)
    assert found.seed_mean_hi / found.seed_mean_sd == pytest.approx(hi)


def test_negative_estimates_are_shown_raw_and_truncated():
    """Row means equal, columns crossing: the seed component is negative."""
    found = variance_components(counts([[8, 2, 6], [2, 8, 6]], 10), PASS1)
    assert found.seed.raw < 0 and found.seed.value == found.seed.lo == 0 <= found.seed.hi
    assert found.seed.sd == 0


def test_components_recover_the_simulated_truth():
    rng = np.random.default_rng(0)
    raws, attempts = [], []
    for _ in range(200):
        p = 0.5 + 0.05 * rng.standard_normal((6, 1)) + 0.1 * rng.standard_normal(40)
        p = np.clip(p + 0.04 * rng.standard_normal((6, 40)), 0, 1)
        found = variance_components(counts(rng.binomial(16, p), 16), PASS1)
        raws.append((found.seed.raw, found.task.raw, found.interaction))
        attempts.append((found.attempt, (p * (1 - p) / 16).mean()))
    assert np.mean(raws, axis=0) == pytest.approx([0.05**2, 0.1**2, 0.04**2], rel=0.1)
    measured, truth = np.mean(attempts, axis=0)
    assert measured == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(("seeds", "tasks", "seed_variance"), [(3, 100, 1.0), (3, 20, 0.02), (10, 50, 0.0)])
def test_limits_of_a_component_cover(seeds, tasks, seed_variance):
    rng = np.random.default_rng(1)
    df = seeds - 1, (seeds - 1) * (tasks - 1)
    truth = tasks * seed_variance
    first = (truth + 1) * rng.chisquare(df[0], 2000) / df[0]
    second = rng.chisquare(df[1], 2000) / df[1]
    limits = [mean_square_difference_interval(a, df[0], b, df[1]) for a, b in zip(first, second, strict=True)]
    below, above = np.array(limits).T
    assert np.mean(below > truth) == pytest.approx(0.025, abs=0.012)
    assert np.mean(above < truth) == pytest.approx(0.025, abs=0.012)


def test_attempt_noise_needs_2k_attempts_and_two_rows():
    found = variance_components(counts([[1, 2, 3], [3, 2, 1]], 3), Metric("pass_at", 2))
    assert found.attempt is None and found.interaction is None
    for shape in ([[1, 2, 3]], [[1], [2]]):
        with pytest.raises(DataError, match="two seeds and two tasks"):
            variance_components(counts(shape, 4), PASS1)
