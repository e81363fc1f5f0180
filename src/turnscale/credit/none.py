"""No credit: every advantage is 0.

For methods that learn from an extra term alone (OPSD, arXiv 2601.18734).
"""

from __future__ import annotations

import torch

from turnscale.batch import Credit, TurnBatch


def none(batch: TurnBatch) -> Credit:
    """Zero on every token."""
    return Credit(torch.zeros_like(batch.logp_rollout), None, None, {})
