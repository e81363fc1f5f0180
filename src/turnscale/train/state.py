"""Training checkpoints: everything a run needs to go on bit for bit, as safetensors and JSON.

A checkpoint is a folder ``step-<n>`` with ``tensors.safetensors`` (trained parameters and optimiser moments),
``tables.jsonl`` (metrics and critic values so far) and ``state.json`` (step, random states, data cursor, checksums of
the other two and of itself), written beside and renamed into place. The newest two are kept: a damaged newest one is
reported and the one before it is used. The loop's own draws come from streams named by seed and step, so the global
states saved here matter only to libraries that draw from them.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from turnscale.errors import CheckpointError, TurnscaleError
from turnscale.files import lock, replacing_folder, sealed, sha256, unsealed, write_tensors, write_text

KEPT = 2
TENSORS, TABLES, STATE = "tensors.safetensors", "tables.jsonl", "state.json"


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
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(directory / "lock"))
        except BlockingIOError as holder:
            raise CheckpointError(
                f"another process is training this run (pid {holder}).",
                file=directory,
                remedy="wait for it to end or stop it, then run again.",
            ) from None
        yield


def save(directory: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint whole or not at all, and drop all but the newest two. The caller holds the folder's lock.

    Raises:
        StorageError: the disk does not take it; the checkpoints before are still there.
    """
    for abandoned in directory.glob(".step-*"):  # of a process that was killed while it wrote
        shutil.rmtree(abandoned)
    with replacing_folder(directory / f"step-{snapshot.step:06d}") as folder:
        _write(folder, snapshot)
    for old in sorted(directory.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def _write(folder: Path, snapshot: Snapshot) -> None:
    write_tensors(snapshot.tensors, folder / TENSORS)
    lines = [json.dumps([table, *row]) + "\n" for table, rows in snapshot.rows.items() for row in rows]
    write_text("".join(lines), folder / TABLES)
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - libraries may draw from it
    state = {
        "step": snapshot.step,
        "spec_hash": snapshot.spec_hash,
        "extra": snapshot.extra,
        "torch": _hex(torch.get_rng_state()),
        "python": [version, list(internal), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "sha256": {name: sha256(folder / name) for name in (TENSORS, TABLES)},
    }
    write_text(json.dumps(sealed(state)), folder / STATE)


def load_newest(directory: Path, spec_hash: str, device: str = "cpu") -> Snapshot | None:
    """The newest sound checkpoint of this configuration, with the global random states restored.

    A damaged checkpoint is reported on stderr and the one before it is used.

    Returns:
        None when there is none.
    """
    for path in sorted(directory.glob("step-*"), reverse=True):
        try:
            return _load(path, spec_hash, device)
        except DAMAGE as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
            print(f"checkpoint {path} is damaged and is not used: {reason}", file=sys.stderr)
    return None


DAMAGE = (
    TurnscaleError, SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
    RuntimeError,
)  # fmt: skip
"""What reading a file that is not a checkpoint's, in any part, may raise."""


def _load(path: Path, spec_hash: str, device: str) -> Snapshot:
    """The checkpoint in a folder, with the global random states restored. Raises one of ``DAMAGE``."""
    state = unsealed(json.loads((path / STATE).read_text(encoding="utf-8")))
    for name in (TENSORS, TABLES):
        if sha256(path / name) != state["sha256"][name]:
            raise CheckpointError("its bytes do not match its checksum.", file=path / name)
    if state["spec_hash"] != spec_hash:
        raise CheckpointError("belongs to another configuration.", file=path)
    if type(state["step"]) is not int or state["step"] < 0 or not isinstance(state["extra"], dict):
        raise CheckpointError("has no step or no counters.", file=path)
    if path.name != f"step-{state['step']:06d}":
        raise CheckpointError("is of another step than its folder's name says.", file=path)
    tensors = load_file(path / TENSORS, device=device)
    rows: dict[str, list[list[Any]]] = {}
    for line in (path / TABLES).read_text(encoding="utf-8").splitlines():
        table, *row = json.loads(line)
        rows.setdefault(table, []).append(row)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_unhex(state["torch"]))
    return Snapshot(state["step"], spec_hash, tensors, rows, state["extra"])


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


def _hex(state: Tensor) -> str:
    return state.cpu().numpy().tobytes().hex()


def _unhex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()
