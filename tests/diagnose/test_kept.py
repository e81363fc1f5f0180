"""Diagnoses of single runs on disk: the same tables, and only new runs are diagnosed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.diagnose.invented import study_frame
from turnscale.diagnose import kept
from turnscale.diagnose.kept import diagnose_groups
from turnscale.diagnose.nulls import mean_reverting, random_walk
from turnscale.diagnose.table import combine, diagnose
from turnscale.diagnose.values import RUN


@pytest.fixture(scope="module")
def values() -> pd.DataFrame:
    processes = {"ppo": mean_reverting(0.3), "mpo": random_walk}
    return study_frame(processes, seeds=2, size=12, checkpoints=(0, 20))


def _write(values: pd.DataFrame, path: Path) -> dict[str, int]:
    """One row group a run; key -> row group."""
    runs = [part for _, part in values.groupby(RUN)]
    schema = pa.Schema.from_pandas(values, preserve_index=False)
    with pq.ParquetWriter(path, schema) as writer:
        for part in runs:
            writer.write_table(pa.Table.from_pandas(part, schema, preserve_index=False))
    return {"-".join(map(str, part[RUN].iloc[0])): number for number, part in enumerate(runs)}


def test_tables_are_those_of_the_whole(values: pd.DataFrame, tmp_path: Path) -> None:
    groups = _write(values, tmp_path / "values.parquet")
    rows, trajectories = diagnose(values, reference="mpo")
    for _ in range(2):
        found = diagnose_groups(tmp_path / "values.parquet", groups, tmp_path / "kept")
        again, table = combine(found, reference="mpo")
        assert again.to_csv() == rows.to_csv()
        assert table.to_csv() == trajectories.to_csv()


def test_only_new_runs_are_diagnosed(values: pd.DataFrame, tmp_path: Path) -> None:
    said: list[str] = []
    table, folder = tmp_path / "values.parquet", tmp_path / "kept"
    first = values[values["seed"] == 0]
    diagnose_groups(table, _write(first, table), folder, note=said.append)
    diagnose_groups(table, _write(values, table), folder, note=said.append)
    damaged = sorted(folder.glob("*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-40])
    diagnose_groups(table, _write(values, table), folder, note=said.append)
    diagnose_groups(table, _write(first, table), folder, note=said.append)
    counts = [(int(line.split()[1]), int(line.split()[3])) for line in said]
    runs, few = values.groupby(RUN).ngroups, first.groupby(RUN).ngroups
    assert counts == [(few, few), (runs, runs - few), (runs, 1), (few, 0)]
    assert len(list(folder.glob("*.npz"))) == few


def test_processes_change_nothing(
    values: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = _write(values, tmp_path / "values.parquet")
    alone = combine(diagnose_groups(tmp_path / "values.parquet", groups, tmp_path / "alone"))
    monkeypatch.setattr(kept, "WORTH_A_PROCESS", 1)
    shared = combine(diagnose_groups(tmp_path / "values.parquet", groups, tmp_path / "shared", workers=2))
    assert [part.to_csv() for part in alone] == [part.to_csv() for part in shared]
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("alone", "shared")]
    assert files[0] == files[1]


def test_other_code_diagnoses_anew(
    values: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    groups = _write(values, tmp_path / "values.parquet")
    diagnose_groups(tmp_path / "values.parquet", groups, tmp_path / "kept", note=said.append)
    monkeypatch.setattr(kept, "FORMAT", kept.FORMAT + 1)
    diagnose_groups(tmp_path / "values.parquet", groups, tmp_path / "kept", note=said.append)
    assert said[0] == said[1]
