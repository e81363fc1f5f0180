"""Importance ratios: how far the policy has moved, at the scale a method chooses. All in log space.

Each function returns log-ratios [B, T] with the gradient the method wants; off action tokens they are 0.
Sources: PPO (arXiv 1707.06347), GSPO (2507.18071), MPO (2610.35013, read through secondary sources), SAO
(2607.08507, read through secondary sources).
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.segments import layout


def log_ratio(logp: Tensor, old_logp: Tensor, batch: TurnBatch) -> Tensor:
    """[B, T]: log pi_theta - log pi_old on action tokens, 0 elsewhere."""
    return torch.where(batch.action_mask, logp - old_logp, 0.0)


def token(logp: Tensor, old_logp: Tensor, batch: TurnBatch) -> Tensor:
    """Each token's own ratio."""
    return log_ratio(logp, old_logp, batch)


def turn(logp: Tensor, old_logp: Tensor, batch: TurnBatch, *, gradient: str) -> Tensor:
    """The product of the turn's token ratios, equal in value for all tokens of the turn.

    Args:
        logp, old_logp: [B, T].
        batch: gives the turns.
        gradient: ``own``: only the token's own factor carries gradient (MPO's rho~);
            ``shared``: the whole product does, so a turn of L tokens weighs L times as much per token;
            ``shared_mean``: as ``shared``, divided by L.
    """
    lay = layout(batch)
    own = lay.take(log_ratio(logp, old_logp, batch))
    total = lay.turn_sum(own)
    if gradient == "own":
        value = total.detach()[lay.segment] + own - own.detach()
    elif gradient == "shared":
        value = total[lay.segment]
    else:
        length = lay.tokens_per_turn.to(own.dtype)
        value = (total.detach() + (total - total.detach()) / length)[lay.segment]
    return lay.put(value)


def sequence(logp: Tensor, old_logp: Tensor, batch: TurnBatch) -> Tensor:
    """GSPO's geometric mean over the trajectory's action tokens, in token form: gradient through own logp."""
    own = log_ratio(logp, old_logp, batch)
    length = batch.action_mask.sum(dim=1).clamp(min=1)
    mean = own.detach().double().sum(dim=1) / length
    return torch.where(batch.action_mask, mean.to(own.dtype)[:, None] + own - own.detach(), 0.0)


def rollout(logp: Tensor, old_logp: Tensor, batch: TurnBatch) -> Tensor:
    """Each token's ratio to the *sampler's* probability rather than to the trainer's old policy."""
    return log_ratio(logp, batch.logp_rollout, batch)
