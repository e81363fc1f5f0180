"""The ceiling of a critic's explained variance, from oracle features of the episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turnscale.batch import TurnBatch

Floats = NDArray[np.float64]


def oracle_values(batch: TurnBatch, features: Sequence[Sequence[str]]) -> Floats:
    """Values of a table regression of the reward on oracle features, fitted on the same rollouts.

    Before a turn's last token the feature is the state in which the turn began. At the last token the turn's
    action is already decided, so the feature is the state the turn leads to, or the reward itself when it ends
    the episode. In-sample, so it is an upper bound for critics that see no more than these features.

    Args:
        batch: B trajectories.
        features: for each trajectory one feature per turn, the state before it.

    Returns:
        [B, T] float64, 0 off action tokens.
    """
    mask = batch.action_mask.cpu().numpy()
    turns = batch.turn.cpu().numpy()
    reward = batch.reward.cpu().numpy().astype(np.float64)
    keys: dict[str, int] = {}
    code = np.full(mask.shape, -1, dtype=np.int64)
    for row in range(len(mask)):
        positions = np.flatnonzero(mask[row])
        for position, following in zip(positions, [*positions[1:], -1], strict=True):
            turn = int(turns[row, position])
            closing = following < 0 or int(turns[row, following]) != turn
            if not closing:
                key = f"in {features[row][turn]}"
            elif following < 0:
                key = f"end {reward[row]}"
            else:
                key = f"to {features[row][turn + 1]}"
            code[row, position] = keys.setdefault(key, len(keys))
    spread = np.broadcast_to(reward[:, None], mask.shape)
    total = np.bincount(code[mask], weights=spread[mask], minlength=len(keys))
    count = np.bincount(code[mask], minlength=len(keys))
    values = np.zeros(mask.shape)
    values[mask] = (total / np.maximum(count, 1))[code[mask]]
    return values
