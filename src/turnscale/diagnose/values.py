"""Per-token critic values as flat arrays with the places where turns and trajectories start.

The action tokens of all trajectories lie one after another; observation tokens have no value and are only counted.
Reductions over turns and trajectories are ``numpy.add.reduceat`` over those starts, never a loop over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from turnscale.errors import DataError
from turnscale.stats.passk import Floats, Ints

RUN = ["family", "model", "cell", "seed"]
GROUP = ["set", "checkpoint"]
TRAJECTORY = [*GROUP, "trajectory"]
COLUMNS = [*TRAJECTORY, "prompt", "turn", "token", "value", "observation_tokens", "reward", "success"]
"""Columns of one run's critic values; a table of several runs has `RUN` and ``run_id`` besides."""

REMEDY = "collect the runs again."


@dataclass(frozen=True, eq=False)
class CriticValues:
    """Critic values of many trajectories: ``M`` trajectories, ``J`` turns, ``N`` action tokens in all.

    Attributes:
        values: [N] float64, the prediction before each action token.
        turn_starts: [J] index of the first token of each turn.
        row_starts: [M] index of the first turn of each trajectory.
        gaps: [J] observation tokens before each turn (before a trajectory's first turn: its prompt).
        reward: [M] terminal reward.
        success: [M] outcome.
        prompt: [M] integer label of the task, the cluster of the bootstrap.
    """

    values: Floats
    turn_starts: Ints
    row_starts: Ints
    gaps: Floats
    reward: Floats
    success: np.ndarray
    prompt: Ints

    @property
    def size(self) -> int:
        """Trajectories."""
        return self.row_starts.size

    @cached_property
    def lengths(self) -> Ints:
        """[J] action tokens of each turn."""
        return np.diff(self.turn_starts, append=self.values.size)

    @cached_property
    def turns(self) -> Ints:
        """[M] turns of each trajectory."""
        return np.diff(self.row_starts, append=self.turn_starts.size)

    @cached_property
    def token_starts(self) -> Ints:
        """[M] index of the first token of each trajectory."""
        return self.turn_starts[self.row_starts]

    @cached_property
    def tokens(self) -> Ints:
        """[M] action tokens of each trajectory."""
        return np.diff(self.token_starts, append=self.values.size)

    @cached_property
    def centred(self) -> Floats:
        """[N] values minus the first of their trajectory: sums of squares then lose no digits to a common level."""
        return self.values - self.values[self.token_starts][self.row_of_token]

    @cached_property
    def row_of_turn(self) -> Ints:
        """[J] trajectory of each turn."""
        return np.repeat(np.arange(self.size), self.turns)

    @cached_property
    def row_of_token(self) -> Ints:
        """[N] trajectory of each token."""
        return np.repeat(np.arange(self.size), self.tokens)

    @cached_property
    def turn_of_token(self) -> Ints:
        """[N] turn of each token, counted over all trajectories."""
        return np.repeat(np.arange(self.lengths.size), self.lengths)

    @cached_property
    def boundaries(self) -> np.ndarray:
        """[J] True at turns that follow another turn of the same trajectory."""
        later = np.ones(self.turn_starts.size, dtype=bool)
        later[self.row_starts] = False
        return later

    def with_values(self, values: Floats) -> CriticValues:
        """The same trajectories with other values [N]."""
        return CriticValues(
            values, self.turn_starts, self.row_starts, self.gaps, self.reward, self.success, self.prompt
        )

    def rows(self, chosen: Ints) -> CriticValues:
        """Some trajectories, in the order of ``chosen`` (repetition allowed); prompts keep their labels."""
        turns = _ranges(self.row_starts[chosen], self.turns[chosen])
        tokens = _ranges(self.token_starts[chosen], self.tokens[chosen])
        return CriticValues(
            self.values[tokens],
            _starts(self.lengths[turns]),
            _starts(self.turns[chosen]),
            self.gaps[turns],
            self.reward[chosen],
            self.success[chosen],
            self.prompt[chosen],
        )

    def per_turn(self, tokens: Floats) -> Floats:
        """[J] sums over the tokens of each turn."""
        return np.add.reduceat(tokens, self.turn_starts)

    def per_row(self, turns: Floats) -> Floats:
        """[M] sums over the turns of each trajectory."""
        return np.add.reduceat(turns, self.row_starts)


