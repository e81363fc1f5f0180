"""Extra loss terms, each a per-token quantity [N] to be minimised, its weights, and its coefficient.

A term returns what is added to the loss already aggregated. Everything is on sampled action tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.segments import Layout, require
from turnscale.objective.aggregate import Denominators


def kl_per_token(logp: Tensor, logp_ref: Tensor, *, estimator: str, gradient: str) -> Tensor:
    """Estimates of KL(pi_theta || pi_ref) per sampled token.

    With d = logp - logp_ref: k1 = d and k3 = exp(-d) - 1 + d are unbiased, k2 = d^2 / 2 is close. But
    differentiating k1 gives a gradient that is 0 on average, and differentiating k3 that of the *forward* KL.
    Under ``gradient="exact"`` the value is the estimator's and the gradient is k2's, d * grad logp, which on
    average is the gradient of the reverse KL while samples come from pi_theta.

    Args:
        logp, logp_ref: [N].
        estimator: ``k1``, ``k2`` or ``k3``.
        gradient: ``exact``, or ``estimator`` to differentiate the estimator as published code does.
    """
    d = logp - logp_ref
    value = {"k1": d, "k2": d**2 / 2, "k3": torch.expm1(-d) + d}[estimator]
    if gradient == "estimator":
        return value
    second = d**2 / 2
    return (value - second).detach() + second


def kl(
    logp: Tensor,
    batch: TurnBatch,
    lay: Layout,
    weights: Tensor,
    count: Denominators,
    *,
    coef: float,
    estimator: str,
    gradient: str,
) -> Tensor:
    """coef * KL to the reference policy, aggregated as the policy loss is. Needs ``logp_ref``."""
    reference = lay.take(require(batch, "logp_ref"))
    per_token = kl_per_token(lay.take(logp), reference, estimator=estimator, gradient=gradient)
    return coef * (weights * per_token).sum()


def positive_nll(
    logp: Tensor, batch: TurnBatch, lay: Layout, weights: Tensor, count: Denominators, *, coef: float
) -> Tensor:
    """VAPO's imitation of its own successes: - coef * mean of logp over tokens of successful trajectories."""
    succeeded = batch.success[lay.row]
    return -coef * torch.where(succeeded, lay.take(logp), 0.0).sum() / max(count.success_tokens, 1)


def teacher_gap(logp: Tensor, batch: TurnBatch, lay: Layout) -> Tensor:
    """[N] with gradient: log pi_teacher - log pi_student of the sampled tokens. Needs ``logp_teacher``."""
    return lay.take(require(batch, "logp_teacher")) - lay.take(logp)


def distill_reverse(
    logp: Tensor, batch: TurnBatch, lay: Layout, weights: Tensor, count: Denominators, *, coef: float
) -> Tensor:
    """coef * token mean of the reverse KL to the privileged teacher, sampled-token estimate (OPSD).

    Value d = logp_student - logp_teacher, gradient d * grad logp_student: that of KL(student || teacher).
    """
    per_token = kl_per_token(
        lay.take(logp), lay.take(require(batch, "logp_teacher")), estimator="k1", gradient="exact"
    )
    return coef * per_token.sum() / max(count.tokens, 1)


def distill_forward(
    logp: Tensor,
    batch: TurnBatch,
    lay: Layout,
    weights: Tensor,
    count: Denominators,
    *,
    coef: float,
    highest: float,
) -> Tensor:
    """coef * token mean of min(pi_teacher / pi_student, highest) * (- logp_student), the weight held fixed.

    The forward KL to the privileged teacher up to the teacher's entropy, by importance weights.
    """
    weight = teacher_gap(logp, batch, lay).detach().exp().clamp(max=highest)
    return -coef * (weight * lay.take(logp)).sum() / max(count.tokens, 1)


def distill_gated(
    logp: Tensor,
    batch: TurnBatch,
    lay: Layout,
    weights: Tensor,
    count: Denominators,
    *,
    coef: float,
    sharpness: float,
) -> Tensor:
    """SDAR: coef * token mean of g (logp_teacher - logp_student), g = sigmoid(sharpness * gap) held fixed."""
    gap = teacher_gap(logp, batch, lay)
    gate = torch.sigmoid(sharpness * gap.detach())
    return coef * (gate * gap).sum() / max(count.tokens, 1)
