"""Evaluation of one checkpoint: n attempts at every task of every test benchmark, as a long table.

Attempts draw from streams named by run seed and benchmark alone, so two methods evaluated at the same seed meet the
same environment randomness. Nothing is averaged here; tables do that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from turnscale.agent.chat import ChatFormat
from turnscale.agent.decode import Decoder
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.batch import TurnBatch
from turnscale.envs.protocol import Family, Task
from turnscale.seeding import stream_seed, torch_stream

COLUMNS = (
    "benchmark",
    "task",
    "difficulty",
    "attempt",
    "success",
    "reward",
    "turns",
    "action_tokens",
    "truncated",
)


@dataclass(frozen=True)
class Sampler:
    """What is needed to roll a policy out: the decoder is made anew whenever the policy has moved.

    Attributes:
        context: ``plain``, or ``skill``: the policy is told the task's skill text before the prompt.
        lost: counts the episodes that the environment broke, by reason; they are attempts without success.
    """

    decoder: Callable[[], Decoder]
    chat: ChatFormat
    family: Family
    temperature: float
    batch: int
    context: str = "plain"
    lost: Counter[str] = field(default_factory=Counter)


def attempt(
    sampler: Sampler, benchmark: str, tasks: Sequence[Task], attempts: int, seed: int, *, label: str = ""
) -> pd.DataFrame:
    """``attempts`` rollouts of each task.

    Args:
        sampler: policy, chat format and family.
        benchmark: written into the table and naming the random stream.
        tasks: the panel.
        attempts: rollouts per task.
        seed: the run's seed.
        label: text of the progress bar; "" shows none.

    Returns:
        One row per task and attempt with the columns ``COLUMNS``.
    """
    generator = torch_stream(seed, "evaluate", benchmark)
    pairs = [(task, number) for task in tasks for number in range(attempts)]
    decoder = sampler.decoder()
    rows: list[tuple[Any, ...]] = []
    starts = range(0, len(pairs), sampler.batch)
    for start in tqdm(starts, desc=label, disable=not label, mininterval=5):
        chosen = pairs[start : start + sampler.batch]
        seeds = [stream_seed(seed, "environment", benchmark, task.hash, number) for task, number in chosen]
        with torch.inference_mode():
            result = rollout(
                decoder,
                sampler.chat,
                sampler.family.make,
                [task for task, _ in chosen],
                seeds,
                sampler.family.limits,
                generator,
                temperature=sampler.temperature,
                contexts=contexts(sampler.family, [task for task, _ in chosen], sampler.context),
            )
        sampler.lost.update(result.failures)
        rows += _rows(benchmark, chosen, result)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def contexts(family: Family, tasks: Sequence[Task], context: str) -> list[str] | None:
    """What the policy is told before the prompts of ``tasks`` in a context: None for ``plain``."""
    return [family.skill(task) for task in tasks] if context == "skill" else None


def evaluate(
    sampler: Sampler, panels: Mapping[str, Sequence[Task]], attempts: int, seed: int, *, label: str = ""
) -> pd.DataFrame:
    """``attempts`` rollouts of each task of each of the family's test benchmarks; see :func:`attempt`."""
    return pd.concat(
        [
            attempt(sampler, name, panels[name], attempts, seed, label=f"{label} {name}" if label else "")
            for name in sampler.family.benchmarks
        ],
        ignore_index=True,
    )


def _rows(benchmark: str, chosen: Sequence[tuple[Task, int]], result: Rollouts) -> list[tuple[Any, ...]]:
    batch: TurnBatch = result.batch
    return [
        (
            benchmark,
            task.hash,
            difficulty(task),
            number,
            bool(batch.success[i]),
            float(batch.reward[i]),
            int(result.n_turns[i]),
            int(result.n_action_tokens[i]),
            bool(batch.truncated[i]),
        )
        for i, (task, number) in enumerate(chosen)
    ]


def difficulty(task: Task) -> str:
    """The task's difficulty class as its family states it (``hops``, ``level``), "" where it states none."""
    for key in ("difficulty", "hops", "level"):
        if key in task.params:
            return str(task.params[key])
    return ""
