"""From per-token terms to one number, so that micro-batches of any size add up to the batch.

A weight per action token depends on its own trajectory and on denominators counted once over the whole
(mini)batch; the loss of a micro-batch is the weighted sum over its tokens, and the losses of the
micro-batches add up to the loss of the batch exactly. Padding and observations have weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.segments import Layout, layout

LENGTH_BUCKETS: tuple[tuple[int, int | None], ...] = (
    (1, 4),
    (5, 8),
    (9, 16),
    (17, 64),
    (65, 256),
    (257, None),
)
"""Turn lengths (in action tokens) over which clip fractions are reported."""


@dataclass(frozen=True)
class Denominators:
    """Counts over the whole minibatch that its micro-batches share.

    Attributes:
        tokens: action tokens.
        turns: turns.
        sequences: trajectories with at least one action token.
        success_tokens: action tokens of successful trajectories.
        bucket_tokens: action tokens in turns of each length bucket of ``LENGTH_BUCKETS``.
    """

    tokens: int
    turns: int
    sequences: int
    success_tokens: int
    bucket_tokens: tuple[int, ...]


def bucket_of(length: Tensor) -> Tensor:
    """[...] long: index into ``LENGTH_BUCKETS`` of each turn length."""
    edges = torch.tensor([low for low, _ in LENGTH_BUCKETS[1:]], device=length.device)
    return torch.bucketize(length, edges, right=True)


def denominators(batch: TurnBatch) -> Denominators:
    """The counts of a minibatch, to be passed with each of its micro-batches."""
    lay = layout(batch)
    buckets = torch.zeros(len(LENGTH_BUCKETS), dtype=torch.long, device=lay.first.device)
    buckets.index_add_(0, bucket_of(lay.tokens_per_turn), lay.tokens_per_turn)
    return Denominators(
        tokens=len(lay.flat),
        turns=len(lay.first),
        sequences=int((lay.tokens_per_row > 0).sum()),
        success_tokens=int(lay.tokens_per_row[batch.success].sum()),
        bucket_tokens=tuple(buckets.tolist()),
    )


def constant(weight: float, lay: Layout) -> Tensor:
    """[N] float64: the same weight for every action token."""
    return torch.full((len(lay.flat),), weight, dtype=torch.float64, device=lay.flat.device)


def token_mean(lay: Layout, count: Denominators) -> Tensor:
    """[N] weights: every action token of the minibatch counts the same."""
    return constant(1.0 / max(count.tokens, 1), lay)


def sequence_mean(lay: Layout, count: Denominators) -> Tensor:
    """[N] weights: mean over each trajectory's tokens, then over trajectories."""
    return 1.0 / (lay.tokens_per_row[lay.row].double() * max(count.sequences, 1))


def turn_mean(lay: Layout, count: Denominators) -> Tensor:
    """[N] weights: mean over each turn's tokens, then over all turns of the minibatch."""
    return 1.0 / (lay.tokens_per_turn[lay.segment].double() * max(count.turns, 1))


def fixed(lay: Layout, count: Denominators, *, divisor: float) -> Tensor:
    """[N] weights: sum over a trajectory's tokens / divisor, then mean over trajectories (Dr.

    GRPO's form).
    """
    return constant(1.0 / (divisor * max(count.sequences, 1)), lay)
