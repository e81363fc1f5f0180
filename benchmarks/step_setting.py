"""What both sides of ``step_trl.py`` share: checkpoint, prompts, turns, rewards and rules.

All turns and observations have the same length on both sides. The checkpoint makes that so without touching the
sampler: one direction of the embedding is the same for all tokens and points the other way for the end token, whose
probability is then about 1e-12, so that each turn runs to its limit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

WORDS = [f"w{i}" for i in range(74)]
PUSH = 2.0
"""Entry of the embedding's first direction; the end token has minus this."""
LR = 1e-4
CLIP_NORM = 1.0
LORA_RANK, LORA_ALPHA = 8, 16.0
STEPS = 64
"""Steps for which there are prompts."""


@dataclass(frozen=True)
class Setting:
    """One workload. Lengths are in tokens (a word is a token); rows are ``prompts * group``."""

    turns: int
    turn_tokens: int
    prompt_words: int = 16
    observation_words: int = 6
    prompts: int = 16
    group: int = 4
    hidden: int = 64

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def completion(self) -> int:
        """Tokens after the prompt: turns, and between them the end token, the observation and its frame of two."""
        return self.turns * self.turn_tokens + (self.turns - 1) * (self.observation_words + 3)

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: the prompt with its frame of two, and the completion."""
        return self.prompt_words + 2 + self.completion


SETTINGS = {
    "single-turn": Setting(turns=1, turn_tokens=64),
    "multi-turn": Setting(turns=6, turn_tokens=10),
}


def setting_of(name: str, hidden: int) -> Setting:
    """The workload of that name on a model of that width."""
    plain = SETTINGS[name]
    return Setting(plain.turns, plain.turn_tokens, hidden=hidden)


def some_words(rng: random.Random, count: int) -> str:
    """``count`` random words."""
    return " ".join(rng.choices(WORDS, k=count))


def prompt_texts(setting: Setting) -> list[str]:
    """The prompts of all steps, in the order both sides take them."""
    rng = random.Random(0)
    return [some_words(rng, setting.prompt_words) for _ in range(setting.prompts * STEPS)]


def reward(turns: Sequence[str]) -> float:
    """The share of words that occur once: cheap, and different from row to row."""
    words = " ".join(turns).split()
    return len(set(words)) / len(words)


def never_ending(model: torch.nn.Module, end_id: int) -> None:
    """Make the end token all but impossible, in place (the output matrix is the embedding)."""
    weight = model.get_input_embeddings().weight  # type: ignore[operator, union-attr]
    with torch.no_grad():
        weight[:, 0] = PUSH
        weight[end_id, 0] = -PUSH


BASE, ADAPTER, BATCH = Path("base"), Path("adapter"), Path("batch.safetensors")
"""Files of the scratch folder: the checkpoint, the adapter both begin with, the batch both score."""
