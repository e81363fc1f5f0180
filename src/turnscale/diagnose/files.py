"""The diagnosis on disk: from collected critic values to the tables that table and figure are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnscale.config.schema import Figure, Study, Table
from turnscale.diagnose.kept import diagnose_groups
from turnscale.diagnose.published import PublishedStatistic, read_published
from turnscale.diagnose.table import IDENTITY, combine, diagnose
from turnscale.diagnose.values import COLUMNS
from turnscale.errors import ConfigError
from turnscale.estimates import read_parquet
from turnscale.files import write_csv, write_parquet

STATISTICS_FILE = "critic_statistics.csv"
TRAJECTORIES_FILE = "critic_trajectories.parquet"


def write_diagnosis(
    study: Study,
    scale: str,
    tables_dir: Path,
    root: Path,
    *,
    groups: Mapping[str, int] | None = None,
    workers: int = 1,
) -> list[Path]:
    """Read ``critic_values.parquet`` and write ``critic_statistics.csv`` and ``critic_trajectories.parquet``.

    Args:
        study: whose tables and figures of kind ``critic`` name the reference and the published file.
        scale: the scale of the runs.
        tables_dir: holds the collected tables.
        root: folder that published files are relative to.
        groups: identity of a run's values -> its row group of the table, where that is known; diagnoses of runs are
            then kept in ``diagnosed/`` beside ``tables_dir`` and only new ones are made.
        workers: processes to use at most.

    Returns:
        The files written.

    Raises:
        DataError: a missing or malformed table.
        ConfigError: critic tables and figures of the study with different references.
    """
    entries: list[Table | Figure] = [*study.tables.values(), *study.figures.values()]
    entries = [entry for entry in entries if entry.kind == "critic"]
    references = {entry.reference for entry in entries if entry.reference is not None}
    if len(references) > 1:
        raise ConfigError(
            f"critic tables and figures compare with {' and '.join(sorted(references))}.",
            key=f"{study.study}: reference",
            remedy="name one reference in all of them.",
        )
    files = sorted({entry.published.file for entry in entries if entry.published is not None})
    published: list[PublishedStatistic] = [row for file in files for row in read_published(file, root)]
    reference = next(iter(references), None)
    table = tables_dir / "critic_values.parquet"
    if groups is None:
        rows, trajectories = diagnose(
            read_parquet(table, [*IDENTITY, *COLUMNS]), published, reference=reference
        )
    else:
        runs = diagnose_groups(table, groups, tables_dir.parent / "diagnosed", workers=workers)
        rows, trajectories = combine(runs, published, reference=reference)
    write_csv(rows.assign(study=study.study, scale=scale), tables_dir / STATISTICS_FILE)
    path = tables_dir / TRAJECTORIES_FILE
    write_parquet(trajectories, path)
    return [tables_dir / STATISTICS_FILE, path]
