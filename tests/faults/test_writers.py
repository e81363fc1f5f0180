"""Every writer of a product: a full disk leaves what was there, says which file and why, and the next try works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from tests.train.setting import MODEL
from turnscale import files
from turnscale.agent import checkpoint as checkpoints
from turnscale.agent.adapter import attach, save_adapter
from turnscale.agent.config import ModelConfig
from turnscale.audit.run import write_table
from turnscale.envs.panels import Panels
from turnscale.envs.protocol import Task
from turnscale.errors import StorageError
from turnscale.render.style import save as save_figure
from turnscale.track.records import read_record, write_record
from turnscale.train import state

from .conftest import KIB, Disk, file_limit

matplotlib.use("Agg")
CONFIG = ModelConfig.model_validate(MODEL)
TABLE = pd.DataFrame({"value": torch.rand(2000).tolist()})
LARGE = {"note": "x" * 4000}


def _panels(path: Path) -> None:
    tasks = tuple(Task("f", "1", "train", i) for i in range(100))
    Panels("f", "1", {"train": tasks}, {task.hash: f"{i:016x}" for i, task in enumerate(tasks)}).save(path)


def _model(path: Path) -> None:
    model, tokenizer = checkpoints.make_local(CONFIG, ["a", "b"], 0)
    checkpoints.save(model, tokenizer, CONFIG, path)


def _adapter(path: Path) -> None:
    model, tokenizer = checkpoints.make_local(CONFIG, ["a", "b"], 0)
    chat = checkpoints.ChatFormat(tokenizer)
    save_adapter(attach(checkpoints.Checkpoint(model, tokenizer, chat, "", CONFIG), 0), path, "critic")


def _state(path: Path) -> None:
    step = int(path.name.removeprefix("step-"))
    state.save(path.parent, state.Snapshot(step, "spec", {"weight": torch.ones(4000)}, {}, {}))


def _figure(path: Path) -> None:
    figure = Figure()
    figure.subplots().plot(range(10))
    save_figure(figure, path.parent, path.stem)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "text": ("table.md", lambda path: files.write_text("x" * 4000, path)),
    "record": ("run.json", lambda path: write_record(path, LARGE)),
    "csv": ("table.csv", lambda path: files.write_csv(TABLE, path)),
    "parquet": ("outcomes.parquet", lambda path: files.write_parquet(TABLE, path)),
    "import": ("imported.parquet", lambda path: write_table(TABLE, path)),
    "tensors": ("probe.safetensors", lambda path: files.write_tensors({"a": torch.ones(4000)}, path)),
    "panels": ("panels.json", _panels),
    "base": ("checkpoint", _model),
    "adapter": ("adapter", _adapter),
    "checkpoint": ("step-000001", _state),
    "figure": ("figure.pdf", _figure),
}


def _content(path: Path) -> dict[str, bytes]:
    every = [path] if path.is_file() else path.rglob("*")
    return {str(file.relative_to(path)): file.read_bytes() for file in every if file.is_file()}


def _fails_and_recovers(path: Path, write: Callable[[Path], None], fault: Callable[[], None]) -> None:
    before, names = _content(path), set(path.parent.iterdir())
    with pytest.raises(StorageError) as caught:
        fault()
    assert caught.value.file == str(path) and caught.value.reason == "disk full"
    assert "Remedy: " in str(caught.value) and "run the same command again" in str(caught.value)
    assert _content(path) == before, "the good state before must be kept"
    assert set(path.parent.iterdir()) == names, "no rubbish may be left"
    write(path)
    assert _content(path).keys() == before.keys()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_limit_on_files_keeps_what_was_there(kind: str, tmp_path: Path) -> None:
    name, write = WRITERS[kind]
    path = tmp_path / "products" / name
    write(path)

    def fault() -> None:
        with file_limit(600):
            write(path)

    _fails_and_recovers(path, write, fault)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_keeps_what_was_there(kind: str, disk: Disk) -> None:
    name, write = WRITERS[kind]
    path = disk.path / "products" / name
    write(path)

    def fault() -> None:
        disk.fill()
        try:
            write(path)
        finally:
            disk.free()

    _fails_and_recovers(path, write, fault)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_read_only_folder_is_told(kind: str, disk: Disk) -> None:
    name, write = WRITERS[kind]
    path = disk.path / "products" / name
    write(path)
    before = _content(path)
    disk.writable(False)
    with pytest.raises(StorageError, match="make the folder writable") as caught:
        write(path)
    assert caught.value.reason == "not writable" and _content(path) == before
    disk.writable(True)
    write(path)


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".step-000001.4711.tmp"
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"half")
    _state(tmp_path / "step-000002")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_an_error_of_the_program_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError), files.replacing(tmp_path / "x") as temporary:
        temporary.write_text("half")
        raise KeyError("bug")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("position", range(0, 4 * KIB, 97))
def test_any_flipped_bit_of_a_record_is_found(tmp_path: Path, position: int) -> None:
    from turnscale.errors import DataError

    path = tmp_path / "run.json"
    write_record(path, LARGE)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << position % 8
    path.write_bytes(bytes(data))
    try:
        assert read_record(path) == LARGE
    except DataError as error:
        assert "turnscale runs restore" in str(error)
