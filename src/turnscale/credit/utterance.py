"""One-step credit of a whole utterance from a state critic and an action critic (ArCHer).

Source: ArCHer (Zhou et al. 2024, read through secondary sources).
"""

from __future__ import annotations

import torch

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import following, layout, require
from turnscale.errors import DataError


def utterance(batch: TurnBatch, *, gamma: float, lam_critic: float) -> Credit:
    """A(t) = Q(t) - V(t), given to every token of turn t; both are read at the turn's first token.

    The critics' targets are one step long: V(t) goes to Q(t), and Q(t) to gamma V(t + 1), or to R after the last
    turn.

    Args:
        batch: needs ``values`` (V, of the state a turn begins in) and ``values_turn`` (Q, of that state and turn).
        gamma: discount per turn, in [0, 1]; in the targets only.
        lam_critic: must be 0, as longer targets would need the policy that is to be evaluated.

    Raises:
        DataError: another ``lam_critic``.
    """
    if lam_critic != 0.0:
        raise DataError(
            f"utterance critics learn from one-step targets, not with lambda {lam_critic}",
            key="critic.lambda_critic",
            remedy="set it to 0.",
        )
    lay = layout(batch)
    state = lay.take(require(batch, "values"))[lay.first]
    action = lay.take(require(batch, "values_turn"))[lay.first]
    reward = batch.reward.to(state.dtype)
    ahead = gamma * following(state, lay.turns_after)
    ahead = ahead + torch.where(lay.ends_row(), reward[lay.turn_row], 0.0)
    advantages, returns, returns_turn = (
        lay.put(per_turn[lay.segment]) for per_turn in (action - state, action, ahead)
    )
    return Credit(advantages, returns, returns_turn, {})
