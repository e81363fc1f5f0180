"""Simulated critics: what turn-free processes give at the lengths of a search agent's trajectories."""

from dataclasses import replace

import numpy as np
import pytest

from tests.diagnose.invented import lengths
from turnscale.diagnose.nulls import (
    NULLS,
    drift,
    drift_with_noise,
    martingale,
    mean_reverting,
    random_walk,
    simulate,
    steps,
    walk_through_observations,
    white_noise,
)
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.summary import summarise

NAMES = ("share_token", "share_turn", "between_exceeds_within", "jump_exceeds_span", "boundary_share")

# process, equal turns, observation tokens, the five statistics by an independent simulation of 1,500 trajectories
TABLE = {
    "walk, equal turns": (random_walk, True, 0, (0.836, 0.836, 0.965, 0, 0.003)),
    "walk": (random_walk, False, 0, (0.792, 0.824, 0.894, 0, 0.003)),
    "posterior, equal turns": (martingale, True, 0, (0.867, 0.867, 0.975, 0, 0.003)),
    "posterior": (martingale, False, 0, (0.833, 0.858, 0.929, 0, 0.003)),
    "drift": (drift, False, 0, (0.973, 0.980, 1.0, 0, 0.003)),
    "drift and noise": (drift_with_noise, False, 0, (0.870, 0.876, 1.0, 0, 0.003)),
    "reverting 2000": (2000, False, 0, (0.750, 0.792, 0.87, 0, 0.003)),
    "reverting 500": (500, False, 0, (0.663, 0.703, 0.79, 0, 0.003)),
    "reverting 100": (100, False, 0, (0.370, 0.423, 0.19, 0, 0.003)),
    "noise": (white_noise, False, 0, (0.003, 0.004, 0, 0, 0.003)),
    "walk through 50": (walk_through_observations, False, 50, (0.822, 0.850, 0.927, 0, 0.14)),
    "walk through 275": (walk_through_observations, False, 275, (0.898, 0.915, 0.969, 0.13, 0.47)),
    "walk through 1000": (walk_through_observations, False, 1000, (0.955, 0.964, 0.995, 0.78, 0.76)),
}
QUICK = ("walk", "posterior", "drift", "reverting 100", "noise", "walk through 275")


def five(name, size, seed=0):
    process, equal, gap, expected = TABLE[name]
    rng = np.random.default_rng(seed)
    options = {"turns": 8, "low": 275, "high": 275} if equal else {}
    base = lengths(size, rng, gap=gap, **options)
    if isinstance(process, int):
        process = mean_reverting(process / base.tokens.mean())
    critic = replace(base, values=process(base, rng))
    found = summarise(trajectory_statistics(critic), rng, resamples=2)
    return np.array([found[key].value for key in NAMES]), np.array(expected)


@pytest.mark.parametrize("name", QUICK)
def test_agrees_with_an_independent_simulation(name):
    found, expected = five(name, 300)
    assert found == pytest.approx(expected, abs=0.055)
    assert found[:2] == pytest.approx(expected[:2], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_agrees_with_an_independent_simulation_of_the_same_size(name):
    found, expected = five(name, 1500, seed=1)
    assert found == pytest.approx(expected, abs=0.025)


@pytest.mark.slow
def test_a_walk_with_read_out_noise_gives_all_five_published_statistics():
    """400 observation tokens a boundary and noise of 2.5 steps: no turn concept, within 5 points of the paper."""
    rng = np.random.default_rng(3)
    base = lengths(1500, rng, gap=400)
    values = walk_through_observations(base, rng) + 2.5 * rng.standard_normal(base.values.size)
    found = summarise(trajectory_statistics(replace(base, values=values)), rng, resamples=2)
    published = (0.895, 0.902, 0.938, 0.224, 0.092)
    assert [found[key].value for key in NAMES] == pytest.approx(published, abs=0.05)


def test_steps_stand_out():
    rng = np.random.default_rng(0)
    base = lengths(60, rng)
    found = summarise(trajectory_statistics(replace(base, values=steps(base, rng))), rng, resamples=2)
    assert [found[key].value for key in NAMES] == pytest.approx([1, 1, 1, 1, 1])


@pytest.mark.parametrize("name", NULLS)
def test_a_simulation_keeps_lengths_and_repeats_itself(name):
    base = lengths(40, np.random.default_rng(0), low=1, high=9, gap=3)
    one, other = (simulate(base, name, np.random.default_rng(7)) for _ in range(2))
    assert (one.lengths == base.lengths).all() and (one.gaps == base.gaps).all()
    assert one.values.tobytes() == other.values.tobytes() and np.isfinite(one.values).all()
    some = simulate(base, name, np.random.default_rng(7), most=10)
    assert some.size == 10 and some.prompt.tolist() == list(range(10))


def test_the_posterior_is_a_martingale_and_the_reverting_process_stationary():
    rng = np.random.default_rng(0)
    base = lengths(4000, rng, turns=3, low=10, high=10)
    posterior = martingale(base, rng).reshape(4000, 30)
    change = posterior[:, -1] - posterior[:, 0]
    assert abs(change.mean()) < 4 * change.std() / np.sqrt(4000)
    assert abs(np.corrcoef(posterior[:, 10], change - (posterior[:, 10] - posterior[:, 0]))[0, 1]) < 0.06
    wave = mean_reverting(0.3)(base, rng).reshape(4000, 30)
    assert wave.var(axis=0) == pytest.approx(np.ones(30), abs=0.12)
    assert np.corrcoef(wave[:, 3], wave[:, 12])[0, 1] == pytest.approx(np.exp(-9 / 9), abs=0.05)


def test_a_walk_through_observations_moves_by_the_tokens_elapsed():
    rng = np.random.default_rng(0)
    base = lengths(3000, rng, turns=2, low=2, high=2, gap=8)
    values = walk_through_observations(base, rng).reshape(-1, 4)
    steps = np.diff(values, axis=1).var(axis=0)
    assert steps == pytest.approx([1, 9, 1], rel=0.12)
