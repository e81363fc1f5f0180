"""Clipping: what the surrogate does with a ratio that has moved far.

Each function takes ratios and advantages [B, T] and returns the per-token objective (to be maximised) and a
bool tensor that is True where the clip is active, that is where the token has lost its gradient.
Sources: PPO (arXiv 1707.06347), DAPO (2503.14476) for decoupled bounds, SAO (2607.07508, secondary) for the
mask.
"""

from __future__ import annotations

import torch
from torch import Tensor


def between(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """min(r A, clamp(r, low, high) A), and where the second is strictly smaller."""
    free = ratio * advantages
    held = ratio.clamp(low, high) * advantages
    return torch.minimum(free, held), held.detach() < free.detach()


def decoupled(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Bounds [1 - low, 1 + high]."""
    return between(ratio, advantages, 1.0 - low, 1.0 + high)


def log_symmetric(ratio: Tensor, advantages: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Bounds [1 / (1 + eps), 1 + eps]: symmetric in log space, for ranges too wide for 1 - eps."""
    return between(ratio, advantages, 1.0 / (1.0 + eps), 1.0 + eps)


def hard_mask(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """r A inside (1 - low, 1 + high); 0 outside, whatever the advantage's sign."""
    outside = (ratio.detach() <= 1.0 - low) | (ratio.detach() >= 1.0 + high)
    return (ratio * advantages).masked_fill(outside, 0.0), outside & (advantages != 0)


def none(ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """r A."""
    return ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)
