"""Reading many runs back from the tracking store into tidy tables. The runs are made up; no number is a result.

    python benchmarks/tracking.py               # 1,000 runs
    python benchmarks/tracking.py --runs 100

The store is written once, straight through MLflow's client, into a folder that is kept for the next call if --folder
names one. Reading is what the workflow does: `restore` rebuilds the records, `collect` the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import pandas as pd
import yaml
from tqdm import tqdm

from turnscale.files import sha256
from turnscale.study import Plan, Run, resolve
from turnscale.track.collect import collect
from turnscale.track.records import evaluation_folder, restore
from turnscale.track.run import RECORD
from turnscale.track.store import connect, init_tracking

PROJECT = Path(__file__).resolve().parents[1]
STEPS, METRICS, TASKS, ATTEMPTS = 60, 10, 100, 4


def make_project(root: Path, runs: int) -> Plan:
    """A project of four trained cells with enough seeds for that many runs, without critics or bases in the store."""
    shutil.copytree(PROJECT / "configs", root / "configs", dirs_exist_ok=True)
    scale = yaml.safe_load((PROJECT / "configs/scales/smoke.yaml").read_text(encoding="utf-8"))
    cells = ["grpo", "gspo", "ppo", "mpo"]
    scale |= {
        "scale": "many",
        "seeds": max(1, runs // len(cells)),
        "models": ["qwen3-tiny"],
        "groups": ["many"],
    }
    (root / "configs/scales/many.yaml").write_text(yaml.safe_dump(scale), encoding="utf-8")
    path = root / "configs/studies/mpo.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["groups"]["many"] = cells
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return resolve("mpo", "many", root=root)


def fill(plan: Plan) -> None:
    """Write every run of the plan that the store lacks."""
    from turnscale.track.read import Store

    init_tracking(plan.root)
    client, experiment = connect(plan.root)
    there = {job.key for job in Store(plan.root).all_jobs("many") if job.complete}
    hashes = {cell.cell: cell.evaluation.hash for cell in plan.cells}
    for run in tqdm(plan.runs(), desc="writing made-up runs"):
        if run.key not in there:
            write(client, experiment, run, hashes[run.cell])


def write(client: object, experiment: str, run: Run, evaluation: str) -> None:
    """One finished, evaluated run."""
    from mlflow import MlflowClient

    assert isinstance(client, MlflowClient)
    head = {
        name: getattr(run, name) for name in ("study", "scale", "family", "model", "cell", "method", "seed")
    }
    tags = {
        "turnscale.key": run.key,
        "turnscale.kind": "train",
        "turnscale.attempt": "1",
        "turnscale.complete": "1",
    }
    tags |= {f"turnscale.{name}": str(value) for name, value in head.items()}
    run_id = client.create_run(experiment, tags=tags, run_name=run.key).info.run_id
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = [(step, f"metric_{n}", step / (n + 1)) for step in range(STEPS) for n in range(METRICS)]
        pd.DataFrame(rows, columns=["step", "metric", "value"]).to_parquet(
            folder / "metrics.parquet", index=False
        )
        attempts = [(f"t{task}", number) for task in range(TASKS) for number in range(ATTEMPTS)]
        outcomes = pd.DataFrame(attempts, columns=["task", "attempt"])
        outcomes = outcomes.assign(success=outcomes["attempt"] == 0, benchmark="b", run_id=run_id, **head)
        place = folder / evaluation_folder(evaluation)
        place.mkdir(parents=True)
        outcomes.to_parquet(place / "outcomes.parquet", index=False)
        base = {
            **head,
            "key": run.key,
            "spec_hash": run.spec.hash,
            "run_id": run_id,
            "code_revision": "made-up",
        }
        record = {
            **base,
            "kind": "train",
            "artifacts": {"metrics.parquet": sha256(folder / "metrics.parquet")},
        }
        name = f"{evaluation_folder(evaluation)}/outcomes.parquet"
        judged = {**base, "kind": "evaluation", "evaluation_hash": evaluation, "outcomes": name}
        judged["sha256"] = sha256(place / "outcomes.parquet")
        (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (place / RECORD).write_text(json.dumps(judged, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        client.log_artifacts(run_id, scratch)
    client.set_terminated(run_id, "FINISHED")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the made-up store here, and use it again")
    options = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory() as scratch:
        plan = make_project(options.folder or Path(scratch), options.runs)
        fill(plan)
        times: dict[str, list[tuple[float, float]]] = {"records rebuilt": [], "tables collected": []}
        for _ in range(options.repeats):
            for folder in ("results", "tables"):
                shutil.rmtree(plan.root / folder, ignore_errors=True)
            for name, action in (
                ("records rebuilt", lambda: restore(plan)),
                ("tables collected", lambda: collect(plan, plan.root / "tables")),
            ):
                wall, cpu = time.perf_counter(), time.process_time()
                action()
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        rows = len(pd.read_parquet(plan.root / "tables/outcomes.parquet"))
    print(f"{len(plan.runs())} runs, {rows} outcomes, median of {options.repeats}:")
    for name, found in times.items():
        wall, cpu = (median(column) for column in zip(*found, strict=True))
        print(f"  {name:17} {wall:6.1f} s wall, {cpu:6.1f} s CPU")
    print(f"  most memory       {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MB")


if __name__ == "__main__":
    main()
