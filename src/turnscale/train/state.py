"""Training checkpoints: everything a run needs to go on bit for bit, as safetensors and JSON.

A checkpoint is a folder ``step-<n>`` with ``tensors.safetensors`` (trained parameters and optimiser moments),
``tables.jsonl`` (metrics and critic values so far) and ``state.json`` (step, random states, data cursor, checksums),
written beside and renamed into place. The newest two are kept: a damaged newest one is reported and the one before
it is used. The loop's own draws come from streams named by seed and step, so the global states saved here matter
only to libraries that draw from them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnscale.errors import CheckpointError

KEPT = 2


@dataclass
class Snapshot:
    """A checkpoint in memory.

    Attributes:
        step: number of finished steps.
        spec_hash: the run's configuration; a checkpoint of another configuration is refused.
        tensors: parameters and optimiser moments by name.
        rows: tables so far, by table name, each a list of JSON rows.
        extra: anything else that is plain JSON (data cursor, attempts, counters).
    """

    step: int
    spec_hash: str
    tensors: dict[str, Tensor]
    rows: dict[str, list[list[Any]]]
    extra: dict[str, Any]


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the only writer's lock on a checkpoint folder.

    Raises:
        CheckpointError: another process holds it (a killed workflow's trainer may still be writing).
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            raise CheckpointError(
                f"another process is training this run (pid {handle.read().strip() or 'unknown'}).",
                file=directory,
                remedy="wait for it to end or stop it, then run again.",
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def save(directory: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint atomically and drop all but the newest two."""
    target = directory / f"step-{snapshot.step:06d}"
    temporary = directory / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in snapshot.tensors.items()}
    save_file(tensors, temporary / "tensors.safetensors")
    with (temporary / "tables.jsonl").open("w", encoding="utf-8") as handle:
        for table, rows in snapshot.rows.items():
            for row in rows:
                handle.write(json.dumps([table, *row]) + "\n")
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - libraries may draw from it
    state = {
        "step": snapshot.step,
        "spec_hash": snapshot.spec_hash,
        "extra": snapshot.extra,
        "torch": _hex(torch.get_rng_state()),
        "python": [version, list(internal), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "sha256": {f: file_sha256(temporary / f) for f in ("tensors.safetensors", "tables.jsonl")},
    }
    (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for path in temporary.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)
    for old in sorted(directory.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def load_newest(directory: Path, spec_hash: str, device: str = "cpu") -> Snapshot | None:
    """The newest sound checkpoint of this configuration, with the global random states restored.

    A damaged checkpoint is reported on stderr and the one before it is used.

    Returns:
        None when there is none.
    """
    for path in sorted(directory.glob("step-*"), reverse=True):
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            for name, expected in state["sha256"].items():
                if file_sha256(path / name) != expected:
                    raise CheckpointError("its bytes do not match its checksum.", file=path / name)
            if state["spec_hash"] != spec_hash:
                raise CheckpointError("belongs to another configuration.", file=path)
            tensors = load_file(path / "tensors.safetensors", device=device)
            rows: dict[str, list[list[Any]]] = {}
            for line in (path / "tables.jsonl").read_text(encoding="utf-8").splitlines():
                table, *row = json.loads(line)
                rows.setdefault(table, []).append(row)
        except (CheckpointError, OSError, ValueError, KeyError) as error:
            print(f"checkpoint {path} is damaged and is not used: {error}", file=sys.stderr)
            continue
        torch.set_rng_state(_unhex(state["torch"]))
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))  # noqa: NPY002
        return Snapshot(state["step"], spec_hash, tensors, rows, state["extra"])
    return None


def pack_optimiser(optimiser: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Moments and step counts of an optimiser as named tensors."""
    packed = {}
    for index, moments in optimiser.state_dict()["state"].items():
        for key, value in moments.items():
            packed[f"{prefix}.{index}.{key}"] = torch.as_tensor(value).clone()
    return packed


def unpack_optimiser(optimiser: torch.optim.Optimizer, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Restore what :func:`pack_optimiser` packed into an optimiser over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(f"{prefix}."):
            _, index, key = name.rsplit(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _hex(state: Tensor) -> str:
    return state.cpu().numpy().tobytes().hex()


def _unhex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()
