"""The critic's values over turns: four panels as published, with simulated critics and published values beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from turnscale.config.schema import Figure
from turnscale.diagnose.table import OWN
from turnscale.diagnose.verdict import interval_row
from turnscale.render.critic import sentence
from turnscale.render.data import Tables
from turnscale.render.figures.common import finish, handle, heading, missing
from turnscale.render.style import BLACK, FAINT, GREY, grid, look, say
from turnscale.render.text import plot

COLUMNS = ["panel", "family", "model", "cell", "set", "checkpoint", "statistic", "x", "value", "lo", "hi"]
DOTS = 1500
"""Trajectories drawn in the first panel, at most."""
CURVE = 200
"""Points of a cumulative distribution, at most."""
PUBLISHED_LINE = (0, (4, 1.5, 1, 1.5))
PAIRS_LINE = (0, (1, 1.5))
LOW, HIGH = 0.02, 50.0
"""Ends of the axis of jump / span; ratios beyond them stand at the end."""
SHOWN_NULLS = ("drift", "walk_observations", "random_walk", "ou_slow", "white_noise")
SHORT = {
    "drift": "line",
    "walk_observations": "walk incl. obs.",
    "random_walk": "walk",
    "ou_slow": "reverting",
    "white_noise": "noise",
}
Rows = list[dict[str, Any]]


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """A row of four panels for each family and model: RMS, share over training, jump over span, squared change."""
    rows, every = tables.critic_statistics, tables.critic_trajectories
    cells = tables.cells(figure)
    reference = figure.reference or cells[0]
    drawing, axes = grid(len(tables.arms), 4, height=0.35 + 2.0 * len(tables.arms))
    data: Rows = []
    shown: list[str] = []
    for lane, (family, model) in enumerate(tables.arms):
        own = rows[(rows["family"] == family) & (rows["model"] == model) & (rows["set"] == OWN)]
        critics = [cell for cell in cells if (own["cell"] == cell).any()]
        shown += critics
        panels = axes[lane]
        _titles(panels, heading(tables, family, model))
        if not critics:
            for panel in panels:
                say(panel, "no critic here")
            continue
        mine = every.iloc[:0]
        if len(every):
            mine = every[(every["family"] == family) & (every["model"] == model) & (every["set"] == OWN)]
            mine = mine[mine["checkpoint"] > 0]
        stands = figure.published is not None and model in figure.published.models
        outside = rows[rows["kind"] == "published"] if stands else rows.iloc[:0]
        place = {"family": family, "model": model, "set": OWN}
        found = [
            *_deviations(panels[0], mine, critics, reference),
            *_shares(panels[1], own, critics, reference, outside),
            *_ratios(panels[2], mine, critics, outside),
            *_changes(panels[3], own, critics, reference, outside),
        ]
        if reference not in critics:
            say(panels[0], missing(tables, family, model, reference))
        data += [{**place, **row} for row in found]
    _finish(drawing, tables, figure, [cell for cell in cells if cell in shown], reference)
    return drawing, pd.DataFrame(data, columns=COLUMNS)


def _titles(panels: Sequence[Axes], who: str) -> None:
    for panel, title, across, up in zip(
        panels,
        (
            "(a) deviation, per trajectory",
            "(b) between-turn share",
            "(c) boundary jump / span",
            "(d) squared change",
        ),
        ("RMS within turns", "training step", "mean jump / mean span", "training step"),
        (f"{who}\nRMS between turns", "median share (%)", "trajectories (%)", "at turn boundaries (%)"),
        strict=True,
    ):
        panel.set_title(title)
        panel.set_xlabel(across)
        panel.set_ylabel(up)


def _deviations(panel: Axes, every: pd.DataFrame, cells: Sequence[str], reference: str) -> Rows:
    """A dot per trajectory of the reference, a large marker at each cell's medians, and the line of equality."""
    data: Rows = []
    known = every[np.isfinite(every["share_token"])]
    dots = known[known["cell"] == reference]
    if len(dots) > DOTS:
        dots = dots.iloc[np.linspace(0, len(dots) - 1, DOTS).round().astype(int)]
    style = look(reference)
    x, y = np.sqrt(dots["within"].to_numpy()), np.sqrt(dots["between"].to_numpy())
    panel.plot(x, y, linestyle="", marker=".", markersize=2, color=style.color, alpha=0.3, markeredgewidth=0)
    data += [
        {"panel": "a", "cell": reference, "statistic": "trajectory", "x": a, "value": b, "checkpoint": c}
        for a, b, c in zip(x, y, dots["checkpoint"], strict=True)
    ]
    top = 0.0
    for cell in cells:
        part = known[known["cell"] == cell]
        if part.empty:
            continue
        middle = [float(np.sqrt(part[name]).median()) for name in ("within", "between")]
        mark = look(cell)
        panel.plot(
            *([value] for value in middle),
            linestyle="",
            marker=mark.marker,
            color=mark.color,
            markeredgecolor="white",
            markersize=6,
            zorder=4,
        )
        top = max(top, *(2.5 * value for value in middle))
        data.append({"panel": "a", "cell": cell, "statistic": "median", "x": middle[0], "value": middle[1]})
    if x.size:
        top = max(top, float(np.quantile(np.concatenate([x, y]), 0.995)))
    if not known.size:
        say(panel, "no value varies")
    top = top * 1.05 or 1.0
    panel.plot([0, top], [0, top], color=BLACK, linewidth=0.8, linestyle=(0, (4, 2)))
    panel.set_xlim(0, top)
    panel.set_ylim(0, top)
    return data


