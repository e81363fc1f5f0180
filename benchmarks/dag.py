"""Time and memory of the workflow itself over 100 and 1000 runs, or other numbers: planning, scheduling, tables.

    python benchmarks/dag.py [100 1000] [--no-scheduling]

A study of ten cells is copied into a scratch folder and given as many seeds as it takes. Its runs are made up:
records, and artifacts of a small size (90 tasks x 16 attempts, 60 steps x 9 metrics, 4,000 critic values), so what
is measured is everything but training. "+1 seed" is what adding a seed to all cells of a finished study costs beyond
its runs. The budgets are for 1000 runs on two cores. CPU seconds are of all processes, memory is that of the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from rows import Row, write

from turnscale.study import Plan, resolve
from turnscale.track.collect import IDENTITY
from turnscale.track.records import write_record
from turnscale.track.store import init_tracking
from turnscale.workflow import Products

PROJECT = Path(__file__).parents[1]
CELLS = [
    "mpo",
    "grpo",
    "ppo",
    "gspo",
    "mpo-beta0.5",
    "mpo-beta1.5",
    "mpo-beta2.0",
    "mpo-lam0.60",
    "mpo-lam0.85",
    "vapo",
]
BENCHMARKS = ("search-2hop", "search-3hop", "search-4hop")
TASKS, ATTEMPTS, STEPS, VALUES = 30, 16, 60, 4000
METRICS = ("reward", "entropy", "kl", "grad_norm", "turns", "action_tokens", "clip_fraction", "ess", "loss")
DRY_RUN, ONE_SEED = "dry run, nothing done", "tables and figures, +1 seed"
BUDGETS = {(1000, DRY_RUN): 15.0, (1000, ONE_SEED): 30.0}
"""(runs, step) -> seconds it may take."""
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
mkdir -p "$(dirname "$out")" && echo '{}' > "$out"
"""


@dataclass(frozen=True)
class Cost:
    """What a command took; ``jobs`` is the number of jobs that it planned or ran."""

    wall: float
    cpu: float
    memory: float
    jobs: str


