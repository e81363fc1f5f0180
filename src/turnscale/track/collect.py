"""From records and the tracking store to tidy tables: outcomes, metrics, critic values and survivorship."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.errors import DataError
from turnscale.files import write_csv, write_parquet
from turnscale.study import Plan, ResolvedCell
from turnscale.track.read import Store
from turnscale.track.records import read_record

IDENTITY = ("study", "scale", "family", "model", "cell", "method", "seed", "run_id")
ATTEMPT = ["family", "model", "cell", "seed", "benchmark", "task", "attempt"]
METRICS = ("step", "metric", "value")
CRITIC = (
    "checkpoint",
    "set",
    "trajectory",
    "prompt",
    "turn",
    "token",
    "value",
    "observation_tokens",
    "reward",
    "success",
)


def collect(plan: Plan, out_dir: Path, *, partial: bool = False) -> None:
    """Write ``outcomes.parquet``, ``metrics.parquet``, ``critic_values.parquet`` and ``survivorship.csv``.

    Exactly the runs that the plan's records name are read, never whatever else the store holds.
    Survivorship has one row per family, model and cell: ``planned`` = ``finished`` (trained and evaluated)
    + ``failed`` (no record, and the store says FAILED or KILLED) + ``excluded`` (trained, but not
    evaluated) + runs not started or still running.

    Args:
        plan: the study at a scale.
        out_dir: where the tables go.
        partial: use the finished runs and count the others, rather than refuse.

    Raises:
        DataError: a planned run is not finished (unless ``partial``), none is, or an attempt occurs twice.
        TrackingError: an artifact is missing or differs from its checksum.
    """
    store = Store(plan.root)
    jobs = store.jobs(plan.scale.scale)
    keys = {(run.family, run.model, run.cell, run.seed): run.key for run in plan.runs()}
    outcomes: list[pd.DataFrame] = []
    metrics: list[pd.DataFrame] = []
    critic: list[pd.DataFrame] = []
    survivors: list[dict[str, Any]] = []
    for cell in plan.cells:
        counts = {"planned": len(cell.seeds), "finished": 0, "failed": 0, "excluded": 0}
        for seed in cell.seeds:
            record, evaluation = _records(plan, cell, seed)
            if record is None or evaluation is None:
                if not partial:
                    raise DataError(
                        "is not finished.",
                        file=plan.run_path(cell, seed),
                        remedy="run the workflow, or collect with --partial.",
                    )
                job = jobs.get(keys[cell.family, cell.model, cell.cell, seed])
                if record is not None:
                    counts["excluded"] += 1
                elif job is not None and job.status in ("FAILED", "KILLED"):
                    counts["failed"] += 1
                continue
            counts["finished"] += 1
            outcomes.append(_outcomes(store, record, evaluation))
            metrics += _table(store, record, "metrics.parquet")
            critic += _table(store, record, "critic_values.parquet")
        survivors.append({"family": cell.family, "model": cell.model, "cell": cell.cell, **counts})
    if not outcomes:
        raise DataError(
            "no planned run is finished.",
            file=plan.results() / plan.study.study,
            remedy="run 'make reproduce', or 'turnscale runs restore' if the tracking store has them.",
        )
    table = pd.concat(outcomes, ignore_index=True)
    twice = table[table.duplicated(ATTEMPT)]
    if len(twice):
        raise DataError(f"an attempt occurs twice: {dict(twice.iloc[0][ATTEMPT])}.", file=out_dir)
    write_parquet(table, out_dir / "outcomes.parquet")
    write_parquet(_join(metrics, METRICS), out_dir / "metrics.parquet")
    write_parquet(_join(critic, CRITIC), out_dir / "critic_values.parquet")
    write_csv(pd.DataFrame(survivors), out_dir / "survivorship.csv")


def _records(
    plan: Plan, cell: ResolvedCell, seed: int
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    run, evaluation = plan.root / plan.run_path(cell, seed), plan.root / plan.evaluation_path(cell, seed)
    record = read_record(run) if run.exists() else None
    if record is not None and record["spec_hash"] != cell.train.hash:
        raise DataError("is of another configuration than its path says.", file=run, remedy="remove it.")
    return record, read_record(evaluation) if evaluation.exists() else None


def _outcomes(store: Store, record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> pd.DataFrame:
    if evaluation["run_id"] != record["run_id"]:
        raise DataError(
            f"evaluation of run {evaluation['run_id']} beside training run {record['run_id']}.",
            key=str(record["key"]),
            remedy="remove the evaluation's record and run the workflow again.",
        )
    with store.artifact(evaluation["run_id"], evaluation["outcomes"], evaluation["sha256"]) as path:
        return pd.read_parquet(path)


def _table(store: Store, record: Mapping[str, Any], name: str) -> Iterator[pd.DataFrame]:
    """The run's table of that name with its identity in each row; nothing if the run has none."""
    checksum = record["artifacts"].get(name)
    if checksum is None:
        return
    with store.artifact(record["run_id"], name, checksum) as path:
        table = pd.read_parquet(path)
    for position, column in enumerate(IDENTITY):
        table.insert(position, column, record[column])
    yield table


def _join(tables: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    if not tables:
        return pd.DataFrame(columns=[*IDENTITY, *columns])
    return pd.concat(tables, ignore_index=True)
