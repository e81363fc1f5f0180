"""Belief-revision credit: how far each turn moves the estimated probability of success (AgentOPSD).

Source: AgentOPSD (arXiv 2608.05987, read through secondary sources). The prior is the group's *success* rate,
not its mean reward: a graded reward would saturate it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.distillation import teacher_evidence
from turnscale.credit.group import group_relative
from turnscale.credit.segments import forward_scan, layout


def success_prior(batch: TurnBatch, eps0: float) -> Tensor:
    """[B] float64: the group's success rate, clipped to [eps0, 1 - eps0]."""
    _, member, count = torch.unique(batch.group, return_inverse=True, return_counts=True)
    total = torch.zeros(len(count), dtype=torch.float64, device=member.device)
    rate = total.index_add(0, member, batch.success.double()) / count
    return rate[member].clamp(eps0, 1.0 - eps0)


def belief_steps(evidence: Tensor, prior: Tensor, gamma: float, before: Tensor) -> Tensor:
    """[n] float64: dB_k = B_k - B_(k-1), B_k = sigmoid(logit B_0 + c_k), c_k = gamma c_(k-1) + e_k.

    Args:
        evidence: [n] e_k of each unit, in order.
        prior: [n] B_0 of the unit's trajectory.
        gamma: decay of older evidence, per unit.
        before: [n] long, units that precede in the same trajectory.
    """
    start = torch.logit(prior)
    belief = torch.sigmoid(start + forward_scan(evidence, gamma, before))
    previous = torch.empty_like(belief)
    previous[1:] = belief[:-1]
    return belief - torch.where(before == 0, prior, previous)


def bounded_multiplier(movement: Tensor, row: Tensor, rows: int, b: float, eps0: float) -> Tensor:
    """[n] float64: clip(1 + b z, 1 - b, 1 + b), z standardised within the trajectory (population std).

    A trajectory of one unit, or whose units do not differ, gets exactly 1.
    """
    count = torch.bincount(row, minlength=rows).clamp(min=1)
    mean = torch.zeros(rows, dtype=torch.float64, device=row.device).index_add(0, row, movement) / count
    centred = movement - mean[row]
    var = torch.zeros_like(mean).index_add(0, row, centred**2) / count
    z = centred / (var.sqrt()[row] + eps0)
    return (1.0 + b * z).clamp(1.0 - b, 1.0 + b)


def belief(
    batch: TurnBatch,
    *,
    lam: float,
    b: float,
    gamma: float,
    eps0: float,
    level: str,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> Credit:
    """A = A_group [(1 - lam) + lam w]: the group advantage, stretched by a positive bounded multiplier w.

    Args:
        batch: needs ``logp_teacher``.
        lam: strength of the reshaping, in [0, 1]; 0 is GRPO bit for bit.
        b: half-width of the multiplier, in [0, 1).
        gamma: decay of older evidence per unit, in [0, 1].
        eps0: clips the prior and steadies the standardisation.
        level: a unit is a whole ``turn`` (evidence summed over it) or a single ``token``.
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
    evidence = teacher_evidence(batch, lay).double()
    if level == "turn":
        evidence, row, before = lay.turn_sum(evidence), lay.turn_row, lay.turns_before
    else:
        row = lay.row
        before = lay.tokens_per_row[row] - 1 - lay.after_in_row
    steps = belief_steps(evidence, success_prior(batch, eps0)[row], gamma, before)
    weight = bounded_multiplier(torch.sign(per_row)[row].double() * steps, row, batch.size, b, eps0)
    if level == "turn":
        weight = weight[lay.segment]
    factor = ((1.0 - lam) + lam * weight).to(per_row.dtype)
    metrics["multiplier_spread"] = float(weight.std(correction=0)) if len(weight) else 0.0
    return Credit(lay.put(per_row[lay.row] * factor), None, None, metrics)
