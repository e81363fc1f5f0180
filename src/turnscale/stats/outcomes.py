"""From the long outcomes table to one table of counts per arm.

A missing cell is an error and not a zero; a duplicate is an error and not an average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turnscale.errors import DataError
from turnscale.stats.passk import Floats, Ints, Metric

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Counts:
    """Successes `c` and attempts `n` of one arm, both [S, T] (rows: training seeds, columns: tasks).

    `clusters` [T] labels tasks that share a source (a document, a repository) and must be redrawn together;
    None means that each task is its own cluster. `untrained` marks a checkpoint without any training
    randomness (a base model): it has one row, and retraining it is not a question.
    """

    arm: str
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    c: Ints
    n: Ints
    clusters: NDArray[np.int64] | None = None
    untrained: bool = False

    def __post_init__(self) -> None:
        shape = (len(self.seeds), len(self.tasks))
        if 0 in shape:
            raise DataError(f"arm {self.arm!r} has {shape[0]} seeds and {shape[1]} tasks", key=self.arm)
        if self.c.shape != shape or self.n.shape != shape:
            raise DataError(
                f"arm {self.arm!r}: counts have shapes {self.c.shape} and {self.n.shape}, not {shape}",
                key=self.arm,
            )
        if np.any(self.n < 1) or np.any(self.c < 0) or np.any(self.c > self.n):
            raise DataError(
                f"arm {self.arm!r}: need attempts >= 1 and 0 <= successes <= attempts", key=self.arm
            )
        if self.clusters is not None and self.clusters.shape != (shape[1],):
            raise DataError(f"arm {self.arm!r}: one cluster label per task is needed", key=self.arm)
        if self.untrained and shape[0] != 1:
            raise DataError(
                f"arm {self.arm!r} is declared untrained but has {shape[0]} seeds",
                key=self.arm,
                remedy="evaluate an untrained checkpoint once, with all its attempts under one seed",
            )

    @property
    def attempts(self) -> int:
        """Smallest number of attempts in a cell."""
        return int(self.n.min())

    @property
    def cluster_labels(self) -> NDArray[np.int64]:
        """[T] labels 0..G−1."""
        if self.clusters is None:
            return np.arange(len(self.tasks))
        return np.asarray(np.unique(self.clusters, return_inverse=True)[1], dtype=np.int64)

    def scores(self, metric: Metric) -> Floats:
        """[S, T] metric of each cell."""
        return metric.score(self.c, self.n)

    def on_tasks(self, keep: NDArray[np.bool_]) -> Counts:
        """The same arm on the tasks where `keep` [T] is true (a difficulty, a fold)."""
        tasks = tuple(task for task, kept in zip(self.tasks, keep, strict=True) if kept)
        clusters = None if self.clusters is None else self.clusters[keep]
        return replace(self, tasks=tasks, c=self.c[:, keep], n=self.n[:, keep], clusters=clusters)

    def on_seeds(self, seeds: Sequence[int]) -> Counts:
        """The same arm with the named seeds only, in the given order."""
        unknown = sorted(set(seeds) - set(self.seeds))
        if unknown:
            raise DataError(f"arm {self.arm!r} has no seed {unknown[0]}", key=self.arm)
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=tuple(seeds), c=self.c[rows], n=self.n[rows])


def check_same_tasks(a: Counts, b: Counts) -> None:
    """Raise DataError unless both arms were scored on the same tasks, in the same order and clusters."""
    if a.tasks != b.tasks:
        only = sorted(set(a.tasks) ^ set(b.tasks))
        problem = f"task {only[0]!r} belongs to only one of them" if only else "their order differs"
        raise DataError(
            f"arms {a.arm!r} and {b.arm!r} were not scored on the same tasks: {problem}",
            key=f"{a.arm}/{b.arm}",
            remedy="compare arms on one frozen task panel",
        )
    if not np.array_equal(a.cluster_labels, b.cluster_labels):
        raise DataError(f"arms {a.arm!r} and {b.arm!r} cluster the tasks differently", key=f"{a.arm}/{b.arm}")


def counts_by_arm(
    table: pd.DataFrame,
    *,
    arm: str = "cell",
    clusters: Mapping[str, str] | None = None,
    untrained: Sequence[str] = (),
    attempts: int | None = None,
    file: str | None = None,
) -> dict[str, Counts]:
    """Counts of every arm of one benchmark's long table, all on the union of its tasks (sorted).

    table: columns `arm` (its name is the argument), seed (int), task (str), attempt (int), success (0/1).
    clusters: task → cluster name, for every task. untrained: arms that are base checkpoints.
    attempts: if given, every cell must have exactly this many.
    Raises DataError, naming arm, seed and task, for a missing cell, a repeated attempt, a success that is
    not 0 or 1, a null, or a wrong number of attempts.
    """
    columns = [arm, "seed", "task", "attempt", "success"]
    lacking = [column for column in columns if column not in table.columns]
    if lacking:
        raise DataError(f"no column {lacking[0]!r}", file=file, key=lacking[0], remedy=f"need {columns}")
    if table.empty:
        raise DataError("the outcomes table has no rows", file=file)
    nulls = table[columns].isna().any()
    if nulls.any():
        name = str(nulls.idxmax())
        raise DataError(f"column {name!r} has empty entries", file=file, key=name)

    success = table["success"].to_numpy()
    if not np.all((success == 0) | (success == 1)):
        raise DataError("success must be 0 or 1 in every row", file=file, key="success")
    arm_code, arms = _codes(table[arm])
    task_code, tasks = _codes(table["task"])
    seed_code, seeds = _codes(table["seed"])
    shape = (len(arms), len(seeds), len(tasks))
    cell = np.ravel_multi_index((arm_code, seed_code, task_code), shape)

    def name_of(index: int) -> str:
        a, s, t = (int(i) for i in np.unravel_index(index, shape))
        return f"arm {arms[a]!r}, seed {seeds[s]}, task {tasks[t]!r}"

    _refuse_repeats(cell, table["attempt"], name_of, file)
    n = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)
    c = np.bincount(cell[success == 1], minlength=n.size).reshape(shape)

    present = n.sum(axis=2) > 0  # [A, seeds]: a seed that an arm never ran is not a hole in that arm
    holes = np.flatnonzero((n == 0) & present[:, :, None])
    if holes.size:
        raise DataError(
            f"no attempt for {name_of(int(holes[0]))} ({holes.size} empty cells)",
            file=file,
            key="task",
            remedy="evaluate every seed of every arm on every task, or drop the task from all arms",
        )
    if attempts is not None:
        wrong = np.flatnonzero((n != attempts) & present[:, :, None])
        if wrong.size:
            raise DataError(
                f"{name_of(int(wrong[0]))} has {n.flat[wrong[0]]} attempts, not {attempts}",
                file=file,
                key="attempt",
            )
    unknown = sorted(set(untrained) - {str(a) for a in arms})
    if unknown:
        raise DataError(f"no arm {unknown[0]!r} to mark as untrained", file=file, key=arm)
    labels = _cluster_codes([str(task) for task in tasks], clusters, file)
    return {
        str(label): Counts(
            arm=str(label),
            seeds=tuple(int(seed) for seed in np.asarray(seeds)[present[a]]),
            tasks=tuple(str(task) for task in tasks),
            c=c[a, present[a]],
            n=n[a, present[a]].astype(np.int64),
            clusters=labels,
            untrained=str(label) in untrained,
        )
        for a, label in enumerate(arms)
    }


def _codes(column: pd.Series) -> tuple[Ints, pd.Index]:
    import pandas as pd

    codes, names = pd.factorize(column, sort=True)
    return np.asarray(codes, dtype=np.int64), pd.Index(names)


def _refuse_repeats(cell: Ints, attempt: pd.Series, name_of: Callable[[int], str], file: str | None) -> None:
    codes, names = _codes(attempt)
    key = cell * len(names) + codes
    order = np.sort(key)
    repeated = order[1:][order[1:] == order[:-1]]
    if repeated.size:
        where, which = divmod(int(repeated[0]), len(names))
        raise DataError(
            f"attempt {names[which]} of {name_of(where)} appears more than once",
            file=file,
            key="attempt",
            remedy="keep one row per attempt; give repeated evaluations their own attempt numbers",
        )


def _cluster_codes(tasks: list[str], clusters: Mapping[str, str] | None, file: str | None) -> Ints | None:
    if clusters is None:
        return None
    lacking = [task for task in tasks if task not in clusters]
    if lacking:
        raise DataError(f"no cluster for task {lacking[0]!r}", file=file, key="cluster")
    return np.unique([clusters[task] for task in tasks], return_inverse=True)[1].astype(np.int64)
