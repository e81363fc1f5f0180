"""From records and the tracking store to tidy tables: outcomes, metrics, critic values and survivorship.

The tables are kept under ``collected/`` too, piece by piece, so that collecting again reads from the store only what
it has not read before: one more seed of a large study costs that seed, and a rewrite of what is there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial as bind
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from turnscale.errors import DataError
from turnscale.estimates.schema import REASONS
from turnscale.files import replacing, write_csv
from turnscale.study import Plan, ResolvedCell
from turnscale.track.columns import CRITIC, METRICS
from turnscale.track.pieces import Piece, write_pieces
from turnscale.track.read import Store, StoredJob
from turnscale.track.records import base_key, critic_key, evaluation_tag, read_record

IDENTITY = ("study", "scale", "family", "model", "cell", "method", "seed", "run_id")
ATTEMPT = ("benchmark", "task", "attempt")


def collect(plan: Plan, out_dir: Path, *, partial: bool = False) -> None:
    """Write ``outcomes.parquet``, ``metrics.parquet``, ``critic_values.parquet`` and ``survivorship.csv``.

    Exactly the runs that the plan's records name are read, never whatever else the store holds.
    Survivorship has one row per family, model and cell: ``planned`` = ``finished`` (trained and evaluated)
    + ``failed`` (no record, and the store says that the run, its critic or its base is FAILED or KILLED)
    + ``excluded`` (trained, but not evaluated) + runs not started or still running. ``failed_reasons`` and
    ``excluded_reasons`` count them by reason and ``lost`` the episodes that environments broke in finished
    runs, each as a JSON object.

    Args:
        plan: the study at a scale.
        out_dir: where the tables go.
        partial: use the finished runs and count the others, rather than refuse.

    Raises:
        DataError: a planned run is not finished (unless ``partial``), none is, or an attempt occurs twice.
        TrackingError: an artifact that was not collected before is missing or differs from its checksum.
    """
    store = Store(plan.root, patient=True, later=True)
    pieces: dict[str, list[Piece]] = {"outcomes": [], "metrics": [], "critic_values": []}
    missing: list[tuple[int, int, bool]] = []
    survivors: list[dict[str, Any]] = []
    for number, cell in enumerate(plan.cells):
        counts = {"planned": len(cell.seeds), "finished": 0, "failed": 0, "excluded": 0}
        survivors.append({"family": cell.family, "model": cell.model, "cell": cell.cell, **counts})
        survivors[-1] |= {name: Counter[str]() for name in REASONS}
        for seed in cell.seeds:
            record, evaluation = _records(plan, cell, seed)
            if record is not None and evaluation is not None:
                survivors[-1]["finished"] += 1
                for ended in (record, evaluation):  # absent where it ended before losses were counted
                    survivors[-1]["lost"].update(ended.get("lost", {}))
                pieces["outcomes"].append(_outcomes(store, record, evaluation))
                for name in ("metrics", "critic_values"):
                    pieces[name] += _table(store, record, f"{name}.parquet")
                continue
            if not partial:
                raise DataError(
                    "is not finished.",
                    file=plan.run_path(cell, seed),
                    remedy="run the workflow, or collect with --partial.",
                )
            missing.append((number, seed, record is not None))
    if not pieces["outcomes"]:
        raise DataError(
            "no planned run is finished.",
            file=plan.results() / plan.study.study,
            remedy="run 'make reproduce', or 'turnscale runs restore' if the tracking store has them.",
        )
    _count(plan, survivors, missing, store.jobs(plan.scale.scale) if missing else {})
    kept = plan.root / plan.results() / plan.study.study / "collected"
    columns = {"outcomes": (*IDENTITY, *ATTEMPT, "success"), "metrics": METRICS, "critic_values": CRITIC}
    for name, parts in pieces.items():
        file = kept / f"{name}.parquet"
        header = columns[name] if name == "outcomes" else (*IDENTITY, *columns[name])
        opened = write_pieces(parts, file, header)
        print(f"{name}: {len(parts)} runs, {opened} of them read from the store", flush=True)
    for name in pieces:  # all together, once each of them is whole
        _publish(kept / f"{name}.parquet", out_dir / f"{name}.parquet")
    for row in survivors:
        row |= {name: json.dumps(row[name], sort_keys=True) for name in REASONS}
    write_csv(pd.DataFrame(survivors), out_dir / "survivorship.csv")


def _count(
    plan: Plan,
    survivors: list[dict[str, Any]],
    missing: list[tuple[int, int, bool]],
    jobs: Mapping[str, StoredJob],
) -> None:
    """Count each missing run, (number of its cell, seed, whether trained), as excluded, failed or neither."""
    keys = {(run.family, run.model, run.cell, run.seed): run.key for run in plan.runs()} if missing else {}
    for number, seed, trained in missing:
        cell = plan.cells[number]
        key = keys[cell.family, cell.model, cell.cell, seed]
        reason = _not_evaluated(jobs.get(key), cell) if trained else _failure(plan, cell, seed, jobs, key)
        if reason is not None:
            kind = "excluded" if trained else "failed"
            survivors[number][kind] += 1
            survivors[number][f"{kind}_reasons"][reason] += 1


def _failure(
    plan: Plan, cell: ResolvedCell, seed: int, jobs: Mapping[str, StoredJob], key: str
) -> str | None:
    """Why a run without a record failed: itself, or what it starts from; None if it just has not ended."""
    scale = plan.scale.scale
    stages = {key: ""}
    if cell.critic is not None:
        stages[critic_key(scale, cell.critic.value, cell.critic.hash, seed)] = "critic: "
    stages[base_key(scale, cell.base.value, cell.base.hash)] = "starting checkpoint: "
    for name, stage in stages.items():
        job = jobs.get(name)
        if job is not None and job.status in ("FAILED", "KILLED"):
            return stage + (job.tags.get("reason") or "no reason given")
    return None


def _not_evaluated(job: StoredJob | None, cell: ResolvedCell) -> str:
    reason = None if job is None else job.tags.get(evaluation_tag(cell.evaluation.hash))
    return reason or "not evaluated yet"


def _publish(file: Path, target: Path) -> None:
    """Put a kept table where it is read: a second name of the same bytes, or a copy where that cannot be."""
    with replacing(target) as temporary:
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)


def _records(
    plan: Plan, cell: ResolvedCell, seed: int
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    run, evaluation = plan.root / plan.run_path(cell, seed), plan.root / plan.evaluation_path(cell, seed)
    record = read_record(run) if run.exists() else None
    if record is not None and record["spec_hash"] != cell.train.hash:
        raise DataError("is of another configuration than its path says.", file=run, remedy="remove it.")
    return record, read_record(evaluation) if evaluation.exists() else None


def _outcomes(store: Store, record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Piece:
    if evaluation["run_id"] != record["run_id"]:
        raise DataError(
            f"evaluation of run {evaluation['run_id']} beside training run {record['run_id']}.",
            key=str(record["key"]),
            remedy="remove the evaluation's record and run the workflow again.",
        )
    checksum = str(evaluation["sha256"])
    return Piece(
        checksum,
        {column: record[column] for column in IDENTITY},
        bind(store.artifact, record["run_id"], evaluation["outcomes"], checksum),
        bind(_check_outcomes, record),
    )


def _check_outcomes(record: Mapping[str, Any], table: pa.Table) -> None:
    for column in IDENTITY:
        wrong = [value for value in table.column(column).unique().to_pylist() if value != record[column]]
        if wrong:
            raise DataError(
                f"outcomes of {column} {wrong[0]!r} in the run of {column} {record[column]!r}.",
                key=str(record["key"]),
                remedy="remove the evaluation's record and run the workflow again.",
            )
    attempts = table.select(ATTEMPT).to_pandas()
    twice = attempts[attempts.duplicated()]
    if len(twice):
        raise DataError(f"an attempt occurs twice: {dict(twice.iloc[0])}.", key=str(record["key"]))


def _table(store: Store, record: Mapping[str, Any], name: str) -> list[Piece]:
    """The run's table of that name with its identity in each row; nothing if the run has none."""
    checksum = record["artifacts"].get(name)
    if checksum is None:
        return []
    identity = {column: record[column] for column in IDENTITY}
    return [Piece(checksum, identity, bind(store.artifact, record["run_id"], name, checksum), _accept)]


def _accept(table: pa.Table) -> None:
    """A table that the training wrote needs no check besides its checksum."""
