"""One row's episode during a rollout, and the prefix from which other rows can go on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnscale.envs.protocol import Environment, Limits, Task


@dataclass(frozen=True)
class Prefix:
    """An episode up to the beginning of a turn. Rows that go on from it share its tokens and log-probabilities.

    Attributes:
        env: the environment at that point; a row that goes on takes a clone of it, so one prefix serves any number.
        ids, mask, turn, logp: [n] tokens so far and what was recorded of them, as in the rollout's own arrays.
        prompt: the environment's prompt.
        turns, observations: what was said and answered so far, as many of each.
        anchors: states in which the turns so far began, and the one the next turn begins in.
        invalid: malformed turns so far.
        budget: tokens the row may have.
    """

    env: Environment
    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    turn: NDArray[np.int64]
    logp: NDArray[np.float32]
    prompt: str
    turns: tuple[str, ...]
    observations: tuple[str, ...]
    anchors: tuple[int, ...]
    invalid: int
    budget: int


class Episode:
    """The episode of one row; its tensors are kept by the rollout.

    Attributes:
        calls: turns the environment was asked to play for this row (not for the prefix it began with).
        budget: tokens the row may have.
    """

    def __init__(
        self, env: Environment, task: Task, seed: int, limits: Limits, prefix: Prefix | None = None
    ) -> None:
        self.task = task.hash
        self.limits = limits
        self.reward = 0.0
        self.success = False
        self.truncated = False
        self.calls = 0
        self.budget = limits.max_tokens
        self.prefixes: list[Prefix] = []
        self.turns: list[str] = []
        self.observations: list[str] = []
        self.invalid = 0
        if prefix is None:
            self.env = env
            self.prompt = env.reset(task, seed)
            self.anchors: list[int] = [anchor_id(task.hash, env.anchor())]
            return
        self.env = prefix.env.clone()
        self.prompt = prefix.prompt
        self.turns += prefix.turns
        self.observations += prefix.observations
        self.anchors = list(prefix.anchors)
        self.invalid, self.budget = prefix.invalid, prefix.budget

    def act(self, text: str, complete: bool) -> str | None:
        """Play one turn; return the observation, or None when the episode is over."""
        step = self.env.step(text, complete)
        self.calls += 1
        self.turns.append(text)
        self.invalid += not step.valid
        if step.done:
            self.reward, self.success = float(step.reward), bool(step.success)
        elif len(self.turns) >= self.limits.max_turns:
            self.truncated = True
        else:
            self.observations.append(step.observation)
            self.anchors.append(anchor_id(self.task, self.env.anchor()))
            return step.observation
        self.observations.append("")
        return None

    def keep(
        self,
        ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        turn: NDArray[np.int64],
        logp: NDArray[np.float32],
    ) -> None:
        """Keep the prefix of the turn that is about to begin; the arrays hold the row's tokens up to it."""
        self.prefixes.append(
            Prefix(
                self.env.clone(),
                ids.copy(),
                mask.copy(),
                turn.copy(),
                logp.copy(),
                self.prompt,
                tuple(self.turns),
                tuple(self.observations),
                tuple(self.anchors),
                self.invalid,
                self.budget,
            )
        )


def anchor_id(task: str, anchor: str) -> int:
    """A 63-bit identity of (task hash, visible state): equal across rows and batches exactly when both are equal."""
    digest = hashlib.sha256(f"{task}\0{anchor}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def told(context: str, prompt: str) -> str:
    """The prompt as a policy or teacher sees it that is told something beforehand; "" tells nothing."""
    return f"{context} {prompt}" if context else prompt
