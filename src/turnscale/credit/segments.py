"""Segment operations over action tokens, turns and trajectories, without a Python loop over tokens.

Every credit function works in compact coordinates: the N action tokens of the batch in reading order, row
after row, with observation, prompt and padding tokens gone. What is gone cannot produce a residual or use up
a decay step, so skipping observations is a property of the coordinates, not of each estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.errors import DataError

NEGLIGIBLE = 1e-12
"""A decay factor below this ends the doubling: what it would still carry is under float32 resolution."""


@dataclass(frozen=True)
class Layout:
    """Where the action tokens, turns and trajectories of a batch lie.

    Attributes:
        shape: (B, T) of the padded batch.
        flat: [N] long, position of each action token in the flattened [B * T] batch.
        first, last: [S] long, compact position of each turn's first and last token.
        turn_row: [S] long, the trajectory of each turn.
        turn_index: [S] long, the 0-based index of each turn in its trajectory.
        tokens_per_row: [B] long.
    """

    shape: tuple[int, int]
    flat: Tensor
    first: Tensor
    last: Tensor
    turn_row: Tensor
    turn_index: Tensor
    tokens_per_row: Tensor

    @cached_property
    def tokens_per_turn(self) -> Tensor:
        """[S] long: length L_t of each turn."""
        return self.last - self.first + 1

    @cached_property
    def turns_per_row(self) -> Tensor:
        """[B] long."""
        return torch.bincount(self.turn_row, minlength=self.shape[0])

    @cached_property
    def row(self) -> Tensor:
        """[N] long: the trajectory of each action token."""
        return counted(self.tokens_per_row)

    @cached_property
    def segment(self) -> Tensor:
        """[N] long: the turn of each action token, counted through the batch (0..S-1)."""
        return counted(self.tokens_per_turn)

    @cached_property
    def after_in_row(self) -> Tensor:
        """[N] long: action tokens that follow in the same trajectory."""
        return counted_down(self.tokens_per_row)

    @cached_property
    def after_in_turn(self) -> Tensor:
        """[N] long: action tokens that follow in the same turn."""
        return counted_down(self.tokens_per_turn)

    @cached_property
    def turns_after(self) -> Tensor:
        """[S] long: turns that follow in the same trajectory."""
        return counted_down(self.turns_per_row)

    @cached_property
    def turns_before(self) -> Tensor:
        """[S] long: turns that precede in the same trajectory."""
        return self.turns_per_row[self.turn_row] - 1 - self.turns_after

    def ends_row(self) -> Tensor:
        """[S] bool: the turn is the last of its trajectory."""
        return self.turns_after == 0

    def take(self, padded: Tensor) -> Tensor:
        """[N]: the action tokens' entries of a [B, T] tensor."""
        return padded.reshape(-1)[self.flat]

    def put(self, compact: Tensor) -> Tensor:
        """[B, T]: compact entries at their tokens, 0 elsewhere."""
        out = compact.new_zeros(self.shape[0] * self.shape[1])
        out[self.flat] = compact
        return out.view(self.shape)

    def turn_sum(self, compact: Tensor) -> Tensor:
        """[S]: sum over each turn, accumulated in float64 (differentiable)."""
        total = torch.zeros(len(self.first), dtype=torch.float64, device=compact.device)
        return total.index_add(0, self.segment, compact.double()).to(compact.dtype)

    def turn_mean(self, compact: Tensor) -> Tensor:
        """[S]: mean over each turn's action tokens."""
        return self.turn_sum(compact) / self.tokens_per_turn


def counted(counts: Tensor) -> Tensor:
    """[sum of counts] long: 0 counts[0] times, then 1 counts[1] times, ..."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def counted_down(counts: Tensor) -> Tensor:
    """[sum of counts] long: counts[0] - 1, ..., 1, 0, then counts[1] - 1, ..., 0, and so on."""
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(counts) else 0
    return torch.repeat_interleave(ends - 1, counts) - torch.arange(total, device=counts.device)


def layout(batch: TurnBatch) -> Layout:
    """The layout of a batch.

    Raises:
        DataError: an action token without a turn index, turn indices that go backwards within a trajectory,
            or a trajectory with a reward but no action token to pay it on.
    """
    mask = batch.action_mask
    rows, columns = mask.shape
    flat = mask.reshape(-1).nonzero().squeeze(1)
    tokens_per_row = mask.sum(dim=1)
    if bool(((tokens_per_row == 0) & (batch.reward != 0)).any()):
        raise DataError(
            "a trajectory has a reward but no action token to pay it on",
            key="action_mask",
            remedy="drop the row or mark the tokens the policy sampled.",
        )
    turn = batch.turn.reshape(-1)[flat]
    count = len(flat)
    step = torch.diff(turn, prepend=turn.new_full((min(count, 1),), -1))
    row_starts = (tokens_per_row.cumsum(0) - tokens_per_row)[tokens_per_row > 0]
    step[row_starts] = 1
    if count and (int(turn.min()) < 0 or int(step.min()) < 0):
        raise DataError(
            "action tokens need a turn index that never goes backwards within a trajectory",
            key="turn",
            remedy="number the assistant turns 0, 1, ... in order and give each sampled token its turn.",
        )
    first = step.nonzero().squeeze(1)
    last = torch.cat([first[1:], first.new_full((min(count, 1),), count)]) - 1
    return Layout(
        shape=(rows, columns),
        flat=flat,
        first=first,
        last=last,
        turn_row=torch.bucketize(first, tokens_per_row.cumsum(0), right=True),
        turn_index=turn[first],
        tokens_per_row=tokens_per_row,
    )


def reverse_scan(x: Tensor, decay: float | Tensor, after: Tensor) -> Tensor:
    """y[i] = sum over j = 0..after[i] of decay^j x[i + j], by doubling: log2(longest segment) passes.

    Args:
        x: [n] entries in order.
        decay: one factor, or [n] factors that are constant within a segment.
        after: [n] long, entries that follow i in its segment; the scan never crosses a segment's end.
    """
    y = x.clone()
    if len(x) == 0:
        return y
    longest = int(after.max()) + 1
    step = 1
    while step < longest:
        if isinstance(decay, Tensor):
            carried = y[step:] * decay[:-step]
            negligible = bool(decay.abs().max() < NEGLIGIBLE)
        else:
            carried = y[step:] * decay
            negligible = abs(decay) < NEGLIGIBLE
        if negligible:
            break
        y[:-step] += carried.masked_fill_(after[:-step] < step, 0.0)
        decay = decay * decay
        step *= 2
    return y


def forward_scan(x: Tensor, decay: float, before: Tensor) -> Tensor:
    """y[i] = sum over j = 0..before[i] of decay^j x[i - j]; ``before`` counts the entries that precede i."""
    return reverse_scan(x.flip(0), decay, before.flip(0)).flip(0)


def following(x: Tensor, after: Tensor) -> Tensor:
    """The next entry of the same segment, 0 at a segment's end. x: [n], after: [n]."""
    out = torch.zeros_like(x)
    out[:-1] = x[1:]
    return out.masked_fill_(after == 0, 0.0)


def require(batch: TurnBatch, name: str) -> Tensor:
    """The optional tensor ``name`` of the batch.

    Raises:
        DataError: the batch was collected without it.
    """
    value = getattr(batch, name)
    if value is None:
        raise DataError(
            f"this credit needs batch.{name}, which was not collected",
            key=name,
            remedy="ask Method.needs what a method needs before collecting rollouts.",
        )
    return value
