"""Collected runs -> estimates and comparisons: tidy tables, one number a row, each with the question it answers.

The estimators are those of `turnscale.stats`; this package only decides which numbers a study reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.looks import Logged, read
from turnscale.errors import DataError
from turnscale.estimates.arm import area_row, band_rows, metric_rows
from turnscale.estimates.compare import add_holm, cells_of, entries_of, pair_rows, products, shown_ks
from turnscale.estimates.looks import looks_table, record, taken
from turnscale.estimates.published import PublishedValue, published_values
from turnscale.estimates.schema import BAND, COMPARISONS, ESTIMATES, PUBLISHED_ONLY, frame
from turnscale.estimates.scores import METRICS, OUTCOMES, ArmData, arms
from turnscale.files import write_csv
from turnscale.stats.passk import Metric
from turnscale.study import Plan

__all__ = ["estimate_study", "write_estimates"]

COLLECT_AGAIN = "remove it and run the same command again: it is made anew from the runs."

ALWAYS = ("pass_at_1", "pass_at_3", "pass_hat_3")
"""Metrics reported for every cell."""


def write_estimates(
    plan: Plan, tables_dir: Path, out_dir: Path | None = None, log: Path | None = None
) -> list[Logged]:
    """Read the collected tables of a study and write ``estimates.csv``, ``comparisons.csv`` and ``looks.csv``.

    Args:
        plan: the study resolved at its scale; published files are relative to ``plan.root``.
        tables_dir: holds outcomes.parquet, metrics.parquet and survivorship.csv.
        out_dir: where to write, ``tables_dir`` by default.
        log: the log of looks, to which looks at new data are appended. Without one, ``looks.csv`` knows the
            present look only.

    Returns:
        The looks that were added to the log.

    Raises:
        DataError: a table that is missing, incomplete or inconsistent with the plan, or a log that was altered.
        ConfigError: a wrong ``published:`` declaration.
    """
    outcomes = read_parquet(tables_dir / "outcomes.parquet", OUTCOMES)
    metrics = read_parquet(tables_dir / "metrics.parquet", METRICS)
    path = tables_dir / "survivorship.csv"
    try:
        survivorship = pd.read_csv(path, keep_default_na=False)
    except (OSError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"cannot be read ({error}).", file=path, remedy=COLLECT_AGAIN) from None
    data = arms(plan, outcomes, metrics, survivorship)
    estimates, comparisons = _tables(plan, data, code_revisions(plan))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    looks = taken(plan, data, comparisons, now)
    if log is None:
        added, entries = [], [Logged(0, entry.look, "", "") for entry in looks if entry.look is not None]
    else:
        added = record(log, looks)
        entries = read(log)
    target = tables_dir if out_dir is None else out_dir
    write_csv(estimates, target / "estimates.csv")
    write_csv(comparisons, target / "comparisons.csv")
    write_csv(looks_table(plan, looks, entries), target / "looks.csv")
    return added


def estimate_study(
    plan: Plan,
    outcomes: pd.DataFrame,
    metrics: pd.DataFrame,
    survivorship: pd.DataFrame,
    revisions: Mapping[tuple[str, str, str], str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The estimates and comparisons of a study at a scale.

    Args:
        plan: the study resolved at its scale.
        outcomes: one row per run, benchmark, task and attempt.
        metrics: one row per run, step and metric.
        survivorship: planned, finished, failed and excluded runs, one row per family, model and cell.
        revisions: (family, model, cell) -> revisions of the code that made its runs, where known.

    Returns:
        Tables with the columns ``schema.ESTIMATES`` and ``schema.COMPARISONS``; values are fractions.

    Raises:
        DataError: as `turnscale.estimates.scores.arms`, or a published file that cannot be used.
        ConfigError: a wrong ``published:`` declaration.
    """
    return _tables(plan, arms(plan, outcomes, metrics, survivorship), revisions or {})