def prepare(folder: Path, runs: int) -> Plan:
    """The project's workflow with ``runs`` planned runs in ``folder``."""
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    study_path, scale_path = folder / "configs/studies/mpo.yaml", folder / "configs/scales/smoke.yaml"
    study = yaml.safe_load(study_path.read_text(encoding="utf-8"))
    study["groups"]["bench"] = CELLS
    study_path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    scale = yaml.safe_load(scale_path.read_text(encoding="utf-8"))
    scale |= {"groups": ["bench"], "seeds": max(1, runs // len(CELLS)), "models": scale["models"][:1]}
    scale_path.write_text(yaml.safe_dump(scale), encoding="utf-8")
    return resolve("mpo", "smoke", root=folder)


def finish(plan: Plan, first: int = 0) -> None:
    """Make up the runs of the plan's seeds from ``first`` on, as the tracking store and the records have them."""
    shared = [plan.results() / "tracking.json", Products(plan).gates]
    shared += [path for cell in plan.cells for path in (plan.panels_path(cell), plan.base_path(cell))]
    shared += [plan.critic_path(cell, seed) for cell in plan.cells if cell.critic for seed in cell.seeds]
    for path in shared:
        if not (plan.root / path).exists():
            write_record(plan.root / path, {})
    for cell in plan.cells:
        for seed in cell.seeds[first:]:
            record = {
                **{"study": "mpo", "scale": "smoke", "family": cell.family, "model": cell.model},
                **{"cell": cell.cell, "method": cell.method_name, "seed": seed},
            }
            record["run_id"] = sha256(json.dumps(record).encode()).hexdigest()[:32]
            tables = made_up(record, critic=cell.critic is not None)
            folder = plan.root / "mlflow/artifacts" / record["run_id"] / "artifacts"
            folder.mkdir(parents=True)
            sums = {}
            for name, table in tables.items():
                table.to_parquet(folder / name, index=False)
                sums[name] = sha256((folder / name).read_bytes()).hexdigest()
            outcomes = sums.pop("outcomes.parquet")
            made = {**record, "key": "made up", "spec_hash": cell.train.hash, "artifacts": sums}
            made |= {"code_revision": "unversioned", "source_hash": "0" * 16, "seconds": 1.0}
            write_record(plan.root / plan.run_path(cell, seed), made)
            evaluation = {**record, "outcomes": "outcomes.parquet", "sha256": outcomes}
            write_record(plan.root / plan.evaluation_path(cell, seed), evaluation)


def made_up(record: dict[str, object], critic: bool) -> dict[str, pd.DataFrame]:
    """Outcomes, metrics and, with a critic, critic values of one run."""
    rng = np.random.default_rng(int(str(record["run_id"])[:8], 16))
    rows = len(BENCHMARKS) * TASKS * ATTEMPTS
    names = [f"{benchmark}-{task:05d}" for benchmark in BENCHMARKS for task in range(TASKS)]
    success = rng.random(rows) < 0.6
    outcomes = pd.DataFrame(
        {
            **{column: record[column] for column in IDENTITY},
            "benchmark": np.repeat(BENCHMARKS, TASKS * ATTEMPTS),
            "task": np.repeat(names, ATTEMPTS),
            "attempt": np.tile(np.arange(ATTEMPTS), len(names)),
            "success": success,
            "reward": success.astype(float),
            "turns": rng.integers(3, 8, rows),
            "action_tokens": rng.integers(25, 60, rows),
            "truncated": False,
        }
    )
    steps = np.arange(1, STEPS + 1)
    series = {name: rng.normal(size=STEPS) for name in METRICS}
    metrics = [
        pd.DataFrame({"step": steps, "metric": name, "value": value}) for name, value in series.items()
    ]
    checked = np.arange(0, STEPS + 1, 10)
    curve = {"step": checked, "metric": "val_pass_at_1", "value": rng.random(checked.size)}
    tables = {"outcomes.parquet": outcomes, "metrics.parquet": pd.concat([*metrics, pd.DataFrame(curve)])}
    if critic:
        tables["critic_values.parquet"] = critic_values(rng)
    return tables


def critic_values(rng: np.random.Generator) -> pd.DataFrame:
    """Values of a critic at three checkpoints on trajectories of five turns of four tokens."""
    turns, tokens = 5, 4
    count = VALUES // (3 * turns * tokens)
    shape = (3, count, turns, tokens)
    checkpoint, trajectory, turn, token = (axis.ravel() for axis in np.indices(shape))
    reward = rng.integers(0, 2, count).astype(float)
    return pd.DataFrame(
        {
            "checkpoint": checkpoint * STEPS // 2,
            "set": "probe",
            "trajectory": trajectory,
            "prompt": np.char.add("p", (trajectory // 4).astype(str)),
            "turn": turn,
            "token": token,
            "value": rng.normal(0.5, 0.2, checkpoint.size),
            "observation_tokens": 6,
            "reward": reward[trajectory],
            "success": reward[trajectory] > 0.5,
        }
    )


def measure(plan: Plan, *arguments: str, stand_in: bool = False) -> Cost:
    """What one Snakemake command costs, its jobs included.

    Args:
        plan: whose folder it runs in.
        arguments: of Snakemake, after the number of cores.
        stand_in: let every job only write its record.

    Raises:
        RuntimeError: Snakemake failed.
    """
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if stand_in:
        script = plan.root / "stand-in/turnscale"
        script.parent.mkdir(exist_ok=True)
        script.write_text(STAND_IN)
        script.chmod(0o755)
        programs.insert(0, str(script.parent))
    environment = {**os.environ, "PATH": os.pathsep.join(programs)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    started, output = time.monotonic(), plan.root / "said.txt"
    with output.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=plan.root, stdout=sink, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    text = output.read_text()
    if process.returncode:
        said = [line for line in text.splitlines() if "turnscale: " in line]
        raise RuntimeError("\n".join(said) or text[-3000:])
    totals = [line.split()[1] for line in text.splitlines() if line.startswith("total ")]
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(wall, cpu, usage.ru_maxrss / 1024, totals[0] if totals else "0")


def main() -> None:
    """Print one line for each size and step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=int, default=[100, 1000])
    parser.add_argument("--no-scheduling", action="store_true", help="leave out the slowest step")
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    options = parser.parse_args()
    rows: list[Row] = []
    print(f"{'runs':>6} {'step':<34} {'jobs':>6} {'wall s':>7} {'CPU s':>7} {'MB':>5}")
    for runs in options.runs:
        steps = [] if options.no_scheduling else [schedule_nothing]
        for measured in (*steps, measure_study):
            with tempfile.TemporaryDirectory() as scratch:
                for step, cost in measured(prepare(Path(scratch), runs)):
                    print(
                        f"{runs:>6} {step:<34} {cost.jobs:>6} {cost.wall:>7.1f} {cost.cpu:>7.1f}"
                        f" {cost.memory:>5.0f}",
                        flush=True,
                    )
                    rows.append(row(runs, step, cost))
    if options.rows:
        write(options.rows, rows)


def row(runs: int, step: str, cost: Cost) -> Row:
    """The line of the table, beside its budget where it has one."""
    note = f"{cost.jobs} jobs, {cost.cpu:.1f} CPU s, {cost.memory:.0f} MB"
    budget = BUDGETS.get((runs, step))
    ratio, target = (None, None) if budget is None else (budget / cost.wall, 1.0)
    return Row(f"{runs:,} runs: {step}", "s", cost.wall, budget, ratio, target, note)


def schedule_nothing(plan: Plan) -> Iterator[tuple[str, Cost]]:
    """Every job up to the evaluations, doing nothing but write its record."""
    yield "scheduling of idle jobs", measure(plan, "runs", "--config", "scale=smoke", stand_in=True)


def measure_study(plan: Plan) -> Iterator[tuple[str, Cost]]:
    """Planning and tables of a study that grows by a seed."""
    yield DRY_RUN, measure(plan, "-n", "--config", "scale=smoke")
    init_tracking(plan.root)
    finish(plan)
    yield "tables and figures, first time", measure(plan, "--config", "scale=smoke")
    yield "dry run, all done", measure(plan, "-n", "--config", "scale=smoke")
    more = f"seeds={len(plan.seeds) + 1}"
    yield "dry run, +1 seed", measure(plan, "-n", "--config", "scale=smoke", more)
    finish(resolve("mpo", "smoke", seeds=len(plan.seeds) + 1, root=plan.root), first=len(plan.seeds))
    yield ONE_SEED, measure(plan, "--config", "scale=smoke", more)


if __name__ == "__main__":
    main()
