"""Splitting a checked outcomes table into panels: the same tasks for every arm and seed, one checkpoint each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.table import PANEL
from turnscale.errors import DataError


@dataclass(frozen=True)
class Panel:
    """One set of arms on one frozen set of tasks. ``dropped_tasks`` counts tasks removed by an intersection."""

    labels: tuple[tuple[str, str], ...]
    rows: pd.DataFrame
    dropped_tasks: int = 0

    @property
    def title(self) -> str:
        """``family search, benchmark search-2hop``; ``all tasks`` when the table has no panel columns."""
        return ", ".join(f"{name} {value}" for name, value in self.labels) or "all tasks"

    def label(self, name: str) -> str:
        """The panel's value of a column such as ``benchmark``, empty when the table has no such column."""
        return dict(self.labels).get(name, "")


def panels(
    table: pd.DataFrame,
    file: str | Path,
    *,
    intersect: bool = False,
    ragged: bool = False,
    checkpoint: str | None,
) -> list[Panel]:
    """Split a checked table by its panel columns; within a panel every arm and seed has the same tasks.

    ``intersect`` keeps the tasks that all have (and counts the rest) instead of raising. ``ragged`` allows unequal
    numbers of attempts per task. ``checkpoint`` picks one checkpoint where an arm has several.
    """
    table = _one_checkpoint(table, file, checkpoint)
    present = [column for column in PANEL if column in table.columns]
    groups: Sequence[tuple[Any, pd.DataFrame]] = (
        list(table.groupby(present, sort=True)) if present else [((), table)]
    )
    out = []
    for values, rows in groups:
        labels = tuple(zip(present, map(str, values), strict=True))
        rows, dropped = _shared_tasks(rows, file) if intersect else (rows, 0)
        if rows.empty:
            raise DataError(
                "the arms share no task.", file=file, remedy="evaluate all arms on one task panel."
            )
        if not ragged:
            _equal_attempts(rows, file)
        out.append(Panel(labels, rows, dropped))
    return out


def _one_checkpoint(table: pd.DataFrame, file: str | Path, wanted: str | None) -> pd.DataFrame:
    if "checkpoint" not in table.columns:
        if wanted is not None:
            raise DataError("has no column checkpoint.", file=file, remedy="leave out --checkpoint.")
        return table
    names = sorted(table["checkpoint"].unique())
    if wanted is not None:
        kept = table[table["checkpoint"] == wanted]
        if kept.empty:
            raise DataError(
                f"has no checkpoint {wanted!r}.", file=file, remedy=f"use one of {', '.join(names)}."
            )
        return kept
    several = table.groupby(["arm", "seed"])["checkpoint"].nunique().reset_index()
    first = several[several["checkpoint"] > 1].head(1)
    for arm, seed, count in first.itertuples(index=False):
        raise DataError(
            f"arm {arm!r}, seed {seed} has {count} checkpoints.",
            file=file,
            key="checkpoint",
            remedy=f"choose one beforehand with --checkpoint ({', '.join(names[:6])}).",
        )
    return table


def _shared_tasks(rows: pd.DataFrame, file: str | Path) -> tuple[pd.DataFrame, int]:
    runs = rows.groupby(["arm", "seed"]).ngroups
    runs_per_task = rows.drop_duplicates(["arm", "seed", "task"]).groupby("task").size()
    shared = runs_per_task.index[runs_per_task == runs]
    return rows[rows["task"].isin(shared)], len(runs_per_task) - len(shared)


def _equal_attempts(rows: pd.DataFrame, file: str | Path) -> None:
    counts = rows.groupby(["arm", "seed", "task"]).size().reset_index(name="attempts")
    usual = int(counts["attempts"].mode().iloc[0])
    odd = counts[counts["attempts"] != usual]
    for arm, seed, task, attempts in odd.head(1).itertuples(index=False):
        raise DataError(
            f"arm {arm!r}, seed {seed}, task {task!r} has {attempts} attempts where most have {usual} "
            f"({len(odd)} such cells).",
            file=file,
            key="attempt",
            remedy="add the missing attempts, or pass --ragged to average within each task first.",
        )
