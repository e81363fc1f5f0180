"""What a table or figure reads: the tidy tables of one study at one scale, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pandas as pd

from turnscale.config.schema import Figure, Study, Table
from turnscale.diagnose.files import STATISTICS_FILE, TRAJECTORIES_FILE
from turnscale.diagnose.table import DRAWN, ROWS
from turnscale.errors import ConfigError, DataError
from turnscale.estimates import read_parquet
from turnscale.estimates.compare import cells_of, entries_of
from turnscale.estimates.schema import COMPARISONS, ESTIMATES, LOOKS, SURVIVORSHIP, TEXT, read_csv
from turnscale.estimates.scores import METRICS
from turnscale.files import sha256
from turnscale.stats.question import Question

DEFAULT = str(Question.METHOD_NEW_TASKS)
TASKS = str(Question.TASKS_LIKE_THESE)
RETRAINED = str(Question.METHOD_RETRAINED)

Entry = TypeVar("Entry", Table, Figure)

PROXY = (
    "Local proxy: the models and benchmarks are small stand-ins trained and measured here, not the published "
    "ones; local numbers neither confirm nor refute published numbers."
)
UNPUBLISHED = "Measured here on the models and task panels named; no published value stands beside them."
SUPPLIED = "Measured here on the models and benchmark files supplied by the user."


@dataclass(frozen=True)
class Tables:
    """The tidy tables of a study at a scale, read when first used."""

    study: Study
    scale: str
    folder: Path

    @cached_property
    def estimates(self) -> pd.DataFrame:
        """estimates.csv.

        Raises:
            DataError: missing or malformed, or of another study or scale.
        """
        return self._own(read_csv(self.folder / "estimates.csv", ESTIMATES), "estimates.csv")

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """comparisons.csv. Raises DataError as `estimates`."""
        return self._own(read_csv(self.folder / "comparisons.csv", COMPARISONS), "comparisons.csv")

    @cached_property
    def looks(self) -> pd.DataFrame:
        """looks.csv: the comparisons that the declared plan covers. Raises DataError as `estimates`."""
        return self._own(read_csv(self.folder / "looks.csv", LOOKS), "looks.csv")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.parquet: one row per run, step and metric."""
        return read_parquet(self.folder / "metrics.parquet", METRICS)

    @cached_property
    def critic_statistics(self) -> pd.DataFrame:
        """critic_statistics.csv, text as categories: it has a row for every run. Raises DataError as `estimates`."""
        rows = self._own(read_csv(self.folder / STATISTICS_FILE, ROWS), STATISTICS_FILE)
        return rows.astype({name: "category" for name in ROWS if name in TEXT and name != "published_source"})

    @cached_property
    def critic_trajectories(self) -> pd.DataFrame:
        """The columns of critic_trajectories.parquet that are drawn, a row per run, set, checkpoint and trajectory.

        Raises:
            DataError: missing or damaged.
        """
        return read_parquet(self.folder / TRAJECTORIES_FILE, DRAWN)

    @cached_property
    def survivorship(self) -> pd.DataFrame:
        """survivorship.csv: what became of the planned runs, by family, model and cell.

        Raises:
            DataError: missing or malformed.
        """
        return read_csv(self.folder / "survivorship.csv", SURVIVORSHIP)

    def label(self, cell: str) -> str:
        """The printed name of a cell."""
        return self.study.cells[cell].label or cell

    def cells(self, entry: Table | Figure) -> list[str]:
        """Cells of a table or figure, each once, in the study's order."""
        return cells_of(self.study, entry)

    @property
    def arms(self) -> list[tuple[str, str]]:
        """(family, model) pairs in the order of the table."""
        pairs = self.estimates[["family", "model"]].drop_duplicates()
        return [(str(family), str(model)) for family, model in pairs.itertuples(index=False)]

    def statement(self) -> str:
        """Whether what is shown is a stand-in for what was published."""
        entries = entries_of(self.study)
        stand_ins = {model for entry in entries if entry.published for model in entry.published.models}
        if not stand_ins:
            return UNPUBLISHED
        return PROXY if stand_ins & {model for _, model in self.arms} else SUPPLIED

    def hashes(self, table: str) -> dict[str, str]:
        """SHA-256 of every file that a table of the study can be made from.

        The diagnosis of critics is made beside the other tables, so it counts for its own tables alone.
        """
        entry = self.study.tables.get(table)
        others = () if entry is not None and entry.kind == "critic" else (STATISTICS_FILE, TRAJECTORIES_FILE)
        return {name: value for name, value in self._hashes.items() if name not in others}

    @cached_property
    def _hashes(self) -> dict[str, str]:
        paths = sorted(path for path in self.folder.iterdir() if path.suffix in (".csv", ".parquet"))
        return {path.name: sha256(path) for path in paths}

    def _own(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        wrong = table[(table["study"] != self.study.study) | (table["scale"] != self.scale)]
        if len(wrong):
            raise DataError(
                f"holds rows of study '{wrong.iloc[0]['study']}' at scale '{wrong.iloc[0]['scale']}', "
                f"not of '{self.study.study}' at '{self.scale}'.",
                file=self.folder / name,
                key="study",
                remedy="make the estimates of this study and scale.",
            )
        return table


def entry_of(entries: dict[str, Entry], name: str, kind: str, study: str) -> Entry:
    """The table or figure of that name, which must be a plain file name.

    Raises:
        ConfigError: no such entry.
    """
    if name not in entries or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise ConfigError(
            f"the study '{study}' has no {kind} '{name}'.",
            key=f"{kind}s.{name}",
            remedy=f"choose from: {', '.join(entries)}." if entries else f"add it under '{kind}s'.",
        )
    return entries[name]
