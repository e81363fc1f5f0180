"""Power and seed numbers against published tables and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from turnscale.errors import DataError
from turnscale.stats.power import (
    detectable_ratio,
    minimum_detectable,
    power_two_sample,
    seed_sd_tolerance,
    seeds_needed,
)

SEEDS_TABLE = {
    1.27: (11, 40, 89),
    2: (6, 17, 37),
    3: (4, 9, 17),
    4.33: (3, 5, 9),
    6.28: (2, 3, 5),
    0.66: (38, 146, 326),
}


@pytest.mark.parametrize(("difference", "expected"), SEEDS_TABLE.items())
def test_seeds_per_arm_for_80_per_cent(difference, expected):
    assert tuple(seeds_needed(difference, sd) for sd in (1, 2, 3)) == expected


def test_a_tiny_difference_needs_a_thousand_seeds():
    assert seeds_needed(0.12, 1) == 1092
    with pytest.raises(DataError, match="more than 1000"):
        seeds_needed(0.12, 1, limit=1000)


@pytest.mark.parametrize(("difference", "sd", "seeds"), [(1.5, 1.0, 5), (1.0, 1.0, 10), (3.0, 2.0, 3)])
def test_power_matches_simulation(difference, sd, seeds):
    rng = np.random.default_rng(0)
    a = sd * rng.standard_normal((20_000, seeds)) + difference
    b = sd * rng.standard_normal((20_000, seeds))
    p = scipy_stats.ttest_ind(a, b, axis=1).pvalue
    assert power_two_sample(difference, sd, seeds, seeds) == pytest.approx(np.mean(p < 0.05), abs=0.012)


def test_detectable_ratio_inverts_power_and_tends_to_the_normal_value():
    assert detectable_ratio(math.inf) == pytest.approx(1.959964 + 0.841621, abs=1e-4)
    values = [detectable_ratio(df) for df in (1, 2, 4, 8, 50, 5000, 50_000)]
    assert values == sorted(values, reverse=True)
    ratio = minimum_detectable(2.0, 8) / 2.0
    assert power_two_sample(ratio * math.sqrt(2 / 5), 1.0, 5, 5) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("difference", "se", "tolerance"),
    [(4.33, 0.24, 1.55), (6.28, 0.24, 2.26), (3.12, 0.69, 1.01), (1.72, 0.24, 0.60), (1.03, 0.23, 0.33)],
)
def test_seed_sd_tolerance_of_published_gains(difference, se, tolerance):
    assert seed_sd_tolerance(difference, se) == pytest.approx(tolerance, abs=0.006)
    assert seed_sd_tolerance(-difference, se) == seed_sd_tolerance(difference, se)


def test_a_gain_within_attempt_noise_tolerates_no_seed_noise():
    assert seed_sd_tolerance(0.12, 0.24) is None


def test_impossible_designs():
    with pytest.raises(DataError):
        power_two_sample(1, 1, 1, 5)
    with pytest.raises(DataError):
        seeds_needed(0, 1)
    with pytest.raises(DataError):
        detectable_ratio(0)
    with pytest.raises(DataError):
        detectable_ratio(5, power=0.01)
