"""What is done to the terminal reward before credit is assigned."""

from __future__ import annotations

from torch import Tensor

from turnscale.batch import TurnBatch


def none(batch: TurnBatch) -> Tensor:
    """[B]: the environment's reward."""
    return batch.reward


def soft_overlong(batch: TurnBatch, *, limit: int, buffer: int) -> Tensor:
    """[B]: reward minus DAPO's soft overlong penalty (arXiv 2503.14476).

    Args:
        batch: lengths are counted in action tokens.
        limit: budget of action tokens.
        buffer: the penalty rises linearly from 0 to 1 over the last ``buffer`` tokens of the budget.
    """
    length = batch.action_mask.sum(dim=1)
    penalty = ((length - (limit - buffer)) / buffer).clamp(0.0, 1.0)
    return batch.reward - penalty.to(batch.reward.dtype)
