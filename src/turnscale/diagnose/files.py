"""The diagnosis on disk: from collected critic values to the tables that table and figure are drawn from."""

from __future__ import annotations

from pathlib import Path

from turnscale.config.schema import Figure, Study, Table
from turnscale.diagnose.published import PublishedStatistic, read_published
from turnscale.diagnose.table import IDENTITY, diagnose
from turnscale.diagnose.values import COLUMNS
from turnscale.errors import ConfigError
from turnscale.estimates import read_parquet
from turnscale.files import write_csv, write_parquet

STATISTICS_FILE = "critic_statistics.csv"
TRAJECTORIES_FILE = "critic_trajectories.parquet"


def write_diagnosis(study: Study, scale: str, tables_dir: Path, root: Path) -> list[Path]:
    """Read ``critic_values.parquet`` and write ``critic_statistics.csv`` and ``critic_trajectories.parquet``.

    Args:
        study: whose tables and figures of kind ``critic`` name the reference and the published file.
        scale: the scale of the runs.
        tables_dir: holds the collected tables.
        root: folder that published files are relative to.

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
    values = read_parquet(tables_dir / "critic_values.parquet", [*IDENTITY, *COLUMNS])
    rows, trajectories = diagnose(values, published, reference=next(iter(references), None))
    write_csv(rows.assign(study=study.study, scale=scale), tables_dir / STATISTICS_FILE)
    path = tables_dir / TRAJECTORIES_FILE
    write_parquet(trajectories, path)
    return [tables_dir / STATISTICS_FILE, path]
