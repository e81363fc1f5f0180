"""A study through a real Slurm: every job on a node, one cancelled while it trains, and the tables as ever.

    make test-slurm

The Slurm is this test's own, on loopback, and is gone afterwards. Skipped, with the reason, where none can be had.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from tests.servers import mlflow_server, stop_session
from tests.slurm.conftest import Machines
from tests.slurm.loopback import NODES, Cluster, Job, Unavailable, loopback_slurm
from tests.slurm.workflow import CONFIG, environment, project
from turnscale.study import Plan
from turnscale.track.records import read_record

pytestmark = pytest.mark.slow

SLURM = ("--profile", "profiles/slurm", "--workflow-profile", "none", "--jobs", "4")
# This Slurm has no accounting database and forgets nothing in ten minutes; asking it often costs nothing.
ASKING = ("--slurm-no-account", "--slurm-status-command", "squeue", "--seconds-between-status-checks", "1")
PATIENCE = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "15")
WAIT_SECONDS = 600
MARGIN = 6
"""Steps that must still be to do when the training is cancelled."""


@dataclass
class Ran:
    """What is left of the study after it went through Slurm."""

    plan: Plan
    address: str
    said: str
    jobs: list[Job]
    cancelled: Job
    steps: int


def wait_for(log: Path, snakemake: subprocess.Popen[bytes], cluster: Cluster, plan: Plan) -> tuple[Job, int]:
    """Cancel the first running training that has a checkpoint; the job and the steps it had done.

    Raises:
        AssertionError: the workflow ended, or the time, before there was one.
    """
    total = plan.scale.train.steps
    end = time.monotonic() + WAIT_SECONDS
    while True:
        assert snakemake.poll() is None and time.monotonic() < end, log.read_text()
        steps = {path: int(path.name[5:]) for path in (plan.root / "checkpoints").rglob("step-[0-9]*")}
        for path, step in steps.items():
            seed = path.parent.name.removeprefix("seed-")
            mine = [job for job in cluster.jobs() if job.state == "RUNNING" and is_training(job, seed)]
            if mine and total - step >= MARGIN:
                cluster.cancel(mine[0].number)
                return mine[0], step
        time.sleep(0.1)


def is_training(job: Job, seed: str) -> bool:
    """Whether a job trains the method with that seed: the plugin writes rule and wildcards into the comment."""
    return "train" in job.comment and "grpo" in job.comment and job.comment.endswith(seed)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The study, run once through Slurm with a server as its store, one training cancelled on the way."""
    if find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("NOT TESTED: the workflow through Slurm. The extra `slurm` is not installed.")
    scratch = tmp_path_factory.mktemp("slurm")
    plan = project(scratch / "cluster")
    log = scratch / "snakemake.log"
    try:
        with loopback_slurm() as cluster, mlflow_server(scratch / "server") as address:
            command = [sys.executable, "-m", "snakemake", *SLURM, *ASKING, *PATIENCE]
            command += ["--config", *CONFIG]
            with log.open("wb") as sink:
                snakemake = subprocess.Popen(
                    command,
                    cwd=plan.root,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=environment(address),
                    start_new_session=True,
                )
            try:
                cancelled, steps = wait_for(log, snakemake, cluster, plan)
                snakemake.wait(WAIT_SECONDS)
            finally:
                stop_session(snakemake)
            said = log.read_text()
            assert snakemake.returncode == 0, said
            yield Ran(plan, address, said, cluster.jobs(), cancelled, steps)
    except Unavailable as error:
        pytest.skip(f"NOT TESTED: the workflow through Slurm. {error}")


def test_jobs_ran_on_both_nodes_with_one_gpu_each(ran: Ran) -> None:
    rules = {job.number: job for job in ran.jobs}
    assert len(rules) == len(ran.jobs)
    finished = [job for job in ran.jobs if job.state == "COMPLETED"]
    # A base, the gates, and for each run a training and an evaluation.
    assert len(finished) == 2 + 2 * len(ran.plan.runs()), ran.jobs
    assert {job.node for job in finished} == set(NODES)
    asked = [job.gpus for job in finished if "gates" not in job.comment]
    assert asked == ["gres:gpu:1"] * (len(finished) - 1)


def test_a_cancelled_training_went_on_in_the_same_run(ran: Ran) -> None:
    from mlflow import MlflowClient

    state = {job.number: job.state for job in ran.jobs}[ran.cancelled.number]
    assert state == "CANCELLED"
    assert f"SLURM-job '{ran.cancelled.number}' failed" in ran.said
    assert "Trying to restart job" in ran.said
    cell = ran.plan.cells[1]
    attempts = {
        seed: read_record(ran.plan.root / ran.plan.run_path(cell, seed))["attempt"] for seed in (0, 1)
    }
    assert sorted(attempts.values()) == [1, 2]
    client = MlflowClient(tracking_uri=ran.address)
    experiment = client.get_experiment_by_name("turnscale")
    assert experiment is not None
    trained = client.search_runs(
        [experiment.experiment_id], filter_string="tags.`turnscale.kind` = 'train'", max_results=100
    )
    assert {run.info.status for run in trained} == {"FINISHED"}
    keys = [run.data.tags["turnscale.key"] for run in trained]
    assert sorted(keys) == sorted(run.key for run in ran.plan.runs()), "one run per key"


def test_no_metric_was_lost_or_logged_twice(ran: Ran) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=ran.address)
    cell = ran.plan.cells[1]
    histories = []
    for seed in (0, 1):
        run_id = read_record(ran.plan.root / ran.plan.run_path(cell, seed))["run_id"]
        names = sorted(client.get_run(run_id).data.metrics)
        histories.append(
            {name: [row.step for row in client.get_metric_history(run_id, name)] for name in names}
        )
    for history in histories:
        assert sorted(history["reward"]) == list(range(1, ran.plan.scale.train.steps + 1))
        assert all(len(steps) == len(set(steps)) for steps in history.values())
    assert histories[0].keys() == histories[1].keys()
    assert all(sorted(histories[0][name]) == sorted(histories[1][name]) for name in histories[0])


def test_tables_are_those_of_a_run_without_slurm(ran: Ran, machines: Machines) -> None:
    without = machines.plans[0]
    for name in (
        "paper_tables/loopback/loopback_main.md",
        "paper_tables/loopback/loopback_main.tex",
        "figures/loopback/loopback_learning.csv",
    ):
        assert (without.root / name).read_bytes() == (ran.plan.root / name).read_bytes()
    # Each training has its own id in each store; every number must agree to its last digit.
    tables = [
        pd.read_csv(plan.root / "paper_tables/loopback/loopback_main.csv", dtype=str).drop(columns="run_ids")
        for plan in (without, ran.plan)
    ]
    pd.testing.assert_frame_equal(*tables)
