"""The whole workflow at scale smoke, in a copy of the project, and what may happen to it afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from turnscale.study import Plan, resolve

PROJECT = Path(__file__).parents[2]


def call(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the project copy, with this environment's programs first."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)


def products(root: Path, plan: Plan) -> dict[str, bytes]:
    """Tables, figures' data and audit, which must come out the same from the same runs."""
    found = {}
    for folder in ("paper_tables", "figures"):
        for path in sorted((root / folder / plan.scale.scale).rglob("*")):
            if path.suffix in (".csv", ".md", ".tex", ".json"):
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the smoke scale has run."""
    root = tmp_path_factory.mktemp("smoke")
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
    done = call(root, "turnscale", "reproduce", "mpo", "--scale", "smoke", "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return root


@pytest.fixture(scope="module")
def plan(root: Path) -> Plan:
    return resolve("mpo", "smoke", root=root)


@pytest.mark.smoke
def test_every_planned_product_is_there_and_counts_every_run(root: Path, plan: Plan) -> None:
    for name in plan.study.tables:
        for form in ("csv", "md", "tex"):
            assert (root / "paper_tables/smoke" / f"{name}.{form}").stat().st_size > 0
    for name in plan.study.figures:
        for form in ("pdf", "png", "csv"):
            assert (root / "figures/smoke" / f"{name}.{form}").stat().st_size > 0
    survivors = pd.read_csv(root / "results/smoke/mpo/tables/survivorship.csv")
    assert (survivors["finished"] == survivors["planned"]).all()
    outcomes = pd.read_parquet(root / "results/smoke/mpo/tables/outcomes.parquet")
    assert outcomes.groupby(["cell", "seed"]).ngroups == len(plan.runs())
    attempts = outcomes.groupby(["cell", "seed", "benchmark", "task"]).size()
    assert set(attempts) == {plan.scale.eval.attempts}


@pytest.mark.smoke
def test_run_again_does_nothing(root: Path) -> None:
    done = call(root, "snakemake", "-n", "--config", "scale=smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr


@pytest.mark.smoke
def test_a_figure_that_cannot_be_drawn_is_named_and_costs_the_others_nothing(root: Path, plan: Plan) -> None:
    damaged = root / "results/smoke/mpo/tables/critic_trajectories.parquet"
    good, before = damaged.read_bytes(), products(root, plan)
    config = ("--cores", "2", "--config", "scale=smoke")
    try:
        damaged.write_bytes(good[: len(good) // 2])
        done = call(root, "snakemake", "figures", *config)
        said = done.stdout + done.stderr
        assert done.returncode == 1
        assert "figure mpo_critic" in said and str(damaged.relative_to(root)) in said
        assert "logs/smoke/mpo/figures.log" in said
        assert before.keys() - products(root, plan).keys() == {"figures/smoke/mpo_critic.csv"}
    finally:
        damaged.write_bytes(good)
    done = call(root, "snakemake", "figures", *config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert products(root, plan) == before


@pytest.mark.smoke
def test_records_and_store_agree(root: Path) -> None:
    done = call(root, "turnscale", "runs", "verify", "--scale", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.smoke
def test_tables_come_back_from_the_store_alone_without_training(root: Path, plan: Plan) -> None:
    before = products(root, plan)
    for name in ("results", "paper_tables", "figures", ".snakemake"):
        shutil.rmtree(root / name)
    restored = call(root, "turnscale", "runs", "restore", "--scale", "smoke")
    assert restored.returncode == 0, restored.stdout + restored.stderr
    config = ("--config", "scale=smoke", "partial=true")
    done = call(root, "snakemake", "tables", "figures", "--cores", "2", *config)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for rule in ("train", "evaluate", "critic", "base", "panels", "gates"):
        assert f"rule {rule}:" not in said
    assert products(root, plan) == before


@pytest.mark.smoke
def test_tables_come_out_of_an_archive_in_a_fresh_clone(root: Path, plan: Plan, tmp_path: Path) -> None:
    archive, clone = tmp_path / "runs.tar.gz", tmp_path / "clone"
    clone.mkdir()
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, clone / name)
    done = call(root, "turnscale", "runs", "export", str(archive), "--scale", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    config = ("--config", "scale=smoke", "partial=true")
    for command in (
        ("turnscale", "runs", "import", str(archive), "--digest", done.stdout.split()[-1]),
        ("turnscale", "runs", "restore", "--scale", "smoke"),
        ("snakemake", "tables", "figures", "--cores", "2", *config),
        ("turnscale", "runs", "verify", "--scale", "smoke"),
    ):
        done = call(clone, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert products(clone, plan) == products(root, plan)
