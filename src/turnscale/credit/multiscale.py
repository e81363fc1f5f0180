"""Multiscale advantage estimation: turn-scale propagation, mean-preserving refinement inside the turn.

Source: MPO (arXiv 2610.35013, read through secondary sources).
"""

from __future__ import annotations

from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import Layout, layout, require, reverse_scan
from turnscale.credit.token_gae import critic_targets, token_residuals
from turnscale.credit.turn_gae import turn_advantages, turn_values


def refine(turn: Tensor, trace: Tensor, strength: float, lay: Layout) -> Tensor:
    """[N]: A_turn + strength (trace - its mean over the turn); its mean over a turn is A_turn.

    Args:
        turn: [S] turn advantages.
        trace: [N] any token-level signal.
        strength: beta; 0 is the plain broadcast.
        lay: the batch's layout.
    """
    return turn[lay.segment] + strength * (trace - lay.turn_mean(trace)[lay.segment])


def multiscale(batch: TurnBatch, *, lam: float, lam_intra: float, beta: float, lam_critic: float) -> Credit:
    """A(t, i) = A_turn(t) + beta (A_intra(t, i) - mean_i A_intra(t, .)), before whitening.

    A_turn decays once per turn and reads the critic only at turn starts; A_intra decays once per token and is
    cut at the turn's end, where V(t, L_t + 1) := V(t + 1, 1).

    Args:
        batch: needs ``values``.
        lam: decay per turn, in [0, 1].
        lam_intra: decay per token inside a turn, in [0, 1].
        beta: strength of the refinement, >= 0.
        lam_critic: decay per token of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    turn = turn_advantages(turn_values(values, lay, "first"), reward, lay, lam)
    trace = reverse_scan(token_residuals(values, reward, lay), lam_intra, lay.after_in_turn)
    returns = critic_targets(values, reward, lay, lam_critic)
    return Credit(lay.put(refine(turn, trace, beta, lay)), lay.put(returns), None, {})
