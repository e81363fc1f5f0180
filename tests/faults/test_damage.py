"""Truncated files and flipped bits: found before they are used, told with a remedy, and the remedy works."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.train.setting import Setting
from turnscale.envs.panels import load_panels
from turnscale.errors import CheckpointError, DataError, TaskError, TrackingError
from turnscale.estimates import read_parquet
from turnscale.files import sha256, write_parquet
from turnscale.study import Plan, resolve
from turnscale.track.collect import collect
from turnscale.track.read import Store
from turnscale.track.records import (
    publish_evaluation,
    read_record,
    read_with_files,
    restore,
    verify,
    write_record,
)
from turnscale.track.run import open_run
from turnscale.track.store import connect, init_tracking
from turnscale.train import state
from turnscale.train.loop import train_run
from turnscale.train.trainer import Trainer

from .conftest import DAMAGES


def _snapshot(step: int) -> state.Snapshot:
    return state.Snapshot(
        step, "spec", {"weight": torch.full((30,), float(step))}, {"metrics": [[step, "loss", 0.1]]}, {}
    )


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [state.TENSORS, state.TABLES, state.STATE])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        state.save(tmp_path, _snapshot(step))
    DAMAGES[damage](tmp_path / "step-000002" / name)
    found = state.load_newest(tmp_path, "spec")
    assert found is not None and found.step == 1 and found.tensors["weight"][0] == 1.0
    assert "step-000002 is damaged and is not used" in capsys.readouterr().err
    DAMAGES[damage](tmp_path / "step-000001" / name)
    assert state.load_newest(tmp_path, "spec") is None, "with both damaged the run starts over"
    state.save(tmp_path, _snapshot(2))
    again = state.load_newest(tmp_path, "spec")
    assert again is not None and again.step == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_base_and_critic_are_refused_and_restored(project: Plan, damage: str) -> None:
    cell = next(cell for cell in project.cells if cell.critic is not None)
    for record in (project.base_path(cell), project.critic_path(cell, 0)):
        path = project.root / record
        weights = path.parent / "checkpoint" / "weights.bin"
        before = weights.read_bytes()
        DAMAGES[damage](weights)
        with pytest.raises(CheckpointError, match="turnscale runs restore") as caught:
            read_with_files(path)
        assert caught.value.file == str(weights)
        assert restore(project).written == 1
        assert weights.read_bytes() == before and read_with_files(path)["artifacts"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_records_are_refused_and_restored(project: Plan, damage: str) -> None:
    cell = project.cells[-1]
    for record in (project.run_path(cell, 0), project.evaluation_path(cell, 0), project.base_path(cell)):
        path = project.root / record
        before = path.read_bytes()
        DAMAGES[damage](path)
        with pytest.raises(DataError, match="turnscale runs restore") as caught:
            read_record(path)
        assert caught.value.file == str(path)
        if record != project.base_path(cell):
            assert any(str(path) in problem for problem in verify(project))
            with pytest.raises(DataError, match=r"no record as it was written|is not JSON"):
                collect(project, project.root / "tables")
        assert restore(project).written == 1
        assert path.read_bytes() == before
    assert verify(project) == []


@pytest.mark.parametrize("damage", [pytest.param("truncated", marks=pytest.mark.slow), "flipped"])
@pytest.mark.parametrize("name", ["outcomes.parquet", "metrics.parquet"])
def test_a_damaged_table_in_the_store_is_refused_and_logged_again(
    made: Path,
    tmp_path: Path,
    name: str,
    damage: str,
) -> None:
    project = resolve("mpo", "tiny", root=made)
    collect(project, tmp_path / "before")
    shutil.rmtree(made / project.results() / "mpo" / "collected")  # it would not be read from the store again
    cell = next(cell for cell in project.cells if cell.trains)
    path = project.root / project.run_path(cell, 1)
    record = read_record(path)
    evaluation = project.root / project.evaluation_path(cell, 1)
    stored = read_record(evaluation)["outcomes"] if name == "outcomes.parquet" else name
    folder = project.root / "mlflow" / "artifacts" / record["run_id"] / "artifacts"
    DAMAGES[damage](folder / stored)
    with pytest.raises(TrackingError, match=r"SHA-256 differs.*run the workflow again") as caught:
        collect(project, tmp_path / "tables")
    assert caught.value.file == str(folder / stored)
    assert not (tmp_path / "tables").exists(), "nothing half-made"
    # The remedy: without the record, the workflow does the job again.
    scratch = project.root / "scratch" / cell.cell / "1"
    if name == "outcomes.parquet":
        evaluation.unlink()
        digest = cell.evaluation.hash
        again = publish_evaluation(
            record, digest, scratch / name, {"test_b_pass_at_1": 0.5}, {}, project.root
        )
        write_record(evaluation, again)
    else:
        path.unlink()
        run = next(run for run in project.runs() if run.cell == cell.cell and run.seed == 1)
        with open_run(run, run.spec.value, {}, project.root) as log:
            log.artifact(scratch / name)
            write_record(path, log.finish({"adapter": None}))
    collect(project, tmp_path / "tables")
    for table in ("outcomes.parquet", "metrics.parquet", "survivorship.csv"):
        assert sha256(tmp_path / "tables" / table) == sha256(tmp_path / "before" / table)


def test_a_damaged_collected_table_is_refused_wherever_the_bit_is(tmp_path: Path) -> None:
    path, rng = tmp_path / "metrics.parquet", random.Random(0)
    table = pd.DataFrame({"step": range(500), "value": [rng.random() for _ in range(500)]})
    write_parquet(table, path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))
        try:
            found = read_parquet(path, ["step", "value"])
        except DataError as error:
            assert "remove it and run the same command again" in str(error)
            refused += 1
        else:
            pd.testing.assert_frame_equal(found, table, check_exact=True)
    assert refused > 75
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_parquet(path, ["step", "value"])


def test_damaged_panels_are_refused_wherever_the_bit_is(setting: Setting, tmp_path: Path) -> None:
    path, rng = tmp_path / "panels.json", random.Random(0)
    whole = (setting.root / "panels.json").read_bytes()
    expected = setting.panels
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))
        try:
            assert load_panels(path) == expected
        except TaskError as error:
            assert error.file == str(path) and error.remedy
            refused += 1
    assert refused > 100
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TaskError, match="freeze the panels anew"):
        load_panels(path)


def test_a_damaged_adapter_in_the_store_is_logged_again_from_the_checkpoint(
    setting: Setting, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, work = setting.run("grpo", steps=2), store / "work"
    record = train_run(run, setting.base, setting.panels, None, work, root=store)
    name = "adapter/adapter_model.safetensors"
    folder = store / "mlflow" / "artifacts" / record["run_id"] / "artifacts"
    names = {name: record["artifacts"][name]}
    for damage in DAMAGES.values():
        damage(folder / name)
        with pytest.raises(TrackingError, match="training goes on from its checkpoint"):
            Store(store).copy_artifacts(record["run_id"], names, store / "copy")
        assert not (store / "copy" / name).exists()
        monkeypatch.setattr(Trainer, "advance", lambda self: pytest.fail("a step was trained again"))
        again = train_run(run, setting.base, setting.panels, None, work, root=store)
        assert again["artifacts"] == record["artifacts"]
        Store(store).copy_artifacts(record["run_id"], names, store / "copy")
        shutil.rmtree(store / "copy")


def _damage_database(path: Path, how: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(path.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "header":
        data[3] ^= 1
    else:  # the first page of every table: what a torn disk block does
        for page in range(4096, len(data), 4096):
            data[page] ^= 0xFF
    path.write_bytes(bytes(data))
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "how", ["truncated", *(pytest.param(name, marks=pytest.mark.slow) for name in ("header", "pages"))]
)
def test_a_damaged_database_is_told_and_runs_are_logged_again_without_training(
    setting: Setting, store: Path, how: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, work = setting.run("grpo", steps=1), store / "work"
    record = train_run(run, setting.base, setting.panels, None, work, root=store)
    from turnscale.track.store import database_problems

    assert database_problems(store) == []
    _damage_database(store / "mlflow" / "mlflow.db", how)
    assert any("mlflow.db" in line and "Remedy: put a backup" in line for line in database_problems(store))
    with pytest.raises(TrackingError, match=r"put a backup of mlflow/mlflow\.db") as caught:
        train_run(run, setting.base, setting.panels, None, work, root=store)
    assert caught.value.reason == "tracking store damaged"
    fresh = (
        store / "fresh"
    )  # a store elsewhere, since MLflow keeps connections of one at work in this process
    init_tracking(fresh)
    monkeypatch.setattr(Trainer, "advance", lambda self: pytest.fail("a step was trained again"))
    again = train_run(run, setting.base, setting.panels, None, work, root=fresh)
    assert again["artifacts"] == record["artifacts"]
    client, experiment = connect(fresh)
    assert len(client.search_runs([experiment])) == 1
    history = client.get_metric_history(again["run_id"], "reward")
    assert [point.step for point in history] == [1]


def test_records_without_a_checksum_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"run_id": "x"}))
    with pytest.raises(DataError, match="has no checksum"):
        read_record(path)
