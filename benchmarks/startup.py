"""What starting costs: commands of the command line, and a training job before its first step.

    python benchmarks/startup.py [--repeats 5] [--rows rows.json]

Each command and each job is a process of its own; CPU seconds are medians. The job is a GRPO run of the scale smoke
whose starting checkpoint exists; its stages are those of ``turnscale job train``. Bytecode is written to a scratch
folder and the first process of each kind, which compiles it, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rows import Row, write

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "--help": ("--help",),
    "plan": ("plan", "mpo", "--scale", "quick"),
    "audit of a ledger": ("audit", "configs/claims/mpo.yaml"),
}
BUDGET = 1.0
"""CPU seconds a command may take from its start to its end."""
JOB = "job"
SCALE, STUDY, CELL = "smoke", "mpo", "grpo"


def main() -> None:
    """Measure commands, then the job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        project, env = Path(scratch) / "project", environment(Path(scratch) / "bytecode")
        project.mkdir()
        (project / "configs").symlink_to(ROOT / "configs")
        for name, words in COMMANDS.items():
            spent = [turnscale(project, env, *words) for _ in range(args.repeats + 1)][1:]
            middle = statistics.median(spent)
            print(f"{name:20} {middle:5.2f} CPU s ({min(spent):.2f}-{max(spent):.2f})", flush=True)
            rows.append(
                Row(f"command: {name}", "CPU-s", middle, BUDGET, BUDGET / middle, 1.0, note="start to end")
            )
        prepare(project, env)
        jobs = [job(project, env, seed) for seed in range(args.repeats + 1)][1:]
        stages = {name: statistics.median(found[name] for found in jobs) for name in jobs[0]}
    fixed = sum(seconds for name, seconds in stages.items() if name != "one step")
    for name, seconds in stages.items():
        print(f"{JOB}: {name:45} {seconds:5.2f} CPU s {seconds / fixed:5.0%} of the fixed cost")
        rows.append(Row(f"training job: {name}", "CPU-s", seconds))
    print(f"{JOB}: {'fixed cost':45} {fixed:5.2f} CPU s")
    shared = "seeds of a cell that share a process pay imports once"
    rows.append(Row("training job: all before the first step", "CPU-s", fixed, note=shared))
    if args.rows:
        write(args.rows, rows)


def environment(bytecode: Path) -> dict[str, str]:
    """This environment, with bytecode in ``bytecode``."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "MLFLOW_TRACKING_URI")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "OMP_NUM_THREADS": "1",
    }


def process(project: Path, env: dict[str, str], *command: str) -> tuple[float, str]:
    """CPU seconds of a process and what it printed. Exits when it fails."""
    with tempfile.TemporaryFile("w+") as output:
        running = subprocess.Popen(command, cwd=project, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if running.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{text[-2000:]}")
    return usage.ru_utime + usage.ru_stime, text


def turnscale(project: Path, env: dict[str, str], *words: str) -> float:
    """CPU seconds of a command."""
    return process(project, env, sys.executable, "-c", "from turnscale.cli import main; main()", *words)[0]


def prepare(project: Path, env: dict[str, str]) -> None:
    """Tracking store, panels and starting checkpoint of the job."""
    from turnscale.study import resolve

    plan = resolve(STUDY, SCALE, root=project)
    plan.write_specs()
    cell = next(cell for cell in plan.cells if cell.cell == CELL)
    specs, base, panels = project / plan.results() / "specs", plan.base_path(cell), plan.panels_path(cell)
    turnscale(project, env, "job", "tracking", "--out", str(plan.results() / "tracking.json"))
    spec = specs / f"panels-{cell.panels.hash}.json"
    turnscale(
        project, env, "job", "panels", "--spec", str(spec), "--scale", SCALE, "--out", str(panels)
    )  # fmt: skip
    spec = specs / f"base-{cell.base.hash}.json"
    turnscale(
        project, env, "job", "base", "--spec", str(spec), "--panels", str(panels), "--scale", SCALE,
        "--out", str(base),
    )  # fmt: skip


def job(project: Path, env: dict[str, str], seed: int) -> dict[str, float]:
    """CPU seconds of each stage of a training job up to and with its first step."""
    _, text = process(project, env, sys.executable, str(Path(__file__)), f"--{JOB}", str(seed))
    found: dict[str, float] = json.loads(text.splitlines()[-1])
    return found


def stages(seed: int) -> dict[str, float]:
    """The stages, in the process that trains and in the order of ``train_run``."""
    found: dict[str, float] = {"Python": time.process_time()}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        found[name] = time.process_time() - started

    with stage("import torch"):
        import torch  # noqa: F401
    with stage("import transformers and peft"):
        import peft  # noqa: F401
        from transformers import AutoModelForCausalLM, Qwen3ForCausalLM  # noqa: F401
    with stage("import MLflow"):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient  # noqa: F401
    with stage("import turnscale"):
        from turnscale.envs.panels import load_panels
        from turnscale.seeding import fix_threads
        from turnscale.study import Run, resolve
        from turnscale.track.records import read_record
        from turnscale.track.run import open_run
        from turnscale.train.trainer import Trainer
    with stage("read the plan, panels and records"):
        plan = resolve(STUDY, SCALE, root=Path())
        cell = next(cell for cell in plan.cells if cell.cell == CELL)
        run = Run(STUDY, SCALE, cell.family, cell.model, cell.cell, cell.method_name, seed, cell.train)
        base, panels = read_record(plan.base_path(cell)), load_panels(plan.panels_path(cell))
    fix_threads(1)
    opened = stage("open the run in MLflow")
    with opened:
        context = open_run(run, run.spec.value, {"panels": panels.hash, "base": str(base["hash"])}, Path())
        log = context.__enter__()
    with stage("load the checkpoint, attach the adapter"):
        trainer = Trainer(run, base, panels, None)
    with stage("first validation"):
        trainer._validate(0)
    trainer.step = 1  # the first validation is behind us
    with stage("one step"):
        trainer.advance()
    log.finish({"adapter": None, "steps": 1})
    context.__exit__(None, None, None)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == [f"--{JOB}"]:
        print(json.dumps(stages(int(sys.argv[2]))))
    else:
        main()
