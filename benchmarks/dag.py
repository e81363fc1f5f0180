"""Time and memory of `snakemake --dry-run` over 100, 1000 and 5000 runs, new and finished.

    python benchmarks/dag.py [100 1000 5000]

A study of ten cells is copied into a scratch folder and given as many seeds as it takes; finished runs are made up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from rows import Row, write

from turnscale.study import Plan, resolve

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


def finish(plan: Plan) -> None:
    """Make up every record and product."""
    made = [plan.results() / "tracking.json", plan.results() / "mpo/gates.json"]
    for cell in plan.cells:
        made += [plan.panels_path(cell), plan.base_path(cell)]
        for seed in cell.seeds:
            made += [plan.run_path(cell, seed), plan.evaluation_path(cell, seed)]
            made += [plan.critic_path(cell, seed)] if cell.critic is not None else []
    tables = ("outcomes.parquet", "metrics.parquet", "critic_values.parquet", "survivorship.csv")
    made += [plan.results() / "mpo/tables" / name for name in (*tables, "estimates.csv", "comparisons.csv")]
    made += [
        Path(f"paper_tables/smoke/{t}.{form}") for t in plan.study.tables for form in ("csv", "md", "tex")
    ]
    made += [Path(f"paper_tables/smoke/audit_mpo.{form}") for form in ("csv", "md", "tex", "json")]
    made += [Path(f"figures/smoke/{t}.{form}") for t in plan.study.figures for form in ("pdf", "png", "csv")]
    for path in made:
        (plan.root / path).parent.mkdir(parents=True, exist_ok=True)
        (plan.root / path).write_text(json.dumps({}))


def measure(folder: Path, *config: str) -> tuple[float, float, float, str]:
    """Wall seconds, CPU seconds, peak memory in MB and the planned number of jobs of one dry-run.

    Raises:
        RuntimeError: Snakemake failed.
    """
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "2", "--config", "scale=smoke", *config]
    started, output = time.monotonic(), folder / "dry-run.txt"
    with output.open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=sink, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    text = output.read_text()
    if process.returncode:
        raise RuntimeError(text[-2000:])
    totals = [line.split()[1] for line in text.splitlines() if line.startswith("total ")]
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, totals[0] if totals else "0"


def main() -> None:
    """Print one line per size and state."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=int, default=[100, 1000, 5000])
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    rows: list[Row] = []
    print(f"{'runs':>6} {'state':<18} {'jobs':>6} {'wall s':>7} {'CPU s':>7} {'MB':>5}")
    for runs in args.runs:
        with tempfile.TemporaryDirectory() as scratch:
            plan = prepare(Path(scratch), runs)
            states = [("new", ()), ("finished", ()), ("one seed more", (f"seeds={len(plan.seeds) + 1}",))]
            for state, config in states:
                if state == "finished":
                    finish(plan)
                wall, cpu, memory, jobs = measure(plan.root, *config)
                print(
                    f"{len(plan.runs()):>6} {state:<18} {jobs:>6} {wall:>7.1f} {cpu:>7.1f} {memory:>5.0f}",
                    flush=True,
                )
                rows.append(Row(f"dry run of {runs:,} runs, {state}", "s", wall, note=f"{memory:.0f} MB"))
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    if args.rows:
        write(args.rows, rows)


if __name__ == "__main__":
    main()
