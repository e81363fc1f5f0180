"""What one machine has finished, another takes from the store, checked; what is unfinished or damaged it makes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from turnscale.errors import CheckpointError, TrackingError
from turnscale.track.read import Store
from turnscale.track.records import publish, read_record, write_record
from turnscale.track.run import open_log
from turnscale.track.share import fetch, obtain, read_shared
from turnscale.track.store import connect, init_tracking

KEY = "tiny/base/search/model-0123abcd"
SPEC = {"model": {"name": "model", "device": "cpu"}, "training": {"steps": 3}}
PLACE = Path("results/tiny/base/search/model-0123abcd")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has made a base, in a store that the test's other machines reach too."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "here"
    init_tracking(root)
    folder = root / PLACE
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint/weights.bin").write_bytes(b"weights")
    (folder / "checkpoint/config.json").write_text("{}")
    measured = {"hash": "x", "checkpoint": str(PLACE / "checkpoint"), "loss": 0.5}
    write_record(folder / "base.json", publish("base", KEY, "tiny", SPEC, measured, folder, root))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow/mlflow.db'}")
    return root


def stored(root: Path, name: str) -> Path:
    """An artifact of the base as a file of the store."""
    run_id = read_record(root / PLACE / "base.json")["run_id"]
    return root / "mlflow/artifacts" / run_id / "artifacts" / name


def test_another_machine_takes_what_is_finished(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    path = there / PLACE / "base.json"
    assert obtain(KEY, path, there)
    record = read_record(path)
    assert record["run_id"] == read_record(here / PLACE / "base.json")["run_id"]
    assert record["checkpoint"] == str(there / PLACE / "checkpoint")
    for name in ("checkpoint/weights.bin", "checkpoint/config.json"):
        assert (path.parent / name).read_bytes() == (here / PLACE / name).read_bytes()
    assert read_shared(path, there) == record


def test_what_another_configuration_made_is_not_taken(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert not obtain("tiny/base/search/model-ffffffff", there / PLACE / "base.json", there)
    assert not there.exists()


def test_what_is_not_finished_is_not_taken(here: Path, tmp_path: Path) -> None:
    head = {"kind": "base", "key": "tiny/base/search/model-00000000", "scale": "tiny"}
    with pytest.raises(KeyboardInterrupt), open_log(head, SPEC, "unfinished", {}, here):
        raise KeyboardInterrupt
    assert fetch(head["key"], tmp_path / "there", here) is None


def test_what_is_damaged_in_the_store_is_made_anew(
    here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(here, "checkpoint/weights.bin").write_bytes(b"weighty")
    with caplog.at_level(logging.WARNING):
        assert not obtain(KEY, tmp_path / "there/base.json", here)
    assert "SHA-256 differs" in caplog.text and "made anew" in caplog.text
    assert not (tmp_path / "there/base.json").exists()


def test_files_that_are_missing_beside_a_record_come_from_the_store(here: Path, tmp_path: Path) -> None:
    path = tmp_path / "alone/base.json"
    write_record(path, read_record(here / PLACE / "base.json"))
    assert read_shared(path, tmp_path)["checkpoint"] == str(path.parent / "checkpoint")
    assert (path.parent / "checkpoint/weights.bin").read_bytes() == b"weights"


def test_a_file_that_differs_is_refused_and_not_replaced(here: Path) -> None:
    path = here / PLACE / "base.json"
    (path.parent / "checkpoint/weights.bin").write_bytes(b"weighty")
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        read_shared(path, here)
    (path.parent / "checkpoint/weights.bin").unlink()
    stored(here, "checkpoint/weights.bin").unlink()
    with pytest.raises(TrackingError, match="no artifact"):
        read_shared(path, here)


def test_the_oldest_of_two_is_taken_by_all(here: Path, tmp_path: Path) -> None:
    first = read_record(here / PLACE / "base.json")["run_id"]
    client, experiment = connect(here)
    tags = {"turnscale.key": KEY, "turnscale.complete": "1"}
    second = client.create_run(experiment, tags=tags).info.run_id
    client.set_terminated(second, "FINISHED")
    found = Store(here).find(KEY)
    assert found is not None and found.run_id == first