def make(
    trajectories: list[tuple[list[float], list[int]]], gaps: list[list[int]] | None = None
) -> CriticValues:
    """Values given as (values, turn lengths) of each trajectory, with no outcome and a prompt each.

    Raises:
        DataError: lengths that do not add up to the number of values, or an empty turn.
    """
    for values, lengths in trajectories:
        if sum(lengths) != len(values) or not lengths or min(lengths) < 1:
            raise DataError(f"turn lengths {lengths} do not divide {len(values)} values.", key="token")
    turn_lengths = np.concatenate([np.asarray(item, dtype=np.int64) for _, item in trajectories])
    turns = np.array([len(item) for _, item in trajectories], dtype=np.int64)
    waits = [[0] * len(item) for _, item in trajectories] if gaps is None else gaps
    size = len(trajectories)
    return CriticValues(
        np.concatenate([np.asarray(item, dtype=np.float64) for item, _ in trajectories]),
        _starts(turn_lengths),
        _starts(turns),
        np.concatenate([np.asarray(item, dtype=np.float64) for item in waits]),
        np.zeros(size),
        np.zeros(size, dtype=bool),
        np.arange(size),
    )


def from_frame(frame: pd.DataFrame) -> tuple[CriticValues, pd.DataFrame]:
    """One run's tidy values, in any order of rows, as flat arrays.

    Args:
        frame: `COLUMNS`, one row per action token, of one run.

    Returns:
        The values, and one row per trajectory in their order: ``set, checkpoint, trajectory, prompt``.

    Raises:
        DataError: no rows, a missing column, a value that is not finite, a token that is missing or there twice,
            or a trajectory with two prompts or outcomes.
    """
    check_columns(frame)
    if frame.empty:
        raise DataError("there are no critic values.", key="value", remedy=REMEDY)
    labels = pd.Categorical(frame["set"].astype(str))
    columns = [
        labels.codes.astype(np.int64),
        *(frame[c].to_numpy(np.int64) for c in ("checkpoint", "trajectory", "turn", "token")),
    ]
    order = np.lexsort(columns[::-1])
    group, checkpoint, trajectory, turn, token = (column[order] for column in columns)
    values = frame["value"].to_numpy(np.float64)[order]
    reward = frame["reward"].to_numpy(np.float64)[order]
    for name, column in (("value", values), ("reward", reward)):
        if not np.isfinite(column).all():
            raise DataError("holds something that is not a finite number.", key=name, remedy=REMEDY)
    new_row = _changes(group, checkpoint, trajectory)
    new_turn = new_row | _changes(turn)
    row_tokens, turn_starts = np.flatnonzero(new_row), np.flatnonzero(new_turn)
    expected = np.arange(values.size) - np.repeat(turn_starts, np.diff(turn_starts, append=values.size))
    if not np.array_equal(token, expected):
        place = int(np.flatnonzero(token != expected)[0])
        raise DataError(
            f"trajectory {trajectory[place]} at checkpoint {checkpoint[place]}, turn {turn[place]}: token "
            f"{expected[place]} is missing or there twice.",
            key="token",
            remedy=REMEDY,
        )
    prompt_labels = pd.Categorical(frame["prompt"].astype(str))
    prompts = prompt_labels.codes.astype(np.int64)[order]
    success = frame["success"].to_numpy(bool)[order]
    gaps = frame["observation_tokens"].to_numpy(np.float64)[order]
    for name, column, starts in (
        ("prompt", prompts, row_tokens),
        ("reward", reward, row_tokens),
        ("success", success, row_tokens),
        ("observation_tokens", gaps, turn_starts),
    ):
        if not np.array_equal(column, np.repeat(column[starts], np.diff(starts, append=values.size))):
            raise DataError("differs within a trajectory or turn.", key=name, remedy=REMEDY)
    found = CriticValues(
        values,
        turn_starts,
        np.searchsorted(turn_starts, row_tokens),
        gaps[turn_starts],
        reward[row_tokens],
        success[row_tokens],
        prompts[row_tokens],
    )
    names = pd.DataFrame(
        {
            "set": labels.categories.to_numpy()[group[row_tokens]],
            "checkpoint": checkpoint[row_tokens],
            "trajectory": trajectory[row_tokens],
            "prompt": prompt_labels.categories.to_numpy()[found.prompt],
        }
    )
    return found, names


def check_columns(frame: pd.DataFrame, file: Path | None = None) -> None:
    """Refuse a table without the columns of critic values.

    Raises:
        DataError: a missing column.
    """
    lacking = [column for column in COLUMNS if column not in frame.columns]
    if lacking:
        raise DataError("the column is missing.", file=file, key=lacking[0], remedy=REMEDY)


def _changes(*columns: Ints) -> np.ndarray:
    new = np.zeros(columns[0].size, dtype=bool)
    new[0] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def _starts(lengths: Ints) -> Ints:
    return np.cumsum(lengths) - lengths


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """``start, start + 1, …`` of every (start, length) one after another."""
    offsets = _starts(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(offsets - starts, lengths)
