"""Learning curves: validation pass@1 and training reward, one panel per cell, all on the same axes."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure as Drawing

from turnscale.config.schema import Figure
from turnscale.render.data import Tables
from turnscale.render.figures.common import finish, heading, missing, series, short
from turnscale.render.style import FAINT, grid, look, say
from turnscale.render.text import points

QUANTITIES = (("val_pass_at_1", "validation pass@1 (%)", None), ("reward", "training reward (%)", 40))


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """One column per trained cell, one row per model and quantity; other cells' means are faint behind."""
    cells = tables.cells(figure)
    untrained = [
        cell for cell in cells if all(missing(tables, *arm, cell) == "not trained" for arm in tables.arms)
    ]
    shown = [cell for cell in cells if cell not in untrained]
    lanes = [(arm, quantity) for arm in tables.arms for quantity in QUANTITIES]
    titles = [short(tables.label(cell), max(8, 105 // len(shown))) for cell in shown]
    height = 0.3 + 1.35 * len(lanes) + 0.12 * max((title.count("\n") for title in titles), default=0)
    drawing, axes = grid(len(lanes), max(1, len(shown)), height=height, share_x="all", share_y="row")
    data = []
    for lane, ((family, model), (metric, label, count)) in enumerate(lanes):
        found = {cell: series(tables, family, model, cell, metric, count=count) for cell in shown}
        for place, cell in enumerate(shown):
            panel = axes[lane, place]
            panel.label_outer(remove_inner_ticks=False)
            if lane == 0:
                panel.set_title(titles[place])
            if lane == len(lanes) - 1:
                panel.set_xlabel("training step")
            if place == 0:
                panel.set_ylabel(f"{heading(tables, family, model)}\n{label}")
            own = found[cell]
            if own is None:
                say(panel, missing(tables, family, model, cell))
                continue
            for other, curve in found.items():
                if other != cell and curve is not None:
                    panel.plot(curve.steps, 100 * curve.mean, color=FAINT, linewidth=0.7, zorder=1)
            color = look(cell).color
            for row in own.values:
                panel.plot(own.steps, 100 * row, color=color, linewidth=0.5, alpha=0.45, zorder=2)
            panel.fill_between(
                own.steps, 100 * own.lo, 100 * own.hi, color=color, alpha=0.15, linewidth=0, zorder=2
            )
            panel.plot(own.steps, 100 * own.mean, color=color, zorder=3)
            panel.annotate(
                points(float(own.mean[-1]), 0),
                (own.steps[-1], 100 * own.mean[-1]),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                color=color,
                fontsize=6.5,
                annotation_clip=False,
            )
            data.append(own.rows(family=family, model=model, cell=cell, metric=metric))
        for panel in axes[lane]:
            panel.margins(x=0.02)
    lowest = 0.0
    for row in axes:
        highest = max((line.get_ydata().max() for panel in row for line in panel.lines), default=1.0)
        row[0].set_ylim(lowest, min(102.0, 1.12 * highest))
    notes = [
        "Bold: mean over seeds. Thin: each seed. Band: 95 % interval over seeds at each step alone (the method "
        "retrained on these tasks); none for a single seed. Grey: the means of the other cells.",
        "Training reward: mean over blocks of steps.",
    ]
    if untrained:
        notes.append(
            f"Not trained, so without a curve: {', '.join(tables.label(cell) for cell in untrained)}."
        )
    finish(drawing, tables, figure.title, notes)
    return drawing, _table(data)


def _table(parts: list[pd.DataFrame]) -> pd.DataFrame:
    columns = ["family", "model", "cell", "metric", "seed", "step", "value", "lo", "hi"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
