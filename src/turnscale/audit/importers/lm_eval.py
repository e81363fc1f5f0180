"""Per-sample logs of lm-evaluation-harness (``samples_<task>_<date>.jsonl`` from ``--log_samples``)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from turnscale.audit.importers.common import Imported, field, json_lines, not_empty, number_attempts, success
from turnscale.errors import DataError


def read_lm_eval(
    path: str | Path,
    *,
    seed: int,
    arm: str,
    metric: str | None = None,
    filter_name: str | None = None,
    threshold: float | None = None,
) -> Imported:
    """Outcomes of one file. Task = doc_hash (else doc_id), benchmark from the file's name.

    The harness writes one row per document *and filter*, so several filters need ``filter_name``; several metrics
    need ``metric``. Repeated documents are attempts. Raises DataError otherwise.
    """
    rows, filters = [], set()
    for number, row in json_lines(path):
        where = f"line {number}"
        field(row, "doc_id", path, where)
        name = str(row.get("filter", "none"))
        filters.add(name)
        if filter_name is not None and name != filter_name:
            continue
        value = field(row, _metric(row, metric, path, where), path, where)
        rows.append((str(row.get("doc_hash") or row["doc_id"]), success(value, path, where, threshold)))
    if filter_name is None and len(filters) > 1:
        raise DataError(
            f"has several filters: {', '.join(sorted(filters))}.",
            file=path,
            key="filter",
            remedy="choose one with --filter; each scores the same answers again.",
        )
    if filter_name is not None and filter_name not in filters:
        raise DataError(
            f"has no filter {filter_name!r}.",
            file=path,
            key="filter",
            remedy=f"use one of {', '.join(sorted(filters))}.",
        )
    not_empty(rows, path)
    tasks = [task for task, _ in rows]
    table = pd.DataFrame(
        {
            "arm": arm,
            "seed": seed,
            "benchmark": _benchmark(Path(path)),
            "task": tasks,
            "attempt": number_attempts(tasks),
            "success": [outcome for _, outcome in rows],
        }
    )
    return Imported(table)


def _metric(row: dict[str, object], metric: str | None, path: str | Path, where: str) -> str:
    if metric is not None:
        return metric
    names = row.get("metrics")
    if isinstance(names, list) and len(names) == 1:
        return str(names[0])
    shown = ", ".join(map(str, names)) if isinstance(names, list) and names else "none named"
    raise DataError(
        f"metrics: {shown}.", file=path, key=where, remedy="choose one with --field, for example exact_match."
    )


def _benchmark(path: Path) -> str:
    """``gsm8k`` from ``samples_gsm8k_2026-01-01T00-00-00.000000.jsonl``."""
    stem = path.stem.removeprefix("samples_")
    head, _, tail = stem.rpartition("_")
    return head if head and tail[:4].isdigit() else stem
