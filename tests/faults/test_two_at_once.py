"""Two workflows in one folder, and a folder that cannot be written: one clear line, and the next run works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import Project
from tests.workflow.conftest import project as folder  # noqa: F401 - a fixture
from turnscale.errors import TurnscaleError
from turnscale.workdir import alone

from .conftest import Disk

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom turnscale.workdir import alone\n"
    "with alone(Path(sys.argv[1])):\n print('held', flush=True)\n time.sleep(120)\n"
)


def _turnscale(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from turnscale.cli import main; main()", *words]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)


def test_a_second_reproduce_is_refused_and_works_when_the_first_is_killed(folder: Project) -> None:  # noqa: F811
    root = folder.root
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        done = _turnscale(root, "reproduce", "mpo", "--scale", "tiny")
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr == (
            f"turnscale: another 'turnscale reproduce' (process {holder.pid}) is at work in this folder. "
            "Remedy: wait for it, or stop it with Ctrl-C in its terminal.\n"
        )
        with pytest.raises(TurnscaleError), alone(root):
            pass
    finally:
        holder.kill()
        holder.wait()
    with alone(root):
        pass


def test_a_read_only_project_is_told_by_the_command_and_by_snakemake(folder: Project, disk: Disk) -> None:  # noqa: F811
    root = disk.path / "project"
    shutil.copytree(folder.root, root, ignore=shutil.ignore_patterns("disk"))
    disk.writable(False)
    done = _turnscale(root, "reproduce", "mpo", "--scale", "tiny")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "turnscale.lock" in done.stderr and "make the folder writable for this user" in done.stderr
    said = Project(root).snakemake("-n", "--config", "scale=tiny")
    assert said.returncode != 0 and "make the folder writable" in said.stdout + said.stderr
    disk.writable(True)
    assert Project(root).dry_run()["train"] > 0


@pytest.mark.slow
def test_of_two_snakemakes_one_works_and_one_is_refused(folder: Project) -> None:  # noqa: F811
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "results/tiny/tracking.json"]
    command += ["--config", "scale=tiny"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    first = subprocess.Popen(
        command, cwd=folder.root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    locks = folder.root / ".snakemake" / "locks"
    deadline = time.monotonic() + 120
    while not list(locks.glob("*.lock")):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    second = folder.snakemake("results/tiny/tracking.json", "--config", "scale=tiny")
    refused = _turnscale(folder.root, "reproduce", "mpo", "--scale", "tiny") if first.poll() is None else None
    assert first.wait(timeout=300) == 0
    assert second.returncode != 0 and "cannot be locked" in second.stdout + second.stderr
    assert refused is None or (refused.returncode == 2 and "is at work in this folder" in refused.stderr)
    again = folder.snakemake("results/tiny/tracking.json", "--config", "scale=tiny")
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr
