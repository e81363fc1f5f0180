"""The smallest study in a project folder of its own, and Snakemake in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from turnscale.study import Plan, resolve

PROJECT = Path(__file__).parents[2]
CONFIG = ("study=loopback", "scale=loopback")


def project(folder: Path) -> Plan:
    """The workflow and its configuration in ``folder``, with the study of these tests; its plan."""
    folder.mkdir(parents=True)
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    shutil.copy(PROJECT / "tests/slurm/study.yaml", folder / "configs/studies/loopback.yaml")
    shutil.copy(PROJECT / "tests/slurm/scale.yaml", folder / "configs/scales/loopback.yaml")
    return resolve("loopback", "loopback", root=folder)


def environment(address: str) -> dict[str, str]:
    """This environment with its programs first and the tracking store at ``address``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": address}


def call(plan: Plan, address: str, *command: str) -> str:
    """Run a command in the plan's folder; what it said.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        command, cwd=plan.root, capture_output=True, text=True, env=environment(address), timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
