"""How a step's rollouts are drawn: independently, dynamically, or forked from shared prefixes.

Each scheme is a function from a :class:`Source` to the rollouts to train on and the new cursor, that is how many
prompts were taken from the epochs' permutations so far. Whatever is played is counted in the rollouts' ``consumed``,
``env_calls``, ``sampled_tokens``, ``row_tokens`` and ``fed_tokens``, whether it is trained on or not.

Sources: DAPO (arXiv 2503.14476) for dynamic sampling; the grouping comparison as published for forks at every turn;
ARPO (2507.19849, read through secondary sources, constants not found) for forks where the entropy rose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from turnscale.agent.episode import Prefix
from turnscale.agent.rollout import Rollouts
from turnscale.batch import TurnBatch
from turnscale.errors import ConfigError, TaskError
from turnscale.methods import Sampling
from turnscale.train.warmup import join

MOST_DRAWS = 64
"""Draws of dynamic sampling in one step; then the policy solves all tasks, or none."""


class Play(Protocol):
    """Play one episode per row."""

    def __call__(
        self,
        chosen: Sequence[int],
        groups: Sequence[int],
        draw: int = 0,
        prefixes: Sequence[Prefix] | None = None,
        keep_prefixes: bool = False,
    ) -> Rollouts:
        """``chosen``: task of each row; ``groups``: its group; ``draw``: number of the draw within the step."""
        ...


@dataclass(frozen=True)
class Source:
    """What a scheme draws from.

    Attributes:
        play: plays rollouts.
        task_at: task at a position of the epochs' permutations.
        entropy: [B, T] entropies of the policy at a batch's action tokens.
        rng: the step's stream for choosing forks.
        sampling: the method's choices.
        prompts, group_size: the setting's; a step trains on ``prompts * group_size`` rollouts whatever the method.
        max_turns: turns of an episode at most.
        step: finished steps.
        cursor: prompts taken so far.
    """

    play: Play
    task_at: Callable[[int], int]
    entropy: Callable[[TurnBatch], Tensor]
    rng: np.random.Generator
    sampling: Sampling
    prompts: int
    group_size: int
    max_turns: int
    step: int
    cursor: int

    @property
    def members(self) -> int:
        """Rollouts of a group."""
        return self.sampling.group_size or self.group_size

    @property
    def groups(self) -> int:
        """Groups of a step: as many as its rollouts allow.

        Raises:
            ConfigError: not even one.
        """
        count = self.prompts * self.group_size // self.members
        if count == 0:
            raise ConfigError(
                f"the method's groups of {self.members} do not fit {self.prompts * self.group_size} rollouts a step",
                key="training.prompts",
                remedy="raise prompts or group_size of the scale.",
            )
        return count


def independent(source: Source) -> tuple[Rollouts, int]:
    """A group of independent rollouts of each of the step's tasks."""
    groups, members = source.groups, source.members
    first = source.step * groups
    chosen = [source.task_at(first + i) for i in range(groups) for _ in range(members)]
    return source.play(chosen, [row // members for row in range(len(chosen))]), first + groups


def dynamic(source: Source) -> tuple[Rollouts, int]:
    """Draw whole steps until enough groups vary in *success*; the others, and what is left over, are dropped.

    A group whose rewards vary but whose successes do not is dropped too, and one whose rewards are constant while
    its successes vary is kept: the criterion is the outcome, not the shaped or graded reward.

    Raises:
        TaskError: too few such groups in ``MOST_DRAWS`` draws.
    """
    groups, members = source.groups, source.members
    cursor, found = source.cursor, 0
    parts: list[tuple[Rollouts, Tensor]] = []
    for draw in range(MOST_DRAWS):
        chosen = [source.task_at(cursor + i) for i in range(groups) for _ in range(members)]
        cursor += groups
        drawn = source.play(chosen, [draw * groups + row // members for row in range(len(chosen))], draw)
        varied = varied_groups(drawn.batch.success, members)[: groups - found]
        rows = (varied[:, None] * members + torch.arange(members)).flatten()
        parts.append((drawn, rows))
        found += len(varied)
        if found == groups:
            return merge(parts), cursor
    raise TaskError(
        f"only {found} of {groups} groups vary in success after {MOST_DRAWS} draws of {groups} groups",
        key="sampling.scheme",
        remedy="use tasks the policy solves sometimes, larger groups, or fewer prompts per step.",
        reason="too few groups vary in success",
    )


def varied_groups(success: Tensor, members: int) -> Tensor:
    """Indices of the groups of ``members`` consecutive rows that have both a success and a failure.

    Args:
        success: [groups * members] bool.
    """
    solved = success.view(-1, members).sum(1)
    return ((solved > 0) & (solved < members)).nonzero().squeeze(1)


def fork(source: Source) -> tuple[Rollouts, int]:
    """Rollouts that share prefixes, forked where the method says."""
    return FORKS[source.sampling.fork or ""](source)


def every_turn(source: Source) -> tuple[Rollouts, int]:
    """Groups of continuations of one prefix each: a base rollout of a task is forked at each of its turns.

    Base rollouts only supply prefixes: they are consumed and not trained on. Tasks are taken until the step has its
    number of groups; of the last one's turns as many are drawn as are missing.
    """
    groups, members = source.groups, source.members
    cursor, draw = source.cursor, 0
    points: list[tuple[int, Prefix]] = []
    parts: list[tuple[Rollouts, Tensor]] = []
    while len(points) < groups:
        missing = groups - len(points)
        count = max(1, missing // source.max_turns)
        tasks = [source.task_at(cursor + i) for i in range(count)]
        base = source.play(tasks, range(count), draw, keep_prefixes=True)
        parts.append((base, torch.arange(0)))
        cursor, draw = cursor + count, draw + 1
        new = [(task, prefix) for task, kept in zip(tasks, base.prefixes, strict=True) for prefix in kept]
        chosen = sorted(source.rng.choice(len(new), min(missing, len(new)), replace=False).tolist())
        points += [new[i] for i in chosen]
        _close([prefix for i, (_, prefix) in enumerate(new) if i not in chosen])
    rows = [point for point in points for _ in range(members)]
    group = torch.arange(groups).repeat_interleave(members)
    forks = source.play([task for task, _ in rows], group.tolist(), draw, [prefix for _, prefix in rows])
    _close([prefix for _, prefix in points])
    parts.append((forks, torch.arange(forks.batch.size)))
    return with_forks(merge(parts), group, [len(prefix.turns) for _, prefix in rows]), cursor


def entropy(source: Source) -> tuple[Rollouts, int]:
    """Half of a task's rollouts are independent, the other half branch off them where the entropy rose most.

    A rollout is forked at one turn at most, once: the one with the greatest rise, if there is one. Where fewer
    rollouts can be forked than branches are due, the rest of the branches begin at the prompt. A rollout and its
    branch form one group, which says who shares the prefix; the baseline is over the whole task.
    """
    groups, members = source.groups, source.members
    first, branches = members - members // 2, members // 2
    tasks = [source.task_at(source.cursor + i) for i in range(groups)]
    chosen = [task for task in tasks for _ in range(first)]
    stems = source.play(chosen, range(len(chosen)), keep_prefixes=True)
    rises = entropy_rises(stems.batch, source.entropy(stems.batch))
    group = list(range(len(chosen)))
    fork_turn = [0] * len(chosen)
    branch_task: list[int] = []
    branch_prefix: list[Prefix] = []
    for index, task in enumerate(tasks):
        rows = range(index * first, (index + 1) * first)
        forked = sorted((row for row in rows if rises[row][1] > 0), key=lambda row: -rises[row][1])[:branches]
        for number in range(branches):
            row, turn = (forked[number], rises[forked[number]][0]) if number < len(forked) else (rows[0], 0)
            branch_task.append(task)
            branch_prefix.append(stems.prefixes[row][turn])
            group.append(row if turn else len(chosen) + len(branch_task))
            fork_turn.append(turn)
            if turn:
                fork_turn[row] = turn
    parts = [(stems, torch.arange(len(chosen)))]
    if branch_task:
        grown = source.play(branch_task, group[len(chosen) :], 1, branch_prefix)
        parts.append((grown, torch.arange(len(branch_task))))
    _close([prefix for kept in stems.prefixes for prefix in kept])
    return with_forks(merge(parts), torch.tensor(group), fork_turn), source.cursor + groups


def entropy_rises(batch: TurnBatch, entropies: Tensor) -> list[tuple[int, float]]:
    """For each row the later turn whose mean entropy exceeds that of the first turn most, and by how much (nats).

    (0, 0.0) for a row of one turn or none; the rise may be negative.
    """
    found = []
    for row in range(batch.size):
        turn = batch.turn[row][batch.action_mask[row]]
        if not len(turn):
            found.append((0, 0.0))
            continue
        total = torch.zeros(int(turn.max()) + 1, dtype=torch.float64)
        total.index_add_(0, turn.cpu(), entropies[row][batch.action_mask[row]].double().cpu())
        mean = total / torch.bincount(turn.cpu())
        if len(mean) == 1:
            found.append((0, 0.0))
            continue
        best = int(mean[1:].argmax()) + 1
        found.append((best, float(mean[best] - mean[0])))
    return found


def with_forks(rollouts: Rollouts, group: Tensor, fork_turn: Sequence[int]) -> Rollouts:
    """The rollouts with their groups and fork turns set."""
    turns = torch.tensor(list(fork_turn))
    return replace(rollouts, batch=rollouts.batch.with_(group=group, fork_turn=turns))


def merge(parts: Sequence[tuple[Rollouts, Tensor]]) -> Rollouts:
    """Chosen rows of several draws as one. Counters are those of all that was played, chosen or not.

    Args:
        parts: (rollouts, row indices [n] long); one of them at least has rows.
    """
    chosen = [(part, rows) for part, rows in parts if len(rows)]
    every = [part for part, _ in parts]

    def listed(name: str) -> list[list[str]]:
        return [getattr(part, name)[i] for part, rows in chosen for i in rows.tolist()]

    def counted(name: str) -> Tensor:
        return torch.cat([getattr(part, name)[rows] for part, rows in chosen])

    return Rollouts(
        batch=join([part.batch.rows(rows) for part, rows in chosen]),
        prompts=[part.prompts[i] for part, rows in chosen for i in rows.tolist()],
        turns=listed("turns"),
        observations=listed("observations"),
        n_turns=counted("n_turns"),
        n_action_tokens=counted("n_action_tokens"),
        n_invalid=counted("n_invalid"),
        failures=sum((part.failures for part in every), Counter()),
        row_tokens=sum(part.row_tokens for part in every),
        fed_tokens=sum(part.fed_tokens for part in every),
        consumed=sum(part.consumed for part in every),
        solved=sum(part.solved for part in every),
        env_calls=sum(part.env_calls for part in every),
        sampled_tokens=sum(part.sampled_tokens for part in every),
    )


def _close(prefixes: Sequence[Prefix]) -> None:
    for prefix in prefixes:
        prefix.env.close()


Scheme = Callable[[Source], tuple[Rollouts, int]]
SCHEMES: Mapping[str, Scheme] = {"independent": independent, "dynamic": dynamic, "fork": fork}
FORKS: Mapping[str, Scheme] = {"every_turn": every_turn, "entropy": entropy}
