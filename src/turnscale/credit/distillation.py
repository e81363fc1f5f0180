"""Self-distillation credit: the privileged teacher's opinion folded into the group advantage (RLSD, StepOPSD).

Sources: RLSD and StepOPSD as baselines of AgentOPSD (arXiv 2608.05987, read through secondary sources).
StepOPSD's constants were not found; the additive form with a bound is a reading.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.group import group_relative
from turnscale.credit.segments import Layout, layout, require


def teacher_evidence(batch: TurnBatch, lay: Layout) -> Tensor:
    """[N]: delta = log pi(token | privileged context) - log pi(token), detached. Needs ``logp_teacher``."""
    return (lay.take(require(batch, "logp_teacher")) - lay.take(batch.logp_rollout)).detach()


def token_weighted(
    batch: TurnBatch,
    *,
    mix: float,
    width: float,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> Credit:
    """RLSD: A [(1 - mix) + mix w], w = clip(exp(sign(A) delta), 1 - width, 1 + width) per token.

    Args:
        batch: needs ``logp_teacher``.
        mix: in [0, 1].
        width: in [0, 1).
        scale, ddof, eps, min_std, singleton: as in :func:`turnscale.credit.group.group_relative`.
    """
    lay = layout(batch)
    per_row, metrics = group_relative(
        batch.reward,
        batch.group,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    base = per_row[lay.row]
    signed = torch.sign(base) * teacher_evidence(batch, lay).to(base.dtype)
    weight = signed.clamp(max=50.0).exp().clamp(1.0 - width, 1.0 + width)
    return Credit(lay.put(base * ((1.0 - mix) + mix * weight)), None, None, metrics)


def step_added(
    batch: TurnBatch,
    *,
    coef: float,
    bound: float,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> Credit:
    """StepOPSD: A + coef * clip(e_t, -bound, bound), e_t the turn's summed log-ratio to the teacher.

    Args:
        batch: needs ``logp_teacher``.
        coef: weight of the turn's log-ratio, >= 0.
        bound: in nats, > 0; the sum grows with the turn's length, the bound keeps it from ruling.
        scale, ddof, eps, min_std, singleton: as in :func:`turnscale.credit.group.group_relative`.
    """
    lay = layout(batch)
    per_row, metrics = group_relative(
        batch.reward,
        batch.group,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    evidence = lay.turn_sum(teacher_evidence(batch, lay)).clamp(-bound, bound).to(per_row.dtype)
    return Credit(lay.put(per_row[lay.row] + (coef * evidence)[lay.segment]), None, None, metrics)
