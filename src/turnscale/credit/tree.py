"""Credit for rollouts that fork from a shared prefix (the grouping comparison's tree, ARPO's shared prefixes).

Sources: the grouping comparison read as published; ARPO (arXiv 2507.19849, read through secondary sources).
"""

from __future__ import annotations

import torch

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.group import group_relative
from turnscale.credit.segments import require


def tree(
    batch: TurnBatch,
    *,
    baseline: str,
    prefix: str,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> Credit:
    """The relative reward on the fork turn and all later ones; the shared prefix gets a rule of its own.

    Args:
        batch: needs ``fork_turn``; ``group`` names the fork a row belongs to.
        baseline: rewards are relative to the siblings of the ``fork``, or to all rollouts of the ``task``.
        prefix: turns before the fork get ``none``, or the ``mean`` advantage of the siblings that share them.
        scale, ddof, eps, min_std, singleton: as in :func:`turnscale.credit.group.group_relative`.
    """
    fork_turn = require(batch, "fork_turn")
    relative, metrics = group_relative(
        batch.reward,
        batch.group if baseline == "fork" else batch.task,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    if prefix == "mean":
        _, member, count = torch.unique(batch.group, return_inverse=True, return_counts=True)
        total = torch.zeros(len(count), dtype=torch.float64, device=member.device)
        shared = (total.index_add(0, member, relative.double()) / count)[member].to(relative.dtype)
    else:
        shared = torch.zeros_like(relative)
    own = batch.turn >= fork_turn[:, None]
    advantages = torch.where(own, relative[:, None], shared[:, None])
    return Credit(torch.where(batch.action_mask, advantages, 0.0), None, None, metrics)
