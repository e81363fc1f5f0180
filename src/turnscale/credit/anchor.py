"""Groups of turns that began in the same visible state (anchor groups) and GiGPO's sum with episode groups.

Sources: GiGPO (arXiv 2505.10978, read through secondary sources); the grouping comparison read as published.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.group import broadcast_rows, group_relative
from turnscale.credit.segments import Layout, layout, require
from turnscale.errors import DataError


def step_advantages(
    batch: TurnBatch,
    lay: Layout,
    *,
    discount: float,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> tuple[Tensor, dict[str, float]]:
    """[S]: each turn's discounted return relative to the turns with the same anchor.

    Args:
        batch: needs ``anchor``.
        lay: its layout.
        discount: a turn that k turns follow has return discount^k R.
        scale, ddof, eps, min_std, singleton: as in :func:`turnscale.credit.group.group_relative`.

    Returns:
        Relative returns and the shares of degenerate anchors and of the turns they hold.

    Raises:
        DataError: a turn without an anchor.
    """
    anchor = lay.take(require(batch, "anchor"))[lay.first]
    if bool((anchor < 0).any()):
        raise DataError("a turn has no anchor", key="anchor", remedy="give every turn its visible state.")
    steps = batch.reward.double()[lay.turn_row] * discount ** lay.turns_after.double()
    relative, shares = group_relative(
        steps, anchor, scale=scale, ddof=ddof, eps=eps, min_std=min_std, singleton=singleton
    )
    metrics = {
        "degenerate_anchor_share": shares["degenerate_group_share"],
        "singleton_anchor_share": shares["singleton_group_share"],
        "degenerate_anchor_turn_share": shares["degenerate_member_share"],
    }
    return relative.to(batch.reward.dtype), metrics


def anchor(
    batch: TurnBatch,
    *,
    discount: float,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
) -> Credit:
    """Each turn's return relative to the turns that began in the same state, on the turn's tokens.

    Args: as in :func:`step_advantages`.
    """
    lay = layout(batch)
    steps, metrics = step_advantages(
        batch,
        lay,
        discount=discount,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    metrics["degenerate_group_share"] = metrics["degenerate_anchor_share"]
    return Credit(lay.put(steps[lay.segment]), None, None, metrics)


def gigpo(
    batch: TurnBatch,
    *,
    omega: float,
    discount: float,
    scale: str,
    ddof: int,
    eps: float,
    min_std: float,
    singleton: str,
    step_singleton: str,
) -> Credit:
    """A = A_episode + omega A_step: the trajectory in its group plus each turn among those of its anchor.

    Args:
        batch: needs ``anchor``.
        omega: weight of the step term, >= 0.
        discount: of step returns, per turn, in [0, 1].
        scale, ddof, eps, min_std: of both terms.
        singleton: rule for an episode group of one.
        step_singleton: rule for an anchor of one.
    """
    lay = layout(batch)
    episode, metrics = group_relative(
        batch.reward,
        batch.group,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=singleton,
    )
    steps, step_metrics = step_advantages(
        batch,
        lay,
        discount=discount,
        scale=scale,
        ddof=ddof,
        eps=eps,
        min_std=min_std,
        singleton=step_singleton,
    )
    advantages = broadcast_rows(episode, batch)
    if omega:
        advantages = advantages + lay.put((omega * steps)[lay.segment])
    return Credit(torch.where(batch.action_mask, advantages, 0.0), None, None, metrics | step_metrics)
