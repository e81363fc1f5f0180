"""A project whose base, critics, runs and evaluations are all made up, through the real store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import yaml

from turnscale.study import Plan, ResolvedCell, Run, resolve
from turnscale.track.records import base_key, critic_key, publish, publish_evaluation, write_record
from turnscale.track.run import open_run
from turnscale.track.store import init_tracking

PROJECT = Path(__file__).parents[2]
SECRET = "hunter2-is-no-good-password"


def make_project(root: Path) -> Path:
    """Fill a folder with a project: study mpo at scale tiny, two seeds of grpo and mpo, and one base."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    shutil.copytree(PROJECT / "configs", root / "configs")
    scale = yaml.safe_load((PROJECT / "configs/scales/smoke.yaml").read_text(encoding="utf-8"))
    models = sorted((PROJECT / "configs/models").glob("*.yaml"))
    local = [path.stem for path in models if "kind: local" in path.read_text(encoding="utf-8")]
    scale |= {"scale": "tiny", "seeds": 2, "models": local[:1], "groups": ["tiny"]}
    (root / "configs/scales/tiny.yaml").write_text(yaml.safe_dump(scale), encoding="utf-8")
    study = yaml.safe_load((PROJECT / "configs/studies/mpo.yaml").read_text(encoding="utf-8"))
    study["groups"]["tiny"] = ["base", "grpo", "mpo"]
    (root / "configs/studies/mpo.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    os.environ["SOME_TOKEN"] = SECRET
    init_tracking(root)
    plan = resolve("mpo", "tiny", root=root)
    runs = {(run.cell, run.seed): run for run in plan.runs()}
    seen: set[Path] = set()
    for cell in plan.cells:
        make_shared(plan, cell, root, seen)
        for seed in cell.seeds:
            make_run(plan, cell, runs[cell.cell, seed], root)
    del os.environ["SOME_TOKEN"]
    return root


def make_shared(plan: Plan, cell: ResolvedCell, root: Path, seen: set[Path]) -> None:
    scale = plan.scale.scale
    jobs = [("base", plan.base_path(cell), cell.base, base_key(scale, cell.base.value, cell.base.hash))]
    if cell.critic is not None:
        for seed in cell.seeds:
            key = critic_key(scale, cell.critic.value, cell.critic.hash, seed)
            jobs.append(("critic", plan.critic_path(cell, seed), cell.critic, key))
    for kind, path, spec, key in jobs:
        if path in seen:
            continue
        seen.add(path)
        weights = root / path.parent / "checkpoint" / "weights.bin"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(key.encode())
        measured = {"hash": "x", "report": {"search-2hop": 0.25}, "loss": None}
        write_record(
            root / path,
            publish(kind, key, scale, spec.value, measured, root / path.parent, root),
        )


def make_run(plan: Plan, cell: ResolvedCell, run: Run, root: Path) -> None:
    work = root / "scratch" / cell.cell / str(run.seed)
    work.mkdir(parents=True)
    with open_run(run, run.spec.value, {}, root) as log:
        if cell.trains:
            rows = [(step, "val_pass_at_1", 0.1 * step) for step in range(3)]
            pd.DataFrame(rows, columns=["step", "metric", "value"]).to_parquet(work / "metrics.parquet")
            log.artifact(work)
        record = log.finish({"adapter": None})
    write_record(root / plan.run_path(cell, run.seed), record)
    identity = {
        name: record[name] for name in ("study", "scale", "family", "model", "cell", "method", "seed")
    }
    rows = [
        {
            **identity,
            "benchmark": "b",
            "task": f"t{task}",
            "attempt": a,
            "success": a == 0,
            "run_id": record["run_id"],
        }
        for task in range(2)
        for a in range(2)
    ]
    table = work / "outcomes.parquet"
    pd.DataFrame(rows).to_parquet(table)
    digest = cell.evaluation.hash
    evaluation = publish_evaluation(record, digest, table, {"test_b_pass_at_1": 0.5}, {}, root)
    write_record(root / plan.evaluation_path(cell, run.seed), evaluation)


def place_store(empty: Path, root: Path) -> None:
    """Copy an empty store into a project, as if it had been made there."""
    shutil.copytree(empty, root / "mlflow")
    connection = sqlite3.connect(root / "mlflow/mlflow.db")
    with connection:
        place = (root.resolve() / "mlflow/artifacts").as_uri()
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE name = 'turnscale'", (place,))
    connection.close()