def _shares(
    panel: Axes, own: pd.DataFrame, cells: Sequence[str], reference: str, outside: pd.DataFrame
) -> Rows:
    """Both weightings of the reference and the token weighting of the others over training; nulls at the right."""
    data: Rows = []
    for cell in cells:
        for statistic in ("share_token", "share_turn") if cell == reference else ("share_token",):
            line = over_training(own, cell, statistic)
            _line(panel, line, cell, hollow=statistic == "share_turn", band=cell == reference)
            data += _records(line, "b")
    if not data:
        say(panel, "no value varies")
    data += _published_lines(panel, outside, ("share_token", "share_turn"), "b")
    data += _null_marks(panel, own)
    panel.set_ylim(0, 102)
    _steps(panel)
    return data


def _ratios(panel: Axes, every: pd.DataFrame, cells: Sequence[str], outside: pd.DataFrame) -> Rows:
    """Cumulative distribution of jump / span; what is left of 1 has a smaller jump than span."""
    data: Rows = []
    for cell in cells:
        part = every[(every["cell"] == cell) & (every["turns"] > 1)]
        if part.empty:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (part["jump"] / part["span"]).to_numpy(dtype=np.float64)
        # A flat trajectory (0 / 0) has no jump beyond its span.
        ratio = np.sort(np.nan_to_num(ratio, nan=0.0, posinf=np.inf))
        height = np.arange(1, ratio.size + 1) / ratio.size
        kept = np.unique(np.linspace(0, ratio.size - 1, CURVE).round().astype(int))
        style = look(cell)
        panel.plot(
            np.clip(ratio[kept], LOW, HIGH), 100 * height[kept], color=style.color, linestyle=style.line
        )
        data += [
            {"panel": "c", "cell": cell, "statistic": "jump_over_span", "x": a, "value": b}
            for a, b in zip(ratio[kept], height[kept], strict=True)
        ]
    panel.axvline(1.0, color=BLACK, linewidth=0.8, linestyle=(0, (4, 2)))
    for row in outside[outside["statistic"] == "jump_exceeds_span"].to_dict("records"):
        panel.plot(
            [1.0],
            [100 * (1 - row["value"])],
            marker="o",
            markerfacecolor="white",
            color=GREY,
            markersize=5,
            zorder=4,
        )
        data.append({"panel": "c", "statistic": "published", "x": 1.0, "value": 1 - row["value"]})
    panel.set_xscale("log")
    panel.set_xlim(LOW, HIGH)
    panel.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    panel.set_ylim(0, 102)
    return data


def _changes(
    panel: Axes, own: pd.DataFrame, cells: Sequence[str], reference: str, outside: pd.DataFrame
) -> Rows:
    """Share of the squared change that is at boundaries, over training, and the reference's share of token pairs."""
    data: Rows = []
    for cell in cells:
        line = over_training(own, cell, "boundary_share")
        _line(panel, line, cell, band=cell == reference)
        data += _records(line, "d")
    if not data:
        say(panel, "no value varies")
    pairs = over_training(own, reference, "boundary_pairs")
    panel.plot(pairs["x"], 100 * pairs["value"], color=BLACK, linewidth=0.9, linestyle=PAIRS_LINE, zorder=5)
    data += _records(pairs, "d")
    data += _published_lines(panel, outside, ("boundary_share",), "d")
    panel.set_ylim(0, 102)
    _steps(panel)
    return data


