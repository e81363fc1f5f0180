"""A study is rebuilt from the tracking store alone, and differences between records and store are told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from turnscale.errors import DataError, TrackingError
from turnscale.study import Plan, ResolvedCell, Run, resolve
from turnscale.track.collect import collect
from turnscale.track.read import Store
from turnscale.track.records import (
    base_key,
    critic_key,
    publish,
    publish_evaluation,
    read_record,
    restore,
    verify,
    write_record,
)
from turnscale.track.run import open_run
from turnscale.track.store import init_tracking

PROJECT = Path(__file__).parents[2]
SECRET = "hunter2-is-no-good-password"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose base, critics, runs and evaluations are all made up, through the real store."""
    root = tmp_path_factory.mktemp("project")
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    shutil.copytree(PROJECT / "configs", root / "configs")
    scale = yaml.safe_load((PROJECT / "configs/scales/smoke.yaml").read_text(encoding="utf-8"))
    models = sorted((PROJECT / "configs/models").glob("*.yaml"))
    local = [path.stem for path in models if "kind: local" in path.read_text(encoding="utf-8")]
    scale |= {"scale": "tiny", "seeds": 2, "models": local[:1], "groups": ["tiny"]}
    (root / "configs/scales/tiny.yaml").write_text(yaml.safe_dump(scale), encoding="utf-8")
    study = yaml.safe_load((PROJECT / "configs/studies/mpo.yaml").read_text(encoding="utf-8"))
    study["groups"]["tiny"] = ["base", "grpo", "mpo"]
    (root / "configs/studies/mpo.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    os.environ["SOME_TOKEN"] = SECRET
    init_tracking(root)
    plan = resolve("mpo", "tiny", root=root)
    runs = {(run.cell, run.seed): run for run in plan.runs()}
    seen: set[Path] = set()
    for cell in plan.cells:
        make_shared(plan, cell, root, seen)
        for seed in cell.seeds:
            make_run(plan, cell, runs[cell.cell, seed], root)
    del os.environ["SOME_TOKEN"]
    return root


def make_shared(plan: Plan, cell: ResolvedCell, root: Path, seen: set[Path]) -> None:
    scale = plan.scale.scale
    jobs = [("base", plan.base_path(cell), cell.base, base_key(scale, cell.base.value, cell.base.hash))]
    if cell.critic is not None:
        for seed in cell.seeds:
            key = critic_key(scale, cell.critic.value, cell.critic.hash, seed)
            jobs.append(("critic", plan.critic_path(cell, seed), cell.critic, key))
    for kind, path, spec, key in jobs:
        if path in seen:
            continue
        seen.add(path)
        weights = root / path.parent / "checkpoint" / "weights.bin"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(key.encode())
        measured = {"hash": "x", "report": {"search-2hop": 0.25}, "loss": None}
        write_record(root / path, publish(kind, key, scale, spec.value, measured, root / path.parent, root))


def make_run(plan: Plan, cell: ResolvedCell, run: Run, root: Path) -> None:
    work = root / "scratch" / cell.cell / str(run.seed)
    work.mkdir(parents=True)
    with open_run(run, run.spec.value, {}, root) as log:
        if cell.trains:
            rows = [(step, "val_pass_at_1", 0.1 * step) for step in range(3)]
            pd.DataFrame(rows, columns=["step", "metric", "value"]).to_parquet(work / "metrics.parquet")
            log.artifact(work)
        record = log.finish({"adapter": None})
    write_record(root / plan.run_path(cell, run.seed), record)
    identity = {
        name: record[name] for name in ("study", "scale", "family", "model", "cell", "method", "seed")
    }
    rows = [
        {
            **identity,
            "benchmark": "b",
            "task": f"t{task}",
            "attempt": a,
            "success": a == 0,
            "run_id": record["run_id"],
        }
        for task in range(2)
        for a in range(2)
    ]
    table = work / "outcomes.parquet"
    pd.DataFrame(rows).to_parquet(table)
    digest = cell.evaluation.hash
    evaluation = publish_evaluation(record, digest, table, {"test_b_pass_at_1": 0.5}, root)
    write_record(root / plan.evaluation_path(cell, run.seed), evaluation)


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Plan:
    """A copy of the made-up project, at another place: the store's artifacts are found there too."""
    shutil.copytree(made, tmp_path / "copy")
    return resolve("mpo", "tiny", root=tmp_path / "copy")


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_everything_is_rebuilt_byte_for_byte_when_results_are_gone(project: Plan) -> None:
    results = project.root / "results"
    before = files(results)
    collect(project, project.root / "tables-before")
    shutil.rmtree(results)
    done = restore(project)
    assert files(results) == before
    assert (done.written, done.kept, done.absent) == (1 + 2 + 2 * 5, 0, 0)
    collect(project, project.root / "tables-after")
    assert files(project.root / "tables-after") == files(project.root / "tables-before")
    again = restore(project)
    assert (again.written, again.kept) == (0, done.written)


def test_collected_tables_hold_exactly_the_planned_runs(project: Plan) -> None:
    out = project.root / "tables"
    collect(project, out)
    outcomes = pd.read_parquet(out / "outcomes.parquet")
    assert len(outcomes) == 5 * 4
    assert set(outcomes["cell"]) == {"base", "grpo", "mpo"}
    metrics = pd.read_parquet(out / "metrics.parquet")
    assert len(metrics) == 4 * 3
    assert set(metrics["run_id"]) < set(outcomes["run_id"])
    survivors = pd.read_csv(out / "survivorship.csv").set_index("cell")
    assert survivors.loc["mpo", ["planned", "finished", "failed", "excluded"]].tolist() == [2, 2, 0, 0]


def test_unfinished_failed_and_unevaluated_runs_are_counted_or_refused(project: Plan) -> None:
    more = resolve("mpo", "tiny", seeds=5, root=project.root)
    failed = next(run for run in more.runs() if run.cell == "grpo" and run.seed == 3)
    with pytest.raises(RuntimeError), open_run(failed, failed.spec.value, {}, project.root):
        raise RuntimeError("NaN")
    grpo, mpo = (next(cell for cell in more.cells if cell.cell == name) for name in ("grpo", "mpo"))
    (project.root / more.evaluation_path(mpo, 1)).unlink()
    with pytest.raises(DataError, match="is not finished"):
        collect(more, project.root / "tables")
    collect(more, project.root / "tables", partial=True)
    survivors = pd.read_csv(project.root / "tables/survivorship.csv").set_index("cell")
    assert survivors.loc["grpo", ["planned", "finished", "failed", "excluded"]].tolist() == [5, 2, 1, 0]
    assert survivors.loc["mpo", ["planned", "finished", "failed", "excluded"]].tolist() == [5, 1, 0, 1]
    assert not (project.root / more.run_path(grpo, 3)).exists()


def test_nothing_finished_is_refused(project: Plan) -> None:
    shutil.rmtree(project.root / "results")
    with pytest.raises(DataError, match="no planned run is finished"):
        collect(project, project.root / "tables", partial=True)


def test_verify_tells_damage_and_orphans(project: Plan) -> None:
    assert verify(project) == []
    cell = project.cells[1]
    record = read_record(project.root / project.run_path(cell, 0))
    artifact = project.root / "mlflow/artifacts" / record["run_id"] / "artifacts/metrics.parquet"
    artifact.write_bytes(b"damaged")
    (problem,) = verify(project)
    assert "SHA-256" in problem
    with pytest.raises(TrackingError, match="SHA-256"):
        collect(project, project.root / "tables")
    artifact.unlink()
    (problem,) = verify(project)
    assert "no artifact 'metrics.parquet'" in problem
    record["run_id"] = "0" * 32
    write_record(project.root / project.run_path(cell, 0), record)
    assert any("which the store does not have" in problem for problem in verify(project))


def test_verify_tells_runs_of_an_earlier_configuration(project: Plan) -> None:
    path = project.root / "configs/studies/mpo.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["cells"]["grpo"]["train"] = {"lr": 0.001}
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    problems = verify(resolve("mpo", "tiny", root=project.root))
    assert len(problems) == 2
    assert all("not of the plan as it is configured now" in problem for problem in problems)


def test_numbers_of_bases_and_critics_are_metrics_of_their_runs(project: Plan) -> None:
    kinds = [job.kind for job in Store(project.root).all_jobs("tiny")]
    assert sorted(kinds) == ["base", "critic", "critic", *["train"] * 5]


def test_no_secret_reaches_the_store(made: Path) -> None:
    import getpass
    import socket

    stored = [*(made / "mlflow/artifacts").rglob("*.json"), *(made / "mlflow").glob("mlflow.db*")]
    texts = b"".join(path.read_bytes() for path in stored)
    assert SECRET.encode() not in texts
    # A folder is no secret: MLflow itself stores where its unused Default experiment would put artifacts.
    for value in os.environ.values():
        if len(value) > 12 and not value.replace(".", "").isdigit() and not Path(value).is_dir():
            assert value.encode() not in texts
    assert f'"{socket.gethostname()}"'.encode() not in texts
    assert f'"{getpass.getuser()}"'.encode() not in texts
