"""The probe task: find one of eight targets by asking for its bits, then answer.

Turns 1..T-1 call one of three probe tools, tool k returning bit k of the target (a tool may be called again, which
is wasted); turn T answers one of the eight. The reward is 1 for the right answer. What the policy sees before a turn
is the ordered list of (tool, bit) so far, here one whole number: its digits in base 6, 2 x tool + bit each.

Source: the grouping comparison, read as published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOOLS = 3
TARGETS = 8
OBSERVATIONS = 2 * TOOLS

Array = np.ndarray


@dataclass(frozen=True)
class ProbeTask:
    """The task with a number of turns.

    Attributes:
        turns: T, at least 1; the last one answers.
    """

    turns: int

    @property
    def actions(self) -> tuple[int, ...]:
        """Number of actions in each turn."""
        return (TOOLS,) * (self.turns - 1) + (TARGETS,)

    @property
    def states(self) -> tuple[int, ...]:
        """Number of visible states before each turn."""
        return tuple(OBSERVATIONS**turn for turn in range(self.turns))

    @property
    def optimum(self) -> float:
        """The best expected reward: every probe asks for another bit."""
        return min(1.0, 2 ** (self.turns - 1) / TARGETS)


def bit(tool: Array, target: Array) -> Array:
    """What a probe returns: bit ``tool`` of ``target``."""
    return (target >> tool) & 1


def after_probe(state: Array, tool: Array, target: Array) -> Array:
    """The visible state after a probe."""
    return state * OBSERVATIONS + 2 * tool + bit(tool, target)


def bits_set(mask: Array) -> Array:
    """How many of the three lowest bits are set."""
    return (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1)
