"""The exact gradient against finite differences, and the estimators against it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from turnscale.methods import load_method
from turnscale.tabular.estimators import (
    Policy,
    Sample,
    dead_tokens,
    draw,
    moments,
    policy_at,
    summarise,
    token_weights,
)
from turnscale.tabular.exact import Enumerated, enumerate_task, midway, one_step_away, trajectory_kl
from turnscale.tabular.training import Design


@cache
def setting(turns: int, tokens: int) -> tuple[Enumerated, np.ndarray]:
    """A task and a policy half-way up."""
    mdp = enumerate_task(turns, tokens)
    return mdp, midway(mdp)


@pytest.mark.parametrize(("turns", "tokens"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_gradient_against_finite_differences(turns: int, tokens: int) -> None:
    mdp = enumerate_task(turns, tokens)
    generator = np.random.default_rng(turns + tokens)
    logits = generator.normal(size=mdp.parameters)
    gradient = mdp.gradient(logits)
    for place in generator.choice(mdp.parameters, size=min(40, mdp.parameters), replace=False):
        step = np.zeros(mdp.parameters)
        step[place] = 1e-5
        numeric = (mdp.value(logits + step) - mdp.value(logits - step)) / 2e-5
        assert gradient[place] == pytest.approx(numeric, abs=1e-9)


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("turns", [2, 3, 4])
def test_enumeration(turns: int, tokens: int) -> None:
    mdp, logits = setting(turns, tokens)
    assert mdp.probability(logits).sum() == pytest.approx(1)
    assert mdp.value(np.zeros(mdp.parameters)) == pytest.approx(1 / 8)
    assert mdp.value(logits) >= (1 / 8 + mdp.task.optimum) / 2
    values = mdp.state_values(logits)
    np.testing.assert_allclose(values[:, 0], mdp.value(logits), atol=1e-12)
    probability = mdp.probability(logits)
    for token in range(1, len(mdp.counts)):
        assert probability @ values[:, token] == pytest.approx(mdp.value(logits))
    moved = one_step_away(mdp, logits, 0.05)
    assert trajectory_kl(mdp, logits, moved) == pytest.approx(0.05, rel=1e-6)
    assert mdp.value(moved) > mdp.value(logits)


def test_the_optimum_is_reached_and_never_passed() -> None:
    """Exact ascent towards a higher goal ends at the computed optimum."""
    mdp, logits = setting(3, 1)
    for _ in range(300):
        visits = mdp.visits(mdp.probability(logits))
        scale = np.concatenate([np.repeat(v, n) for v, n in zip(visits, mdp.counts, strict=True)])
        logits = logits + 5 * mdp.gradient(logits) / np.maximum(scale, 1e-9)
        assert mdp.value(logits) <= mdp.task.optimum + 1e-12
    assert mdp.value(logits) == pytest.approx(mdp.task.optimum, abs=0.02)


def dense(sample: Sample, policy: Policy, weights: np.ndarray) -> np.ndarray:
    """[M, P] each batch's estimate, one trajectory's score at a time."""
    mdp = sample.mdp
    batches, rollouts = sample.index.shape
    tables = [np.exp(table) for table in mdp.log_policy(policy.logits)]
    found = np.zeros((batches, mdp.parameters))
    for batch in range(batches):
        views = list(mdp.tables(found[batch]))
        for rollout in range(rollouts):
            n = sample.index[batch, rollout]
            for i, view in enumerate(views):
                weight = weights[batch * rollouts + rollout, i] / rollouts
                view[mdp.row[n, i]] -= weight * tables[i][mdp.row[n, i]]
                view[mdp.row[n, i], mdp.action[n, i]] += weight
    return found


@pytest.mark.parametrize("tokens", [1, 2])
def test_moments_against_dense_estimates(tokens: int) -> None:
    mdp, logits = setting(3, tokens)
    policy = policy_at(mdp, one_step_away(mdp, logits, 0.05))
    design = Design((0, 1, 2), 3, copied=True)
    sampled = draw(mdp, logits, design, 60, np.random.default_rng(0))
    weights = np.random.default_rng(1).normal(size=(sampled.index.size, len(mdp.counts)))
    estimates = dense(sampled, policy, weights)
    found = moments(sampled, policy, weights)
    np.testing.assert_allclose(found.total.sum(axis=0), estimates.sum(axis=0), atol=1e-12)
    assert found.square.sum() == pytest.approx(np.square(estimates).sum())
    assert found.along.sum() == pytest.approx((estimates @ policy.gradient).sum())
    result = summarise(found, policy.gradient, calls=27)
    trace = estimates.var(axis=0, ddof=1).sum()
    length = policy.gradient @ policy.gradient
    assert result["relative_variance"][0] == pytest.approx(trace / length)
    mean = estimates.mean(axis=0)
    unbiased = max(mean @ mean - trace / 60, 0)
    assert result["snr"][0] == pytest.approx(np.sqrt(unbiased / trace))
    cosine = estimates @ policy.gradient / np.linalg.norm(estimates, axis=1) / np.sqrt(length)
    assert result["batch_cosine"][0] == pytest.approx(cosine.mean())


def measured(name: str, turns: int, tokens: int, size: int, batches: int, **overrides: object):
    """Statistics of a row's credit on the policy."""
    mdp, logits = setting(turns, tokens)
    method = load_method(name, {key.replace("__", "."): value for key, value in overrides.items()})
    design = Design((0,), size, copied=False)
    sampled = draw(mdp, logits, design, batches, np.random.default_rng(3))
    policy = policy_at(mdp, logits)
    weights = token_weights(
        sampled.batch, method.credit(sampled.batch).advantages, policy.token_logp[sampled.index.reshape(-1)],
        {"name": "token"},
    )  # fmt: skip
    return summarise(moments(sampled, policy, weights), policy.gradient, design.calls(turns))


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("name", ["rloo", "ppo", "ppo-lam1", "turn-ppo"])
def test_unbiased_estimators_are_unbiased(name: str, tokens: int) -> None:
    """Leave-one-out and GAE with the exact critic at any lambda, within Monte-Carlo error."""
    found = measured(name, 3, tokens, 4, 20_000)
    value, lo, hi = found["scale"]
    assert hi - lo < 0.25
    assert lo - (hi - lo) / 2 <= 1.0 <= hi + (hi - lo) / 2
    assert found["relative_bias"][1] < 0.1
    assert found["relative_bias"][2] > 0
    assert abs(value - 1) < 0.1
    assert found["cosine"][2] > 0.99


