"""What is logged of a step's batch: metrics, and critic values as tidy rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnscale.agent.rollout import Rollouts
from turnscale.batch import TurnBatch
from turnscale.finite import require_finite


def require_finite_batch(batch: TurnBatch) -> None:
    """Raise NumericalError where rewards, values or log-probabilities read for a step are not finite."""
    for name, tensor in (
        ("reward", batch.reward),
        ("value", batch.values),
        ("value", batch.values_turn),
        ("reference log-probabilities", batch.logp_ref),
        ("teacher log-probabilities", batch.logp_teacher),
    ):
        require_finite(name, tensor)


def describe(rollouts: Rollouts, batch: TurnBatch, advantages: Tensor) -> dict[str, float]:
    """The metrics of a step's rollouts: means over them, counts, and each turn's share of the advantages' mass."""
    mass = torch.zeros(int(batch.turn.max()) + 1 if batch.action_mask.any() else 1, dtype=torch.float64)
    mass.index_add_(
        0, batch.turn[batch.action_mask].cpu(), advantages[batch.action_mask].abs().double().cpu()
    )
    total = float(mass.sum())
    shares = {
        f"advantage_mass_turn_{turn}": float(value) / total for turn, value in enumerate(mass) if total > 0
    }
    return {
        "reward": float(batch.reward.double().mean()),
        "success": float(batch.success.double().mean()),
        "truncated": float(batch.truncated.double().mean()),
        "turns": float(rollouts.n_turns.double().mean()),
        "action_tokens": float(rollouts.n_action_tokens.double().mean()),
        "invalid_turns": float(rollouts.n_invalid.double().mean()),
        "rollouts_consumed": rollouts.consumed,
        "rollouts_kept": batch.size,
        "rollouts_dropped": rollouts.consumed - batch.size,
        "success_consumed": rollouts.solved / rollouts.consumed,
        "env_calls": rollouts.env_calls,
        "lost_episodes": rollouts.failures.total(),
        "sampled_tokens": rollouts.sampled_tokens,
        "tokens_consumed": rollouts.row_tokens,
        **shares,
    }


def critic_rows(step: int, name: str, batch: TurnBatch, prompts: list[str]) -> list[list[Any]]:
    """Tidy rows of ``turnscale.track.columns.CRITIC`` of a valued batch; prompts are task hashes by panel index."""
    if batch.values is None:
        raise ValueError("the batch has no critic values")
    rows: list[list[Any]] = []
    turns = batch.turn.tolist()
    values = batch.values.tolist()
    for i, length in enumerate(batch.length.tolist()):
        prompt = prompts[int(batch.task[i])]
        reward, success = float(batch.reward[i]), bool(batch.success[i])
        current, token, gap, waited = -1, 0, 0, 0
        for position in range(length):
            turn = turns[i][position]
            if turn < 0:
                gap += 1
                continue
            if turn != current:
                current, token, waited = turn, 0, gap
            gap = 0
            rows.append([step, name, i, prompt, turn, token, values[i][position], waited, reward, success])
            token += 1
    return rows
