"""Test-time scaling: pass@k up to half the attempts, with bands over all k, and published points hollow."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from turnscale.config.schema import Figure
from turnscale.estimates.schema import ALL, BAND
from turnscale.render.data import Tables
from turnscale.render.figures.common import finish, handle, heading, missing, panels_of
from turnscale.render.layout import beside
from turnscale.render.style import GREY, grid, look, say
from turnscale.render.text import plot

COLUMNS = [
    "family",
    "model",
    "benchmark",
    "metric",
    "k",
    "method",
    "cell",
    "value",
    "lo",
    "hi",
    "question",
    "published",
]


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """Rows: models. Columns: benchmarks, then their mean."""
    every = beside(tables.estimates, figure)
    cells = tables.cells(figure)
    curves = every[(every["metric"] == BAND) & every["cell"].isin(cells)]
    points = every[
        every["published"].notna()
        & every["metric"].str.startswith("pass_at_")
        & (every["metric"] != BAND)
        & every["cell"].isin([*cells, ""])
    ].drop_duplicates(["family", "model", "benchmark", "metric", "cell", "method"])
    benchmarks = {family: panels_of(curves, family, first=False) for family, _ in tables.arms}
    widest = max(map(len, benchmarks.values()))
    drawing, axes = grid(len(tables.arms), widest, height=0.3 + 1.85 * len(tables.arms), share_y=True)
    absent = []
    for lane, (family, model) in enumerate(tables.arms):
        for panel in axes[lane, len(benchmarks[family]) :]:
            panel.set_visible(False)
        for place, benchmark in enumerate(benchmarks[family]):
            panel = axes[lane, place]
            here = (every["family"] == family) & (every["model"] == model) & (every["benchmark"] == benchmark)
            shown = curves[here.reindex(curves.index)]
            for cell in cells:
                line = shown[(shown["cell"] == cell) & shown["value"].notna()].sort_values("k")
                if line.empty:
                    continue
                style, k = look(cell), line["k"].to_numpy(dtype=float)
                panel.fill_between(
                    k, 100 * line["lo"], 100 * line["hi"], color=style.color, alpha=0.13, linewidth=0
                )
                panel.plot(
                    k,
                    100 * line["value"],
                    color=style.color,
                    linestyle=style.line,
                    marker=style.marker,
                    markersize=2.8,
                )
            if not panel.lines:
                say(panel, "not run")
            for row in points[here.reindex(points.index)].to_dict("records"):
                known = look(row["cell"]) if row["cell"] else None
                panel.plot(
                    [row["k"]],
                    [100 * row["published"]],
                    linestyle="",
                    marker=known.marker if known else "h",
                    markerfacecolor="white",
                    markeredgecolor=known.color if known else GREY,
                    markersize=5,
                    zorder=4,
                )
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
            panel.set_ylim(0, 102)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            title = "mean of benchmarks" if benchmark == ALL else benchmark
            other = figure.published.benchmarks.get(benchmark) if figure.published else None
            panel.set_title(
                plot(title) + (f"\n(hollow: {plot(other)})" if other and _any(points, here) else "")
            )
            panel.set_xlabel("attempts k")
            if place == 0:
                panel.set_ylabel(f"{heading(tables, family, model)}\npass@k (%)")
        for cell in cells:
            mine = curves[
                (curves["family"] == family) & (curves["model"] == model) & (curves["cell"] == cell)
            ]
            if mine.empty:
                why = missing(tables, family, model, cell).replace("\n", " ")
                absent.append(f"{tables.label(cell)}{f' on {model}' if len(tables.arms) > 1 else ''}: {why}")
    notes = [
        "Filled: measured here, k up to half the attempts; the bands hold for all k of a curve at once with 95 % "
        "confidence (the method retrained, on new tasks; one run: tasks like these)."
    ]
    handles = [handle(tables, cell) for cell in cells if (curves["cell"] == cell).any()]
    if len(points):
        notes.append("Hollow: published values of another model on another benchmark.")
        for method in dict.fromkeys(points.loc[points["cell"] == "", "method"]):
            handles.append(
                Line2D(
                    [],
                    [],
                    linestyle="",
                    marker="h",
                    markerfacecolor="white",
                    color=GREY,
                    label=plot(f"{method}, published"),
                )
            )
    if absent:
        notes.append(f"Not shown: {'; '.join(absent)}.")
    finish(drawing, tables, figure.title, notes, handles)
    return drawing, pd.concat([curves, points], ignore_index=True)[COLUMNS]


def _any(points: pd.DataFrame, here: pd.Series) -> bool:
    return bool(here.reindex(points.index).any())
