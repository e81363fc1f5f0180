"""Reading tidy critic values: any order of rows, and refusals that name what is wrong."""

import numpy as np
import pytest

from tests.diagnose.invented import run_frame
from turnscale.diagnose.nulls import random_walk
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.table import join
from turnscale.diagnose.values import from_frame, make
from turnscale.errors import DataError


@pytest.fixture(scope="module")
def frame():
    return run_frame(random_walk, seed=0, size=12, checkpoints=(0, 20))


def test_order_of_rows_does_not_matter(frame):
    one, names = from_frame(frame)
    other, others = from_frame(frame.sample(frac=1.0, random_state=0))
    assert one.values.tobytes() == other.values.tobytes() and names.equals(others)
    assert (one.lengths == other.lengths).all() and (one.gaps == other.gaps).all()


def test_trajectories_are_those_of_the_table(frame):
    critic, names = from_frame(frame)
    assert critic.size == len(names) == 36
    for row in (0, 17, 35):
        key = names.iloc[row]
        part = frame[
            (frame["set"] == key["set"])
            & (frame["checkpoint"] == key["checkpoint"])
            & (frame["trajectory"] == key["trajectory"])
        ]
        start, count = critic.token_starts[row], critic.tokens[row]
        assert critic.values[start : start + count].tolist() == part["value"].tolist()
        assert critic.turns[row] == part["turn"].nunique() and critic.reward[row] == part["reward"].iloc[0]
        assert set(part["prompt"]) == {key["prompt"]}
        turns = slice(critic.row_starts[row], critic.row_starts[row] + critic.turns[row])
        assert critic.gaps[turns].tolist() == part.groupby("turn")["observation_tokens"].first().tolist()


def test_selected_and_joined_trajectories_keep_their_statistics(frame):
    critic, _ = from_frame(frame)
    table = trajectory_statistics(critic).drop(columns="prompt")
    chosen = np.array([5, 3, 3, 20])
    picked = trajectory_statistics(critic.rows(chosen)).drop(columns="prompt")
    assert picked.equals(table.iloc[chosen].reset_index(drop=True))
    both = join([critic.rows(chosen), critic])
    assert trajectory_statistics(both).drop(columns="prompt").iloc[4:].reset_index(drop=True).equals(table)
    assert set(both.prompt[:4]).isdisjoint(both.prompt[4:])


BREAKS = {
    "missing token": (lambda d: d.drop(index=5), "token"),
    "token twice": (lambda d: d.loc[[*d.index, d.index[7]]], "token"),
    "not a number": (lambda d: d.assign(value=d["value"].where(d.index != 3)), "value"),
    "infinite reward": (lambda d: d.assign(reward=np.inf), "reward"),
    "two rewards": (lambda d: d.assign(reward=d["reward"].where(d.index != 3, 9.0)), "reward"),
    "two prompts": (lambda d: d.assign(prompt=d["prompt"].where(d.index != 3, "x")), "prompt"),
    "no column": (lambda d: d.drop(columns="turn"), "turn"),
    "no rows": (lambda d: d.iloc[:0], "value"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_malformed_values_are_refused(frame, name):
    change, key = BREAKS[name]
    with pytest.raises(DataError, match=key):
        from_frame(change(frame.reset_index(drop=True)))


def test_lengths_must_divide_the_values():
    for bad in ([2, 2], [3, 0], []):
        with pytest.raises(DataError):
            make([([1.0, 2.0, 3.0], bad)])
