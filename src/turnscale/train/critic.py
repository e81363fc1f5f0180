"""Reading an agent's critic, whatever its number of heads."""

from __future__ import annotations

from torch import Tensor

from turnscale.agent.adapter import Agent
from turnscale.agent.forward import critic_values
from turnscale.batch import TurnBatch


def read_heads(agent: Agent, batch: TurnBatch) -> Tensor:
    """[heads, B, T] values before each action token, 0 elsewhere; with gradient where it is enabled.

    Raises:
        ValueError: the agent has no critic.
    """
    if agent.head is None:
        raise ValueError("the agent has no critic")
    values = critic_values(agent.model, agent.head, batch)
    return values if values.ndim == 3 else values[None]


def with_values(batch: TurnBatch, heads: Tensor) -> TurnBatch:
    """The batch with the token head's values and, where there are two heads, the turn head's."""
    return batch.with_(values=heads[0], values_turn=heads[1] if len(heads) > 1 else None)
