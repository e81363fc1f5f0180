"""Generalised advantage estimation over whole turns, broadcast to their tokens (Turn-PPO, MPO's beta = 0).

Sources: Turn-PPO (arXiv 2512.17008) and MPO (2610.35013), both read through secondary sources.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import Layout, following, layout, require, reverse_scan
from turnscale.credit.token_gae import critic_targets


def turn_values(values: Tensor, lay: Layout, read: str) -> Tensor:
    """[S]: each turn's value, read before its ``first`` or before its ``last`` token. values: [N]."""
    return values[lay.first if read == "first" else lay.last]


def turn_advantages(boundary: Tensor, reward: Tensor, lay: Layout, lam: float) -> Tensor:
    """[S]: A(t) = delta(t) + lam A(t + 1), delta(t) = 1{last turn} R + V(t + 1) - V(t), V after the end 0.

    Args:
        boundary: [S] one value per turn; nothing else of the critic enters.
        reward: [B] terminal rewards.
        lay: the batch's layout.
        lam: decay per turn.
    """
    residuals = following(boundary, lay.turns_after) - boundary
    residuals = residuals + torch.where(lay.ends_row(), reward[lay.turn_row], 0.0)
    return reverse_scan(residuals, lam, lay.turns_after)


def turn_gae(batch: TurnBatch, *, lam: float, read: str, lam_critic: float) -> Credit:
    """The turn advantage given to every token of the turn.

    Args:
        batch: needs ``values``.
        lam: decay per turn, in [0, 1].
        read: ``first`` or ``last``: at which token of the turn the critic is read.
        lam_critic: decay per token of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    advantages = turn_advantages(turn_values(values, lay, read), reward, lay, lam)[lay.segment]
    returns = critic_targets(values, reward, lay, lam_critic)
    return Credit(lay.put(advantages), lay.put(returns), None, {})
