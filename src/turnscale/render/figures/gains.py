"""Gains: the difference of each cell to the reference, with one interval for each question it may answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from turnscale.config.schema import Figure
from turnscale.estimates.schema import ALL, COMPARISONS
from turnscale.render.data import Tables
from turnscale.render.figures.common import finish, heading, missing, panels_of, short
from turnscale.render.style import BLACK, BLUE, GREY, ORANGE, SKY, grid
from turnscale.render.text import plot
from turnscale.stats.question import Question

INTERVALS = (
    (Question.THESE_CHECKPOINTS, GREY, 2.6),
    (Question.TASKS_LIKE_THESE, SKY, 2.2),
    (Question.METHOD_RETRAINED, ORANGE, 1.6),
    (Question.METHOD_NEW_TASKS, BLUE, 1.2),
)
"""Question, colour and line width, from the narrowest claim to the widest."""


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """Rows of a panel: cells. Panels: the mean over benchmarks, then each benchmark; one lane per model."""
    every = tables.comparisons
    every = every[every["product"] == f"figure:{name}"]
    cells = [cell for cell in tables.cells(figure) if cell != figure.reference]
    benchmarks = {family: panels_of(every, family, first=True) for family, _ in tables.arms}
    widest = max(map(len, benchmarks.values()))
    height = 0.4 + (0.4 + 0.3 * len(cells)) * len(tables.arms)
    drawing, axes = grid(len(tables.arms), widest, height=height, share_x="all", share_y="row")
    reference = tables.label(str(figure.reference))
    for lane, (family, model) in enumerate(tables.arms):
        for panel in axes[lane, len(benchmarks[family]) :]:
            panel.set_visible(False)
        for place, benchmark in enumerate(benchmarks[family]):
            panel = axes[lane, place]
            here = every[
                (every["family"] == family) & (every["model"] == model) & (every["benchmark"] == benchmark)
            ]
            labels = []
            for y, cell in enumerate(cells):
                rows = here[here["cell_a"] == cell]
                labels.append(_label(tables, cell, rows))
                if rows.empty:
                    unrun = cell if _absent(tables, family, model, cell) else str(figure.reference)
                    why = missing(tables, family, model, unrun).split("\n")[0]
                    text = why if unrun == cell else f"reference {why}"
                    panel.text(
                        0.02,
                        y,
                        text,
                        transform=panel.get_yaxis_transform(),
                        va="center",
                        fontsize=6,
                        color=GREY,
                    )
                    continue
                for number, (question, color, width) in enumerate(INTERVALS):
                    row = rows[(rows["question"] == str(question)) & rows["lo"].notna()]
                    if len(row):
                        offset = y + (number - 1.5) * 0.17
                        limits = 100 * row[["lo", "hi"]].iloc[0].to_numpy(dtype=np.float64)
                        panel.plot(
                            limits, [offset, offset], color=color, linewidth=width, solid_capstyle="butt"
                        )
                value = 100 * float(rows["difference"].iloc[0])
                panel.plot([value, value], [y - 0.36, y + 0.36], color=BLACK, linewidth=1.0)
            panel.axvline(0, color=BLACK, linewidth=0.6, linestyle=(0.0, (3.0, 2.0)), zorder=0)
            panel.set_ylim(len(cells) - 0.45, -0.55)
            if place == 0:
                panel.set_yticks(range(len(cells)), labels)
            panel.tick_params(axis="y", length=0)
            panel.grid(visible=False, axis="y")
            panel.set_title("mean of benchmarks" if benchmark == ALL else plot(benchmark))
            panel.set_xlabel(f"pass@1 minus {plot(reference)}\n(points)")
            if place == 0:
                panel.set_ylabel(heading(tables, family, model))
    handles: list[Line2D] = [
        Line2D([], [], color=color, linewidth=width, label=str(question))
        for question, color, width in INTERVALS
    ]
    notes = [
        f"Black ticks: the difference to {reference}. Bars: 95 % intervals, one for each thing that may be drawn "
        "again; only the last two say anything about a method, and they need two seeds or more of each "
        "trained cell (seeds in brackets; a checkpoint that no run trains is held fixed).",
    ]
    finish(drawing, tables, figure.title, notes, handles)
    return drawing, every[COMPARISONS].reset_index(drop=True)


def _label(tables: Tables, cell: str, rows: pd.DataFrame) -> str:
    if rows.empty:
        return short(tables.label(cell), 26)
    first = rows.iloc[0]
    return short(f"{tables.label(cell)} ({int(first['n_seeds_a'])} v {int(first['n_seeds_b'])})", 26)


def _absent(tables: Tables, family: str, model: str, cell: str) -> bool:
    rows = tables.estimates
    mine = rows[(rows["family"] == family) & (rows["model"] == model) & (rows["cell"] == cell)]
    return not bool(mine["value"].notna().any())
