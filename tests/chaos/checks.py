"""Whether a disturbed study came out as the undisturbed one did: tables, adapters, and what the store holds."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.study import Plan

RUN_IDS = re.compile(r"\b[0-9a-f]{32}\b(?: [0-9a-f]{32}\b)*")


class Folder:
    """A study's folder after its workflow ended.

    Args:
        plan: the study at its scale, resolved in the folder.
        database: the SQLite file behind its tracking store.
    """

    def __init__(self, plan: Plan, database: Path) -> None:
        self.plan = plan
        self.root = plan.root
        self.database = database
        self.records: dict[str, dict[str, Any]] = {}
        for cell in plan.cells:
            for seed in cell.seeds:
                record = json.loads((self.root / plan.run_path(cell, seed)).read_text())
                self.records[record["key"]] = record
        self._keys = {record["run_id"]: key for key, record in self.records.items()}

    def tables(self) -> dict[str, str]:
        """Every file of the paper tables, with each run's random id replaced by the run's name.

        The sidecars also hold the hashes of the tables that were read, which contain the ids; each is checked
        against its file here and replaced by the word "checked".
        """
        scale, study = self.plan.scale.scale, self.plan.study.study
        tidy = {hashlib.sha256(p.read_bytes()).hexdigest() for p in self._tidy_files(scale, study)}
        found = {}
        for path in sorted((self.root / "paper_tables" / scale).iterdir()):
            text = RUN_IDS.sub(self._named, path.read_text(encoding="utf-8"))
            if path.suffix == ".json":
                text = json.dumps(_checked(json.loads(text), tidy), indent=1, sort_keys=True)
            found[path.name] = text
        return found

    def _tidy_files(self, scale: str, study: str) -> list[Path]:
        return [
            path for path in (self.root / "results" / scale / study / "tables").iterdir() if path.is_file()
        ]

    def _named(self, match: re.Match[str]) -> str:
        ids = match.group().split()
        return " ".join(sorted(self._keys.get(identity, identity) for identity in ids))

    def outcomes(self) -> pd.DataFrame:
        """The collected outcomes without run ids."""
        folder = self.root / "results" / self.plan.scale.scale / self.plan.study.study / "tables"
        return pd.read_parquet(folder / "outcomes.parquet").drop(columns="run_id")

    def survivorship(self) -> bytes:
        """The survivorship table."""
        folder = self.root / "results" / self.plan.scale.scale / self.plan.study.study / "tables"
        return (folder / "survivorship.csv").read_bytes()

    def adapters(self) -> dict[str, str]:
        """Run -> checksum of its final adapter."""
        return {
            key: record["artifacts"].get("adapter/adapter_model.safetensors", "")
            for key, record in self.records.items()
        }

    def store_problems(self) -> list[str]:
        """Runs counted twice, lost, left open, or not those that the records name; one sentence each."""
        problems = []
        rows = self._query(
            "SELECT r.run_uuid, r.status, k.value, c.value, s.value FROM runs r"
            " JOIN tags k ON k.run_uuid = r.run_uuid AND k.key = 'turnscale.key'"
            " LEFT JOIN tags c ON c.run_uuid = r.run_uuid AND c.key = 'turnscale.complete'"
            " LEFT JOIN tags s ON s.run_uuid = r.run_uuid AND s.key = 'turnscale.superseded'"
            " WHERE r.lifecycle_stage = 'active'"
        )
        live: dict[str, list[str]] = {}
        for run_id, status, key, complete, superseded in rows:
            if superseded is None:
                live.setdefault(key, []).append(run_id)
                if status != "FINISHED" or complete != "1":
                    problems.append(f"{key}: {status}, complete={complete}")
            elif status == "RUNNING":
                problems.append(f"{key}: superseded run {run_id} is left RUNNING")
        problems += [f"{key}: {len(ids)} live runs" for key, ids in live.items() if len(ids) > 1]
        for key, record in self.records.items():
            if live.get(key) != [record["run_id"]]:
                problems.append(f"{key}: the record names {record['run_id']}, the store has {live.get(key)}")
        twice = self._query(
            "SELECT run_uuid, key, step, COUNT(*) FROM metrics GROUP BY run_uuid, key, step HAVING COUNT(*) > 1"
        )
        problems += [
            f"{self._keys.get(row[0], row[0])}: {row[3]} rows of {row[1]} at step {row[2]}" for row in twice
        ]
        return problems

    def steps(self) -> dict[str, set[tuple[str, int]]]:
        """Run -> every (metric, step) that the store holds of it."""
        found: dict[str, set[tuple[str, int]]] = {key: set() for key in self.records}
        for run_id, key, step in self._query("SELECT run_uuid, key, step FROM metrics"):
            if run_id in self._keys:
                found[self._keys[run_id]].add((key, step))
        return found

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.database, timeout=60)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


def _checked(value: Any, hashes: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _checked(item, hashes) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_checked(item, hashes) for item in value), key=str)
    return "checked" if isinstance(value, str) and value in hashes else value


def differences(disturbed: Folder, calm: Folder) -> list[str]:
    """What a disturbed study has otherwise than the undisturbed one; empty if nothing."""
    found = list(disturbed.store_problems())
    left, right = disturbed.tables(), calm.tables()
    if set(left) != set(right):
        found.append(f"tables: {sorted(set(left) ^ set(right))} are on one side only")
    found += [f"table {name} differs" for name in left.keys() & right.keys() if left[name] != right[name]]
    if not disturbed.outcomes().equals(calm.outcomes()):
        found.append("the outcomes differ")
    if disturbed.survivorship() != calm.survivorship():
        found.append("the survivorship differs")
    if disturbed.adapters() != calm.adapters():
        found.append("a final adapter differs")
    mine, theirs = disturbed.steps(), calm.steps()
    found += [
        f"{key}: metric rows {sorted(mine.get(key, set()) ^ theirs[key])[:4]} are on one side only"
        for key in theirs
        if mine.get(key) != theirs[key]
    ]
    return found