def _tables(
    plan: Plan, data: dict[tuple[str, str, str], ArmData], revisions: Mapping[tuple[str, str, str], str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = [
        {
            **_identity(plan, arm),
            **row,
            **arm.counts,
            **_origin(arm),
            "code_revision": revisions.get(key, ""),
        }
        for key, arm in data.items()
        for row in _arm_rows(plan, arm)
    ]
    rows = _with_published(plan, rows, data)
    estimates = frame(
        ({"study": plan.study.study, "scale": plan.scale.scale, **row} for row in rows), ESTIMATES
    )
    return estimates, frame(_comparisons(plan, data), COMPARISONS)


def code_revisions(plan: Plan) -> dict[tuple[str, str, str], str]:
    """Revisions of the code that made each cell's finished runs, sorted, from the records of the runs."""
    from turnscale.track.records import read_record

    found = {}
    for cell in plan.cells:
        paths = [plan.root / plan.run_path(cell, seed) for seed in cell.seeds]
        records = [read_record(path) for path in paths if path.exists()]
        revisions = sorted({str(record.get("code_revision", "")) for record in records} - {""})
        found[cell.family, cell.model, cell.cell] = " ".join(revisions)
    return found


def read_parquet(path: Path, columns: list[str]) -> pd.DataFrame:
    """Some columns of a parquet table, text as categories.

    Raises:
        DataError: no such file, or not these columns.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
        text = [
            field.name for field in schema if pyarrow.types.is_string(field.type) and field.name in columns
        ]
        table = pyarrow.parquet.read_table(
            path, columns=columns, read_dictionary=text, page_checksum_verification=True
        )
        found = table.to_pandas()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(
            f"cannot be read ({str(error).strip().splitlines()[0]}).", file=path, remedy=COLLECT_AGAIN
        ) from None
    lacking = [column for column in columns if column not in found.columns]
    if lacking:
        raise DataError("the column is missing.", file=path, key=lacking[0], remedy=COLLECT_AGAIN)
    return found


def _identity(plan: Plan, arm: ArmData) -> dict[str, Any]:
    return {
        "family": arm.cell.family,
        "model": arm.cell.model,
        "method": plan.study.cells[arm.cell.cell].method,
        "cell": arm.cell.cell,
    }


def _origin(arm: ArmData) -> dict[str, str]:
    return {
        "run_ids": " ".join(arm.run_ids),
        "spec_hash": arm.cell.train.hash,
        "evaluation_hash": arm.cell.evaluation.hash,
    }


def _arm_rows(plan: Plan, arm: ArmData) -> list[dict[str, Any]]:
    asked = [metric for table in plan.study.tables.values() for metric in table.metrics]
    names = dict.fromkeys([*ALWAYS, *(metric for metric in asked if metric not in ("auc", BAND))])
    rows = [row for name in names for row in metric_rows(arm, Metric.parse(name))]
    area = area_row(arm)
    rows += [] if area is None else [area]
    if arm.outcomes and arm.cell.cell in _curve_cells(plan):
        rows += band_rows(arm, _ks(arm))
    return rows


def _curve_cells(plan: Plan) -> set[str]:
    entries = entries_of(plan.study)
    return {cell for entry in entries if entry.kind == "passk" for cell in cells_of(plan.study, entry)}


def _ks(arm: ArmData) -> list[int]:
    attempts = min(counts.attempts for counts in arm.outcomes.values())
    return list(range(1, max(1, attempts // 2) + 1))


def _comparisons(plan: Plan, data: dict[tuple[str, str, str], ArmData]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    done: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for product, entry, metrics in products(plan.study):
        for family, model in dict.fromkeys((key[0], key[1]) for key in data):
            reference = data.get((family, model, str(entry.reference)))
            if reference is None:
                continue
            for cell in cells_of(plan.study, entry):
                arm = data.get((family, model, cell))
                if arm is None or cell == entry.reference:
                    continue
                for metric in metrics:
                    key = (family, model, cell, str(entry.reference), metric)
                    if key not in done:
                        ks = (
                            shown_ks(min(_ks(arm)[-1], _ks(reference)[-1]))
                            if arm.outcomes and reference.outcomes
                            else []
                        )
                        done[key] = list(pair_rows(arm, reference, metric, ks))
                    rows += [
                        {
                            "study": plan.study.study,
                            "scale": plan.scale.scale,
                            "product": product,
                            "family": family,
                            "model": model,
                            "cell_a": cell,
                            "cell_b": entry.reference,
                            **row,
                        }
                        for row in done[key]
                    ]
    add_holm(rows)
    return rows


def _with_published(
    plan: Plan, rows: list[dict[str, Any]], data: dict[tuple[str, str, str], ArmData]
) -> list[dict[str, Any]]:
    """Published values put beside the rows of their place; those with no local row get one of their own."""
    values: dict[tuple[str, str, str, str, str], PublishedValue] = {}
    for entry in entries_of(plan.study):
        if entry.published is None:
            continue
        wanted = cells_of(plan.study, entry)
        methods = {key[2]: arm.cell.method for key, arm in data.items() if key[2] in wanted}
        for value in published_values(entry.published, methods, entry.reference, plan.root):
            place = (
                value.model,
                value.benchmark,
                value.metric,
                value.cell,
                value.method if not value.cell else "",
            )
            if place in values and abs(values[place].value - value.value) > 1e-9:
                raise DataError(
                    f"gives {value.value:.4f} for {value.cell or value.method}, {value.model}, {value.benchmark}, "
                    f"{value.metric}, and another published file {values[place].value:.4f}.",
                    file=entry.published.file,
                    key="value",
                    remedy="make the published files agree.",
                )
            values.setdefault(place, value)
    models = {key[1] for key in data}
    found = list(rows)
    for value in values.values():
        if value.model not in models:
            continue
        metric = Metric.parse(value.metric)
        here = [
            row
            for row in rows
            if value.cell
            and (row["model"], row["cell"], row["benchmark"]) == (value.model, value.cell, value.benchmark)
            and (
                row["metric"] == value.metric
                or (row["metric"] == BAND and (metric.kind, metric.k) == ("pass_at", row["k"]))
            )
        ]
        for row in here:
            row.update(published=value.value, published_source=value.source)
        if not here:
            having = {key[0] for key, arm in data.items() if value.benchmark in arm.outcomes}
            families = dict.fromkeys(key[0] for key in data if not having or key[0] in having)
            found += [_published_only(plan, family, value, metric, data) for family in families]
    return found


def _published_only(
    plan: Plan, family: str, value: PublishedValue, metric: Metric, data: dict[tuple[str, str, str], ArmData]
) -> dict[str, Any]:
    arm = data.get((family, value.model, value.cell)) if value.cell else None
    return {
        "family": family,
        "model": value.model,
        "benchmark": value.benchmark,
        "metric": value.metric,
        "k": metric.k,
        "method": plan.study.cells[value.cell].method if value.cell else value.method,
        "cell": value.cell,
        "question": PUBLISHED_ONLY,
        "published": value.value,
        "published_source": value.source,
        **(arm.counts if arm else {}),
    }
