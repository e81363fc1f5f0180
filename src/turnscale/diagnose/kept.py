"""Diagnoses of single runs, kept on disk: one more seed of a large study costs the diagnosis of that seed.

A run's diagnosis follows from its critic values and from the code alone, so its file is named by both. A file is a
numpy archive of plain arrays (nothing in it is unpickled); a damaged one counts as absent.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from turnscale.config.hashing import digest
from turnscale.diagnose.permutation import PERMUTATIONS
from turnscale.diagnose.summary import RESAMPLES
from turnscale.diagnose.table import RunDiagnosis, diagnose_run
from turnscale.diagnose.values import RUN, CriticValues
from turnscale.files import write_bytes
from turnscale.track.environment import source_hash

FORMAT = 2
TEXT = "text"
SOURCES = ("diagnose", "stats", "seeding.py", "estimates/schema.py")
"""Parts of the package that a diagnosis follows from."""
WORTH_A_PROCESS = 8
"""Runs from which on another process is worth its start."""


def diagnose_groups(
    table: Path,
    groups: Mapping[str, int],
    folder: Path,
    *,
    workers: int = 1,
    note: Callable[[str], None] = print,
) -> list[RunDiagnosis]:
    """Diagnose the runs of a table of critic values, one row group each, and keep the results.

    Args:
        table: parquet of critic values with identity, as :func:`turnscale.diagnose.table.diagnose` takes them.
        groups: identity of a run's values -> its row group.
        folder: where diagnoses are kept; those of runs that are no longer in the table are removed.
        workers: processes to use at most.
        note: takes a line that says how many runs were diagnosed anew.

    Raises:
        DataError: malformed values.
        StorageError: a diagnosis cannot be written.
    """
    code = source_hash(*SOURCES)
    names = {_name(key, code): group for key, group in groups.items()}
    kept = {path.stem: path for path in folder.glob("*.npz")}
    found = {name: one for name in names if name in kept and (one := _load(kept[name])) is not None}
    missing = [(name, group) for name, group in names.items() if name not in found]
    note(f"critics: {len(names)} runs, {len(missing)} of them to be diagnosed")
    many = min(workers, len(missing) // WORTH_A_PROCESS)
    jobs = [(table, group, folder / f"{name}.npz") for name, group in missing]
    if many > 1:
        # Spawned: a forked process would inherit locks of the threads that read parquet files.
        with ProcessPoolExecutor(many, mp_context=multiprocessing.get_context("spawn")) as pool:
            paths: Iterable[Path] = list(pool.map(_diagnose_group, *zip(*jobs, strict=True), chunksize=2))
    else:
        paths = [_diagnose_group(*job) for job in jobs]
    for path in paths:
        one = _load(path)
        assert one is not None, f"{path} was written a moment ago"
        found[path.stem] = one
    for name in kept.keys() - names.keys():
        kept[name].unlink(missing_ok=True)
    return [found[name] for name in names]


def _diagnose_group(table: Path, group: int, target: Path) -> Path:
    with pq.ParquetFile(table) as file:
        values = file.read_row_group(group).to_pandas()
    write_bytes(_pack(diagnose_run(values)), target)
    return target


def _name(key: str, code: str) -> str:
    return digest([FORMAT, key, RESAMPLES, PERMUTATIONS, code], length=32)


def _pack(one: RunDiagnosis) -> bytes:
    """Columns of one kind are one array: an archive takes its time by the array, and there are many archives."""
    columns = {str(name): _kind(one.table[name]) for name in one.table.columns}
    head = {"key": [_plain(item) for item in one.key], "rows": one.rows, "columns": columns}
    arrays = {"head": np.frombuffer(json.dumps(head, default=_plain).encode(), np.uint8)}
    for kind, names in _by_kind(columns).items():
        part = [one.table[name].to_numpy(dtype=np.str_ if kind == TEXT else None) for name in names]
        if kind == TEXT:
            arrays |= {f"column {name}": column for name, column in zip(names, part, strict=True)}
        else:
            arrays[f"columns {kind}"] = np.stack(part)
    for name, lengths in one.lengths.items():
        for field in fields(CriticValues):
            arrays[f"{field.name} of {name}"] = getattr(lengths, field.name)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _load(path: Path) -> RunDiagnosis | None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(arrays["head"].tobytes())
        found: dict[str, np.ndarray] = {}
        for kind, names in _by_kind(head["columns"]).items():
            part = [arrays[f"column {name}"] for name in names] if kind == TEXT else arrays[f"columns {kind}"]
            found |= dict(zip(names, part, strict=True))
        table = pd.DataFrame({name: found[name] for name in head["columns"]})
        sets = [name.removeprefix("values of ") for name in arrays if name.startswith("values of ")]
        lengths = {
            name: CriticValues(*(arrays[f"{field.name} of {name}"] for field in fields(CriticValues)))
            for name in sets
        }
        key = tuple(head["key"])
        return RunDiagnosis(key, head["rows"], table, lengths) if len(key) == len(RUN) else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        return None


def _kind(column: pd.Series) -> str:
    """The column's numeric type, or `TEXT`."""
    number = pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)
    return str(column.dtype) if number else TEXT


def _by_kind(columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Kind -> names of its columns, in their order."""
    found: dict[str, list[str]] = {}
    for name, kind in columns.items():
        found.setdefault(kind, []).append(name)
    return found


def _plain(value: Any) -> Any:
    """A numpy scalar as a number or text of Python, whose JSON form gives the same value back."""
    return value.item() if isinstance(value, np.generic) else value
