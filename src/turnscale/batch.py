"""The one batch: what rollouts become and what every credit and objective function reads.

Convention for every ``[B, T]`` tensor: position ``p`` speaks of token ``ids[:, p]``. The log-probability at
``p`` is that of ``ids[:, p]`` given everything before it, and the value at ``p`` is the critic's value of the
prefix *before* that token is emitted (MPO's V(t, i)). Rows are padded on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TurnBatch:
    """A batch of B trajectories padded to T tokens.

    Attributes:
        ids: [B, T] long. Prompt, turns and observations as sampled or forced; never re-encoded.
        action_mask: [B, T] bool. True where the policy sampled the token (a turn's end token included).
        turn: [B, T] long. 0-based index of the turn an action token belongs to, -1 elsewhere.
        logp_rollout: [B, T] float32. The sampler's log-probability of each action token, 0 elsewhere.
        length: [B] long. Number of real tokens in each row.
        reward: [B] float32. Terminal reward, paid on the last action token of the last turn.
        success: [B] bool. Whether the task was solved (not the same as reward > 0 for graded rewards).
        truncated: [B] bool. Ended by the turn or token budget; reward is then 0.
        task: [B] long. Index of the task in the panel the rollouts were drawn from.
        group: [B] long. Rows with the same value form one group (same task, or same fork in a tree).
        values: [B, T] float32 or None. Critic value before each action token, 0 elsewhere.
        values_turn: [B, T] float32 or None. Second (turn) head of two-head critics.
        anchor: [B, T] long or None. Identity of the visible state in which the token's turn began;
            equal across rows exactly when task and state are equal; -1 off action tokens.
        fork_turn: [B] long or None. For prefix-forked rollouts, the turn at which the row left its
            siblings; earlier turns are a shared prefix.
        logp_ref: [B, T] float32 or None. Log-probability under the reference policy.
        logp_teacher: [B, T] float32 or None. Log-probability under the privileged teacher context.
    """

    ids: Tensor
    action_mask: Tensor
    turn: Tensor
    logp_rollout: Tensor
    length: Tensor
    reward: Tensor
    success: Tensor
    truncated: Tensor
    task: Tensor
    group: Tensor
    values: Tensor | None = None
    values_turn: Tensor | None = None
    anchor: Tensor | None = None
    fork_turn: Tensor | None = None
    logp_ref: Tensor | None = None
    logp_teacher: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of trajectories B."""
        return int(self.ids.shape[0])

    def rows(self, index: Tensor, *, trim: bool = True) -> TurnBatch:
        """The batch restricted to the rows in ``index`` ([n] long), padding trimmed to their longest row.

        Without ``trim`` the width T stays, so that results can be stacked again.
        """
        width = int(self.length[index].max()) if trim else self.ids.shape[1]
        return self._map(lambda tensor: tensor[index, :width] if tensor.ndim == 2 else tensor[index])

    def with_(self, **changes: Any) -> TurnBatch:
        """A copy with some tensors replaced."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> TurnBatch:
        """The batch with every tensor on ``device``."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> TurnBatch:
        """The batch with ``change`` applied to every tensor that is there."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            tensor = getattr(self, field.name)
            changed[field.name] = None if tensor is None else change(tensor)
        return TurnBatch(**changed)

    def turns_per_row(self) -> Tensor:
        """[B] long: number of turns in each trajectory (0 for a row without action tokens)."""
        return self.turn.amax(dim=1) + 1


@dataclass(frozen=True)
class Credit:
    """What a credit function returns.

    Attributes:
        advantages: [B, T] float32, 0 off action tokens, before normalisation unless the function is a group
            method whose definition contains it.
        returns: [B, T] float32 critic targets at action tokens, or None for critic-free methods.
        returns_turn: [B, T] targets of a second (turn) head, or None.
        metrics: scalars worth logging (degenerate groups, dead gradients, ...).
    """

    advantages: Tensor
    returns: Tensor | None
    returns_turn: Tensor | None
    metrics: dict[str, float]
