"""The cluster profiles: every setting is one of Snakemake's or the plugin's, and a dry run plans with it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.workflow.conftest import Project


@pytest.mark.parametrize(
    ("name", "asked"),
    [("slurm", "gpu=1"), ("kubernetes", "gpu_manufacturer=nvidia, scale=0, gpu=1")],
)
def test_a_dry_run_asks_one_gpu_for_each_training(project: Project, name: str, asked: str) -> None:
    if find_spec(f"snakemake_executor_plugin_{name}") is None:
        pytest.skip(f"NOT TESTED: profiles/{name}. The extra `{name}` is not installed.")
    project.edit("configs/scales/tiny.yaml", "runtime:\n", "runtime:\n  gpus: 1\n")
    # The profile names a mount and a server that are not here; its other settings are taken as they are.
    here = ["--default-storage-prefix", str(project.root), "--envvars", "PATH"]
    place = here if name == "kubernetes" else []
    profile = ("--profile", f"profiles/{name}", "--workflow-profile", "none", *place)
    done = project.snakemake("runs", "-n", *profile, "--config", "study=mpo", "scale=tiny")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    training = said.split("rule train:")[1]
    assert asked in training.split("resources:")[1].splitlines()[0]
    assert "gpu=" not in said.split("rule gates:")[1].split("resources:")[1].splitlines()[0]


def test_a_scale_without_gpus_asks_for_none(project: Project) -> None:
    project.dry_run()
    assert "gpu=" not in project.said
