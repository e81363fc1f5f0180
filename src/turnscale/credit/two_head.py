"""Two critics' heads, one per scale, joined by the mean-preserving sum (VETTA).

Source: VETTA, read through secondary sources only. Whether its token trace is cut at the turn's end is not said
there; it is a declared choice here. Cut, tied heads give MPO's credit; uncut they do so only at lambda 1.
"""

from __future__ import annotations

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.multiscale import refine
from turnscale.credit.segments import layout, require, reverse_scan
from turnscale.credit.token_gae import critic_targets, token_residuals
from turnscale.credit.turn_gae import turn_advantages, turn_values


def two_head(
    batch: TurnBatch, *, lam_turn: float, lam_token: float, alpha: float, trace: str, lam_critic: float
) -> Credit:
    """A = A_turn + alpha (A_token - its mean over the turn), each from its own head.

    Args:
        batch: needs ``values`` (token head) and ``values_turn`` (turn head, read at turn starts).
        lam_turn: decay per turn, in [0, 1].
        lam_token: decay per token, in [0, 1].
        alpha: strength of the refinement, >= 0.
        trace: the token GAE ends with the ``turn`` or runs through the ``trajectory``.
        lam_critic: decay of both heads' own targets, per token and per turn, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    boundary = turn_values(lay.take(require(batch, "values_turn")), lay, "first")
    reward = batch.reward.to(values.dtype)
    turn = turn_advantages(boundary, reward, lay, lam_turn)
    after = lay.after_in_turn if trace == "turn" else lay.after_in_row
    token = reverse_scan(token_residuals(values, reward, lay), lam_token, after)
    returns = critic_targets(values, reward, lay, lam_critic)
    if lam_critic == 1.0:
        returns_turn = reward[lay.row]
    else:
        returns_turn = (turn_advantages(boundary, reward, lay, lam_critic) + boundary)[lay.segment]
    return Credit(lay.put(refine(turn, token, alpha, lay)), lay.put(returns), lay.put(returns_turn), {})
