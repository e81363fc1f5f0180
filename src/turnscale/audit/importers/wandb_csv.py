"""The runs table of Weights & Biases, exported as CSV: one row per run, so one score per training seed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from turnscale.audit.importers.common import Imported
from turnscale.audit.table import check_scores, read_table
from turnscale.errors import DataError


def read_wandb(
    path: str | Path, *, arm_column: str, seed_column: str, score_column: str, percent: bool = False
) -> Imported:
    """Seed scores from an exported runs table (columns ``Name``, ``State`` and whatever was shown).

    Runs that did not finish are left out and counted in the notes. ``percent`` divides the scores by 100. Raises
    DataError for a missing column, a missing score of a finished run, or an arm with a seed twice.
    """
    frame = read_table(path)
    for name in (arm_column, seed_column, score_column):
        if name not in frame.columns:
            raise DataError(
                f"no column {name!r}; it has {', '.join(frame.columns)[:200]}.",
                file=path,
                key=name,
                remedy="show the column in the runs table before exporting, or name another.",
            )
    if "State" not in frame.columns:
        raise DataError(
            "no column 'State': crashed runs could not be told from finished ones.",
            file=path,
            key="State",
            remedy="show the State column before exporting.",
        )
    finished = frame["State"].astype(str).str.lower() == "finished"
    kept = frame[finished]
    if kept.empty:
        raise DataError(
            "no run has finished.", file=path, key="State", remedy="export after the runs have ended."
        )
    scores = pd.DataFrame({"arm": kept[arm_column], "seed": kept[seed_column], "score": kept[score_column]})
    if percent:
        scores["score"] = pd.to_numeric(scores["score"], errors="coerce") / 100.0
    note = f"{len(frame)} runs planned, {len(kept)} finished, {int((~finished).sum())} left out"
    return Imported(check_scores(scores.set_index(kept.index), path).reset_index(drop=True), (note,))
