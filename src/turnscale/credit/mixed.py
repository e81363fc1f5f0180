"""A weighted sum of turn GAE and token GAE from one critic (HyGAE).

Source: HyGAE (arXiv 2607.23605, read through secondary sources). Unlike MPO's, the sum does not keep the turn's
mean, and the turn's value is read before its last token.
"""

from __future__ import annotations

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import layout, require, reverse_scan
from turnscale.credit.token_gae import critic_targets, token_residuals
from turnscale.credit.turn_gae import turn_advantages, turn_values


def mixed(
    batch: TurnBatch, *, alpha: float, lam_turn: float, lam_token: float, read: str, lam_critic: float
) -> Credit:
    """A = alpha A_turn + (1 - alpha) A_token, before whitening.

    Args:
        batch: needs ``values``.
        alpha: weight of the turn scale, in [0, 1].
        lam_turn: decay per turn, in [0, 1].
        lam_token: decay per token, in [0, 1].
        read: ``first`` or ``last``: at which token of the turn the critic is read for the turn scale.
        lam_critic: decay per token of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    turn = turn_advantages(turn_values(values, lay, read), reward, lay, lam_turn)
    token = reverse_scan(token_residuals(values, reward, lay), lam_token, lay.after_in_row)
    returns = critic_targets(values, reward, lay, lam_critic)
    return Credit(lay.put(alpha * turn[lay.segment] + (1.0 - alpha) * token), lay.put(returns), None, {})
