"""Every credit function against an independent loop over tokens, on random batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import credit_loops as loops
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnscale.axes import CREDIT
from turnscale.batch import TurnBatch
from turnscale.gates.batches import random_batch

torch.set_num_threads(1)

RULES: dict[str, Any] = {"scale": "std", "ddof": 1, "eps": 1e-6, "min_std": 0.0, "singleton": "raw"}
TOY: dict[str, Any] = {"scale": "std", "ddof": 0, "eps": 0.0, "min_std": 1e-6, "singleton": "zero"}
MEAN: dict[str, Any] = {"scale": "none", "ddof": 1, "eps": 1e-6, "min_std": 0.0, "singleton": "zero"}

Case = tuple[str, dict[str, Any], Callable[[TurnBatch], Tensor]]
CASES: list[Case] = [
    ("none", {}, lambda b: torch.zeros_like(b.logp_rollout)),
    ("group", RULES, lambda b: loops.spread(b, loops.group(b, **RULES))),
    ("group", TOY, lambda b: loops.spread(b, loops.group(b, **TOY))),
    ("group", MEAN, lambda b: loops.spread(b, loops.group(b, **MEAN))),
    ("leave_one_out", {"singleton": "zero"}, loops.leave_one_out),
    ("token_gae", {"lam": 0.9}, lambda b: loops.token_gae(b, 0.9)),
    ("token_gae", {"lam": 0.0}, lambda b: loops.token_gae(b, 0.0)),
    ("token_gae", {"lam": 1.0}, lambda b: loops.token_gae(b, 1.0)),
    ("length_adaptive_gae", {"alpha": 0.4}, lambda b: loops.length_adaptive(b, 0.4)),
    ("turn_gae", {"lam": 0.8, "read": "first"}, lambda b: loops.turn_gae(b, 0.8, 0)),
    ("turn_gae", {"lam": 0.8, "read": "last"}, lambda b: loops.turn_gae(b, 0.8, -1)),
    ("multiscale", {"lam": 0.8, "lam_intra": 0.9, "beta": 1.5}, lambda b: loops.multiscale(b, 0.8, 0.9, 1.5)),
    (
        "two_head",
        {"lam_turn": 0.7, "lam_token": 0.9, "alpha": 0.5, "trace": "turn"},
        lambda b: loops.two_head(b, 0.7, 0.9, 0.5, True),
    ),
    (
        "two_head",
        {"lam_turn": 0.7, "lam_token": 0.9, "alpha": 0.5, "trace": "trajectory"},
        lambda b: loops.two_head(b, 0.7, 0.9, 0.5, False),
    ),
    (
        "mixed",
        {"alpha": 0.3, "lam_turn": 0.7, "lam_token": 0.9, "read": "last"},
        lambda b: 0.3 * loops.turn_gae(b, 0.7, -1) + 0.7 * loops.token_gae(b, 0.9),
    ),
    ("bilevel", {"lam_turn": 0.3, "lam_token": 0.9, "ends": "rewarded"}, lambda b: loops.token_gae(b, 0.9)),
    (
        "bilevel",
        {"lam_turn": 0.6, "lam_token": 0.9, "ends": "turn"},
        lambda b: loops.bilevel_turn(b, 0.6, 0.9),
    ),
    ("anchor", {"discount": 0.95, **RULES}, lambda b: loops.anchor(b, 0.95, **RULES)),
    ("anchor", {"discount": 1.0, **TOY}, lambda b: loops.anchor(b, 1.0, **TOY)),
    (
        "gigpo",
        {"omega": 0.7, "discount": 0.9, **MEAN, "step_singleton": "zero"},
        lambda b: loops.spread(b, loops.group(b, **MEAN)) + 0.7 * loops.anchor(b, 0.9, **MEAN),
    ),
    (
        "tree",
        {"baseline": "fork", "prefix": "none", **TOY},
        lambda b: loops.tree(b, "fork", "none", **TOY),
    ),
    (
        "tree",
        {"baseline": "task", "prefix": "mean", **RULES},
        lambda b: loops.tree(b, "task", "mean", **RULES),
    ),
    (
        "belief",
        {"lam": 0.5, "b": 0.2, "gamma": 0.9, "eps0": 1e-3, "level": "turn", **RULES},
        lambda b: loops.belief(b, 0.5, 0.2, 0.9, 1e-3, "turn", **RULES),
    ),
    (
        "belief",
        {"lam": 0.8, "b": 0.4, "gamma": 0.8, "eps0": 1e-2, "level": "token", **TOY},
        lambda b: loops.belief(b, 0.8, 0.4, 0.8, 1e-2, "token", **TOY),
    ),
    (
        "token_weighted",
        {"mix": 0.5, "width": 0.2, **RULES},
        lambda b: loops.token_weighted(b, 0.5, 0.2, **RULES),
    ),
    ("step_added", {"coef": 0.1, "bound": 0.6, **RULES}, lambda b: loops.step_added(b, 0.1, 0.6, **RULES)),
    ("utterance", {"gamma": 0.9}, lambda b: loops.utterance(b, 0.9)[0]),
]


def run(name: str, batch: TurnBatch, params: dict[str, Any]) -> Tensor:
    # The utterance critics learn from one-step targets only; the others take any decay.
    extra = {"lam_critic": float(name != "utterance")} if "values" in CREDIT[name].needs else {}
    return CREDIT[name].load()(batch, **params, **extra).advantages


def forked(seed: int) -> TurnBatch:
    """Odd group sizes, several forks a task, forks at different depths, graded rewards, equal rewards in a group."""
    batch = random_batch(seed, rows=14, group_size=3, graded=True)
    reward = batch.reward.clone()
    reward[3:6] = 0.25
    return batch.with_(reward=reward, task=batch.group // 2, fork_turn=batch.group % 3)


@pytest.mark.parametrize(("name", "params", "loop"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_agrees_with_loop(name: str, params: dict[str, Any], loop: Callable, seed: int) -> None:
    batch = forked(seed)
    torch.testing.assert_close(run(name, batch, params), loop(batch), atol=1e-9, rtol=1e-9)


def test_every_credit_is_covered() -> None:
    assert {case[0] for case in CASES} == set(CREDIT)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_critic_targets_are_lambda_returns(lam: float) -> None:
    batch = forked(3)
    credit = CREDIT["token_gae"].load()(batch, lam=0.5, lam_critic=lam)
    want = loops.token_gae(batch, lam) + torch.where(batch.action_mask, batch.values, 0.0)
    torch.testing.assert_close(credit.returns, want, atol=1e-9, rtol=1e-9)


def test_utterance_targets_are_one_step_long() -> None:
    batch = forked(4)
    credit = CREDIT["utterance"].load()(batch, gamma=0.9, lam_critic=0.0)
    _, states, actions = loops.utterance(batch, 0.9)
    torch.testing.assert_close(credit.returns, states, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(credit.returns_turn, actions, atol=1e-9, rtol=1e-9)


def test_turn_head_targets_are_lambda_returns_over_turns() -> None:
    batch = forked(4)
    params = {"lam_turn": 0.7, "lam_token": 0.9, "alpha": 0.5, "trace": "turn"}
    credit = CREDIT["two_head"].load()(batch, **params, lam_critic=0.6)
    swapped = batch.with_(values=batch.values_turn)
    first = torch.zeros_like(batch.values)
    for row in range(batch.size):
        for turn in loops.turns_of(batch, row):
            first[row, turn] = batch.values_turn[row, turn[0]]
    torch.testing.assert_close(
        credit.returns_turn, loops.turn_gae(swapped, 0.6, 0) + first, atol=1e-9, rtol=1e-9
    )


def test_long_turns_agree_with_loop() -> None:
    batch = random_batch(1, rows=2, turns=(2, 3), turn_length=(300, 700), observation=(0, 9))
    got = run("multiscale", batch, {"lam": 0.8, "lam_intra": 0.95, "beta": 1.0})
    torch.testing.assert_close(got, loops.multiscale(batch, 0.8, 0.95, 1.0), atol=1e-9, rtol=1e-9)
