"""What a family is like: success, turns and words of a random policy, of the demonstrators, or of any policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from turnscale.envs.protocol import Family, Task

Policy = Callable[[str, list[str], list[str], np.random.Generator], str]
"""(prompt, own turns so far, observations so far, generator) -> the next turn, without its end-of-turn token."""


@dataclass(frozen=True)
class Episode:
    """One played or demonstrated episode; words are counted as a word-level tokenizer would, plus one per turn."""

    task: Task
    turns: tuple[str, ...]
    observations: tuple[str, ...]
    success: bool
    reward: float
    truncated: bool

    @property
    def words_per_turn(self) -> list[int]:
        """Words of each turn, its end token included."""
        return [len(turn.split()) + 1 for turn in self.turns]


def play(family: Family, task: Task, policy: Policy, rng: np.random.Generator) -> Episode:
    """Play one episode within the turn budget; a turn of more words than the token budget counts as unfinished."""
    environment = family.make()
    prompt = environment.reset(task, 0)
    turns: list[str] = []
    observations: list[str] = []
    step = None
    while len(turns) < family.limits.max_turns and (step is None or not step.done):
        turns.append(policy(prompt, turns, observations, rng))
        complete = len(turns[-1].split()) < family.limits.max_turn_tokens
        step = environment.step(turns[-1], complete)
        observations.append(step.observation)
    environment.close()
    assert step is not None
    return Episode(
        task,
        tuple(turns),
        tuple(observations),
        step.success,
        step.reward if step.done else 0.0,
        not step.done,
    )


def random_policy(family: Family) -> Policy:
    """The family's random well-formed turns."""
    return lambda prompt, turns, observations, rng: family.random_turn(
        prompt, observations[-1] if observations else "", rng
    )


def demonstrated(family: Family, task: Task, expert: bool, rng: np.random.Generator) -> Episode:
    """A demonstration as an episode."""
    shown = family.demonstrate(task, rng, expert)
    truncated = not shown.success and len(shown.turns) == family.limits.max_turns
    return Episode(task, shown.turns, shown.observations, shown.success, shown.reward, truncated)


def family_report(
    family: Family, policy: Policy | None = None, tasks_per_split: int = 100, seed: int = 0
) -> pd.DataFrame:
    """One row per player, split and difficulty (and ``all``), over the first tasks of each split.

    Players are ``random``, ``imperfect`` and ``expert`` (the demonstrators), and ``policy`` if one is given.
    Columns: player, split, difficulty, tasks, success, reward, truncated (shares), turns, words_per_turn,
    words (means per episode; words are the policy's own).
    """
    rng = np.random.default_rng(seed)
    players: dict[str, Callable[[Task], Episode]] = {
        "random": lambda task: play(family, task, random_policy(family), rng),
        "imperfect": lambda task: demonstrated(family, task, False, rng),
        "expert": lambda task: demonstrated(family, task, True, rng),
    }
    if policy is not None:
        players["policy"] = lambda task: play(family, task, policy, rng)
    rows = []
    for split in ("train", "validation", *family.benchmarks):
        size = family.size(split)
        count = tasks_per_split if size is None else min(tasks_per_split, size)
        tasks = [family.task(split, i) for i in range(count)]
        for player, run in players.items():
            episodes = [run(task) for task in tasks]
            levels = sorted({t.difficulty for t in tasks} - {"all"})
            rows += [
                _row(player, split, level, [e for e in episodes if e.task.difficulty == level])
                for level in levels
            ]
            rows.append(_row(player, split, "all", episodes))
    return pd.DataFrame(rows)


def _row(player: str, split: str, difficulty: str, episodes: list[Episode]) -> dict[str, Any]:
    words = [n for episode in episodes for n in episode.words_per_turn]
    return {
        "player": player,
        "split": split,
        "difficulty": difficulty,
        "tasks": len(episodes),
        "success": _mean(e.success for e in episodes),
        "reward": _mean(e.reward for e in episodes),
        "truncated": _mean(e.truncated for e in episodes),
        "turns": _mean(len(e.turns) for e in episodes),
        "words_per_turn": _mean(words),
        "words": _mean(sum(e.words_per_turn) for e in episodes),
    }


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
