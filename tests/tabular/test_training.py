"""Tabular training against the published numbers, the registered losses and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.errors import ConfigError
from turnscale.methods import load_method
from turnscale.objective import denominators, policy_loss
from turnscale.tabular import training
from turnscale.tabular.task import ProbeTask
from turnscale.tabular.training import Design, design_of, sample, singleton_share, to_batch, update

METHODS = ("grouping-traj", "grouping-anchor", "grouping-tree")


def rolled(method: str, turns: int, seeds: int = 3, spread: float = 1.0):
    """Rollouts of random policies, with the policies."""
    task = ProbeTask(turns)
    generator = np.random.default_rng(turns)
    logits = tuple(
        generator.normal(0, spread, (seeds, states, actions))
        for states, actions in zip(task.states, task.actions, strict=True)
    )
    design = design_of(load_method(method), turns, 16)
    draws = generator.random((seeds, design.rollouts, turns + 1))
    return task, design, logits, sample(logits, draws, task, design)


@pytest.mark.parametrize(("turns", "calls"), [(2, 13), (3, 27), (4, 46), (5, 70)])
def test_environment_calls(turns: int, calls: int) -> None:
    assert design_of(load_method("grouping-tree"), turns, 16).calls(turns) == calls
    assert design_of(load_method("grouping-traj"), turns, 16).calls(turns) == 16 * turns
    assert design_of(load_method("grouping-anchor"), turns, 16).calls(turns) == 16 * turns


def test_a_scheme_without_meaning_here_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.scheme.*dynamic"):
        design_of(load_method("dapo"), 3, 16)


def published_anchor_advantages(states: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """The published loop: buckets by (turn, history), zero for one member or no spread. [R, T], [R] -> [R, T]."""
    found = np.zeros(states.shape)
    for turn in range(states.shape[1]):
        for state in set(states[:, turn]):
            members = np.flatnonzero(states[:, turn] == state)
            mean = rewards[members].mean()
            sd = np.sqrt(((rewards[members] - mean) ** 2).mean())
            if len(members) > 1 and sd >= 1e-6:
                found[members, turn] = (rewards[members] - mean) / sd
    return found


@pytest.mark.parametrize("turns", [2, 3, 5])
def test_registered_credit_is_the_published_loop(turns: int) -> None:
    for method in METHODS:
        task, design, _, rollouts = rolled(method, turns)
        credit = load_method(method).credit(to_batch(rollouts, task, design)).advantages.numpy()
        credit = credit.reshape(3, design.rollouts, turns)
        assert (credit != 0).any()
        for seed in range(3):
            state, reward = rollouts.state[seed], rollouts.reward[seed]
            if method == "grouping-anchor":
                wanted = published_anchor_advantages(state, reward)
            else:
                wanted = np.zeros((design.rollouts, turns))
                for group, fork in enumerate(design.forks):
                    rows = slice(group * design.siblings, (group + 1) * design.siblings)
                    alone = np.zeros((design.siblings, 1))
                    wanted[rows, fork:] = published_anchor_advantages(alone, reward[rows])
            np.testing.assert_allclose(credit[seed], wanted, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_the_update_descends_the_registered_loss(method: str) -> None:
    """One step is -lr times the gradient of the row's policy loss, seed by seed."""
    task, design, logits, rollouts = rolled(method, 4, seeds=2)
    row = load_method(method)
    batch = to_batch(rollouts, task, design)
    advantages = row.credit(batch).advantages
    moved = tuple(table.copy() for table in logits)
    update(moved, rollouts, advantages.numpy().reshape(2, design.rollouts, 4), 0.1)
    leaves = [torch.from_numpy(table.copy()).requires_grad_() for table in logits]
    for seed in range(2):
        rows = torch.arange(seed * design.rollouts, (seed + 1) * design.rollouts)
        part = batch.rows(rows)
        state, action = torch.from_numpy(rollouts.state[seed]), torch.from_numpy(rollouts.action[seed])
        logp = torch.stack(
            [
                torch.log_softmax(leaves[turn][seed][state[:, turn]], dim=-1)
                .gather(1, action[:, turn, None])
                .squeeze(1)
                for turn in range(4)
            ],
            dim=1,
        )
        loss, _ = policy_loss(row, logp, part, advantages[rows], part.logp_rollout, denominators(part))
        loss.backward()
    for table, leaf, start in zip(moved, leaves, logits, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(table - start, -0.1 * leaf.grad.numpy(), atol=1e-12)
    assert any((table != start).any() for table, start in zip(moved, logits, strict=True))


def test_siblings_share_the_prefix_and_then_part() -> None:
    _, design, _, rollouts = rolled("grouping-tree", 5, seeds=20, spread=0.0)
    for group, fork in enumerate(design.forks):
        rows = slice(group * design.siblings, (group + 1) * design.siblings)
        states, actions = rollouts.state[:, rows], rollouts.action[:, rows]
        assert (states[:, :, : fork + 1] == states[:, :1, : fork + 1]).all()
        assert (actions[:, :, fork] != actions[:, :1, fork]).any()


def test_observations_are_bits_of_one_target() -> None:
    _, _, _, rollouts = rolled("grouping-traj", 5, seeds=50, spread=0.0)
    won = rollouts.reward == 1
    assert won.any()
    target = rollouts.action[..., 4]
    state = rollouts.state[..., 4]
    for turn in range(3, -1, -1):
        state, digit = np.divmod(state, 6)
        tool, seen = digit // 2, digit % 2
        np.testing.assert_array_equal(tool, rollouts.action[..., turn])
        np.testing.assert_array_equal(seen[won], (target >> tool & 1)[won])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_singleton_share_counts_buckets(rows: list[list[int]]) -> None:
    buckets = [[row[turn] for row in rows].count(s) for turn in range(3) for s in {r[turn] for r in rows}]
    assert singleton_share(np.array([rows]))[0] == pytest.approx(buckets.count(1) / len(buckets))


def run(method: str, turns: int, seeds: range, iterations: int) -> training.Trained:
    """Train as published."""
    return training.train(
        seeds, f"{method}-t{turns}", load_method(method), ProbeTask(turns),
        group_size=16, lr=0.1, iterations=iterations,
    )  # fmt: skip


@pytest.mark.parametrize(("turns", "rate"), [(2, 0.151), (3, 0.536), (4, 0.709), (5, 0.797)])
def test_published_degenerate_rates(turns: int, rate: float) -> None:
    found = run("grouping-anchor", turns, range(6), 250).metrics["singleton_bucket_share"].mean()
    assert found == pytest.approx(rate, abs=0.012)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_does_not_depend_on_its_block(method: str) -> None:
    whole, part, again = (run(method, 3, seeds, 60) for seeds in (range(6), range(2, 5), range(6)))
    for one, other, same in zip(whole.logits, part.logits, again.logits, strict=True):
        np.testing.assert_array_equal(one[2:5], other)
        np.testing.assert_array_equal(one, same)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(values[2:5], part.metrics[name])
    assert (whole.logits[0][0] != whole.logits[0][1]).any()


def test_greedy_finds_the_optimum_of_an_optimal_policy() -> None:
    task = ProbeTask(4)
    logits = [
        np.zeros((1, states, actions)) for states, actions in zip(task.states, task.actions, strict=True)
    ]
    for turn in range(3):
        logits[turn][..., turn] = 1.0
    for state in range(task.states[3]):
        digits = [state // 36 % 6, state // 6 % 6, state % 6]
        answer = sum((digit % 2) << (digit // 2) for digit in digits if digit // 2 < 3)
        logits[3][0, state, answer % 8] = 1.0
    acted = training.greedy(logits, task)
    assert acted.success.all()
    assert (acted.distinct == 3).all()
    wasted = training.greedy([np.zeros_like(table) for table in logits], task)
    assert wasted.success.sum() == 1
    assert (wasted.distinct == 1).all()


@pytest.mark.slow
def test_two_hundred_seeds_give_the_known_table() -> None:
    """Accuracies at T = 5 of the reading: .681, .161 and .687, each known to about two points."""
    for method, accuracy in (("grouping-traj", 0.681), ("grouping-anchor", 0.161), ("grouping-tree", 0.687)):
        trained = run(method, 5, range(200), 250)
        found = training.greedy(trained.logits, ProbeTask(5)).success.mean()
        assert found == pytest.approx(accuracy, abs=0.045)


def test_independent_rollouts_have_targets_of_their_own() -> None:
    task, seeds = ProbeTask(2), 200
    logits = [
        np.zeros((seeds, states, actions)) for states, actions in zip(task.states, task.actions, strict=True)
    ]
    logits[0][..., 0] = 50.0
    draws = np.random.default_rng(0).random((seeds, 4, 3))
    apart = sample(logits, draws, task, Design((0,), 4, copied=False)).state[..., 1]
    copied = sample(logits, draws, task, Design((0,), 4, copied=True)).state[..., 1]
    assert (copied == copied[:, :1]).all()
    assert (apart != apart[:, :1]).any()
