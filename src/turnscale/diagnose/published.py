"""The published critic numbers, as the statistics that they are values of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from turnscale.errors import DataError
from turnscale.estimates.published import UNITS, published_rows

STATISTICS = {
    "median between-turn share, token weighted": "share_token",
    "median between-turn share, equal turns": "share_turn",
    "trajectories with between>within variance": "between_exceeds_within",
    "trajectories with mean boundary jump > within-turn P95-P05 span": "jump_exceeds_span",
    "boundary share of pooled squared adjacent changes": "boundary_share",
    "mean boundary dV on failed trajectories (Figure 2)": "boundary_change_failed",
    "mean boundary dV on successful trajectories (Figure 2)": "boundary_change_succeeded",
    "mean turns per trajectory": "turns",
}
"""Name of a metric in the published file -> statistic."""

PLAIN = {"value", "turns"}
"""Units that are not fractions."""


@dataclass(frozen=True)
class PublishedStatistic:
    """One published number.

    Attributes:
        statistic: a name of ours.
        method: whose critic, as published.
        value: a fraction, or a plain number for changes of value and counts.
        source: file, publication, table, model and setting, and how the number was obtained.
    """

    statistic: str
    method: str
    value: float
    source: str


def read_published(file: str, root: Path) -> list[PublishedStatistic]:
    """The rows of a published file that are statistics of `STATISTICS`; others are counts of what entered.

    Raises:
        DataError: a file or column that is missing, a unit that is unknown, or a value that is no number.
    """
    path = root / file
    table = published_rows(path)
    found = []
    for line, row in enumerate(table.to_dict("records"), start=2):
        statistic = STATISTICS.get(row["metric"])
        if statistic is None:
            continue
        unit = 1.0 if row["unit"] in PLAIN else UNITS.get(row["unit"])
        if unit is None:
            raise DataError(
                f"line {line}: unit '{row['unit']}'.",
                file=path,
                key="unit",
                remedy=f"use one of {', '.join(sorted({*UNITS, *PLAIN}))}.",
            )
        try:
            value = float(row["value"]) * unit
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(
                f"line {line}: '{row['value']}' is no number.",
                file=path,
                key="value",
                remedy="write a number with a decimal point.",
            )
        origin = row["status"] + (f": {row['derivation']}" if row["derivation"] else "")
        source = f"{file}: {row['study']}; {row['model']} on {row['benchmark']} ({origin})"
        found.append(PublishedStatistic(statistic, row["method"], value, source))
    return found
