"""A family so easy that an untrained policy sometimes succeeds, so that tests train on a varying reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from turnscale.envs.protocol import Demonstration, Environment, Limits, Step, Task
from turnscale.envs.registry import KINDS

WORDS = ("toss", "again", "heads", "tails", "stop", "go")


class CoinEnvironment:
    """Say ``heads`` in a turn that says ``stop``; any other turn without ``stop`` is answered ``again``."""

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, task: Task, seed: int) -> str:
        self.turns = 0
        return f"toss {WORDS[task.index % 3]}"

    def step(self, turn: str, complete: bool = True) -> Step:
        self.turns += 1
        words = turn.split()
        if "stop" not in words:
            return Step("again", valid=complete)
        won = "heads" in words
        return Step("", done=True, reward=float(won), success=won)

    def clone(self) -> Environment:
        other = CoinEnvironment()
        other.turns = self.turns
        return other

    def anchor(self) -> str:
        return str(self.turns)

    def close(self) -> None:
        pass


class CoinParameters(BaseModel):
    pass


class CoinFamily:
    version = "1"
    benchmarks = ("coin-test",)
    instructions = ""
    expert_share = 0.5

    def __init__(self, name: str, limits: Limits, parameters: Any) -> None:
        self.name = name
        self.limits = limits

    def task(self, split: str, index: int) -> Task:
        return Task(self.name, self.version, split, index)

    def size(self, split: str) -> int | None:
        return None

    def content(self, task: Task) -> str:
        return f"{task.split} {task.index}"

    def make(self) -> Environment:
        return CoinEnvironment()

    def random_turn(self, prompt: str, observation: str, rng: np.random.Generator) -> str:
        return str(rng.choice(WORDS))

    def vocabulary(self) -> Sequence[str]:
        return WORDS

    def demonstrate(self, task: Task, rng: np.random.Generator, expert: bool) -> Demonstration:
        last = "heads stop" if expert else "tails stop"
        turns = (*(["go toss"] * int(rng.integers(3))), last)
        seen = tuple("again" for _ in turns[:-1])
        prompt = CoinEnvironment().reset(task, 0)
        return Demonstration(task, prompt, turns, (*seen, ""), float(expert), expert)

    def skill(self, task: Task) -> str:
        return "go heads"

    def oracle_features(self, task: Task, turns: Sequence[str], observations: Sequence[str]) -> list[str]:
        return [str(i) for i in range(len(turns))]


KINDS["coin"] = (CoinParameters, CoinFamily)
