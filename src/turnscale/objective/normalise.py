"""Normalisation of advantages over the whole batch of a policy update, before it is split."""

from __future__ import annotations

import torch
from torch import Tensor


def whiten(advantages: Tensor, mask: Tensor, *, ddof: int, eps: float) -> Tensor:
    """(A - mean) / sqrt(var + eps) over all action tokens of the batch, 0 elsewhere.

    Args:
        advantages: [B, T].
        mask: [B, T] bool, action tokens: the population.
        ddof: 0 (population) or 1 (sample) variance.
        eps: inside the root.
    """
    chosen = advantages[mask].double()
    if len(chosen) <= ddof:
        return torch.zeros_like(advantages)
    mean = chosen.mean()
    var = chosen.var(correction=ddof)
    return torch.where(mask, ((advantages.double() - mean) / (var + eps).sqrt()).to(advantages.dtype), 0.0)


def none(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages as they are."""
    return advantages
