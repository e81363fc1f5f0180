"""The jobs of a tabular study: train a block of seeds, audit the estimators, gather both into tidy tables.

Everything a table shows comes back out of the tracking store, by run id and checksum.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turnscale.errors import DataError
from turnscale.estimates.schema import REASONS
from turnscale.files import write_csv, write_parquet
from turnscale.seeding import fix_threads
from turnscale.tabular.plan import FAMILY, MODEL, SCORE, TabularPlan, TabularRun, credits_of, method_of
from turnscale.track.environment import code_revision, source_hash
from turnscale.track.read import Store, StoredJob
from turnscale.track.records import read_record, store_problems, verify_record, write_record
from turnscale.track.run import open_log

OUTCOMES = "outcomes.parquet"
SEEDS = "seeds.parquet"
ITERATIONS = "metrics.parquet"
ESTIMATORS = "estimators.csv"


def train_block(plan: TabularPlan, run: TabularRun) -> dict[str, Any]:
    """Train and evaluate a block of seeds in one MLflow run.

    Logged: the configuration; per iteration the means over the block's seeds of the names of
    `turnscale.tabular.training.METRICS`; artifacts with every seed's numbers, the per-iteration means, and the
    outcome of every evaluation attempt.

    Returns:
        The run's record.
    """
    from tqdm import tqdm

    from turnscale.tabular import training
    from turnscale.tabular.task import ProbeTask

    fix_threads(1)
    task, stream = ProbeTask(run.turns), run.spec["stream"]
    settings = plan.study.training
    with (
        open_log(_head(plan, run), {**run.spec, "seeds": list(run.seeds)}, run.key, {}, plan.root) as log,
        tqdm(total=settings.iterations, desc=run.name, mininterval=1.0) as bar,
    ):
        trained = training.train(
            run.seeds,
            stream,
            method_of(plan.study, run.cell, plan.root),
            task,
            group_size=settings.group_size,
            lr=settings.lr,
            iterations=settings.iterations,
            progress=bar.update,
        )
        acted = training.greedy(trained.logits, task)
        targets = training.evaluation_targets(run.seeds, stream, plan.study.evaluation.targets)
        success = np.take_along_axis(acted.success, targets, axis=1)
        distinct = np.take_along_axis(acted.distinct, targets, axis=1)
        finals = {
            SCORE: success.mean(axis=1),
            "distinct_tools": distinct.mean(axis=1),
            **{
                name: trained.metrics[name].mean(axis=1)
                for name in training.METRICS
                if name not in FINAL_ONLY
            },
        }
        means = {name: values.mean(axis=0) for name, values in trained.metrics.items()}
        for step in range(settings.iterations):
            log.metrics(step + 1, {name: values[step] for name, values in means.items()})
        log.metrics(settings.iterations, {f"final_{name}": values.mean() for name, values in finals.items()})
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            seeds = pd.DataFrame({"seed": list(run.seeds), **finals})
            write_parquet(seeds.melt("seed", var_name="metric"), folder / SEEDS)
            steps = pd.DataFrame({"step": np.arange(1, settings.iterations + 1), **means})
            write_parquet(steps.melt("step", var_name="metric"), folder / ITERATIONS)
            write_parquet(_outcomes(run, targets, success), folder / OUTCOMES)
            log.artifact(folder)
        return log.finish()


FINAL_ONLY = {"reward", "distinct_tools"}
"""Metrics of the iterations that are not averaged over them: the greedy policy at the end is measured instead."""


def _head(plan: TabularPlan, run: TabularRun) -> dict[str, Any]:
    return {
        "kind": "tabular",
        "key": run.key,
        "study": run.study,
        "scale": run.scale,
        "family": FAMILY,
        "model": MODEL,
        "cell": run.cell,
        "method": run.method,
        "benchmark": run.benchmark,
        "first_seed": run.seeds.start,
        "seeds": len(run.seeds),
        "spec_hash": run.hash,
        "code_revision": code_revision(plan.root),
        "source_hash": source_hash(),
    }


def _outcomes(run: TabularRun, targets: np.ndarray, success: np.ndarray) -> pd.DataFrame:
    """One row per seed and evaluation attempt; the target is the task. targets, success: [S, attempts]."""
    count = targets.shape[1]
    table = pd.DataFrame(
        {
            "seed": np.repeat(np.array(run.seeds), count),
            "task": targets.reshape(-1),
            "success": success.reshape(-1),
        }
    )
    table["attempt"] = table.groupby(["seed", "task"]).cumcount()
    table["task"] = "target-" + table["task"].astype(str)
    return table.assign(difficulty=run.benchmark, turns=run.turns, action_tokens=run.turns, truncated=False)


def audit_estimators(plan: TabularPlan) -> dict[str, Any]:
    """Measure every gradient estimator of the study in one MLflow run; the table is its artifact.

    Returns:
        The run's record.
    """
    from turnscale.tabular.estimators import audit

    fix_threads(1)
    wanted = plan.study.estimators
    head = {
        "kind": "estimators",
        "key": plan.estimators_key,
        "study": plan.study.study,
        "scale": plan.scale.scale,
        "family": FAMILY,
        "model": MODEL,
        "spec_hash": plan.estimators_hash,
        "code_revision": code_revision(plan.root),
        "source_hash": source_hash(),
    }
    with open_log(head, plan.estimators, plan.estimators_key, {}, plan.root) as log:
        table = pd.DataFrame(
            audit(
                credits_of(plan.study, plan.root),
                wanted.ratios,
                turns=wanted.turns,
                tokens=wanted.tokens,
                group_sizes=wanted.group_sizes,
                off_policy_kl=wanted.off_policy_kl,
                batches=plan.scale.estimator_batches,
            )
        )
        for row in table[table["group_size"] == max(wanted.group_sizes)].to_dict("records"):
            name = "_".join(str(row[key]) for key in ("metric", "credit", "ratio", "tokens"))
            log.metrics(int(row["turns"]), {re.sub(r"[^A-Za-z0-9_]", "_", name): float(row["value"])})
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / ESTIMATORS
            write_csv(table, path)
            log.artifact(path)
        return log.finish()


def collect(plan: TabularPlan, *, partial: bool = False) -> None:
    """Write outcomes, per-seed numbers, per-iteration means, the estimators and survivorship, from the store.

    Args:
        plan: the study at a scale.
        partial: use the finished runs and count the others, rather than refuse.

    Raises:
        DataError: a planned run is not finished (unless ``partial``), or none is.
        TrackingError: an artifact is missing or differs from its checksum.
    """
    store = Store(plan.root, patient=True)
    jobs = store.jobs(plan.scale.scale)
    parts: dict[str, list[pd.DataFrame]] = {OUTCOMES: [], SEEDS: [], ITERATIONS: []}
    survivors: dict[tuple[str, str], dict[str, Any]] = {}
    for run in plan.runs:
        counts = survivors.setdefault(
            (run.cell, run.benchmark),
            {"family": FAMILY, "model": MODEL, "cell": run.cell, "benchmark": run.benchmark}
            | dict.fromkeys(("planned", "finished", "failed", "excluded"), 0)
            | {name: Counter[str]() for name in REASONS},
        )
        counts["planned"] += len(run.seeds)
        if not (plan.root / run.path).exists():
            if not partial:
                raise DataError(
                    "is not finished.", file=run.path, remedy="run the workflow, or collect with --partial."
                )
            job = jobs.get(run.key)
            if job is not None and job.status in ("FAILED", "KILLED"):
                counts["failed"] += len(run.seeds)
                counts["failed_reasons"][job.tags.get("reason") or "no reason given"] += len(run.seeds)
            continue
        record = read_record(plan.root / run.path)
        if record.get("spec_hash") != run.hash:
            raise DataError(
                "is of another configuration than its path says.", file=run.path, remedy="remove it."
            )
        counts["finished"] += len(run.seeds)
        for name, tables in parts.items():
            with store.artifact(record["run_id"], name, record["artifacts"][name]) as path:
                tables.append(_identified(pd.read_parquet(path), record))
    if not parts[SEEDS]:
        raise DataError("no planned run is finished.", file=plan.tables_dir, remedy="run 'make reproduce'.")
    folder = plan.root / plan.tables_dir
    for name, tables in parts.items():
        write_parquet(pd.concat(tables, ignore_index=True), folder / name)
    for counts in survivors.values():
        counts |= {name: json.dumps(counts[name], sort_keys=True) for name in REASONS}
    write_csv(pd.DataFrame(list(survivors.values())), folder / "survivorship.csv")
    record = read_record(plan.root / plan.estimators_path)
    with store.artifact(record["run_id"], ESTIMATORS, record["artifacts"][ESTIMATORS]) as path:
        write_csv(pd.read_csv(path).assign(run_id=record["run_id"]), folder / ESTIMATORS)


def _identified(table: pd.DataFrame, record: dict[str, Any]) -> pd.DataFrame:
    names = ("study", "scale", "family", "model", "cell", "method", "benchmark", "run_id", "spec_hash")
    for position, name in enumerate(names):
        table.insert(position, name, record[name])
    return table.assign(code_revision=record["code_revision"])


def restore(plan: TabularPlan) -> tuple[int, int, int]:
    """Rebuild lost records from the tracking store: how many were written, were there, and are not in the store."""
    store = Store(plan.root)
    jobs = store.jobs(plan.scale.scale)
    wanted = [(run.path, run.key) for run in plan.runs] + [(plan.estimators_path, plan.estimators_key)]
    written = kept = absent = 0
    for path, key in wanted:
        job = jobs.get(key)
        if (plan.root / path).exists():
            kept += 1
        elif job is None or not job.complete:
            absent += 1
        else:
            write_record(plan.root / path, store.record(job))
            written += 1
    return written, kept, absent


def verify(plan: TabularPlan) -> list[str]:
    """What differs between the records of a plan and the store, one sentence each; empty if nothing.

    Raises:
        TrackingError: the store cannot be read.
    """

    def records(store: Store, jobs: Mapping[str, StoredJob]) -> Iterator[str]:
        for path in [*(run.path for run in plan.runs), plan.estimators_path]:
            if (plan.root / path).exists():
                yield from verify_record(plan.root / path, store, jobs)

    known = {*(run.key for run in plan.runs), plan.estimators_key}
    return store_problems(plan.root, plan.scale.scale, plan.study.study, known, records)
