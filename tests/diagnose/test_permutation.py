"""The turn-length permutation test: its size, its power, and what it cannot say."""

from dataclasses import replace

import numpy as np
import pytest

from tests.diagnose.invented import lengths
from turnscale.diagnose.nulls import drift, martingale, mean_reverting, random_walk, walk, white_noise
from turnscale.diagnose.permutation import UNTESTABLE, excess_share, permute, permuted_lengths
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.values import make


def outcome(critic, rng, permutations=39):
    return excess_share(permute(critic, rng, permutations), critic.prompt)


def planted(factor):
    def process(critic, rng):
        step = np.ones(critic.values.size)
        step[critic.turn_starts] = np.sqrt(factor)
        return walk(critic, step * rng.standard_normal(step.size))

    return process


def rates(process, repeats, size=60, first=0, **options):
    """Rejections at one-sided 5 % by the cluster t and by rank."""
    found = []
    for seed in range(first, first + repeats):
        rng = np.random.default_rng(seed)
        base = lengths(size, rng, low=3, high=30, **options)
        result = outcome(replace(base, values=process(base, rng)), rng)
        found.append([result["excess_p"].value <= 0.05, result["permutation_p"].value <= 0.05])
    return np.mean(found, axis=0)


def test_size_on_100_walks():
    found = rates(random_walk, 100)
    assert all(0.02 <= rate <= 0.08 for rate in found), found


@pytest.mark.parametrize("process", [white_noise, martingale, mean_reverting(0.1)])
def test_size_on_other_critics_without_turns(process):
    """Within four standard errors of 5 % (800 repeats gave 4.5 to 5.8 %)."""
    found = rates(process, 150, first=1000)
    assert np.abs(found - 0.05).max() < 4 * np.sqrt(0.05 * 0.95 / 150), found


def test_power_against_a_planted_turn_effect():
    assert rates(planted(32), 20).min() == 1.0


def test_a_straight_line_has_no_excess_at_all():
    rng = np.random.default_rng(0)
    base = lengths(30, rng)
    found = outcome(replace(base, values=drift(base, rng)), rng)
    assert found["excess_share"].value == 0.0 and found["permutation_p"].value == 1.0


def test_equal_lengths_are_untestable():
    rng = np.random.default_rng(0)
    base = lengths(20, rng, turns=5, low=10, high=10)
    found = outcome(replace(base, values=random_walk(base, rng)), rng)
    assert np.isnan(found["excess_share"].value) and np.isnan(found["permutation_p"].value)
    assert found["excess_share"].note == UNTESTABLE and found["excess_share"].left_out == 20


def test_only_testable_trajectories_enter():
    critic = make([([0, 1, 5, 2, 7], [2, 3]), ([0, 1, 4, 2], [2, 2]), ([1, 2, 3], [3]), ([4] * 3, [1, 2])])
    found = permute(critic, np.random.default_rng(0))
    assert np.isfinite(found.observed).tolist() == [True, False, False, False]
    assert found.observed[0] == pytest.approx(trajectory_statistics(critic)["share_token"][0])


def test_permuted_lengths_are_the_same_lengths_in_uniform_order():
    critic = make([(list(range(6)), [1, 2, 3]), (list(range(9)), [4, 5])])
    rng = np.random.default_rng(0)
    drawn = np.array([permuted_lengths(critic, rng) for _ in range(3000)])
    assert (np.sort(drawn[:, :3], axis=1) == [1, 2, 3]).all() and (drawn[:, 3:].sum(axis=1) == 9).all()
    orders, counts = np.unique(drawn[:, :3], axis=0, return_counts=True)
    assert len(orders) == 6 and np.abs(counts - 500).max() < 5 * np.sqrt(500)


def test_lengths_with_a_pattern_are_not_exchangeable():
    """A walk that slows down, under turns that grow longer: an excess without any turn effect."""
    rng = np.random.default_rng(0)
    base = lengths(300, rng, turns=6, low=20, high=20)
    grown = replace(
        base, turn_starts=np.concatenate([s + np.cumsum([0, 2, 6, 12, 24, 40]) for s in base.token_starts])
    )
    age = np.arange(grown.values.size) - grown.token_starts[grown.row_of_token]
    values = walk(grown, np.exp(-age / 15) * rng.standard_normal(age.size))
    found = outcome(replace(grown, values=values), rng)
    assert abs(found["excess_share"].value) > 0.02
    assert found["excess_share"].lo > 0 or found["excess_share"].hi < 0
