"""What several figures share: curves over seeds, titles, legends and the sentences at the foot."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from turnscale.errors import DataError
from turnscale.estimates.schema import ALL
from turnscale.estimates.series import blocks, over_seeds
from turnscale.render.data import Tables
from turnscale.render.style import GREY, look
from turnscale.render.text import plot
from turnscale.stats.passk import Floats

BLOCKS = 40
"""Training quantities are shown as means over at most this many blocks of steps."""


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity of one cell over training: steps [K], per-seed values [S, K], mean, lo, hi [K]."""

    seeds: tuple[int, ...]
    steps: Floats
    values: Floats
    mean: Floats
    lo: Floats
    hi: Floats

    def rows(self, **identity: str) -> pd.DataFrame:
        """The series as tidy rows: one per step for the mean (seed empty), one per step and seed."""
        empty = np.full(self.values.size, np.nan)
        table = pd.DataFrame(
            {
                "seed": np.repeat(np.array([pd.NA, *self.seeds], dtype=object), self.steps.size),
                "step": np.tile(self.steps, 1 + len(self.seeds)),
                "value": np.concatenate([self.mean, self.values.ravel()]),
                "lo": np.concatenate([self.lo, empty]),
                "hi": np.concatenate([self.hi, empty]),
            }
        ).astype(object)
        for position, (key, value) in enumerate(identity.items()):
            table.insert(position, key, value)
        return table


def logged(tables: Tables, family: str, model: str, cell: str, metric: str) -> pd.DataFrame:
    """The finite values of one metric of one cell, a row per seed and step.

    Raises:
        DataError: two values at one step of one run.
    """
    every = tables.metrics
    kept = every[
        (every["family"] == family)
        & (every["model"] == model)
        & (every["cell"] == cell)
        & (every["metric"] == metric)
    ]
    kept = kept[np.isfinite(kept["value"].astype("float64"))]
    if kept.duplicated(["seed", "step"]).any():
        raise DataError(f"{metric} of {family}/{model}/{cell} has two values at one step.", key=metric)
    return kept


def series(
    tables: Tables, family: str, model: str, cell: str, metric: str, *, count: int | None = BLOCKS
) -> Series | None:
    """A logged quantity of one cell on the steps that all its seeds have; None if there is no such step.

    A quantity may be undefined at a step (explained variance where every reward is equal), so seeds can have gaps.

    Args:
        count: at most this many block means; None keeps every step.

    Raises:
        DataError: two values at one step of one run.
    """
    kept = logged(tables, family, model, cell, metric)
    if kept.empty:
        return None
    wide = kept.pivot(index="seed", columns="step", values="value").sort_index().dropna(axis=1)
    if wide.shape[1] == 0:
        return None
    steps, values = wide.columns.to_numpy(dtype=np.float64), wide.to_numpy(dtype=np.float64)
    if count is not None and steps.size > count:
        steps, values = blocks(steps, values, count)
    return Series(tuple(int(seed) for seed in wide.index), steps, values, *over_seeds(values))


def missing(tables: Tables, family: str, model: str, cell: str) -> str:
    """Why a cell has nothing to show: not part of the scale, not trained, or no run that ended well."""
    rows = tables.estimates
    rows = rows[
        (rows["family"] == family)
        & (rows["model"] == model)
        & (rows["cell"] == cell)
        & rows["planned"].notna()
    ]
    if rows.empty:
        return "not run"
    first = rows.iloc[0]
    if int(first["finished"]):
        return "not trained" if not (rows["metric"] == "auc").any() else "not logged"
    failed, excluded, planned = (int(first[name]) for name in ("failed", "excluded", "planned"))
    return f"no result\n({failed} failed,\n{excluded} excluded\nof {planned})"


def short(text: str, width: int) -> str:
    """A label over as many lines as it needs at ``width`` characters each."""
    return "\n".join(textwrap.wrap(plot(text), width)) or plot(text)


def heading(tables: Tables, family: str, model: str) -> str:
    """Model, under its family where there are several."""
    several = len({pair[0] for pair in tables.arms}) > 1
    return f"{plot(family)}\n{plot(model)}" if several else plot(model)


def panels_of(rows: pd.DataFrame, family: str, first: bool) -> list[str]:
    """The benchmarks of a family in the order of the rows, with their mean first or last."""
    names = [name for name in dict.fromkeys(rows.loc[rows["family"] == family, "benchmark"]) if name != ALL]
    return [ALL, *names] if first else [*names, ALL]


def handle(tables: Tables, cell: str, *, marker: bool = True, line: bool = True) -> Line2D:
    """Legend entry of a cell."""
    style = look(cell)
    return Line2D(
        [],
        [],
        color=style.color,
        marker=style.marker if marker else "",
        linestyle=style.line if line else "",
        label=plot(tables.label(cell)),
    )


class Captioned(Protocol):
    """What a figure says about its origin: its study, its scale and what its numbers are."""

    @property
    def study(self) -> Any:
        """The study, which has a name in ``study``."""

    @property
    def scale(self) -> str:
        """Name of the scale."""

    def statement(self) -> str:
        """What the numbers are, in a sentence."""


def finish(
    drawing: Drawing, tables: Captioned, title: str, notes: Iterable[str], handles: Sequence[Line2D] = ()
) -> None:
    """Title above, legend and sentences below, each in room of its own."""
    width = drawing.get_figwidth()
    drawing.suptitle(plot(title), fontsize=8.5, x=0.01, ha="left", fontweight="bold")
    sentences = [f"Study {tables.study.study}, scale {tables.scale}.", *notes, tables.statement()]
    text = "\n".join(textwrap.wrap(plot(" ".join(sentences)), int(width * 20.5), break_on_hyphens=False))
    foot = ((text.count("\n") + 1) * 8.4 + 8) / 72
    columns = _legend_columns([str(item.get_label()) for item in handles], width)
    legend = -(-len(handles) // columns) * 0.16 + 0.06 if handles else 0.0
    height = drawing.get_figheight() + foot + legend
    drawing.set_figheight(height)
    below = (foot + legend) / height
    drawing.set_layout_engine("constrained", rect=(0, below, 1, 1 - below))
    if handles:
        drawing.legend(
            handles=list(handles),
            loc="lower left",
            bbox_to_anchor=(0.01, foot / height),
            ncols=columns,
            borderaxespad=0,
            borderpad=0,
            handlelength=2.6,
            columnspacing=1.2,
        ).set_in_layout(False)
    note = drawing.text(0.01, 4 / 72 / height, text, fontsize=6, color=GREY, ha="left", va="bottom")
    note.set_in_layout(False)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Most columns that fit side by side, from the lengths of the labels (inches, generously)."""
    for columns in range(len(labels), 1, -1):
        widest = [max(len(label) for label in labels[start::columns]) for start in range(columns)]
        if sum(0.5 + 0.056 * length for length in widest) < width:
            return columns
    return 1
