"""Small random checkpoints with adapters that do something, and a scripted environment."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from turnscale.agent.adapter import Agent, attach, critic_parameters, policy_parameters
from turnscale.agent.checkpoint import Checkpoint, load, make_local, save
from turnscale.agent.config import Architecture, ModelConfig
from turnscale.envs.protocol import Limits, Step, Task

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

WORDS = ["<think>", "</think>", "search", "answer", *(f"w{i}" for i in range(30))]
LIMITS = Limits(max_turns=5, max_turn_tokens=8, max_tokens=80)


def local_config(kind: str, **changes: object) -> ModelConfig:
    """The dense or the sparse local model."""
    architecture = Architecture(experts=4 if kind == "moe" else 0)
    return ModelConfig(name=kind, kind="local", architecture=architecture, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of the saved dense or sparse checkpoint."""
    made: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            config = local_config(kind)
            save(*make_local(config, WORDS, seed=3), config, made[kind])
        return made[kind]

    return directory


@pytest.fixture
def checkpoint(checkpoint_dir: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    return lambda kind: load(checkpoint_dir(kind))


def stir(agent: Agent, seed: int = 5, scale: float = 0.15) -> Agent:
    """Give every adapter and head random weights, so that none of them is the identity."""
    generator = torch.Generator().manual_seed(seed)
    parameters = policy_parameters(agent) + (critic_parameters(agent) if agent.head else [])
    for parameter in parameters:
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return agent


@pytest.fixture
def agent(checkpoint: Callable[[str], Checkpoint]) -> Callable[[str], Agent]:
    """A freshly attached agent with active adapters."""
    return lambda kind: stir(attach(checkpoint(kind), seed=0))


class Chatter:
    """Observations of random length for 2 to 4 turns; solved when the last turn says w1; "bomb" breaks it."""

    def reset(self, task: Task, seed: int) -> str:
        self.rng = random.Random(f"{task.hash} {seed}")
        self.left = self.rng.randint(2, 4)
        self.heard: list[tuple[str, bool]] = []
        return self.words(self.rng.randint(3, 9))

    def step(self, turn: str, complete: bool = True) -> Step:
        self.heard.append((turn, complete))
        self.left -= 1
        if self.left == 0:
            solved = "w1" in turn.split()
            return Step("", done=True, reward=float(solved), success=solved, valid=complete)
        return Step(self.words(self.rng.randint(1, 6)), valid=complete)

    def clone(self) -> Chatter:
        raise AssertionError("rollouts do not fork here")

    def anchor(self) -> str:
        return f"{len(self.heard)} turns"

    def close(self) -> None:
        return None

    def words(self, count: int) -> str:
        return " ".join(self.rng.choices(WORDS[4:], k=count))


def tasks(count: int, group: int = 2) -> list[Task]:
    """``count`` rows over ``count / group`` tasks."""
    return [Task("chatter", "1", "train", index // group) for index in range(count)]
