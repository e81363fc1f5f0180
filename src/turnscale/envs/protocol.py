"""The protocol every task family follows.

An episode is: prompt -> (assistant turn -> observation)* -> terminal reward. Budgets on turns and tokens are
kept by the rollout, which ends the episode with reward 0 and ``truncated``; the environment never sees them.
The reward reads only the policy's own turns and the environment's state, never the transcript text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Task:
    """One task: its identity is (family, generator version, parameters, index), hashed.

    Attributes:
        family: name of the family, e.g. ``search``.
        version: version of the generator; a change of the generator that alters tasks raises it.
        split: ``train``, ``validation`` or the name of a test benchmark.
        index: position in the family's stream for this split.
        params: everything else the generator needs (difficulty, distractors, ...), JSON values only.
    """

    family: str
    version: str
    split: str
    index: int
    params: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the SHA-256 of the canonical JSON of the identity."""
        text = json.dumps(
            [self.family, self.version, self.split, self.index, dict(self.params)],
            sort_keys=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def difficulty(self) -> str:
        """The stratum of the task for success by difficulty (``params["difficulty"]``, else ``all``)."""
        return str(self.params.get("difficulty", "all"))


@dataclass(frozen=True)
class Step:
    """What the environment answers to one whole turn.

    Attributes:
        observation: text shown to the policy next ("" when done).
        done: the episode is over.
        reward: terminal reward, meaningful only when done.
        success: the task was solved, meaningful only when done.
        valid: False when the turn was malformed (it used up the turn and the observation says nothing).
        failure: why the environment itself broke down, "" when it did not (set by ``guard.py``).
    """

    observation: str
    done: bool = False
    reward: float = 0.0
    success: bool = False
    valid: bool = True
    failure: str = ""


class Environment(Protocol):
    """One episode at a time; deterministic given (task, seed) and the turns."""

    def reset(self, task: Task, seed: int) -> str:
        """Start an episode and return the user prompt."""
        ...

    def step(self, turn: str, complete: bool = True) -> Step:
        """Act with one whole assistant turn, without its end-of-turn token.

        ``complete`` is False when the turn hit the token limit before its end token: a malformed turn.
        """
        ...

    def clone(self) -> Environment:
        """An independent copy at the same point of the episode (for prefix forks)."""
        ...

    def anchor(self) -> str:
        """The visible state before the next turn as a string; equal strings mean equal visible states."""
        ...

    def close(self) -> None:
        """Release whatever the environment holds."""
        ...


@dataclass(frozen=True)
class Limits:
    """Budgets of an episode, kept by the rollout.

    Attributes:
        max_turns: assistant turns of an episode.
        max_turn_tokens: tokens of one turn, its end-of-turn token included.
        max_tokens: tokens of the whole row: prompt, turns, observations and what the chat format puts around.
        timeout_s: seconds that one call of the environment may take before its episode counts as lost; None for no
            limit, as suits environments that only compute.
    """

    max_turns: int
    max_turn_tokens: int
    max_tokens: int
    timeout_s: float | None = None


@dataclass(frozen=True)
class Demonstration:
    """A supervised transcript: ``turns[i]`` is answered by ``observations[i]``; the last one is ""."""

    task: Task
    prompt: str
    turns: tuple[str, ...]
    observations: tuple[str, ...]
    reward: float
    success: bool


class Family(Protocol):
    """A family of tasks: streams of train, validation and test tasks, environments and demonstrations.

    Attributes:
        name: name of the family in tables and file names.
        version: version of the generator, part of every task's identity.
        limits: budgets of an episode.
        benchmarks: names of the test splits.
        instructions: how to act, in prose, for the system message of a real chat model; "" for local
            word-level models, which learn the format from demonstrations.
        expert_share: share of experts in the demonstration mix, to be drawn by whoever calls ``demonstrate``.
    """

    name: str
    version: str
    limits: Limits
    benchmarks: tuple[str, ...]
    instructions: str
    expert_share: float

    def task(self, split: str, index: int) -> Task:
        """Task number ``index`` of a split; splits are disjoint by construction."""
        ...

    def size(self, split: str) -> int | None:
        """Number of tasks available in the split, None when unbounded."""
        ...

    def content(self, task: Task) -> str:
        """A text that determines what the task asks and hides: equal texts mean the same task content."""
        ...

    def make(self) -> Environment:
        """A fresh environment."""
        ...

    def random_turn(self, prompt: str, observation: str, rng: np.random.Generator) -> str:
        """A well-formed turn of the random policy, given the prompt and what was observed last."""
        ...

    def vocabulary(self) -> Sequence[str]:
        """Every word the family can print or accept, for word-level tokenizers of local checkpoints."""
        ...

    def demonstrate(self, task: Task, rng: np.random.Generator, expert: bool) -> Demonstration:
        """A demonstration by the expert (optimal) or by an imperfect one drawn from the family's mix."""
        ...

    def skill(self, task: Task) -> str:
        """A privileged text about the task: its useful sub-goals in words of :meth:`vocabulary`, not its answer.

        Shown before the prompt to a teacher, or to the policy where a method says so. What it gives away is
        stated by each family. Raises TaskError where the family knows of no sub-goals.
        """
        ...

    def oracle_features(self, task: Task, turns: Sequence[str], observations: Sequence[str]) -> list[str]:
        """For each turn, a discrete feature of the episode state before that turn.

        Used for the ceiling of the critic's explained variance: a table regression of the final reward on
        this feature (and the token's position class) bounds what a critic can attain.
        """
        ...
