"""Whole trainings on a disk that fills up: the run ends FAILED with its reason and the next try ends the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.setting import Setting
from turnscale.errors import StorageError, TrackingError
from turnscale.files import sha256
from turnscale.study import Run
from turnscale.track.run import open_run
from turnscale.track.store import connect, init_tracking
from turnscale.train.loop import train_run
from turnscale.train.trainer import Trainer

from .conftest import KIB, Disk, file_limit

ADAPTER = "final/adapter/adapter_model.safetensors"


def _train(setting: Setting, run: Run, work: Path, root: Path) -> dict[str, object]:
    return train_run(run, setting.base, setting.panels, None, work, checkpoint_every=1, root=root)


def _filling_at(monkeypatch: pytest.MonkeyPatch, disk: Disk, step: int) -> None:
    """Have the disk fill up while a step is trained, the first time that it is."""
    advance, done = Trainer.advance, []

    def fill(self: Trainer) -> None:
        advance(self)
        if self.step == step and not done:
            done.append(step)
            disk.fill()

    monkeypatch.setattr(Trainer, "advance", fill)


def test_disk_full_during_a_checkpoint(
    setting: Setting, store: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = setting.run("grpo", steps=3)
    _train(setting, run, store / "whole", store)
    root = store / "elsewhere"
    init_tracking(root)
    work = disk.path / "work"
    _filling_at(monkeypatch, disk, 2)
    with pytest.raises(StorageError, match="free space on that disk") as caught:
        _train(setting, run, work, root)
    assert caught.value.file == str(work / "step-000002")
    assert [path.name for path in work.glob("*step*")] == ["step-000001"], "the checkpoint before is kept"
    client, experiment = connect(root)
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "FAILED" and stored.data.tags["turnscale.reason"] == "disk full"
    disk.free()
    record = _train(setting, run, work, root)
    assert record["attempt"] == 2 and sha256(work / ADAPTER) == sha256(store / "whole" / ADAPTER)
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "FINISHED" and stored.data.tags["turnscale.reason"] == ""


def test_disk_full_during_metrics_and_artifacts(
    setting: Setting,
    store: Path,
    disk: Disk,
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, work = setting.run("grpo", steps=2), store / "work"
    init_tracking(disk.path)
    _filling_at(monkeypatch, disk, 1)
    with pytest.raises(TrackingError, match="free space on the store's disk") as caught:
        _train(setting, run, work, disk.path)
    assert caught.value.reason == "disk full"
    assert "metric rows are kept for the next try" in caplog.text, "metrics wait, training goes on"
    assert (work / "step-000002").exists()
    disk.free()
    monkeypatch.setattr(Trainer, "advance", lambda self: pytest.fail("a step was trained again"))
    record = _train(setting, run, work, disk.path)
    client, experiment = connect(disk.path)
    (stored,) = client.search_runs([experiment])
    assert stored.info.run_id == record["run_id"] and stored.info.status == "FINISHED"
    history = client.get_metric_history(stored.info.run_id, "reward")
    assert sorted(point.step for point in history) == [1, 2]
    folder = disk.path / "mlflow" / "artifacts" / stored.info.run_id / "artifacts"
    assert all(sha256(folder / name) == checksum for name, checksum in record["artifacts"].items())


@pytest.mark.parametrize("size", [0, pytest.param(4 * KIB, marks=pytest.mark.slow)])
def test_a_limit_on_the_database_is_told_and_passes(
    setting: Setting, store: Path, impatient: None, size: int
) -> None:
    run = setting.run("grpo")
    with file_limit(size), pytest.raises(TrackingError) as caught, open_run(run, run.spec.value, {}, store):
        pass
    assert caught.value.reason == "disk full" and "free space" in str(caught.value)
    with open_run(run, run.spec.value, {}, store) as log:
        log.metrics(0, {"reward": 0.5})
        record = log.finish()
    client, experiment = connect(store)
    (stored,) = client.search_runs([experiment])
    assert stored.info.run_id == record["run_id"] and stored.data.metrics == {"reward": 0.5}


def test_a_limit_on_an_artifact_is_told_and_passes(
    setting: Setting, store: Path, tmp_path: Path, impatient: None
) -> None:
    run, table = setting.run("grpo"), tmp_path / "metrics.parquet"
    table.write_bytes(b"x" * 4096 * KIB)
    with (
        pytest.raises(TrackingError) as caught,
        open_run(run, run.spec.value, {}, store) as log,
        file_limit(3072 * KIB),
    ):
        log.artifact(table)
    assert caught.value.reason == "disk full" and "metrics.parquet" in str(caught.value)
    with open_run(run, run.spec.value, {}, store) as log:
        log.artifact(table)
        record = log.finish()
    assert record["attempt"] == 2 and record["artifacts"] == {"metrics.parquet": sha256(table)}
