"""Statistics of many trajectories: medians, ratios of sums, accuracy, and intervals over prompts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnose.invented import lengths
from turnscale.diagnose.nulls import random_walk
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.summary import ENOUGH_PROMPTS, _Median, cluster_t, summarise
from turnscale.diagnose.values import make


def summary(critic, resamples=20, seed=0):
    return summarise(trajectory_statistics(critic), np.random.default_rng(seed), resamples=resamples)


def invented(size=80, seed=0, groups=1, **options):
    rng = np.random.default_rng(seed)
    base = lengths(size, rng, low=2, high=12, gap=3, **options)
    success = rng.random(size) < 0.4
    return replace(
        base,
        values=0.3 + 0.05 * random_walk(base, rng),
        gaps=rng.integers(0, 30, base.gaps.size).astype(float),
        reward=success.astype(float),
        success=success,
        prompt=np.arange(size) // groups,
    )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.one_of(st.just(np.nan), st.floats(-5, 5))), min_size=1),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_weighted_median_is_the_median_of_copies(items, weights):
    prompt, column = (np.array(part) for part in zip(*items, strict=True))
    copies = np.repeat(column, np.array(weights)[prompt])
    copies = copies[np.isfinite(copies)]
    found = _Median(column, prompt)(np.array([weights]))[0]
    assert found == pytest.approx(np.median(copies) if copies.size else np.nan, nan_ok=True)


def test_medians_fractions_and_ratios_by_hand():
    critic = invented()
    rows, found = trajectory_statistics(critic), summary(critic)
    assert found["share_token"].value == pytest.approx(np.nanmedian(rows["share_token"]))
    assert found["share_turn"].value == pytest.approx(np.nanmedian(rows["share_turn"]))
    assert found["between_exceeds_within"].value == pytest.approx((rows["share_token"] > 0.5).mean())
    assert found["jump_exceeds_span"].value == pytest.approx((rows["jump"] > rows["span"]).mean())
    share = rows["boundary_square"].sum() / rows["total_square"].sum()
    pairs = (rows["turns"] - 1).sum() / (rows["tokens"] - 1).sum()
    assert found["boundary_share"].value == pytest.approx(share)
    assert found["enrichment"].value == pytest.approx(share / pairs)
    assert found["boundary_share_median"].value == pytest.approx(rows["boundary_share"].median())


def test_accuracy_is_that_of_the_training_metrics():
    from turnscale.batch import TurnBatch
    from turnscale.objective.value import explained_variance

    critic = invented(size=12, seed=3)
    width = int(critic.tokens.max())
    column = np.arange(critic.values.size) - critic.token_starts[critic.row_of_token]
    shape = (critic.size, width)
    values, turn = torch.zeros(shape, dtype=torch.float64), torch.full(shape, -1)
    place = (torch.from_numpy(critic.row_of_token), torch.from_numpy(column))
    values[place] = torch.from_numpy(critic.values)
    turn[place] = torch.from_numpy(critic.turn_of_token - critic.row_starts[critic.row_of_token])
    batch = TurnBatch(
        ids=torch.zeros(shape, dtype=torch.long),
        length=torch.from_numpy(critic.tokens),
        action_mask=turn >= 0,
        turn=turn,
        logp_rollout=torch.zeros(shape),
        reward=torch.from_numpy(critic.reward),
        success=torch.from_numpy(critic.success),
        truncated=torch.zeros(critic.size, dtype=torch.bool),
        task=torch.zeros(critic.size, dtype=torch.long),
        group=torch.zeros(critic.size, dtype=torch.long),
    )
    found = summary(critic)
    for name, value in explained_variance(values, batch).items():
        assert found[name].value == pytest.approx(value, rel=1e-6), name
    reward = critic.reward[critic.row_of_token]
    assert found["squared_error"].value == pytest.approx(((reward - critic.values) ** 2).mean())
    assert found["calibration_slope"].value == pytest.approx(np.polyfit(critic.values, reward, 1)[0])


def test_equal_rewards_leave_nothing_to_explain():
    found = summary(replace(invented(), reward=np.full(80, 0.3)))
    assert np.isnan(found["explained_variance"].value) and np.isnan(found["explained_variance_first"].value)
    assert np.isfinite(found["squared_error"].value)


def test_changes_at_boundaries_by_outcome():
    critic = make([([0, 0, 1, 1], [2, 2]), ([1, 0.5, 0], [1, 1, 1]), ([3, 3], [2])])
    critic = replace(critic, success=np.array([True, False, True]))
    found = summary(critic)
    assert found["boundary_change_succeeded"].value == 1.0
    assert found["boundary_change_failed"].value == -0.5
    assert found["boundary_change_succeeded"].n_trajectories == 1
    assert (found["share_token"].n_trajectories, found["share_token"].left_out) == (2, 1)


def test_clock_regression_finds_the_line_it_was_made_of():
    gaps = np.array([1.0, 4, 9, 2, 7, 30])
    squares = 0.5 + 0.25 * gaps
    values = np.concatenate([[0.0, 0.1], *(np.array([0.0, 0.1]) + 0 for _ in gaps)])
    starts = np.concatenate([[0.0], np.cumsum(np.sqrt(squares) + 0.1)])
    values = np.concatenate([[start, start + 0.1] for start in starts])
    found = summary(make([(list(values), [2] * 7)], gaps=[[99, *(int(g) for g in gaps)]]))
    assert found["clock_intercept"].value == pytest.approx(0.5)
    assert found["clock_slope"].value == pytest.approx(0.25)
    assert found["clock_excess"].value == pytest.approx((0.5 - 0.01) / squares.mean())
    assert found["clock_rate"].value == pytest.approx(squares.sum() / (gaps.size + gaps.sum()) / 0.01)
    equal = summary(make([(list(values), [2] * 7)], gaps=[[5] * 7]))
    assert np.isnan(equal["clock_intercept"].value) and np.isfinite(equal["clock_rate"].value)


def test_prompts_are_drawn_with_all_their_trajectories():
    """Copies of a trajectory under its prompt add nothing; taken for prompts of their own, they would."""
    critic = invented(size=60)
    copies = critic.rows(np.repeat(np.arange(60), 4))
    one, four = summary(critic, 400), summary(copies, 400)
    apart = summary(replace(copies, prompt=np.arange(240)), 400)

    def width(found):
        return found["share_token"].hi - found["share_token"].lo

    assert width(four) == pytest.approx(width(one), rel=1e-9)
    assert width(apart) < 0.7 * width(one)
    assert four["share_token"].n_prompts == 60 and four["share_token"].n_trajectories == 240


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    truth = summary(invented(size=20_000, seed=1), 2)["share_token"].value
    hits = 0
    for seed in range(60):
        found = summary(invented(size=100, seed=seed + 10), 200, seed)["share_token"]
        hits += found.lo <= truth <= found.hi
    assert 52 <= hits <= 60


def test_few_prompts_are_said():
    assert "30 prompts" in summary(invented(size=30))["share_token"].note
    assert summary(invented(size=ENOUGH_PROMPTS))["share_token"].note == ""
    single = summary(replace(invented(size=30), prompt=np.zeros(30, dtype=int)))["share_token"]
    assert np.isnan(single.lo) and "one prompt" in single.note and np.isfinite(single.value)


def test_cluster_t_by_hand():
    values, prompt = np.array([1.0, 3.0, 2.0, np.nan, 6.0]), np.array([0, 0, 1, 1, 2])
    found, p = cluster_t(values, prompt)
    sums = np.array([1 + 3 - 2 * 3.0, 2 - 3.0, 6 - 3.0])
    se = np.sqrt(3 / 2 * (sums**2).sum()) / 4
    assert found.value == 3.0 and found.hi - found.value == pytest.approx(4.302653 * se, rel=1e-6)
    assert (found.n_trajectories, found.n_prompts, found.left_out) == (4, 3, 1) and 0 < p < 0.5
