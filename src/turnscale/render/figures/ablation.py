"""Ablations: pass@1 of each value of a hyperparameter with its interval, published values hollow."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from turnscale.config.schema import Figure
from turnscale.estimates.schema import ALL
from turnscale.render.data import DEFAULT, TASKS, Tables
from turnscale.render.figures.common import finish, heading, missing, panels_of, short
from turnscale.render.layout import beside
from turnscale.render.style import BLUE, FAINT, GREY, Look, grid, look
from turnscale.render.text import plot

METRIC = "pass_at_1"
OTHER = Look(BLUE, "o", "-")
"""All cells but the reference: they are values of one method."""

COLUMNS = [
    "family",
    "model",
    "group",
    "benchmark",
    "cell",
    "value",
    "lo",
    "hi",
    "question",
    "n_seeds",
    "published",
]


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """Rows of a panel: cells, group by group. Panels: the mean over benchmarks, then each benchmark."""
    every = beside(tables.estimates, figure)
    every = every[every["metric"] == METRIC]
    measured = every[every["value"].notna()]
    benchmarks = {family: panels_of(measured, family, first=True) for family, _ in tables.arms}
    widest = max(map(len, benchmarks.values()))
    lines: list[tuple[str, str]] = []
    for group in figure.groups:
        lines += [(group, ""), *((group, cell) for cell in tables.study.groups[group])]
    height = 0.4 + (0.35 + 0.145 * len(lines)) * len(tables.arms)
    drawing, axes = grid(len(tables.arms), widest, height=height, share_y="row")
    data = []
    any_published = False
    for lane, (family, model) in enumerate(tables.arms):
        for panel in axes[lane, len(benchmarks[family]) :]:
            panel.set_visible(False)
        for benchmark, panel in zip(benchmarks[family], axes[lane], strict=False):
            here = every[
                (every["family"] == family)
                & (every["model"] == model)
                & (every["benchmark"].isin([benchmark, ""]))
            ]
            for y, (group, cell) in enumerate(lines):
                if not cell:
                    continue
                row = choose(here[here["cell"] == cell])
                if row is None:
                    why = missing(tables, family, model, cell).split("\n")[0]
                    panel.text(
                        0.02,
                        y,
                        why,
                        transform=panel.get_yaxis_transform(),
                        va="center",
                        fontsize=6,
                        color=GREY,
                    )
                    data.append(
                        {
                            "family": family,
                            "model": model,
                            "group": group,
                            "benchmark": benchmark,
                            "cell": cell,
                        }
                    )
                    continue
                style = look(cell) if cell == figure.reference else OTHER
                hollow = row["question"] == TASKS
                if np.isfinite(row["lo"]):
                    dashes = (0.0, (2.0, 1.0)) if hollow else "-"
                    panel.plot(
                        [100 * row["lo"], 100 * row["hi"]],
                        [y, y],
                        color=style.color,
                        linewidth=1.2,
                        linestyle=dashes,
                    )
                panel.plot([100 * row["value"]], [y], color=style.color, marker=style.marker, markersize=4)
                if np.isfinite(row["published"]):
                    any_published = True
                    panel.plot(
                        [100 * row["published"]],
                        [y],
                        marker="D",
                        markerfacecolor="white",
                        markeredgecolor=GREY,
                        markersize=3.5,
                    )
                kept = {key: row[key] for key in COLUMNS if key in row}
                data.append({**kept, "group": group, "benchmark": benchmark})
            if figure.reference is not None:
                row = choose(here[here["cell"] == figure.reference])
                if row is not None:
                    panel.axvline(100 * row["value"], color=FAINT, linewidth=0.9, zorder=0)
            panel.set_ylim(len(lines) - 0.4, -0.6)
            panel.tick_params(axis="y", length=0)
            panel.grid(visible=False, axis="y")
            panel.set_title("mean of benchmarks" if benchmark == ALL else plot(benchmark))
            panel.set_xlabel("pass@1 (%)")
        axes[lane, 0].set_ylabel(heading(tables, family, model))
        axes[lane, 0].set_yticks(range(len(lines)), [_label(tables, figure, *line) for line in lines])
        for tick, (_, cell) in zip(axes[lane, 0].get_yticklabels(), lines, strict=True):
            tick.set_fontweight("normal" if cell else "bold")
    notes = [
        "Points: means over seeds and tasks. Lines: 95 % intervals that answer: the method retrained, on new tasks; "
        "dashed: one run, tasks like these only."
    ]
    if figure.reference is not None:
        notes.append(f"Vertical line: {tables.label(figure.reference)}.")
    handles = []
    if any_published and figure.published is not None:
        pairs = ", ".join(
            f"{published} beside {local}" for local, published in figure.published.benchmarks.items()
        )
        notes.append(f"Published values are of another model and benchmark: {pairs}.")
        handles = [
            Line2D(
                [],
                [],
                linestyle="",
                marker="D",
                markerfacecolor="white",
                color=GREY,
                label="published, other model and benchmark",
            )
        ]
    finish(drawing, tables, figure.title, notes, handles)
    return drawing, pd.DataFrame(data, columns=COLUMNS)


def choose(rows: pd.DataFrame) -> pd.Series | None:
    """The row of the default question, or that over tasks where it has no interval; None without a value."""
    kept = rows[rows["value"].notna()]
    for question in (DEFAULT, TASKS):
        found = kept[(kept["question"] == question) & kept["lo"].notna()]
        if len(found):
            return found.iloc[0]
    return kept.iloc[0] if len(kept) else None


def _label(tables: Tables, figure: Figure, group: str, cell: str) -> str:
    if not cell:
        return plot(group)
    return short(tables.label(cell) + (" (reference)" if cell == figure.reference else ""), 28)
