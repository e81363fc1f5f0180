"""A copy of the project without results, and finished runs made up for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from turnscale.study import Plan, resolve
from turnscale.workflow import Products, audit_files

PROJECT = Path(__file__).parents[2]


@dataclass
class Project:
    """A project folder and what Snakemake says in it."""

    root: Path

    def plan(self, **changes: int) -> Plan:
        """The tiny study."""
        return resolve("mpo", "tiny", root=self.root, **changes)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text that occurs exactly once in a file."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the folder."""
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=environment)

    def claim(self, *rules: str) -> None:
        """Let Snakemake take what the rules are to make for what it has made itself."""
        done = self.snakemake("--touch", "--forcerun", *rules, "--config", "study=mpo", "scale=tiny")
        assert done.returncode == 0, done.stdout + done.stderr

    def dry_run(self, *config: str, targets: Sequence[str] = ()) -> Counter[str]:
        """Jobs by rule that a dry-run schedules; empty if nothing is to be done."""
        done = self.snakemake(*targets, "-n", "--config", "study=mpo", "scale=tiny", *config)
        self.said = done.stdout + done.stderr
        assert done.returncode == 0, self.said
        jobs: Counter[str] = Counter()
        if "Job stats:" not in self.said:
            assert "Nothing to be done" in self.said, self.said
            return jobs
        for line in self.said.split("Job stats:")[1].splitlines()[3:]:
            words = line.split()
            if len(words) != 2 or words[0] == "total":
                break
            jobs[words[0]] = int(words[1])
        return jobs

    def finish(self, plan: Plan) -> None:
        """Make up every record and product of a plan, without Snakemake's metadata."""
        made: list[Path] = [plan.results() / "tracking.json", Products(plan).gates]
        for cell in plan.cells:
            made += [plan.panels_path(cell), plan.base_path(cell)]
            for seed in cell.seeds:
                if cell.critic is not None:
                    made.append(plan.critic_path(cell, seed))
                made += [plan.run_path(cell, seed), plan.evaluation_path(cell, seed)]
        for name in ("outcomes.parquet", "metrics.parquet", "critic_values.parquet", "survivorship.csv"):
            made.append(plan.results() / "mpo" / "tables" / name)
        derived = ("estimates.csv", "comparisons.csv", "looks.csv")
        for name in (*derived, "critic_statistics.csv", "critic_trajectories.parquet"):
            made.append(plan.results() / "mpo" / "tables" / name)
        made += [Path(f"paper_tables/tiny/{t}.{f}") for t in plan.study.tables for f in ("csv", "md", "tex")]
        made += [Path(f"figures/tiny/{t}.{f}") for t in plan.study.figures for f in ("pdf", "png", "csv")]
        made += [Path(path) for path in audit_files("tiny", "mpo")]
        for path in made:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(json.dumps({"made_up": True}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project folder with the scale ``tiny``: the smoke scale on the local dense model."""
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    scale = yaml.safe_load((PROJECT / "configs/scales/smoke.yaml").read_text(encoding="utf-8"))
    local = [
        path.stem
        for path in sorted((PROJECT / "configs/models").glob("*.yaml"))
        if "kind: local" in path.read_text()
    ]
    scale |= {"scale": "tiny", "seeds": 2, "models": local[:1]}
    text = yaml.safe_dump(scale, sort_keys=False)
    (tmp_path / "configs/scales/tiny.yaml").write_text(f"# A comment.\n{text}", encoding="utf-8")
    return Project(tmp_path)
