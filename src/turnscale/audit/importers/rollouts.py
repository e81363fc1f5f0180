"""Rollout dumps of trainers: verl (JSON lines) and TRL (parquet or JSON lines).

Neither names its tasks, so a task is the hash of its prompt: two tasks with the same prompt become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.importers.common import (
    Imported,
    field,
    json_lines,
    not_empty,
    number_attempts,
    success,
    task_name,
)
from turnscale.errors import DataError

_TRL_COLUMNS = {"step", "mode", "prompt", "completion", "advantage", "image", "images"}
_BY_PROMPT = "tasks are told apart by their prompt; attempts are numbered in file order"


def read_verl(
    path: str | Path, *, seed: int, arm: str, outcome: str | None = None, threshold: float | None = None
) -> Imported:
    """Outcomes of one dump (``<step>.jsonl``: input, output, gts, score, step and the reward's extra fields).

    The outcome is ``acc`` where the reward function reported it, otherwise ``score``; the training step becomes the
    checkpoint. Raises DataError for a score that is not 0 or 1 unless ``threshold`` is given.
    """
    rows = []
    for number, row in json_lines(path):
        where = f"line {number}"
        prompt = field(row, "input", path, where)
        name = outcome if outcome is not None else ("acc" if "acc" in row else "score")
        value = success(field(row, name, path, where), path, where, threshold)
        rows.append((task_name(prompt), value, str(row.get("step", ""))))
    return _table(rows, path, seed, arm)


def read_trl(
    path: str | Path, *, seed: int, arm: str, outcome: str | None = None, threshold: float | None = None
) -> Imported:
    """Outcomes of logged completions (``completions_<step>.parquet`` or the same rows as JSON lines).

    The outcome is the only reward column, or the one named. Raises DataError when there are several or none (older
    versions wrote prompts and completions only).
    """
    if Path(path).suffix == ".parquet":
        from turnscale.audit.table import read_table

        records = enumerate(read_table(path).to_dict("records"), start=1)
        source: Any = ((number, {str(k): v for k, v in row.items()}) for number, row in records)
        unit = "row"
    else:
        source, unit = json_lines(path), "line"
    rows = []
    for number, row in source:
        where = f"{unit} {number}"
        prompt = field(row, "prompt", path, where)
        name = outcome if outcome is not None else _reward(row, path, where)
        value = success(_plain(field(row, name, path, where)), path, where, threshold)
        rows.append((task_name(_plain(prompt)), value, str(row.get("step", ""))))
    return _table(rows, path, seed, arm)


def _reward(row: Mapping[str, Any], path: str | Path, where: str) -> str:
    names = [name for name, value in row.items() if name not in _TRL_COLUMNS and _is_number(value)]
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"reward columns: {', '.join(names) or 'none'}.",
        file=path,
        key=where,
        remedy="name the one that marks success with --field."
        if names
        else "log rewards with the completions.",
    )


def _is_number(value: Any) -> bool:
    return isinstance(_plain(value), int | float)


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays (from parquet) as Python values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _table(rows: list[tuple[str, bool, str]], path: str | Path, seed: int, arm: str) -> Imported:
    not_empty(rows, path)
    steps = sorted({step for _, _, step in rows})
    keys = [f"{step}/{task}" for task, _, step in rows]
    table = pd.DataFrame(
        {
            "arm": arm,
            "seed": seed,
            "task": [task for task, _, _ in rows],
            "attempt": number_attempts(keys),
            "success": [value for _, value, _ in rows],
        }
    )
    if steps != [""]:
        table["checkpoint"] = [step for _, _, step in rows]
    return Imported(table, (_BY_PROMPT,))
