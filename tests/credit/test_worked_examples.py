"""Hand-worked numbers: the examples a reader can redo with a pencil."""

from __future__ import annotations

import pytest
import torch

from turnscale.batch import TurnBatch
from turnscale.credit.group import group_relative
from turnscale.credit.multiscale import multiscale
from turnscale.credit.token_gae import adaptive_lambda
from turnscale.credit.turn_gae import turn_gae

torch.set_num_threads(1)


def three_turns() -> TurnBatch:
    """Turns of 2, 1 and 3 tokens with observations between, V at turn starts .3, .5, .7, reward 1."""
    turn = torch.tensor([[-1, 0, 0, -1, -1, 1, -1, 2, 2, 2, -1]])
    values = torch.zeros(1, 11, dtype=torch.float64)
    values[0, [1, 2, 5, 7, 8, 9]] = torch.tensor([0.3, 0.9, 0.5, 0.7, 0.1, 0.6], dtype=torch.float64)
    return TurnBatch(
        ids=torch.zeros(1, 11, dtype=torch.long),
        action_mask=turn >= 0,
        turn=turn,
        logp_rollout=torch.zeros(1, 11, dtype=torch.float64),
        length=torch.tensor([11]),
        reward=torch.tensor([1.0]),
        success=torch.tensor([True]),
        truncated=torch.tensor([False]),
        task=torch.tensor([0]),
        group=torch.tensor([0]),
        values=values,
    )


def test_turn_advantages_of_the_published_example() -> None:
    batch = three_turns()
    got = turn_gae(batch, lam=0.8, read="first", lam_critic=1.0).advantages[batch.action_mask]
    want = torch.tensor([0.552, 0.552, 0.44, 0.3, 0.3, 0.3], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


def test_multiscale_by_hand() -> None:
    batch = three_turns()
    credit = multiscale(batch, lam=0.8, lam_intra=0.5, beta=2.0, lam_critic=1.0)
    # residuals .6, -.4 | .2 | -.6, .5, .4; traces .4, -.4 | .2 | -.25, .7, .4
    want = [0.552 + 2 * 0.4, 0.552 - 2 * 0.4, 0.44]
    mean = (-0.25 + 0.7 + 0.4) / 3
    want += [0.3 + 2 * (trace - mean) for trace in (-0.25, 0.7, 0.4)]
    got = credit.advantages[batch.action_mask]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)
    assert credit.returns is not None
    assert credit.returns[batch.action_mask].tolist() == [1.0] * 6
    assert credit.returns[~batch.action_mask].abs().sum() == 0


@pytest.mark.parametrize(
    ("ddof", "singleton", "want_pair", "want_lone"),
    [(1, "raw", 0.70711, 1.0), (1, "zero", 0.70711, 0.0), (0, "zero", 1.0, 0.0)],
)
def test_conventions_change_what_a_group_gives(
    ddof: int, singleton: str, want_pair: float, want_lone: float
) -> None:
    scores, group = torch.tensor([0.0, 1.0, 1.0, 0.5, 0.5]), torch.tensor([7, 7, 3, 1, 1])
    got, metrics = group_relative(
        scores, group, scale="std", ddof=ddof, eps=1e-6, min_std=0.0, singleton=singleton
    )
    torch.testing.assert_close(
        got, torch.tensor([-want_pair, want_pair, want_lone, 0.0, 0.0]), atol=1e-5, rtol=0
    )
    assert metrics["degenerate_group_share"] == pytest.approx(2 / 3)
    assert metrics["singleton_group_share"] == pytest.approx(1 / 3)


def test_length_adaptive_lambda_is_zero_at_short_length() -> None:
    got = adaptive_lambda(torch.tensor([1, 20, 40, 200]), 0.05)
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, 0.5, 0.9], dtype=torch.float64))
