"""Damaged training checkpoints: the one before is used, and the run goes on; never a crash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from tests.fuzz.harness import fuzz
from turnscale.errors import CheckpointError
from turnscale.files import sealed, unsealed
from turnscale.train.state import STATE, Snapshot, load_newest, save

SPEC = "0123abcd"


def newest(folder: Path) -> None:
    """Refuse, as the harness understands it, when the newest checkpoint was passed over."""
    found = load_newest(folder, SPEC)
    assert found is not None, "the sound checkpoint before was not used"
    if found.step != 2:
        assert found.step == 1
        raise CheckpointError("the newest was not used.", file=folder)
    assert found.spec_hash == SPEC


def checkpoints(folder: Path) -> Path:
    for step in (1, 2):
        rows = {"metrics": [[step, "loss", 0.5]]}
        save(folder, Snapshot(step, SPEC, {"w": torch.ones(3)}, rows, {"attempt": 1, "cursor": [1, 2]}))
    return folder / "step-000002"


def test_state_files(tmp_path: Path) -> None:
    path = checkpoints(tmp_path) / STATE
    fuzz(path, path.read_bytes(), "json", lambda _: newest(tmp_path))


def test_state_files_with_a_checksum_that_fits(tmp_path: Path) -> None:
    """Not damage but another program's file: the structure itself is read with care."""
    path = checkpoints(tmp_path) / STATE
    plain = json.dumps(unsealed(json.loads(path.read_text(encoding="utf-8")))).encode()

    def read(file: Path) -> None:
        try:
            value = json.loads(file.read_bytes())
            file.write_text(json.dumps(sealed(value)), encoding="utf-8")
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass  # no JSON object to be sealed: read as it is
        newest(tmp_path)

    fuzz(path, plain, "json", read)


def test_tensor_and_table_files(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path)
    kept = tmp_path.with_name("kept")
    shutil.copytree(folder, kept)
    for name in ("tensors.safetensors", "tables.jsonl"):
        path = folder / name
        fuzz(path, path.read_bytes(), "text", lambda _: newest(tmp_path))
        shutil.copy(kept / name, path)
