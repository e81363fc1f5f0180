"""Counting: every attempt once, every cell present, errors that name the cell."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.errors import DataError
from turnscale.stats.outcomes import check_same_tasks, counts_by_arm

from .helpers import counts


def table(arms=("x", "y"), seeds=(3, 7), tasks=("q1", "q2", "q3"), attempts=4, seed=0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"cell": a, "seed": s, "task": t, "attempt": i, "success": bool(rng.random() < 0.4)}
        for a in arms
        for s in seeds
        for t in tasks
        for i in range(attempts)
    ]
    return pd.DataFrame(rows)


@given(st.integers(0, 10_000))
def test_counts_agree_with_groupby_whatever_the_row_order(seed):
    frame = table(seed=seed)
    shuffled = frame.sample(frac=1, random_state=seed)
    found = counts_by_arm(shuffled)
    truth = frame.groupby(["cell", "seed", "task"])["success"].agg(["sum", "size"])
    assert set(found) == {"x", "y"}
    for arm, one in found.items():
        assert one.seeds == (3, 7) and one.tasks == ("q1", "q2", "q3") and one.attempts == 4
        for s, seed_number in enumerate(one.seeds):
            for t, task in enumerate(one.tasks):
                assert (one.c[s, t], one.n[s, t]) == tuple(truth.loc[(arm, seed_number, task)])


def test_arms_may_have_different_seeds():
    frame = pd.concat([table(arms=("x",), seeds=(1, 2, 3)), table(arms=("y",), seeds=(2, 9))])
    found = counts_by_arm(frame)
    assert found["x"].seeds == (1, 2, 3) and found["y"].seeds == (2, 9)


def test_missing_cell_is_named():
    frame = table()
    frame = frame[~((frame.cell == "y") & (frame.seed == 7) & (frame.task == "q2"))]
    with pytest.raises(DataError, match=r"arm 'y', seed 7, task 'q2'"):
        counts_by_arm(frame, file="outcomes.parquet")


def test_task_that_one_arm_never_saw_is_missing():
    frame = table()
    frame = frame[~((frame.cell == "x") & (frame.task == "q3"))]
    with pytest.raises(DataError, match=r"arm 'x', seed 3, task 'q3' \(2 empty cells\)"):
        counts_by_arm(frame)


def test_repeated_attempt_is_named():
    frame = table()
    frame = pd.concat([frame, frame.iloc[[5]]])
    with pytest.raises(DataError, match=r"attempt 1 of arm 'x', seed 3, task 'q2' appears more than once"):
        counts_by_arm(frame)


def test_unequal_attempts_pass_unless_a_number_is_demanded():
    frame = table().drop(index=0)
    assert counts_by_arm(frame)["x"].n[0, 0] == 3
    with pytest.raises(DataError, match="seed 3, task 'q1' has 3 attempts, not 4"):
        counts_by_arm(frame, attempts=4)


@pytest.mark.parametrize("bad", [2, -1, 0.5])
def test_success_must_be_binary(bad):
    frame = table().astype({"success": float})
    frame.loc[3, "success"] = bad
    with pytest.raises(DataError, match="0 or 1"):
        counts_by_arm(frame)


def test_empty_entries_columns_and_tables_are_refused():
    with pytest.raises(DataError, match="attempt"):
        counts_by_arm(table().drop(columns="attempt"))
    with pytest.raises(DataError, match="no rows"):
        counts_by_arm(table().iloc[:0])
    frame = table().astype({"success": object})
    frame.loc[2, "success"] = None
    with pytest.raises(DataError, match="'success' has empty entries"):
        counts_by_arm(frame)


def test_clusters_and_untrained_arms_are_carried():
    frame = pd.concat([table(arms=("x",)), table(arms=("base",), seeds=(0,))])
    found = counts_by_arm(frame, clusters={"q1": "d1", "q2": "d0", "q3": "d1"}, untrained=["base"])
    assert found["x"].cluster_labels.tolist() == [1, 0, 1]
    assert found["base"].untrained and not found["x"].untrained
    with pytest.raises(DataError, match="no cluster for task 'q3'"):
        counts_by_arm(frame, clusters={"q1": "d1", "q2": "d0"})
    with pytest.raises(DataError, match="declared untrained but has 2 seeds"):
        counts_by_arm(frame, untrained=["x"])
    with pytest.raises(DataError, match="no arm 'z'"):
        counts_by_arm(frame, untrained=["z"])


def test_arms_on_different_tasks_are_not_comparable():
    a, b = counts([[1, 2, 3]], 4, arm="a"), counts([[1, 2]], 4, arm="b")
    with pytest.raises(DataError, match="'t002'"):
        check_same_tasks(a, b)
    with pytest.raises(DataError, match="cluster"):
        check_same_tasks(a, counts([[1, 2, 3]], 4, arm="b", clusters=np.array([0, 0, 1])))


def test_subsets_keep_rows_and_columns_together():
    arm = counts([[0, 1, 2], [3, 4, 5]], 5, clusters=np.array([0, 1, 1]))
    part = arm.on_tasks(np.array([True, False, True])).on_seeds([1])
    assert part.c.tolist() == [[3, 5]] and part.tasks == ("t000", "t002") and part.seeds == (1,)
    assert part.cluster_labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="no seed 9"):
        arm.on_seeds([9])


def test_counts_must_be_possible():
    with pytest.raises(DataError):
        counts([[3]], 2)
    with pytest.raises(DataError):
        counts([[0]], 0)


def test_a_million_rows_take_seconds():
    shape = (10, 10, 400, 25)
    index = np.indices(shape).reshape(4, -1)
    frame = pd.DataFrame(
        {
            "cell": np.array([f"cell{i}" for i in range(10)])[index[0]],
            "seed": index[1],
            "task": np.array([f"{i:08x}" for i in range(400)])[index[2]],
            "attempt": index[3],
            "success": (index.sum(axis=0) % 3) == 0,
        }
    )
    start = time.perf_counter()
    found = counts_by_arm(frame, attempts=25)
    assert len(found) == 10 and sum(int(one.n.sum()) for one in found.values()) == len(frame)
    assert time.perf_counter() - start < 10
