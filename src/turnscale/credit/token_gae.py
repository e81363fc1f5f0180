"""Generalised advantage estimation over action tokens (PPO, VC-PPO, VAPO, SAO).

Sources: PPO (arXiv 1707.06347), VC-PPO (2503.01491) for the decoupled critic lambda, VAPO (2504.05118) for
the length-adaptive lambda, SAO (2607.07508, read through secondary sources) for skipping observations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import Layout, layout, require, reverse_scan


def token_residuals(values: Tensor, reward: Tensor, lay: Layout) -> Tensor:
    """[N]: delta = r + V(next action token) - V, with V after the last action token 0 and r paid there.

    The value that follows a turn's last token is the next turn's first one: V(t, L_t + 1) := V(t + 1, 1).
    """
    ends = lay.ends_row()
    gained = torch.empty_like(values)
    gained[:-1] = values[1:]
    gained[lay.last[ends]] = reward[lay.turn_row[ends]]
    return gained - values


def critic_targets(values: Tensor, reward: Tensor, lay: Layout, lam_critic: float) -> Tensor:
    """[N]: lambda-returns at action tokens; at lambda 1 the trajectory reward itself, without rounding."""
    if lam_critic == 1.0:
        return reward[lay.row]
    residuals = token_residuals(values, reward, lay)
    return reverse_scan(residuals, lam_critic, lay.after_in_row) + values


def token_gae(batch: TurnBatch, *, lam: float, lam_critic: float) -> Credit:
    """A(i) = sum_j lam^(j - i) delta(j) over the action tokens of the trajectory; discount 1.

    Args:
        batch: needs ``values``.
        lam: decay per action token, in [0, 1].
        lam_critic: decay of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    advantages = reverse_scan(token_residuals(values, reward, lay), lam, lay.after_in_row)
    returns = critic_targets(values, reward, lay, lam_critic)
    return Credit(lay.put(advantages), lay.put(returns), None, {})


def adaptive_lambda(length: Tensor, alpha: float) -> Tensor:
    """clamp(1 - 1 / (alpha l), 0, 1) for trajectories of l action tokens. length: [...] long."""
    return (1.0 - 1.0 / (alpha * length.clamp(min=1).double())).clamp(0.0, 1.0)


def length_adaptive_gae(batch: TurnBatch, *, alpha: float, lam_critic: float) -> Credit:
    """Token GAE whose lambda grows with the trajectory's number of action tokens l: 1 - 1 / (alpha l).

    At alpha l <= 1 the lambda is 0, that is one-step TD; the share of such trajectories is reported.

    Args:
        batch: needs ``values``.
        alpha: > 0 (0.05 in VAPO, 1.5 in SAO).
        lam_critic: decay of the critic's own targets, in [0, 1].
    """
    lay = layout(batch)
    values = lay.take(require(batch, "values"))
    reward = batch.reward.to(values.dtype)
    lam = adaptive_lambda(lay.tokens_per_row, alpha).to(values.dtype)
    advantages = reverse_scan(token_residuals(values, reward, lay), lam[lay.row], lay.after_in_row)
    returns = critic_targets(values, reward, lay, lam_critic)
    acting = lam[lay.tokens_per_row > 0]
    metrics = {"lambda_mean": float(acting.mean()), "lambda_zero_share": float((acting == 0).double().mean())}
    return Credit(lay.put(advantages), lay.put(returns), None, metrics if len(acting) else {})
