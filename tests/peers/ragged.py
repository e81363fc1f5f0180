"""Random ragged batches, and a row's loss on them, to be held against another library's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.gates.batches import random_batch
from turnscale.methods import load_method
from turnscale.objective.aggregate import denominators
from turnscale.objective.policy import policy_loss

SEEDS = range(4)
TOLERANCE = {"atol": 1e-6, "rtol": 0.0}


def ragged(seed: int, *, lone: bool = False, rows: int = 12) -> TurnBatch:
    """Multi-turn float64 trajectories in groups of 4, graded rewards; ``lone`` adds a group of one."""
    return random_batch(seed, rows=rows + lone, graded=True)


def moved(batch: TurnBatch, scale: float = 0.3, seed: int = 0) -> Tensor:
    """[B, T] log-probabilities some way from the sampler's, with gradient; 0 off action tokens."""
    draw = torch.Generator().manual_seed(1000 + seed)
    noise = torch.randn(batch.ids.shape, generator=draw, dtype=torch.float64) * scale
    return torch.where(batch.action_mask, batch.logp_rollout + noise, 0.0).requires_grad_()


def tokens_at_random(batch: TurnBatch, seed: int = 0) -> Tensor:
    """[B, T] an advantage for each action token, 0 elsewhere."""
    draw = torch.Generator().manual_seed(2000 + seed)
    noise = torch.randn(batch.ids.shape, generator=draw, dtype=torch.float64)
    return torch.where(batch.action_mask, noise, 0.0)


def rows_at_random(batch: TurnBatch, seed: int = 0) -> Tensor:
    """[B] an advantage for each trajectory."""
    draw = torch.Generator().manual_seed(3000 + seed)
    return torch.randn(batch.size, generator=draw, dtype=torch.float64)


def without_actions(batch: TurnBatch, row: int) -> TurnBatch:
    """The batch with every action token, and the reward, of one row taken away."""
    keep = torch.arange(batch.size) != row
    return batch.with_(
        action_mask=batch.action_mask & keep[:, None],
        turn=torch.where(keep[:, None], batch.turn, -1),
        reward=batch.reward * keep,
    )


def our_loss(
    row: str, overrides: dict[str, Any], batch: TurnBatch, logp: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """(loss, its gradient with respect to logp [B, T], metrics) of a method row."""
    method = load_method(row, overrides)
    count = denominators(batch)
    loss, metrics = policy_loss(method, logp, batch, advantages, batch.logp_rollout, count)
    return loss.detach(), gradient(loss, logp), metrics


def gradient(loss: Tensor, logp: Tensor) -> Tensor:
    """[B, T] d loss / d logp."""
    return torch.autograd.grad(loss, logp)[0]
