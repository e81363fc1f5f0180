"""Group-relative credit: one number per trajectory from the rewards of its group, broadcast to its tokens.

Sources: GRPO (arXiv 2402.03300), RLOO (2402.14740). What differs between implementations of "GRPO" is
explicit here: degrees of freedom, epsilon, the rule for a group of one, and below which deviation a group
counts as constant and gives 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.errors import DataError


def group_relative(
    scores: Tensor, group: Tensor, *, scale: str, ddof: int, eps: float, min_std: float, singleton: str
) -> tuple[Tensor, dict[str, float]]:
    """(score - mean of its group), divided by (std of its group + eps) when ``scale`` is ``std``.

    Args:
        scores: [n] one score per member.
        group: [n] long, equal for members of one group.
        scale: ``std`` or ``none``.
        ddof: 0 (population) or 1 (sample) standard deviation.
        eps: added to the standard deviation.
        min_std: a group whose deviation is at or below this is constant: its members get exactly 0.
        singleton: a group of one gets ``zero``, its ``raw`` score, or is an error (``forbid``).

    Returns:
        [n] relative scores and the shares of degenerate and singleton groups.

    Raises:
        DataError: a group of one under ``forbid``.
    """
    _, member, count = torch.unique(group, return_inverse=True, return_counts=True)
    if singleton == "forbid" and bool((count == 1).any()):
        raise DataError(
            "a group of one has no relative advantage and the method forbids it",
            key="credit.singleton",
            remedy="sample at least 2 rollouts per group or declare credit.singleton as zero or raw.",
        )
    exact = scores.double()
    groups = len(count)
    mean = torch.zeros(groups, dtype=torch.float64, device=scores.device).index_add(0, member, exact) / count
    centred = exact - mean[member]
    squares = torch.zeros_like(mean).index_add(0, member, centred**2)
    std = (squares / (count - ddof).clamp(min=1)).sqrt()
    highest = torch.full_like(mean, -torch.inf).scatter_reduce(0, member, exact, "amax")
    lowest = torch.full_like(mean, torch.inf).scatter_reduce(0, member, exact, "amin")
    constant = (highest == lowest) | (std <= min_std)
    alone = count == 1
    relative = centred / (std[member] + eps) if scale == "std" else centred
    relative = relative.masked_fill(constant[member], 0.0)
    if singleton == "raw":
        relative = torch.where(alone[member], exact, relative)
    metrics = {
        "degenerate_group_share": float((constant | alone).double().mean()),
        "singleton_group_share": float(alone.double().mean()),
        "degenerate_member_share": float((constant | alone)[member].double().mean()),
    }
    return relative.to(scores.dtype), metrics


def group(batch: TurnBatch, *, scale: str, ddof: int, eps: float, min_std: float, singleton: str) -> Credit:
    """GRPO's advantage: the group-relative reward of the trajectory, on each of its action tokens.

    Args: as in :func:`group_relative`, with ``batch.reward`` as scores and ``batch.group`` as groups.
    """
    per_row, metrics = group_relative(
        batch.reward,
        batch.group,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    return Credit(broadcast_rows(per_row, batch), None, None, metrics)


def leave_one_out(batch: TurnBatch, *, singleton: str) -> Credit:
    """RLOO's advantage: reward minus the mean reward of the *other* members of the group.

    Args:
        batch: any batch.
        singleton: a group of one gets ``zero``, its ``raw`` reward, or is an error (``forbid``).
    """
    relative, metrics = group_relative(
        batch.reward, batch.group, scale="none", ddof=0, eps=0.0, min_std=0.0, singleton=singleton
    )
    _, member, count = torch.unique(batch.group, return_inverse=True, return_counts=True)
    size = count[member]
    factor = size / (size - 1).clamp(min=1)
    return Credit(broadcast_rows(relative * factor.to(relative.dtype), batch), None, None, metrics)


def broadcast_rows(per_row: Tensor, batch: TurnBatch) -> Tensor:
    """[B, T]: one number per trajectory on each of its action tokens, 0 elsewhere. per_row: [B]."""
    return torch.where(batch.action_mask, per_row[:, None], 0.0)
