"""Bi-level GAE: GAE over turn ends, whose return then pays each turn, and GAE inside the turn (RAGEN).

Source: RAGEN (arXiv 2504.20073, read through secondary sources). The published description speaks of turn ends;
an implementation that recognises them by their non-zero reward finds a single one when the reward is terminal,
and is then token GAE. Both readings are choices here.
"""

from __future__ import annotations

import torch

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import following, layout, require, reverse_scan
from turnscale.credit.token_gae import critic_targets


def bilevel(batch: TurnBatch, *, lam_turn: float, lam_token: float, ends: str, lam_critic: float) -> Credit:
    """A(t, i) = sum_j lam_token^(j - i) delta(t, j) inside the turn, the last delta being the turn-level A(t).

    Args:
        batch: needs ``values``; the turn level reads them before the last token of each unit.
        lam_turn: decay per unit, in [0, 1].
        lam_token: decay per token, in [0, 1].
        ends: units end at each ``turn`` or only where a reward is paid (``rewarded``: the trajectory's end).
        lam_critic: decay per token of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    if ends == "turn":
        last, units_after, after = lay.last, lay.turns_after, lay.after_in_turn
    else:
        last = lay.last[lay.ends_row()]
        units_after, after = torch.zeros_like(last), lay.after_in_row
    boundary = values[last]
    paid = torch.where(units_after == 0, reward[lay.row[last]], 0.0)
    upper = reverse_scan(following(boundary, units_after) - boundary + paid, lam_turn, units_after)
    residuals = following(values, after) - values
    residuals[last] = upper
    advantages = reverse_scan(residuals, lam_token, after)
    returns = critic_targets(values, reward, lay, lam_critic)
    return Credit(lay.put(advantages), lay.put(returns), None, {})
