"""Training dynamics: what the critic, the ratio and the rollouts did, one panel per quantity."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from turnscale.config.schema import Figure
from turnscale.estimates.series import over_seeds
from turnscale.render.data import Tables
from turnscale.render.figures.common import finish, handle, heading, logged, missing, series
from turnscale.render.style import grid, look, say
from turnscale.render.text import plot

QUANTITIES = (
    ("explained_variance", "critic: explained variance", "fraction"),
    ("entropy", "policy entropy", "nats per token"),
    ("clip_fraction", "clipped ratios", "fraction"),
    ("kl", "KL within an update", "d²/2, nats per token"),
    ("grad_norm", "gradient norm", "before clipping"),
    ("turns", "turns", "per trajectory"),
    ("action_tokens", "action tokens", "per trajectory"),
)
BUCKET = re.compile(r"clip_fraction_len_([0-9]+)_([0-9]+|up)")
COLUMNS = 4


def draw(tables: Tables, name: str, figure: Figure) -> tuple[Drawing, pd.DataFrame]:
    """Per model a block of eight panels: seven quantities over steps, and clipping by turn length."""
    cells = tables.cells(figure)
    per_arm = -(-(len(QUANTITIES) + 1) // COLUMNS)
    drawing, axes = grid(per_arm * len(tables.arms), COLUMNS, height=0.3 + 1.55 * per_arm * len(tables.arms))
    data: list[pd.DataFrame] = []
    seen: set[str] = set()
    absent: list[str] = []
    for number, (family, model) in enumerate(tables.arms):
        panels = axes[number * per_arm : (number + 1) * per_arm].ravel()
        for panel, (metric, title, unit) in zip(panels, QUANTITIES, strict=False):
            panel.set_title(title)
            panel.set_xlabel("training step")
            first_of_row = panel in axes[:, 0]
            panel.set_ylabel(f"{heading(tables, family, model)}\n{unit}" if first_of_row else unit)
            for cell in cells:
                found = series(tables, family, model, cell, metric)
                if found is None:
                    continue
                seen.add(cell)
                style = look(cell)
                panel.plot(found.steps, found.mean, color=style.color, linestyle=style.line, linewidth=1.1)
                panel.fill_between(
                    found.steps, found.lo, found.hi, color=style.color, alpha=0.08, linewidth=0
                )
                data.append(found.rows(family=family, model=model, cell=cell, metric=metric))
            if panel.lines:
                _frame(panel)
            else:
                say(panel, "not logged")
        last = panels[len(QUANTITIES)]
        last.set_title("clipping by turn length")
        data += _by_length(last, tables, family, model, cells)
        for cell in cells:
            if not _logged(tables, family, model, cell):
                why = missing(tables, family, model, cell).replace("\n", " ")
                absent.append(f"{tables.label(cell)}{f' on {model}' if len(tables.arms) > 1 else ''}: {why}")
    notes = [
        "Lines: mean over seeds, in blocks of steps. Bands: 95 % interval over seeds at each step alone; none for "
        "a single seed; axes show the means in full and may cut wide bands.",
        "By turn length: mean over all steps, with the same interval.",
    ]
    if absent:
        notes.append(f"Not shown: {'; '.join(absent)}.")
    finish(drawing, tables, figure.title, notes, [handle(tables, cell) for cell in cells if cell in seen])
    columns = ["family", "model", "cell", "metric", "seed", "step", "value", "lo", "hi"]
    return drawing, pd.concat(data, ignore_index=True)[columns] if data else pd.DataFrame(columns=columns)


def buckets(metrics: pd.Series) -> list[tuple[str, str]]:
    """(metric name, printed range of action tokens) of every turn-length bucket, shortest first."""
    found = [(match, str(name)) for name in metrics.unique() if (match := BUCKET.fullmatch(str(name)))]
    found.sort(key=lambda pair: int(pair[0][1]))
    return [
        (
            name,
            f"≥{match[1]}"
            if match[2] == "up"
            else match[1]
            if match[1] == match[2]
            else f"{match[1]}–{match[2]}",
        )
        for match, name in found
    ]


def _by_length(panel: Axes, tables: Tables, family: str, model: str, cells: list[str]) -> list[pd.DataFrame]:
    panel.set_xlabel("action tokens of the turn")
    panel.set_ylabel("fraction")
    ranges = buckets(tables.metrics["metric"])
    data = []
    for place, cell in enumerate(cells):
        style = look(cell)
        for position, (metric, _) in enumerate(ranges):
            # A length may occur at some steps only, and at others in another seed: each seed's own steps count.
            found = logged(tables, family, model, cell, metric)
            if found.empty:
                continue
            means = found.groupby("seed")["value"].mean().to_numpy(dtype=np.float64)[:, None]
            mean, lo, hi = (float(part[0]) for part in over_seeds(means))
            x = position + (place - (len(cells) - 1) / 2) * 0.8 / max(1, len(cells))
            if np.isfinite(lo):
                panel.plot([x, x], [max(0.0, lo), hi], color=style.color, linewidth=0.9)
            panel.plot([x], [mean], color=style.color, marker=style.marker, markersize=3.2, linestyle="")
            row = {
                "family": family,
                "model": model,
                "cell": cell,
                "metric": metric,
                "value": mean,
                "lo": lo,
                "hi": hi,
            }
            data.append(pd.DataFrame([{**row, "seed": pd.NA, "step": np.nan}]))
    if not data:
        say(panel, "not logged")
        return data
    panel.set_xticks(range(len(ranges)), [plot(label) for _, label in ranges])
    panel.set_xlim(-0.5, len(ranges) - 0.5)
    panel.set_ylim(bottom=0)
    panel.grid(visible=False, axis="x")
    return data


def _logged(tables: Tables, family: str, model: str, cell: str) -> bool:
    every = tables.metrics
    return bool(((every["family"] == family) & (every["model"] == model) & (every["cell"] == cell)).any())


def _frame(panel: Axes) -> None:
    """Limits that show every mean with a margin; a band may reach beyond."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in panel.lines])
    low, high = float(values.min()), float(values.max())
    room = 0.35 * (high - low) or 0.1 * abs(high) or 0.1
    panel.set_ylim(max(0.0, low - room) if low >= 0 else low - room, high + room)
    panel.margins(x=0.02)
