"""From estimates and comparisons to panels of plain text, before any markup: what a reader will see where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from turnscale.config.schema import Figure, Table
from turnscale.estimates.compare import shown_ks
from turnscale.estimates.schema import ALL, BAND, PUBLISHED_ONLY, VALIDATION
from turnscale.render import looks
from turnscale.render.data import DEFAULT, RETRAINED, TASKS, Tables
from turnscale.render.text import MISSING, metric_label, p_value, points, with_interval

RUNS = "planned/finished/failed/excluded"
LEVEL = 0.05
NOT_RUN = "not run"


@dataclass(frozen=True)
class Panel:
    """One block of a printed table; all text plain.

    Attributes:
        title: above the block.
        spans: (heading, number of columns) over the columns, "" for none.
        columns: column headings, the first over the row labels.
        rows: each with one string per column; a row of one string is a heading inside the block.
    """

    title: str
    spans: Sequence[tuple[str, int]]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=list)


def panels(tables: Tables, name: str, table: Table) -> list[Panel]:
    """The blocks of a table: its values, then the differences to its reference."""
    found = []
    for family, model in tables.arms:
        where = _where(tables, family, model)
        own = tables.estimates[(tables.estimates["family"] == family) & (tables.estimates["model"] == model)]
        if table.kind == "passk":
            found += curve_panels(tables, name, table, own, where)
        else:
            found += [value_panel(tables, name, table, own, metric, where) for metric in table.metrics]
        differences = difference_panel(tables, name, table, family, model, where)
        if differences.rows:
            found.append(differences)
    return found


def value_panel(tables: Tables, name: str, table: Table, own: pd.DataFrame, metric: str, where: str) -> Panel:
    """One metric: a row per cell, a column per benchmark, the published values beside, the counts of runs."""
    rows = own[own["metric"] == metric]
    measured = rows[rows["question"] != PUBLISHED_ONLY]
    benchmarks = list(dict.fromkeys(measured.loc[measured["value"].notna(), "benchmark"]))
    rows = beside(rows, table)
    published = [
        name for name in _places(table) if rows.loc[rows["benchmark"] == name, "published"].notna().any()
    ]
    question = RETRAINED if metric == "auc" else DEFAULT
    stars = _stars(tables, name, table, own, metric, question)
    body: list[list[str]] = []
    for group in table.groups:
        if len(table.groups) > 1:
            body.append([group])
        for cell in tables.study.groups[group]:
            line = rows[rows["cell"] == cell]
            label = tables.label(cell) + (" (reference)" if cell == table.reference else "")
            body.append(
                [label]
                + [
                    value_text(line, benchmark, question, own[own["cell"] == cell])
                    + stars.get((cell, benchmark), "")
                    for benchmark in benchmarks
                ]
                + [published_text(line, benchmark) for benchmark in published]
                + [runs_text(own[own["cell"] == cell])]
            )
    for method in dict.fromkeys(rows.loc[rows["cell"] == "", "method"]):
        line = rows[(rows["cell"] == "") & (rows["method"] == method)]
        values = [published_text(line, benchmark) for benchmark in published]
        body.append([f"{method} (published only)", *[NOT_RUN] * len(benchmarks), *values, MISSING])
    return Panel(
        title=f"{where}: {metric_label(metric)}, in points",
        spans=_spans(table, own, benchmarks, published),
        columns=[
            "",
            *[_benchmark(b) for b in benchmarks],
            *[_published(table, b) for b in published],
            "runs",
        ],
        rows=body,
    )


def curve_panels(tables: Tables, name: str, table: Table, own: pd.DataFrame, where: str) -> list[Panel]:
    """pass@k: one block per benchmark, a row per cell, a column per k; published points at their own k."""
    found = []
    curve = own[(own["metric"] == BAND)]
    ks = shown_ks(int(curve["k"].max())) if len(curve) else []
    for benchmark in list(dict.fromkeys(curve["benchmark"])):
        here = own[own["benchmark"] == benchmark]
        band = here[here["metric"] == BAND]
        here = beside(here, table)
        outside = here[here["published"].notna() & here["metric"].str.startswith("pass_at_")]
        published = sorted({int(k) for k in outside["k"]})
        body = []
        for cell in tables.cells(table):
            line = band[band["cell"] == cell]
            values = [
                value_text(line[line["k"] == k], benchmark, DEFAULT, own[own["cell"] == cell]) for k in ks
            ]
            mine = outside[outside["cell"] == cell]
            label = tables.label(cell) + (" (reference)" if cell == table.reference else "")
            others = [published_text(mine[mine["k"] == k], benchmark) for k in published]
            body.append([label, *values, *others, runs_text(own[own["cell"] == cell])])
        for method in dict.fromkeys(outside.loc[outside["cell"] == "", "method"]):
            line = outside[(outside["cell"] == "") & (outside["method"] == method)]
            others = [published_text(line[line["k"] == k], benchmark) for k in published]
            body.append([f"{method} (published only)", *[NOT_RUN] * len(ks), *others, MISSING])
        spans = [("", 1), ("Measured here, k attempts", len(ks))]
        if published:
            spans.append(
                (f"Published: {_published_model(table, own)}, {_published(table, benchmark)}", len(published))
            )
        found.append(
            Panel(
                title=f"{where}, {_benchmark(benchmark)}: pass@k, in points; intervals cover all k of a row at once",
                spans=[*spans, ("", 1)],
                columns=["", *[f"k = {k}" for k in ks], *[f"pass@{k}" for k in published], "runs"],
                rows=body,
            )
        )
    return found


def difference_panel(tables: Tables, name: str, table: Table, family: str, model: str, where: str) -> Panel:
    """Each cell minus the reference on the mean over benchmarks: interval, p, Holm, plan, detectable effect."""
    planned = None if tables.study.plan is None else looks.covered(tables, table)
    every = tables.comparisons
    rows = every[
        (every["product"] == f"table:{name}") & (every["family"] == family) & (every["model"] == model)
    ]
    kept = rows[
        ((rows["benchmark"] == ALL) & (rows["question"] == DEFAULT))
        | ((rows["benchmark"] == VALIDATION) & (rows["question"] == RETRAINED))
        | ((rows["benchmark"] == ALL) & (rows["metric"] != "auc") & _untrained(rows))
    ]
    body = []
    for row in kept.to_dict("records"):
        metric = f"pass@{row['k']}" if row["metric"] == BAND else metric_label(row["metric"])
        seeds = f"{_count(row['n_seeds_a'])} v {_count(row['n_seeds_b'])}"
        seeds += "" if planned is None else looks.mark(planned, row)
        text = with_interval(row["difference"], row["lo"], row["hi"], signed=True)
        if not math.isfinite(row["lo"]):
            text += ", not estimable"
            if math.isfinite(row["seed_sd_tolerance"]):
                text += f" (stands while σ(seeds) < {points(row['seed_sd_tolerance'])})"
        plan = [] if planned is None else [looks.plan_text(planned, row)]
        tests = [p_value(row["p"]), *plan, p_value(row["p_holm"]), points(row["mde"])]
        body.append([tables.label(row["cell_a"]), metric, text, *tests, seeds])
    sizes = sorted(set(kept["holm_size"].dropna()))
    adjusted = "p, Holm" + (f" over {' or '.join(map(str, sizes))}" if sizes else "")
    return Panel(
        title=f"{where}: difference to {tables.label(table.reference)}, mean over benchmarks, in points",
        spans=[],
        columns=[
            *("", "metric", "difference", "p"),
            *([] if planned is None else [looks.HEADING]),
            *(adjusted, "detectable difference", "seeds"),
        ],
        rows=body,
    )


def value_text(line: pd.DataFrame, benchmark: str, question: str, cell: pd.DataFrame) -> str:
    """The value with the interval of the default question, or with that over tasks, marked †.

    Without a value: "not run" if the cell is not part of the scale, "no result" if none of its runs gave one,
    and a dash if it has results but not this one. ``line`` is one metric of ``cell``, all rows of the cell.
    """
    here = line[(line["benchmark"] == benchmark) & line["value"].notna()]
    if here.empty:
        measured = cell[cell["planned"].notna()]
        if measured.empty:
            return NOT_RUN
        return MISSING if measured["value"].notna().any() else "no result"
    for wanted, mark in ((question, ""), (TASKS, "†")):
        row = here[(here["question"] == wanted) & here["lo"].notna()]
        if len(row):
            first = row.iloc[0]
            return with_interval(first["value"], first["lo"], first["hi"]) + mark
    return points(float(here["value"].iloc[0]))


def published_text(line: pd.DataFrame, benchmark: str) -> str:
    """The published value of a row, in points with two decimals as published."""
    values = line.loc[(line["benchmark"] == benchmark) & line["published"].notna(), "published"]
    return points(float(values.iloc[0]), 2) if len(values) else MISSING


def runs_text(line: pd.DataFrame) -> str:
    """planned/finished/failed/excluded."""
    counts = line[line["planned"].notna()]
    if counts.empty:
        return NOT_RUN
    return "/".join(str(int(counts[name].iloc[0])) for name in ("planned", "finished", "failed", "excluded"))


def _stars(
    tables: Tables, name: str, table: Table, own: pd.DataFrame, metric: str, question: str
) -> Mapping[tuple[str, str], str]:
    """(cell, benchmark) -> "*" where the Holm-adjusted p is below 5 %, with two seeds or more on both sides.

    With a declared plan only cells whose planned difference it has shown are starred at all.
    """
    every = tables.comparisons
    first = own.iloc[0]
    rows = every[
        (every["product"] == f"table:{name}")
        & (every["family"] == first["family"])
        & (every["model"] == first["model"])
        & (every["metric"] == metric)
        & (every["question"] == question)
        & (every["p_holm"] < LEVEL)
        & (every["n_seeds_a"] >= 2)
        & (every["n_seeds_b"] >= 2)
        & every["cell_a"].isin(looks.may_star(tables, table, str(first["family"]), str(first["model"])))
    ]
    return {
        (str(cell), str(benchmark)): "*"
        for cell, benchmark in zip(rows["cell_a"], rows["benchmark"], strict=True)
    }


def _untrained(rows: pd.DataFrame) -> pd.Series:
    """Rows over tasks of a pair whose default question was never asked."""
    asked = set(rows.loc[rows["question"] == DEFAULT, "cell_a"])
    return (rows["question"] == TASKS) & ~rows["cell_a"].isin(asked)


def _where(tables: Tables, family: str, model: str) -> str:
    families = {pair[0] for pair in tables.arms}
    return f"{family}, {model}" if len(families) > 1 else model


def _benchmark(benchmark: str) -> str:
    return "mean" if benchmark == ALL else benchmark


def _published(table: Table, benchmark: str) -> str:
    return (table.published.benchmarks if table.published else {}).get(benchmark, benchmark)


def _published_model(table: Table, own: pd.DataFrame) -> str:
    model = str(own["model"].iloc[0])
    return (table.published.models if table.published else {}).get(model, model)


def _spans(
    table: Table, own: pd.DataFrame, benchmarks: Sequence[str], published: Sequence[str]
) -> list[tuple[str, int]]:
    spans = [("", 1)]
    if benchmarks:
        spans.append(("Measured here", len(benchmarks)))
    if published:
        spans.append(
            (f"Published: {_published_model(table, own)}, other model and benchmark", len(published))
        )
    return [*spans, ("", 1)]


def _places(table: Table) -> list[str]:
    return list(table.published.benchmarks) if table.published else []


def beside(rows: pd.DataFrame, table: Table | Figure) -> pd.DataFrame:
    """The rows with published values only where the table declares them, and published-only rows of its file."""
    if table.published is None:
        kept = rows[rows["question"] != PUBLISHED_ONLY].copy()
        kept["published"] = math.nan
        return kept
    place = rows["model"].isin(table.published.models) & rows["benchmark"].isin(table.published.benchmarks)
    own_file = rows["published_source"].str.startswith(f"{table.published.file}: ")
    kept = rows[(rows["question"] != PUBLISHED_ONLY) | (place & own_file)].copy()
    kept["published"] = kept["published"].where(place)
    return kept


def _count(value: Any) -> str:
    return MISSING if pd.isna(value) else str(int(value))
