"""Training tabular policies on the probe task, all seeds of a block at once.

The credit is the method's registered function on a `TurnBatch` of every seed's rollouts. A seed's numbers do not
depend on which other seeds stand beside it: its draws come from its own stream and groups never span seeds.

Source: the grouping comparison, read as published: softmax over one table row per visible state, zero logits at the
start, logits += lr x mean over the rollouts of the sum over steps of A (onehot - pi), pi as at sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnscale.batch import TurnBatch
from turnscale.errors import ConfigError
from turnscale.methods import Method
from turnscale.seeding import numpy_stream
from turnscale.tabular.task import TARGETS, Array, ProbeTask, after_probe, bits_set

CHUNK = 50
"""Iterations whose random numbers are drawn at once."""

METRICS = ("reward", "singleton_bucket_share", "dead_step_share", "distinct_tools", "environment_calls")
"""What is measured in every iteration, for every seed."""


@dataclass(frozen=True)
class Design:
    """How the rollouts of one iteration hang together.

    Attributes:
        forks: for each group the 0-based turn at which its members part; 0 is independent rollouts.
        siblings: members of each group.
        copied: whether the members of a group start from one copied environment, target included.
    """

    forks: tuple[int, ...]
    siblings: int
    copied: bool

    @property
    def rollouts(self) -> int:
        """Rollouts per iteration."""
        return len(self.forks) * self.siblings

    def calls(self, turns: int) -> int:
        """Environment calls per iteration: each shared prefix once, then every member's own turns."""
        return sum(fork + self.siblings * (turns - fork) for fork in self.forks)


def design_of(method: Method, turns: int, group_size: int) -> Design:
    """The design a method's sampling asks for.

    Args:
        method: the row; its own ``sampling.group_size`` goes before ``group_size``.
        turns: T.
        group_size: rollouts per group.

    Raises:
        ConfigError: a scheme that the probe task has no meaning for.
    """
    size = method.sampling.group_size or group_size
    if method.sampling.scheme == "independent":
        return Design((0,), size, copied=False)
    if method.sampling.scheme == "fork" and method.sampling.fork == "every_turn":
        return Design(tuple(range(turns)), size, copied=True)
    raise ConfigError(
        f"the probe task cannot sample by scheme {method.sampling.scheme!r} (fork {method.sampling.fork!r})",
        file=f"method {method.name}",
        key="sampling.scheme",
        remedy="use independent, or fork at every_turn.",
    )


@dataclass(frozen=True)
class Rollouts:
    """One iteration's rollouts: S seeds, R rollouts, T turns.

    Attributes:
        state, action: [S, R, T] whole numbers.
        policy: T arrays [S, R, actions], the policy's probabilities as at sampling.
        reward: [S, R].
        distinct: [S, R] different tools probed.
    """

    state: Array
    action: Array
    policy: tuple[Array, ...]
    reward: Array
    distinct: Array