def test_biased_estimators_are_found_out() -> None:
    """The group mean shrinks by (G - 1) / G; anchor buckets point elsewhere."""
    shrunk = measured("grpo", 3, 1, 4, 20_000, credit__scale="none")["scale"]
    full = measured("rloo", 3, 1, 4, 20_000)["scale"]
    assert shrunk[0] / full[0] == pytest.approx(0.75, abs=1e-6)
    anchor = measured("grouping-anchor", 3, 1, 16, 10_000)
    assert anchor["cosine"][2] < 0.97
    assert anchor["relative_bias"][1] > 0.1


def test_forked_rollouts_follow_the_policy() -> None:
    """Each forked rollout by itself is a sample of the policy, and siblings share target and prefix."""
    mdp, logits = setting(3, 1)
    sampled = draw(mdp, logits, Design((0, 1, 2), 2, copied=True), 30_000, np.random.default_rng(5))
    probability = mdp.probability(logits)
    for column in range(6):
        share = np.bincount(sampled.index[:, column], minlength=len(probability)) / 30_000
        error = np.sqrt(probability / 30_000)
        assert np.abs(share - probability).max() < 6 * error.max()
    for group, fork in enumerate((0, 1, 2)):
        block = mdp.completions(fork)
        first, second = sampled.index[:, 2 * group], sampled.index[:, 2 * group + 1]
        np.testing.assert_array_equal(first // block, second // block)
        assert (first != second).any()


def test_token_weights_are_ratios_times_advantages() -> None:
    mdp, logits = setting(2, 2)
    moved = one_step_away(mdp, logits, 0.1)
    sampled = draw(mdp, logits, Design((0,), 8, copied=False), 40, np.random.default_rng(0))
    logp = mdp.token_logp(moved)[sampled.index.reshape(-1)]
    gap = logp - sampled.batch.logp_rollout.numpy()
    advantages = torch.from_numpy(np.random.default_rng(1).normal(size=gap.shape))
    token = token_weights(sampled.batch, advantages, logp, {"name": "token"})
    np.testing.assert_allclose(token, np.exp(gap) * advantages.numpy())
    turn = token_weights(sampled.batch, advantages, logp, {"name": "turn", "gradient": "own"})
    per_turn = np.repeat(gap.reshape(-1, 2, 2).sum(axis=2), 2, axis=1)
    np.testing.assert_allclose(turn, np.exp(per_turn) * advantages.numpy())
    sequence = token_weights(sampled.batch, advantages, logp, {"name": "sequence"})
    np.testing.assert_allclose(sequence, np.exp(gap.mean(axis=1, keepdims=True)) * advantages.numpy())


def test_dead_tokens_leave_the_shared_prefix_out() -> None:
    mdp, logits = setting(2, 1)
    sampled = draw(mdp, logits, Design((0, 1), 2, copied=True), 40, np.random.default_rng(0))
    advantages = torch.ones(160, 2)
    advantages[2::4, 0] = advantages[3::4, 0] = 0.0
    assert dead_tokens(sampled, advantages)[0] == 0.0
    advantages[0::4, 0] = 0.0
    assert dead_tokens(sampled, advantages)[0] == pytest.approx(1 / 6)
