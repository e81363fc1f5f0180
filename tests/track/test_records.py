"""A study is rebuilt from the tracking store alone, and differences between records and store are told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from turnscale.errors import DataError, TrackingError
from turnscale.study import Plan, resolve
from turnscale.track.collect import collect
from turnscale.track.read import Store
from turnscale.track.records import (
    read_record,
    restore,
    verify,
    write_record,
)
from turnscale.track.run import open_run

from .made import SECRET


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


def test_collecting_again_reads_only_what_is_new(
    project: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = project.root / "tables"
    mpo = next(cell for cell in project.cells if cell.cell == "mpo")
    last = project.root / project.evaluation_path(mpo, 1)
    kept = last.read_bytes()
    last.unlink()
    collect(project, out, partial=True)
    last.write_bytes(kept)
    read: list[str] = []
    whole = Store.artifact

    def counted(self: Store, run_id: str, name: str, checksum: str | None = None) -> object:
        read.append(name)
        return whole(self, run_id, name, checksum)

    monkeypatch.setattr(Store, "artifact", counted)
    for name in files(out):
        (out / name).unlink()  # as the workflow does before it makes an output again
    collect(project, out)
    assert len(read) == 2 and read[1] == "metrics.parquet"
    assert "outcomes: 5 runs, 1 of them read from the store" in capsys.readouterr().out
    grown = files(out)
    shutil.rmtree(project.root / "results/tiny/mpo/collected")
    collect(project, out)
    assert files(out) == grown


def test_outcomes_of_another_run_are_refused(project: Plan) -> None:
    cell = project.cells[1]
    path = project.root / project.evaluation_path(cell, 0)
    record = read_record(path)
    other = read_record(project.root / project.evaluation_path(cell, 1))
    artifacts = project.root / "mlflow/artifacts"
    shutil.copy(
        artifacts / other["run_id"] / "artifacts" / other["outcomes"],
        artifacts / record["run_id"] / "artifacts" / record["outcomes"],
    )
    write_record(path, {**record, "sha256": other["sha256"]})
    with pytest.raises(DataError, match="outcomes of seed 1 in the run of seed 0"):
        collect(project, project.root / "tables")


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
