"""The probe task with every trajectory written out, so that values and the policy gradient are exact sums.

A turn is one token (a tool of three; an answer of eight) or two (a tool of four as 2 x 2, the fourth returning
nothing; an answer as 4 x 2). A softmax table row belongs to each visible state and the tokens already said in the
turn. Trajectories are in lexicographic order of target and tokens, so those that share a prefix lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from turnscale.errors import NumericalError
from turnscale.tabular.task import TARGETS, TOOLS, Array, ProbeTask

PROBE = {1: (TOOLS,), 2: (2, 2)}
ANSWER = {1: (TARGETS,), 2: (4, 2)}


@dataclass(frozen=True)
class Enumerated:
    """All N trajectories of L tokens; the policy's parameters are one flat vector of P logits.

    Attributes:
        task: the task.
        tokens: tokens per turn, 1 or 2.
        counts: [L] actions at each token.
        turn: [L] 0-based turn of each token.
        rows: [L] table rows at each token.
        row: [N, L] table row before each token, counted within the token's own table.
        action: [N, L].
        reward: [N].
        state: [N, T] visible state before each turn.
    """

    task: ProbeTask
    tokens: int
    counts: tuple[int, ...]
    turn: Array
    rows: tuple[int, ...]
    row: Array
    action: Array
    reward: Array
    state: Array

    @property
    def parameters(self) -> int:
        """P."""
        return sum(rows * count for rows, count in zip(self.rows, self.counts, strict=True))

    def tables(self, flat: Array) -> Iterator[Array]:
        """L views [rows, actions] of a flat vector [P]."""
        start = 0
        for rows, count in zip(self.rows, self.counts, strict=True):
            yield flat[start : start + rows * count].reshape(rows, count)
            start += rows * count

    def log_policy(self, logits: Array) -> list[Array]:
        """Log-probabilities as L tables [rows, actions]."""
        shifted = [table - table.max(axis=1, keepdims=True) for table in self.tables(logits)]
        return [table - np.log(np.exp(table).sum(axis=1, keepdims=True)) for table in shifted]

    def token_logp(self, logits: Array) -> Array:
        """[N, L] log-probability of each token of each trajectory."""
        tables = self.log_policy(logits)
        return np.stack([table[self.row[:, i], self.action[:, i]] for i, table in enumerate(tables)], axis=1)

    def probability(self, logits: Array) -> Array:
        """[N] probability of each trajectory, its target included."""
        return np.exp(self.token_logp(logits).sum(axis=1)) / TARGETS

    def value(self, logits: Array) -> float:
        """The expected reward."""
        return float(self.probability(logits) @ self.reward)

    def gradient(self, logits: Array) -> Array:
        """[P] the gradient of `value`."""
        return self.score_sum(logits, self.probability(logits) * self.reward)

    def score_sum(self, logits: Array, weight: Array) -> Array:
        """[P] sum over trajectories of weight x (gradient of the trajectory's log-probability). weight: [N]."""
        parts = []
        for i, table in enumerate(self.log_policy(logits)):
            cell = self.row[:, i] * self.counts[i] + self.action[:, i]
            taken = np.bincount(cell, weight, table.size).reshape(table.shape)
            parts.append((taken - np.exp(table) * taken.sum(axis=1, keepdims=True)).reshape(-1))
        return np.concatenate(parts)

    def visits(self, probability: Array) -> list[Array]:
        """Probability of reaching each row, as L arrays [rows], from that of each trajectory [N]."""
        return [np.bincount(self.row[:, i], probability, rows) for i, rows in enumerate(self.rows)]

    def state_values(self, logits: Array) -> Array:
        """[N, L] expected reward given what is visible before each token: the critic without error."""
        probability = self.probability(logits)
        won = probability * self.reward
        found = []
        for i, visits in enumerate(self.visits(probability)):
            value = np.bincount(self.row[:, i], won, self.rows[i]) / np.maximum(visits, 1e-300)
            found.append(value[self.row[:, i]])
        return np.stack(found, axis=1)

    def completions(self, turns: int) -> int:
        """Trajectories that share a target and the first ``turns`` turns."""
        return int(np.prod(self.counts[turns * self.tokens :]))


def enumerate_task(turns: int, tokens: int) -> Enumerated:
    """Write out every trajectory.

    Args:
        turns: T, at least 1.
        tokens: tokens per turn, 1 or 2.
    """
    task = ProbeTask(turns)
    counts = PROBE[tokens] * (turns - 1) + ANSWER[tokens]
    tools = int(np.prod(PROBE[tokens]))
    grid = np.unravel_index(np.arange(TARGETS * int(np.prod(counts))), (TARGETS, *counts))
    target, action = grid[0], np.stack(grid[1:], axis=1)
    row = np.zeros_like(action)
    rows: list[int] = []
    visible = np.zeros((len(target), turns), dtype=np.int64)
    state, states = np.zeros_like(target), 1
    answer = np.zeros_like(target)
    for turn in range(turns):
        said, ways = np.zeros_like(target), 1
        visible[:, turn] = state
        for token in range(turn * tokens, (turn + 1) * tokens):
            row[:, token] = state * ways + said
            rows.append(states * ways)
            said, ways = said * counts[token] + action[:, token], ways * counts[token]
        observed = np.where(said < TOOLS, target >> np.minimum(said, TOOLS - 1) & 1, 0)
        answer = said
        state, states = state * 2 * tools + 2 * said + observed, states * 2 * tools
    return Enumerated(
        task=task,
        tokens=tokens,
        counts=counts,
        turn=np.repeat(np.arange(turns), tokens),
        rows=tuple(rows),
        row=row,
        action=action,
        reward=(answer == target).astype(np.float64),
        state=visible,
    )


def midway(mdp: Enumerated, seed: int = 0, *, spread: float = 0.5, step: float = 2.0) -> Array:
    """[P] logits of a policy half-way to the optimum: exact ascent from small random logits.

    Each row moves by its exact advantage-weighted probabilities (the gradient over the row's visits), so rarely
    visited rows learn too; it stops at the first value above the mean of chance and optimum.

    Args:
        mdp: the task.
        seed: of the starting logits, normal with standard deviation ``spread``.
        step: of the ascent.

    Raises:
        NumericalError: half-way is not reached.
    """
    logits = np.random.default_rng(seed).normal(0.0, spread, mdp.parameters)
    goal = (1 / TARGETS + mdp.task.optimum) / 2
    for _ in range(2000):
        probability = mdp.probability(logits)
        if probability @ mdp.reward >= goal:
            return logits
        visits = np.concatenate(
            [np.repeat(v, count) for v, count in zip(mdp.visits(probability), mdp.counts, strict=True)]
        )
        slope = mdp.score_sum(logits, probability * mdp.reward)
        logits = logits + step * np.divide(slope, visits, out=np.zeros_like(logits), where=visits > 0)
    raise NumericalError(f"exact ascent stays below {goal}", key="midway", remedy="take a larger step.")


def trajectory_kl(mdp: Enumerated, sampler: Array, policy: Array) -> float:
    """KL(sampler || policy) over trajectories, nats."""
    gap = mdp.token_logp(sampler) - mdp.token_logp(policy)
    return float(mdp.probability(sampler) @ gap.sum(axis=1))


def one_step_away(mdp: Enumerated, sampler: Array, kl: float) -> Array:
    """[P] the sampler's logits moved along its exact gradient until the KL from the sampler is ``kl``."""
    direction = mdp.gradient(sampler)
    low, high = 0.0, 1.0
    while trajectory_kl(mdp, sampler, sampler + high * direction) < kl:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        below = trajectory_kl(mdp, sampler, sampler + middle * direction) < kl
        low, high = (middle, high) if below else (low, middle)
    return sampler + high * direction
