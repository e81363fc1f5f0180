"""Time from the tracking store to every table and figure of a made-up study of 300 runs x 400 tasks x 16 attempts.

    python benchmarks/render.py [--runs 300] [--tasks 400] [--attempts 16] [--rows rows.json]

The study MPO with all its cells on two models; its runs are made up and put into a real MLflow store with their
artifacts (outcomes, metrics, and critic values where the method has a critic). What is timed are the workflow's own
commands, each a process, two at a time: collect, then estimates, the critic diagnostic (which takes both cores), then
figures, tables and the audit. Then a seed is added to one cell and collecting is timed again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rows import Row, write
from synthetic_study import BENCHMARKS, make_tables

from turnscale.study import Plan, resolve
from turnscale.track.store import connect, init_tracking, store_dir

PROJECT = Path(__file__).resolve().parents[1]
STUDY, SCALE, MODELS = "mpo", "many", ["qwen3-tiny", "qwen3-moe-tiny"]
BUDGET = 60.0
PROBES, TRAJECTORIES, TURNS, TURN_TOKENS = 9, 64, 4, 10
"""Critic values of a run: at so many steps, of so many trajectories, on common and on own rollouts."""


def main() -> None:
    """Make the study up, then time what follows training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tasks", type=int, default=400, help="over all benchmarks")
    parser.add_argument("--attempts", type=int, default=16)
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan = prepare(folder, args.runs)
        finished = [(cell, seed) for cell in plan.cells for seed in cell.seeds]
        held_back = next(entry for entry in reversed(finished) if entry[0].trains)
        fill(plan, args.tasks, args.attempts, [entry for entry in finished if entry != held_back])
        print(f"{len(finished) - 1} finished runs of {len(plan.cells)} cells in an MLflow store", flush=True)
        started, used = time.perf_counter(), children()
        seconds = {"collect": timed(folder, collect())}
        for stage in (*after_collecting(), products(plan)):
            with ThreadPoolExecutor(2) as pool:
                spent = pool.map(lambda job: timed(folder, job), stage.values())
                seconds |= dict(zip(stage, spent, strict=True))
        wall, cpu = time.perf_counter() - started, children() - used
        fill(plan, args.tasks, args.attempts, [held_back])
        again = timed(folder, collect())
    for name, spent in seconds.items():
        print(f"{name:24} {spent:7.2f} s")
    print(
        f"{'all, two at a time':24} {wall:7.2f} s, {cpu:.1f} CPU s; {BUDGET / wall:.2f} times within the budget"
    )
    print(
        f"{'collect, one seed more':24} {again:7.2f} s, {seconds['collect'] / again:.1f} times as fast as all"
    )
    if args.rows:
        name = f"tables, figures and audit of {len(finished)} runs from MLflow"
        more = "collecting after one new seed, against collecting all"
        write(
            args.rows,
            [
                Row(
                    name,
                    "s",
                    wall,
                    BUDGET,
                    BUDGET / wall,
                    1.0,
                    note=f"{cpu:.0f} CPU s, two processes at a time",
                ),
                Row(more, "s", again, seconds["collect"], seconds["collect"] / again),
            ],
        )


def prepare(folder: Path, runs: int) -> Plan:
    """A project of the study at a scale with about that many runs."""
    for name in ("configs", "looks"):
        shutil.copytree(PROJECT / name, folder / name)
    study = yaml.safe_load((folder / f"configs/studies/{STUDY}.yaml").read_text(encoding="utf-8"))
    study["groups"]["all"] = list(study["cells"])
    (folder / f"configs/studies/{STUDY}.yaml").write_text(
        yaml.safe_dump(study, sort_keys=False), encoding="utf-8"
    )
    scale = yaml.safe_load((PROJECT / "configs/scales/quick.yaml").read_text(encoding="utf-8"))
    scale |= {"scale": SCALE, "groups": ["all"], "models": MODELS, "seeds": 1}
    path = folder / f"configs/scales/{SCALE}.yaml"
    path.write_text(yaml.safe_dump(scale), encoding="utf-8")
    trained = sum(cell.trains for cell in resolve(STUDY, SCALE, root=folder).cells)
    path.write_text(yaml.safe_dump({**scale, "seeds": max(2, round(runs / trained))}), encoding="utf-8")
    init_tracking(folder)
    return resolve(STUDY, SCALE, root=folder)


