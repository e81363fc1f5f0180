"""What a between-turn share does and does not distinguish, by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from turnscale.diagnose.nulls import NULLS, TURN_FREE

METHOD, RUN = "method", "run"


def interval_row(rows: pd.DataFrame, statistic: str) -> dict[str, Any] | None:
    """The row of a cell's statistic whose interval answers most: over seeds, or of its one run over prompts.

    Args:
        rows: tidy statistics of one family, model, cell, set and checkpoint.
        statistic: its name.

    Returns:
        The row, or None if the cell has no such number.
    """
    here = rows[(rows["statistic"] == statistic) & np.isfinite(rows["value"])]
    over_seeds = here[here["kind"] == METHOD]
    if over_seeds.empty:
        return None
    first = over_seeds.iloc[0]
    single = here[here["kind"] == RUN]
    if first["n_seeds"] == 1 and len(single) == 1:
        return dict(single.iloc[0])
    return dict(first)


def sides(rows: pd.DataFrame, nulls: pd.DataFrame) -> dict[str, str]:
    """Where a cell's token-weighted share lies beside each null: ``above``, ``below`` or ``like``.

    ``like``, not distinguished, is where the measured and the simulated interval overlap, or there is no interval.

    Args:
        rows: tidy statistics of one family, model, cell, set and checkpoint.
        nulls: those of kind ``simulated`` at the lengths of the same family, model and set.
    """
    share = interval_row(rows, "share_token")
    if share is None:
        return {}
    found = {}
    for row in nulls[nulls["statistic"] == "share_token"].to_dict("records"):
        above, below = share["lo"] > row["hi"], share["hi"] < row["lo"]
        found[str(row["method"])] = "above" if above else "below" if below else "like"
    return found


def verdict(rows: pd.DataFrame, nulls: pd.DataFrame, label: str) -> str:
    """Sentences about one cell's critics; arguments as for :func:`sides`, and the printed name of the cell."""
    share = interval_row(rows, "share_token")
    if share is None:
        return f"{label}: no trajectory has a between-turn share."
    text = f"{label}: a between-turn share of {_points(share)}"
    if not np.isfinite(share["lo"]):
        return f"{text} without an interval distinguishes nothing."
    found = sides(rows, nulls)
    values = nulls[nulls["statistic"] == "share_token"].set_index("method")["value"]
    said = []
    for side, words in (
        ("like", "is not distinguished from"),
        ("above", "lies above"),
        ("below", "lies below"),
    ):
        names = [name for name in TURN_FREE if found.get(name) == side]
        if names:
            said.append(
                f"{words} {', '.join(f'{NULLS[name][0]} ({100 * values[name]:.0f})' for name in names)}"
            )
    text += f" {'; '.join(said)}. " if said else ". "
    text += _excess(interval_row(rows, "excess_share"), nulls)
    if share["kind"] == RUN:
        text += " One training run: these intervals are about prompts, not about critics."
    return text


def _excess(row: dict[str, Any] | None, nulls: pd.DataFrame) -> str:
    if row is None:
        return "Permuting the turn lengths is untestable here."
    if not np.isfinite(row["lo"]):
        return f"Permuting the turn lengths leaves an excess of {_points(row)} points, without an interval."
    if row["lo"] > 0:
        found = "the values change more at boundaries than the order of the lengths explains"
        walk = nulls[(nulls["method"] == "walk_observations") & (nulls["statistic"] == "excess_share")]
        if len(walk):
            found += (
                f", as they do (by {_points(dict(walk.iloc[0]))}) where observations are merely elapsed time"
            )
    elif row["hi"] < 0:
        found = "the boundaries fit the values worse than the same lengths in another order"
    else:
        found = "no sign that boundaries matter beyond where they happen to lie"
    return f"Permuting the turn lengths leaves an excess of {_points(row)} points: {found}."


def _points(row: dict[str, Any]) -> str:
    text = f"{100 * row['value']:.1f}"
    if np.isfinite(row["lo"]):
        text += f" [{100 * row['lo']:.1f}, {100 * row['hi']:.1f}]"
    return text.replace("-", "−")
