"""The figures of a tabular study, read from its tidy tables alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from turnscale.errors import ConfigError
from turnscale.files import write_csv
from turnscale.render.figures.common import finish
from turnscale.render.style import BLACK, BLUE, GREY, LINES, ORANGE, RC, VERMILION, Look, grid, look, save
from turnscale.tabular.plan import ON_POLICY, SCORE, TabularPlan
from turnscale.tabular.report import Results
from turnscale.tabular.results import RANGE
from turnscale.tabular.task import ProbeTask

LOOKS = {
    "traj": Look(ORANGE, "s", LINES[0]),
    "anchor": Look(BLUE, "D", LINES[1]),
    "tree": Look(VERMILION, "o", LINES[3]),
}
SHADES = ("#a6cde6", "#5fa8d3", "#2171b5", "#08306b")
"""Light to dark, for few turns to many."""


def render_figure(plan: TabularPlan, name: str, out_dir: Path) -> list[Path]:
    """Write one figure as ``<name>.pdf``, ``.png`` and the ``.csv`` it shows.

    Raises:
        ConfigError: no such figure.
        DataError: a tidy table is missing or malformed.
    """
    if name not in DRAWERS:
        raise ConfigError(
            f"there is no figure '{name}'.", key=name, remedy=f"choose from: {', '.join(DRAWERS)}."
        )
    with mpl.rc_context(RC):
        drawing, table = DRAWERS[name](Results(plan))
        paths = save(drawing, out_dir, name)
    write_csv(table, out_dir / f"{name}.csv")
    return [*paths, out_dir / f"{name}.csv"]


PANELS = (
    (SCORE, "accuracy (%)", 100.0),
    ("singleton_bucket_share", "degenerate rate (%)", 100.0),
    ("dead_step_share", "steps with advantage 0 (%)", 100.0),
    ("distinct_tools", "different tools probed", 1.0),
)


def accuracy(results: Results) -> tuple[Drawing, pd.DataFrame]:
    """Accuracy, degenerate buckets, dead steps and distinct tools against T, published values hollow."""
    drawing, axes = grid(1, len(PANELS), height=2.3)
    shown = []
    cells = list(results.study.cells)
    for panel, (metric, label, factor) in zip(axes[0], PANELS, strict=True):
        for place, cell in enumerate(cells):
            rows = results.estimates
            own = rows[(rows["metric"] == metric) & (rows["cell"] == cell)].sort_values("benchmark")
            turns = own["benchmark"].str.removeprefix("t").astype(int).to_numpy() + 0.1 * (
                place - (len(cells) - 1) / 2
            )
            draw_line(panel, turns, own, LOOKS.get(cell, look(cell)), factor)
            if metric == SCORE:
                draw_ranges(panel, turns, results, cell)
            shown.append(own)
        if metric == SCORE:
            best = [100 * ProbeTask(turns).optimum for turns in results.turns]
            panel.plot(results.turns, best, color=BLACK, linewidth=0.8, linestyle=LINES[2], zorder=1)
        panel.set_title(label)
        panel.set_xlabel("turns T")
        panel.set_xticks(results.turns)
        top = panel.get_ylim()[1]
        panel.set_ylim(-0.03 * top, 1.04 * top)
    handles = [
        Line2D([], [], color=LOOKS.get(cell, look(cell)).color, marker=LOOKS.get(cell, look(cell)).marker,
               linestyle=LOOKS.get(cell, look(cell)).line, label=results.plan.label(cell))
        for cell in cells
    ]  # fmt: skip
    handles += [
        Line2D(
            [],
            [],
            color=GREY,
            marker="o",
            markerfacecolor="none",
            markersize=6.5,
            linestyle="",
            label="published",
        ),
        Line2D([], [], color=BLACK, linewidth=0.8, linestyle=LINES[2], label="optimum"),
    ]
    draw = results.study.draw
    notes = [
        "Degenerate rate: buckets of one sample among the buckets of the method's own credit.",
        f"Bars: 95 % t intervals over {int(results.estimates['n_seeds'].max())} seeds.",
    ]
    if (results.estimates["metric"] == RANGE).any():
        notes.append(f"Wide faint bars: the range that holds 95 % of means of {draw} seeds.")
        handles.append(
            Line2D([], [], color=GREY, alpha=0.35, linewidth=4, label=f"95 % of means of {draw} seeds")
        )
    notes.append(
        f"Hollow: published, means of {draw} seeds. Points are moved sideways a little for legibility."
    )
    finish(drawing, results, results.study.title, notes, handles)
    return drawing, pd.concat(shown, ignore_index=True)


def draw_line(panel: Axes, turns: np.ndarray, own: pd.DataFrame, style: Look, factor: float) -> None:
    """Means with intervals, and published values hollow."""
    value = factor * own["value"].to_numpy()
    spread = factor * np.abs(own[["lo", "hi"]].to_numpy().T - own["value"].to_numpy())
    panel.errorbar(
        turns, value, yerr=np.nan_to_num(spread), color=style.color, marker=style.marker, linestyle=style.line,
        markersize=3.5, elinewidth=1.0, capsize=1.5, zorder=3,
    )  # fmt: skip
    panel.plot(
        turns, factor * own["published"].to_numpy(dtype=float), color=style.color, marker=style.marker,
        linestyle="", markerfacecolor="none", markersize=6.5, markeredgewidth=1.0, zorder=4,
    )  # fmt: skip


def draw_ranges(panel: Axes, turns: np.ndarray, results: Results, cell: str) -> None:
    """Where means of a few seeds lie, as wide faint bars."""
    rows = results.estimates
    own = rows[(rows["metric"] == RANGE) & (rows["cell"] == cell)].sort_values("benchmark")
    if len(own) == len(turns):
        color = LOOKS.get(cell, look(cell)).color
        panel.vlines(turns, 100 * own["lo"], 100 * own["hi"], color=color, alpha=0.3, linewidth=4, zorder=2)


QUALITIES = (
    ("cosine", "cosine of the mean\nwith the gradient"),
    ("snr_per_100_calls", "signal to noise\nper 100 calls"),
    ("dead_token_share", "tokens with\nadvantage 0 (share)"),
)


def estimators(results: Results) -> tuple[Drawing, pd.DataFrame]:
    """On the policy: direction, signal to noise and dead tokens by T; off it: direction by ratio."""
    wanted = results.study.estimators
    size, longest = max(wanted.group_sizes), max(wanted.turns)
    table = results.estimators
    table = table[table["group_size"] == size]
    credits = list(wanted.credits)
    drawing, axes = grid(len(wanted.tokens), 4, height=0.4 + 2.2 * len(wanted.tokens), share_y="all")
    shown = []
    for lane, tokens in enumerate(wanted.tokens):
        own = table[table["tokens"] == tokens]
        here = own[own["ratio"] == ON_POLICY]
        for panel, (metric, label) in zip(axes[lane], QUALITIES, strict=False):
            rows = here[here["metric"] == metric]
            for place, turns in enumerate(wanted.turns):
                shift = 0.14 * (place - (len(wanted.turns) - 1) / 2)
                dots(
                    panel, rows[rows["turns"] == turns], credits, shift, shade(place, len(wanted.turns)), "o"
                )
            panel.set_xlabel(label)
            shown.append(rows)
        rows = own[(own["ratio"] != ON_POLICY) & (own["metric"] == "cosine") & (own["turns"] == longest)]
        for place, (ratio, (color, marker)) in enumerate(zip(wanted.ratios, RATIO_LOOKS, strict=False)):
            shift = 0.2 * (place - (len(wanted.ratios) - 1) / 2)
            dots(axes[lane, 3], rows[rows["ratio"] == ratio], credits, shift, color, marker)
        shown.append(rows)
        axes[lane, 3].set_xlabel(f"cosine off the policy,\nT = {longest}, by ratio")
        axes[lane, 0].set_title(f"{'One token' if tokens == 1 else 'Two tokens'} per turn", loc="left")
        for column in (1, 2):
            axes[lane, column].set_xlim(left=0)
    names = [wanted.credits[credit].label or credit for credit in credits]
    axes[0, 0].set_yticks(range(len(credits)), names)
    axes[0, 0].set_ylim(len(credits) - 0.5, -0.5)
    for column in range(4):
        _same_limits(axes[:, column])
    handles = [
        Line2D([], [], color=shade(place, len(wanted.turns)), marker="o", linestyle="", label=f"T = {turns}")
        for place, turns in enumerate(wanted.turns)
    ]
    handles += [
        Line2D([], [], color=color, marker=marker, linestyle="", label=f"{ratio} ratio")
        for ratio, (color, marker) in zip(wanted.ratios, RATIO_LOOKS, strict=False)
    ]
    notes = [
        f"Groups of {size}; bars: 95 % jackknife intervals. Critics are exact. Off the policy: "
        f"{wanted.off_policy_kl:g} nats from the sampler. With one token per turn the turn ratio is the token ratio. "
        "Normalised estimators aim at another quantity than the gradient; the cosine says how far they point from it."
    ]
    finish(
        drawing, results, "Gradient estimators against the exact gradient of the probe task", notes, handles
    )
    return drawing, pd.concat(shown, ignore_index=True)


RATIO_LOOKS = ((ORANGE, "s"), (VERMILION, "o"), (BLUE, "^"))


def shade(place: int, count: int) -> str:
    """A colour for the place-th of count numbers of turns."""
    return SHADES[round(place * (len(SHADES) - 1) / max(1, count - 1))]


def dots(panel: Axes, rows: pd.DataFrame, credits: list[str], shift: float, color: str, marker: str) -> None:
    """One point with its interval per credit, on the credit's line."""
    heights = rows["credit"].map(credits.index).to_numpy(dtype=float) + shift
    value = rows["value"].to_numpy(dtype=float)
    spread = np.abs(rows[["lo", "hi"]].to_numpy(dtype=float).T - value)
    panel.errorbar(
        value, heights, xerr=spread, color=color, marker=marker, markersize=2.8, linestyle="", elinewidth=0.8
    )


def _same_limits(axes: np.ndarray) -> None:
    lows, highs = zip(*(panel.get_xlim() for panel in axes), strict=True)
    for panel in axes:
        panel.set_xlim(min(lows), max(highs))


DRAWERS: dict[str, Callable[[Results], tuple[Drawing, pd.DataFrame]]] = {
    "grouping_accuracy": accuracy,
    "grouping_estimators": estimators,
}