def fill(plan: Plan, tasks: int, attempts: int, entries: list[tuple[Any, int]]) -> None:
    """Put made-up runs of some cells and seeds into the store, with their records under results/."""
    from turnscale.track.records import evaluation_folder, write_record

    client, experiment = connect(plan.root)
    keys = {(run.model, run.cell, run.seed): run.key for run in plan.runs()}
    for cell in plan.cells:
        seeds = [seed for other, seed in entries if other is cell]
        if not seeds:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            alone = replace(plan, cells=(replace(cell, seeds=tuple(seeds)),))
            make_tables(alone, Path(scratch), tasks=tasks // len(BENCHMARKS), attempts=attempts, steps=80)
            outcomes = pd.read_parquet(Path(scratch) / "outcomes.parquet")
            metrics = pd.read_parquet(Path(scratch) / "metrics.parquet")
        for seed in seeds:
            key = keys[cell.model, cell.cell, seed]
            identity = {
                "study": plan.study.study, "scale": plan.scale.scale, "family": cell.family, "model": cell.model,
                "cell": cell.cell, "method": cell.method_name, "seed": seed,
            }  # fmt: skip
            tags = {f"turnscale.{name}": str(value) for name, value in identity.items()}
            run = client.create_run(experiment, tags={**tags, "turnscale.key": key, "turnscale.kind": "run"})
            run_id = run.info.run_id
            artifacts = store_dir(plan.root) / "artifacts" / run_id / "artifacts"
            tables = {}
            if cell.trains:
                own = metrics[metrics["seed"] == seed]
                tables["metrics.parquet"] = own[["step", "metric", "value"]]
            if cell.needs_critic:
                tables["critic_values.parquet"] = critic_values(seed)
            name = f"{evaluation_folder(cell.evaluation.hash)}/outcomes.parquet"
            rows = outcomes[outcomes["seed"] == seed].assign(run_id=run_id, method=cell.method_name)
            sums = {file: put(table, artifacts / file) for file, table in {**tables, name: rows}.items()}
            client.set_terminated(run_id, "FINISHED")
            record = {
                **identity, "kind": "run", "key": key, "spec_hash": cell.train.hash, "run_id": run_id,
                "artifacts": {file: sums[file] for file in tables}, "adapter": None,
            }  # fmt: skip
            evaluation = {"run_id": run_id, "outcomes": name, "sha256": sums[name]}
            for path, value in (
                (plan.run_path(cell, seed), record),
                (plan.evaluation_path(cell, seed), evaluation),
            ):
                (plan.root / path).parent.mkdir(parents=True, exist_ok=True)
                write_record(plan.root / path, value)


def put(table: pd.DataFrame, path: Path) -> str:
    """Write a table where the store keeps the run's artifacts; gives its SHA-256."""
    from turnscale.files import sha256

    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path, index=False)
    return str(sha256(path))


def critic_values(seed: int) -> pd.DataFrame:
    """Values that jump between turns, as a warmed-up critic's do: of the shape a run leaves, and of no meaning."""
    rng = np.random.default_rng(seed)
    shape = (PROBES, 2, TRAJECTORIES, TURNS, TURN_TOKENS)
    checkpoint, kind, trajectory, turn, token = (part.ravel() for part in np.indices(shape))
    jumps = np.broadcast_to(rng.normal(0, 0.2, (*shape[:-1], 1)), shape)
    value = (0.5 + jumps.cumsum(axis=3) / 4 + rng.normal(0, 0.02, shape)).ravel()
    reward = rng.integers(0, 2, shape[:3])[..., None, None] + np.zeros(shape)
    return pd.DataFrame(
        {
            "checkpoint": checkpoint * 10,
            "set": np.where(kind == 0, "common", "probe"),
            "trajectory": trajectory,
            "prompt": [f"prompt{index:04d}" for index in trajectory // 4],
            "turn": turn,
            "token": token,
            "value": value,
            "observation_tokens": np.where(turn > 0, 4, 0),
            "reward": reward.ravel(),
            "success": reward.ravel() > 0.5,
        }
    )


def collect() -> list[str]:
    """The job that gathers the runs."""
    place = f"results/{SCALE}/{STUDY}/tables"
    return ["job", "collect", "--study", STUDY, "--scale", SCALE, "--out-dir", place, "--partial"]


def after_collecting() -> list[dict[str, list[str]]]:
    """The jobs that read the tidy tables, one after the other: the diagnostic takes both cores."""
    selected = ["--study", STUDY, "--scale", SCALE]
    diagnose = ["job", "diagnose", *selected, "--workers", "2"]
    return [{"estimates": ["job", "estimates", *selected]}, {"diagnose": diagnose}]


def products(plan: Plan) -> dict[str, list[str]]:
    """The jobs that make what a reader sees."""
    selected = ["--study", STUDY, "--scale", SCALE]
    jobs = {name: ["job", name, *selected] for name in ("figures", "tables")}
    comparisons = f"results/{SCALE}/{STUDY}/tables/comparisons.csv"
    return jobs | {
        "audit": [
            "audit",
            str(plan.study.claims),
            "--comparisons",
            comparisons,
            "--out",
            f"paper_tables/{SCALE}",
        ]
    }


def timed(folder: Path, words: list[str]) -> float:
    """Wall seconds of a command. Exits when it fails."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from turnscale.cli import main; main()"]
    started = time.perf_counter()
    done = subprocess.run([*program, *words], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"turnscale {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - started


def children() -> float:
    """CPU seconds of the processes that ended."""
    used = os.times()
    return used.children_user + used.children_system


if __name__ == "__main__":
    main()
