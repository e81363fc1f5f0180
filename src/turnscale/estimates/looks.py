"""Looks: each comparison that a study's plan covers, held to the plan, and put on record when its data are new.

The plan covers the first metric of each table, as the mean over benchmarks, of each cell against the table's
reference. Under a p rule the value is that of the comparisons table (the question that the table prints); an
e-value is computed from the seed means of the seeds that both arms have.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turnscale.audit.adherence import NO_LOOK, judge, needed, statistic_of
from turnscale.audit.looks import NO_PLAN, Logged, Look, append, read
from turnscale.estimates.pooled import seed_means
from turnscale.estimates.schema import ALL, BAND, LOOKS, VALIDATION, frame
from turnscale.estimates.scores import ArmData
from turnscale.stats.passk import Metric
from turnscale.stats.question import Question
from turnscale.stats.sequential import e_value_from_scores
from turnscale.study import Plan

Data = Mapping[tuple[str, str, str], ArmData]


@dataclass(frozen=True)
class Taken:
    """A comparison that the plan covers, and the look that the present data give; None where there is no test."""

    row: Mapping[str, Any]
    comparison: str
    configuration: str
    look: Look | None


def taken(plan: Plan, data: Data, comparisons: pd.DataFrame, when: str) -> list[Taken]:
    """The present look at every comparison that the plan covers, each once, in the order of the tables.

    Args:
        plan: the study at its scale.
        data: what the comparisons were computed from.
        comparisons: the comparisons table of the study.
        when: time of the looks, ISO 8601.
    """
    found: dict[str, Taken] = {}
    for row in _covered(plan, comparisons):
        metric = f"pass_at_{row['k']}" if row["metric"] == BAND else str(row["metric"])
        name = f"{row['family']}/{row['model']}: {row['cell_a']} - {row['cell_b']}, {metric}"
        arms = [data[row["family"], row["model"], row[side]] for side in ("cell_a", "cell_b")]
        configuration = " ".join(f"{arm.cell.train.hash}+{arm.cell.evaluation.hash}" for arm in arms)
        found.setdefault(
            name, Taken(row, name, configuration, _look(plan, row, name, metric, configuration, arms, when))
        )
    return list(found.values())


def record(path: Path, looks: Sequence[Taken]) -> list[Logged]:
    """Append the looks whose data the log does not hold yet. Returns the new entries.

    Raises:
        DataError: the log was altered.
    """
    known = {_identity(entry.look) for entry in read(path)}
    return [
        append(path, entry.look)
        for entry in looks
        if entry.look is not None and _identity(entry.look) not in known
    ]


def looks_table(plan: Plan, looks: Sequence[Taken], entries: Sequence[Logged]) -> pd.DataFrame:
    """One row per comparison that the plan covers, with the columns ``schema.LOOKS``; empty without a plan.

    No time and no hash of the log is in it, so the same looks give the same bytes.
    """
    declared = plan.study.plan
    if declared is None:
        return frame([], LOOKS)
    rows = []
    for entry in looks:
        judged = judge(declared, entries, entry.comparison, entry.configuration)
        value = math.nan if entry.look is None else entry.look.value
        limit = None if entry.look is None else needed(declared, entry.look)
        rows.append(
            {
                **{key: entry.row[key] for key in LOOKS if key in entry.row},
                "statistic": judged.statistic,
                "value": value,
                "needed": math.nan if limit is None else limit,
                "verdict": NO_LOOK if entry.look is None and not judged.looks else judged.verdict,
                "looks": len(judged.looks),
                "earlier_looks": judged.earlier,
                "departures": "; ".join(judged.departures),
                "skipped": " ".join(map(str, judged.skipped)),
            }
        )
    return frame(rows, LOOKS)


def _covered(plan: Plan, comparisons: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for name, table in plan.study.tables.items():
        if not table.metrics:
            continue
        metric = table.metrics[0]
        where, question = (
            (VALIDATION, Question.METHOD_RETRAINED) if metric == "auc" else (ALL, Question.METHOD_NEW_TASKS)
        )
        rows = comparisons[
            (comparisons["product"] == f"table:{name}")
            & (comparisons["metric"] == metric)
            & (comparisons["benchmark"] == where)
            & (comparisons["question"] == str(question))
        ]
        if metric == BAND:
            rows = rows[rows["k"] == rows.groupby(["family", "model", "cell_a"])["k"].transform("max")]
        for row in rows.to_dict("records"):
            yield {str(column): value for column, value in row.items()}


def _look(
    plan: Plan,
    row: Mapping[str, Any],
    name: str,
    metric: str,
    configuration: str,
    arms: Sequence[ArmData],
    when: str,
) -> Look | None:
    declared = plan.study.plan
    seeds = [int(row["n_seeds_a"]), int(row["n_seeds_b"])]
    statistic = "p" if declared is None else statistic_of(declared)
    value = row["p"]
    if statistic == "e":
        value, common = _e_value(arms, metric)
        seeds = [common, common]
    if not math.isfinite(value):
        return None
    fixed = [side for side, arm in zip("ab", arms, strict=True) if not arm.cell.trains]
    return Look(
        comparison=name,
        seeds_a=seeds[0],
        seeds_b=seeds[1],
        difference=float(row["difference"]),
        value=float(value),
        statistic=statistic,
        when=when,
        fixed=fixed[0] if fixed else "",
        data=" ".join(_fingerprint(arm, metric) for arm in arms),
        configuration=configuration,
        plan=NO_PLAN if declared is None else declared.words,
    )


def _e_value(arms: Sequence[ArmData], metric: str) -> tuple[float, int]:
    """e-value of the seed means and the seeds per arm; NaN where there are fewer than two, or an untrained arm."""
    scores = [_seed_scores(arm, metric) for arm in arms]
    common = sorted(set(scores[0]) & set(scores[1]))
    a, b = (np.array([own[seed] for seed in common]) for own in scores)
    if not all(arm.cell.trains for arm in arms) or len(common) < 2 or (np.ptp(a) == 0 and np.ptp(b) == 0):
        return math.nan, len(common)
    return e_value_from_scores(a, b), len(common)


def _seed_scores(arm: ArmData, metric: str) -> dict[int, float]:
    """Seed -> mean over benchmarks, or area of the learning curve."""
    seeds = next(iter(arm.outcomes.values())).seeds if arm.outcomes else range(arm.areas.size)
    values = arm.areas if metric == "auc" else seed_means(arm.outcomes, [Metric.parse(metric)]).mean((1, 2))
    return {int(seed): float(value) for seed, value in zip(seeds, values, strict=True)}


def _fingerprint(arm: ArmData, metric: str) -> str:
    """16 hex digits of everything measured that the comparison rests on."""
    found = hashlib.sha256()
    if metric == "auc":
        found.update(np.ascontiguousarray(arm.areas, dtype="<f8").tobytes())
    for benchmark in sorted(arm.outcomes):
        counts = arm.outcomes[benchmark]
        found.update(repr((benchmark, tuple(map(int, counts.seeds)), counts.tasks)).encode())
        for array in (counts.c, counts.n):
            found.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return found.hexdigest()[:16]


def _identity(look: Look) -> tuple[str, str, str]:
    return look.comparison, look.configuration, look.data
