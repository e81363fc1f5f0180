"""Random batches with known structure, on which methods are compared without an environment or a model."""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.batch import TurnBatch


def random_batch(
    seed: int,
    *,
    rows: int = 12,
    group_size: int = 4,
    turns: tuple[int, int] = (1, 5),
    turn_length: tuple[int, int] = (1, 7),
    observation: tuple[int, int] = (0, 4),
    dtype: torch.dtype = torch.float64,
    graded: bool = False,
) -> TurnBatch:
    """Trajectories of random shape with every optional tensor filled.

    Args:
        seed: of this batch's own generator.
        rows: trajectories; consecutive ones form groups.
        group_size: rows per group (the last group may be smaller).
        turns: fewest and most turns.
        turn_length: fewest and most action tokens of a turn.
        observation: fewest and most tokens of the prompt and of each observation.
        dtype: of rewards, values and log-probabilities.
        graded: rewards in [0, 1] instead of 0/1.
    """
    draw = torch.Generator().manual_seed(seed)

    def between(bounds: tuple[int, int]) -> int:
        return int(torch.randint(bounds[0], bounds[1] + 1, (1,), generator=draw))

    rows_turn: list[list[int]] = []
    for _ in range(rows):
        line = [-1] * between(observation)
        for index in range(between(turns)):
            line += [index] * between(turn_length) + [-1] * between(observation)
        rows_turn.append(line)
    width = max(len(line) for line in rows_turn)
    turn = torch.full((rows, width), -1, dtype=torch.long)
    for row, line in enumerate(rows_turn):
        turn[row, : len(line)] = torch.tensor(line, dtype=torch.long)
    mask = turn >= 0

    def noise(scale: float, shift: float = 0.0) -> Tensor:
        x = torch.randn(rows, width, generator=draw, dtype=torch.float64) * scale + shift
        return torch.where(mask, x, 0.0).to(dtype)

    success = torch.rand(rows, generator=draw) < 0.5
    reward = torch.rand(rows, generator=draw, dtype=torch.float64) if graded else success.double()
    group = torch.arange(rows) // group_size
    state = torch.randint(0, 2, (rows, int(turn.max()) + 1), generator=draw)
    anchors = group[:, None] * 1000 + torch.arange(state.shape[1])[None, :] * 10 + state
    logp = noise(0.5, -1.0)
    return TurnBatch(
        ids=torch.zeros(rows, width, dtype=torch.long),
        action_mask=mask,
        turn=turn,
        logp_rollout=logp,
        length=torch.tensor([len(line) for line in rows_turn]),
        reward=reward.to(dtype),
        success=success,
        truncated=torch.zeros(rows, dtype=torch.bool),
        task=group.clone(),
        group=group,
        values=noise(0.3, 0.5),
        values_turn=noise(0.3, 0.5),
        anchor=torch.where(mask, anchors.gather(1, turn.clamp(min=0)), -1),
        fork_turn=torch.zeros(rows, dtype=torch.long),
        logp_ref=torch.where(mask, logp + noise(0.1), 0.0),
        logp_teacher=torch.where(mask, logp + noise(0.4), 0.0),
    )


def any_shape(seed: int) -> TurnBatch:
    """Turns and observations of any length."""
    return random_batch(seed)


def with_singletons(seed: int) -> TurnBatch:
    """As ``any_shape``, the last group having one member."""
    return random_batch(seed, rows=13)


def one_token_turns(seed: int) -> TurnBatch:
    """Every turn is one token."""
    return random_batch(seed, turn_length=(1, 1))


def one_token_episodes(seed: int) -> TurnBatch:
    """One turn of one token: a bandit, whose critic knows the group's mean reward."""
    batch = random_batch(seed, turns=(1, 1), turn_length=(1, 1))
    means = torch.stack([batch.reward[batch.group == g].mean() for g in batch.group])
    return batch.with_(values=torch.where(batch.action_mask, means[:, None], 0.0))


def tied_heads(seed: int) -> TurnBatch:
    """Both heads of the critic say the same."""
    batch = random_batch(seed)
    return batch.with_(values_turn=batch.values)


def consistent_critics(seed: int) -> TurnBatch:
    """The turn's value is what its state's successor promises: the reward, or the next turn's value."""
    batch = random_batch(seed)
    assert batch.values is not None
    turns = torch.zeros_like(batch.values)
    for row in range(batch.size):
        for turn in range(int(batch.turn[row].max()) + 1):
            following = (batch.turn[row] == turn + 1).nonzero()
            ahead = batch.values[row, int(following[0])] if len(following) else batch.reward[row]
            turns[row] = torch.where(batch.turn[row] == turn, ahead, turns[row])
    return batch.with_(values_turn=turns)


CONDITIONS = {
    function.__name__: function
    for function in (
        any_shape,
        with_singletons,
        one_token_turns,
        one_token_episodes,
        tied_heads,
        consistent_critics,
    )
}