def over_training(own: pd.DataFrame, cell: str, statistic: str) -> pd.DataFrame:
    """A statistic of a cell at each checkpoint, with the interval over seeds, or over prompts for one run."""
    found: Rows = []
    part = own[(own["cell"] == cell) & own["checkpoint"].notna()]
    for checkpoint in sorted(set(part["checkpoint"])):
        row = interval_row(part[part["checkpoint"] == checkpoint], statistic)
        if row is not None:
            values = {key: row[key] for key in ("value", "lo", "hi")}
            place = {"cell": cell, "checkpoint": checkpoint, "statistic": statistic, "x": float(checkpoint)}
            found.append({**place, **values})
    columns = ["cell", "checkpoint", "statistic", "x", "value", "lo", "hi"]
    return pd.DataFrame(found, columns=columns)


def _line(panel: Axes, line: pd.DataFrame, cell: str, *, hollow: bool = False, band: bool = False) -> None:
    if line.empty:
        return
    style, x = look(cell), line["x"].to_numpy(np.float64)
    if band:
        lo, hi = 100 * line["lo"].to_numpy(np.float64), 100 * line["hi"].to_numpy(np.float64)
        panel.fill_between(x, lo, hi, color=style.color, alpha=0.13, linewidth=0)
    panel.plot(
        x,
        100 * line["value"].to_numpy(np.float64),
        color=style.color,
        linestyle=style.line if not hollow else (0, (2, 1.5)),
        marker=style.marker,
        markersize=2.8,
        markerfacecolor="white" if hollow else style.color,
    )


def _published_lines(panel: Axes, outside: pd.DataFrame, names: Sequence[str], letter: str) -> Rows:
    data: Rows = []
    for row in outside[outside["statistic"].isin(names)].to_dict("records"):
        panel.axhline(100 * row["value"], color=GREY, linewidth=0.8, linestyle=PUBLISHED_LINE)
        data.append({"panel": letter, "statistic": f"published:{row['statistic']}", "value": row["value"]})
    return data


def _null_marks(panel: Axes, own: pd.DataFrame) -> Rows:
    """Simulated critics as ticks at the right edge, their names spread so that none runs into another."""
    nulls = own[(own["kind"] == "simulated") & (own["statistic"] == "share_token")]
    known = {str(row["method"]): 100 * float(row["value"]) for row in nulls.to_dict("records")}
    names = [name for name in SHOWN_NULLS if np.isfinite(known.get(name, np.nan))]
    heights = [known[name] for name in names]
    order = sorted(range(len(names)), key=lambda i: heights[i])
    placed, last = {}, -np.inf
    for i in order:
        last = max(heights[i], last + 7.5)
        placed[i] = last
    excess = max(0.0, last - 99.0) if order else 0.0
    for i in order:
        # Never pushed below where it stands by more than what hangs over the top.
        text_y = placed[i] - (excess if heights[i] > 45 else 0.0)
        panel.annotate(
            SHORT[names[i]], (1.0, heights[i]), (1.06, text_y), xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"), fontsize=5.5, color=GREY, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    return [
        {"panel": "b", "statistic": f"simulated:{name}", "value": height / 100}
        for name, height in zip(names, heights, strict=True)
    ]


def _records(table: pd.DataFrame, panel: str) -> Rows:
    return [
        {**{str(key): value for key, value in row.items()}, "panel": panel}
        for row in table.to_dict("records")
    ]


def _steps(panel: Axes) -> None:
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _finish(drawing: Drawing, tables: Tables, figure: Figure, cells: Sequence[str], reference: str) -> None:
    label = tables.label(reference)
    notes = [
        f"Own training rollouts. (a) A dot per trajectory of {label}, large markers at medians; dashed: equality. "
        "(b) Filled: tokens weighted equally; hollow: turns equally. At the right, simulated critics that know "
        "nothing of turns, at the same turn and observation lengths. (c) Left of the dashed line the jump is smaller "
        "than the span. (d) The rest of the squared change is within turns. Bands: 95 % over seeds (one run: over "
        f"prompts), of {label}.",
        *sentence(tables, figure),
    ]
    if figure.published is not None:
        notes.append("Published: one run of another model on another benchmark.")
    handles: list[Line2D] = [handle(tables, cell) for cell in cells]
    if cells:
        pairs = plot(f"boundaries among token pairs, {label}")
        handles.append(Line2D([], [], color=BLACK, linewidth=0.9, linestyle=PAIRS_LINE, label=pairs))
    if cells and figure.published is not None:
        handles.append(
            Line2D(
                [],
                [],
                color=GREY,
                linewidth=0.8,
                linestyle=PUBLISHED_LINE,
                marker="o",
                markerfacecolor="white",
                label="published",
            )
        )
    finish(drawing, tables, figure.title, notes, handles)
