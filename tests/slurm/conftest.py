"""Two machines that share nothing but a tracking server: a project folder each, and half of a study's runs each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.servers import mlflow_server
from tests.slurm.workflow import CONFIG, call, project
from turnscale.study import Plan


@dataclass
class Machines:
    """Two machines after each has made its share, taken over the other's records and made the tables."""

    plans: tuple[Plan, Plan]
    said: tuple[str, str]
    trained: tuple[set[int], set[int]]
    said_at_the_end: tuple[str, str]


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The study of these tests, made by two machines."""
    scratch = tmp_path_factory.mktemp("machines")
    plans = (project(scratch / "first"), project(scratch / "second"))
    with mlflow_server(scratch / "server") as address:
        said, trained = [], []
        for number, plan in enumerate(plans, start=1):
            share = f"share={number}/{len(plans)}"
            said.append(call(plan, address, "snakemake", "runs", "--cores", "2", "--config", *CONFIG, share))
            records = (plan.root / "results").rglob("grpo-*/seed-*/run.json")
            trained.append({int(path.parent.name.removeprefix("seed-")) for path in records})
        end = []
        for plan in plans:
            call(plan, address, "turnscale", "runs", "restore", "--study", "loopback", "--scale", "loopback")
            end.append(call(plan, address, "snakemake", "--cores", "2", "--config", *CONFIG))
        yield Machines(plans, (said[0], said[1]), (trained[0], trained[1]), (end[0], end[1]))
