"""What the declared plan says in a table: the level each p is held to, what lies outside, and how the plan reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from turnscale.audit.adherence import NOT_FOLLOWED, SHOWN
from turnscale.config.schema import Table
from turnscale.estimates.schema import ALL, VALIDATION
from turnscale.render.data import Tables
from turnscale.render.text import MISSING, metric_label

OUTSIDE = "‡"
NO_PLAN = (
    "No plan of seeds and looks was declared; p values assume that the number of seeds was fixed beforehand."
)
HEADING = "declared plan"


def covered(tables: Tables, table: Table) -> pd.DataFrame:
    """Rows of looks.csv about the table's first metric, its cells and its reference; empty without a plan."""
    rows = tables.looks
    mine = rows["cell_a"].isin(tables.cells(table)) & (rows["cell_b"] == table.reference)
    return rows[mine & (rows["metric"] == table.metrics[0])]


def may_star(tables: Tables, table: Table, family: str, model: str) -> set[str]:
    """Cells whose differences may be starred: all of the table, or with a plan those it has shown."""
    if tables.study.plan is None:
        return set(tables.cells(table))
    rows = covered(tables, table)
    here = rows[(rows["family"] == family) & (rows["model"] == model)]
    return set(here.loc[here["verdict"] == SHOWN, "cell_a"])


def plan_text(rows: pd.DataFrame, comparison: Mapping[Any, Any]) -> str:
    """``p ≤ 0.00035: continue`` for a comparison that the plan covers, a dash for any other.

    Args:
        rows: what `covered` gave.
        comparison: a row of the comparisons table about the mean over benchmarks or the validation curve.
    """
    row = _row(rows, comparison)
    if row is None or comparison["benchmark"] not in (ALL, VALIDATION):
        return MISSING
    if row["verdict"] == NOT_FOLLOWED or (math.isfinite(row["value"]) and not math.isfinite(row["needed"])):
        return f"no conclusion {OUTSIDE}"
    if not math.isfinite(row["value"]):
        return "no test"
    limit = f"{row['needed']:.2g}"
    held = f"e {row['value']:.2g} of {limit}" if row["statistic"] == "e" else f"p ≤ {limit}"
    return f"{held}: {row['verdict']}"


def mark(rows: pd.DataFrame, comparison: Mapping[Any, Any]) -> str:
    """The mark in the seeds column of a cell whose looks, or whose seeds now, lie outside the plan."""
    here = _arm(rows, comparison)
    return f" {OUTSIDE}" if (here["departures"] != "").any() else ""


def sentences(tables: Tables, table: Table) -> list[str]:
    """What stands about the plan under a table."""
    plan = tables.study.plan
    if plan is None:
        return [NO_PLAN]
    rows = covered(tables, table)
    what = metric_label(table.metrics[0])
    if table.metrics[0] == "pass_at_k":
        what = "pass@k at the largest k"
    found = [
        f"Declared plan: {plan.words}, for {what} against {tables.label(table.reference)}; other differences are not "
        "tested by it, and a cell is starred only where its planned difference is shown."
    ]
    for text, labels in _grouped(tables, rows, "departures").items():
        found.append(f"{OUTSIDE} outside the plan, so nothing is concluded, {labels}: {text}.")
    for text, labels in _grouped(tables, rows, "skipped").items():
        found.append(
            f"No look is on record at {' and '.join(text.split())} seeds, {labels}; later ones keep their level."
        )
    earlier = int(rows["earlier_looks"].sum())
    if earlier:
        found.append(
            f"The log also holds {earlier} look{'s' * (earlier > 1)} at earlier configurations of these cells, which "
            "the plan does not count."
        )
    return found


def _grouped(tables: Tables, rows: pd.DataFrame, column: str) -> dict[str, str]:
    """Text of the column -> the cells it is about, in order."""
    found: dict[str, list[str]] = {}
    several = len({model for _, model in tables.arms}) > 1
    for row in rows[rows[column] != ""].to_dict("records"):
        label = tables.label(str(row["cell_a"])) + (f" ({row['model']})" if several else "")
        found.setdefault(str(row[column]), []).append(label)
    return {text: _listed(labels) for text, labels in found.items()}


def _listed(labels: Iterable[str]) -> str:
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _arm(rows: pd.DataFrame, comparison: Mapping[Any, Any]) -> pd.DataFrame:
    return rows[
        (rows["family"] == comparison["family"])
        & (rows["model"] == comparison["model"])
        & (rows["cell_a"] == comparison["cell_a"])
    ]


def _row(rows: pd.DataFrame, comparison: Mapping[Any, Any]) -> dict[str, Any] | None:
    here = _arm(rows, comparison)
    here = here[here["metric"] == comparison["metric"]]
    if not pd.isna(comparison["k"]):
        here = here[here["k"] == comparison["k"]]
    return None if here.empty else {str(key): value for key, value in here.iloc[0].to_dict().items()}