def softmax(logits: Array) -> Array:
    """Probabilities over the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def sample(logits: Sequence[Array], draws: Array, task: ProbeTask, design: Design) -> Rollouts:
    """Roll the policies out.

    Args:
        logits: T arrays [S, states, actions].
        draws: [S, R, T + 1] uniform numbers: one for the target, then one per turn. Where members of a group share a
            target and a prefix, the draws of the first member are used.
        task: the task.
        design: which rollouts share a prefix.
    """
    seeds = draws.shape[0]
    shared = draws.reshape(seeds, len(design.forks), design.siblings, task.turns + 1).copy()
    if design.copied:
        for group, fork in enumerate(design.forks):
            shared[:, group, 1:, : 1 + fork] = shared[:, group, :1, : 1 + fork]
    draws = shared.reshape(seeds, design.rollouts, task.turns + 1)
    target = (draws[..., 0] * TARGETS).astype(np.int64)
    state = np.zeros_like(target)
    mask = np.zeros_like(target)
    every = np.arange(seeds)[:, None]
    states, actions, policies = [], [], []
    for turn in range(task.turns):
        policy = softmax(logits[turn][every, state])
        passed = draws[..., turn + 1, None] >= np.cumsum(policy, axis=-1)[..., :-1]
        action = passed.sum(axis=-1)
        states.append(state)
        actions.append(action)
        policies.append(policy)
        if turn < task.turns - 1:
            state = after_probe(state, action, target)
            mask = mask | (1 << action)
    return Rollouts(
        state=np.stack(states, axis=-1),
        action=np.stack(actions, axis=-1),
        policy=tuple(policies),
        reward=(actions[-1] == target).astype(np.float64),
        distinct=bits_set(mask),
    )


def to_batch(rollouts: Rollouts, task: ProbeTask, design: Design) -> TurnBatch:
    """The rollouts of all seeds as one batch [S R, T] of one-token turns; a seed is a task of its own."""
    import torch

    seeds, rows, turns = rollouts.action.shape
    seed = np.repeat(np.arange(seeds), rows)
    group = np.repeat(np.arange(seeds * len(design.forks)), design.siblings)
    offsets = np.concatenate([[0], np.cumsum(task.states)])
    anchor = rollouts.state.reshape(-1, turns) + offsets[:-1] + seed[:, None] * offsets[-1]
    chosen = [
        np.take_along_axis(policy, rollouts.action[..., turn, None], axis=-1)[..., 0]
        for turn, policy in enumerate(rollouts.policy)
    ]
    reward = torch.from_numpy(rollouts.reward.reshape(-1))
    size = seeds * rows
    return TurnBatch(
        ids=torch.from_numpy(rollouts.action.reshape(size, turns)),
        action_mask=torch.ones(size, turns, dtype=torch.bool),
        turn=torch.arange(turns).expand(size, turns),
        logp_rollout=torch.from_numpy(np.log(np.stack(chosen, axis=-1)).reshape(size, turns)),
        length=torch.full((size,), turns),
        reward=reward,
        success=reward > 0,
        truncated=torch.zeros(size, dtype=torch.bool),
        task=torch.from_numpy(seed),
        group=torch.from_numpy(group),
        anchor=torch.from_numpy(anchor),
        fork_turn=torch.from_numpy(np.tile(np.repeat(design.forks, design.siblings), seeds)),
    )


def update(logits: Sequence[Array], rollouts: Rollouts, advantages: Array, lr: float) -> None:
    """One step of all policies, in place. advantages: [S, R, T]."""
    seeds, rows, turns = advantages.shape
    for turn in range(turns):
        table = logits[turn]
        _, states, actions = table.shape
        step = -rollouts.policy[turn]
        np.put_along_axis(
            step, rollouts.action[..., turn, None], 1.0 + np.take_along_axis(
                step, rollouts.action[..., turn, None], axis=-1), axis=-1,
        )  # fmt: skip
        step = step * (lr / rows * advantages[..., turn, None])
        first = (np.arange(seeds)[:, None] * states + rollouts.state[..., turn]) * actions
        np.add.at(table.reshape(-1), (first[..., None] + np.arange(actions)).reshape(-1), step.reshape(-1))


def singleton_share(state: Array) -> Array:
    """[S]: buckets of one over non-empty buckets, a bucket being a turn and visible state. state: [S, R, T]."""
    ordered = np.sort(state, axis=1)
    new = np.ones_like(ordered, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    last = np.ones_like(new)
    last[:, :-1] = new[:, 1:]
    return (new & last).sum(axis=(1, 2)) / new.sum(axis=(1, 2))


@dataclass(frozen=True)
class Trained:
    """A block of trained seeds.

    Attributes:
        logits: T arrays [S, states, actions].
        metrics: name -> [S, iterations], the names of ``METRICS``.
    """

    logits: tuple[Array, ...]
    metrics: dict[str, Array]


def train(
    seeds: Sequence[int],
    stream: str,
    method: Method,
    task: ProbeTask,
    *,
    group_size: int,
    lr: float,
    iterations: int,
    progress: Callable[[int], object] | None = None,
) -> Trained:
    """Train one policy per seed.

    Args:
        seeds: the seeds of the block.
        stream: name of the random stream, which different cells must not share.
        method: a row whose credit needs nothing but rewards, groups, anchors and forks.
        task: the task.
        group_size: rollouts per group, unless the method fixes it.
        lr: added per unit of gradient.
        iterations: updates.
        progress: called with the number of iterations done since the last call.
    """
    design = design_of(method, task.turns, group_size)
    logits = tuple(
        np.zeros((len(seeds), states, actions))
        for states, actions in zip(task.states, task.actions, strict=True)
    )
    generators = [numpy_stream(seed, "tabular", stream, "train") for seed in seeds]
    found: dict[str, list[Array]] = {name: [] for name in METRICS}
    anchored = method.credit_choice["name"] in {"anchor", "gigpo"}
    own = np.arange(task.turns) >= np.repeat(design.forks, design.siblings)[:, None]
    shape = (design.rollouts, task.turns + 1)
    for start in range(0, iterations, CHUNK):
        count = min(CHUNK, iterations - start)
        draws = np.stack([generator.random((count, *shape)) for generator in generators])
        for step in range(count):
            rollouts = sample(logits, draws[:, step], task, design)
            credit = method.credit(to_batch(rollouts, task, design))
            advantages = credit.advantages.numpy().reshape(len(seeds), *own.shape)
            update(logits, rollouts, advantages, lr)
            lone = singleton_share(rollouts.state) if anchored else np.full(len(seeds), design.siblings == 1)
            dead = ((advantages == 0) & own).sum(axis=(1, 2)) / own.sum()
            values = (rollouts.reward.mean(axis=1), lone, dead, rollouts.distinct.mean(axis=1))
            for name, value in zip(METRICS, values, strict=False):
                found[name].append(value)
            found["environment_calls"].append(np.full(len(seeds), design.calls(task.turns)))
        if progress is not None:
            progress(count)
    return Trained(logits, {name: np.stack(rows, axis=1).astype(float) for name, rows in found.items()})


@dataclass(frozen=True)
class Greedy:
    """Greedy policies on every target: success [S, 8] bool and distinct tools probed [S, 8]."""

    success: Array
    distinct: Array


def greedy(logits: Sequence[Array], task: ProbeTask) -> Greedy:
    """Act greedily (the first of equals) on each target; nothing here is random."""
    seeds = logits[0].shape[0]
    target = np.broadcast_to(np.arange(TARGETS), (seeds, TARGETS))
    state, mask = np.zeros_like(target), np.zeros_like(target)
    every = np.arange(seeds)[:, None]
    for turn in range(task.turns - 1):
        action = logits[turn][every, state].argmax(axis=-1)
        state, mask = after_probe(state, action, target), mask | (1 << action)
    answer = logits[-1][every, state].argmax(axis=-1)
    return Greedy(answer == target, bits_set(mask))


def evaluation_targets(seeds: Sequence[int], stream: str, count: int) -> Array:
    """[S, count] random targets, from a stream of their own."""
    return np.stack(
        [numpy_stream(seed, "tabular", stream, "evaluate").integers(TARGETS, size=count) for seed in seeds]
    )
