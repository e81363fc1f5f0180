"""Evaluation logs of Inspect: ``.eval`` (a zip of JSON files) and ``.json``."""

from __future__ import annotations

import json
import reprlib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.importers.common import Imported, field, not_empty, success
from turnscale.audit.table import MAX_INTEGER
from turnscale.audit.textfile import read_text
from turnscale.errors import DataError

MAX_UNPACKED = 4_000_000_000
"""Largest total size of the JSON inside a log; a zip that claims more is refused unread."""

_WORDS = {"C": True, "I": False, "N": False}  # correct, incorrect, no answer; P (partial) is not an outcome


def read_inspect(
    path: str | Path, *, seed: int, arm: str | None = None, scorer: str | None = None
) -> Imported:
    """Outcomes of one log. Task = sample id, attempt = epoch; ``arm`` is the model's name unless given.

    Raises DataError for an unfinished log, a sample that failed with an error (a missing outcome is not a failure),
    several scorers without a choice, or a score that is not right or wrong.
    """
    header, samples = _read_zip(Path(path)) if Path(path).suffix == ".eval" else _read_json(path)
    status = header.get("status")
    if status != "success":
        raise DataError(
            f"has status {reprlib.repr(status)}: the evaluation did not finish.",
            file=path,
            key="status",
            remedy="finish it with `inspect eval-retry`, then import the new log.",
        )
    about = field(header, "eval", path, "header")
    if not isinstance(about, dict):
        raise DataError("is no mapping.", file=path, key="eval", remedy="give the log as Inspect wrote it.")
    name = arm if arm is not None else str(about.get("model", "model"))
    rows = []
    for number, sample in enumerate(samples, start=1):
        if not isinstance(sample, dict):
            raise DataError("is no mapping.", file=path, key=f"sample number {number}", remedy="log again.")
        epoch = sample.get("epoch", 1)
        where = f"sample {reprlib.repr(sample.get('id'))}, epoch {reprlib.repr(epoch)}"
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 1 <= epoch <= MAX_INTEGER:
            raise DataError("has no epoch from 1.", file=path, key=where, remedy="log the sample again.")
        rows.append(
            {
                "arm": name,
                "seed": seed,
                "benchmark": str(about.get("task", "task")),
                "task": str(field(sample, "id", path, where)),
                "attempt": epoch - 1,
                "success": _outcome(sample, scorer, path, where),
            }
        )
    not_empty(rows, path)
    return Imported(pd.DataFrame(rows))


def _outcome(sample: dict[str, Any], scorer: str | None, path: str | Path, where: str) -> bool:
    if sample.get("error"):
        raise DataError(
            "failed with an error and has no outcome.",
            file=path,
            key=where,
            remedy="run the sample again; a missing outcome must not be counted as a failure.",
        )
    scores = sample.get("scores") or {}
    if not isinstance(scores, dict):
        raise DataError(
            "has scores that are no mapping.", file=path, key=where, remedy="score the log again."
        )
    if scorer is None and len(scores) > 1:
        raise DataError(
            f"has several scorers: {', '.join(scores)}.",
            file=path,
            key=where,
            remedy="choose one with --field.",
        )
    if not scores:
        raise DataError("has no score.", file=path, key=where, remedy="score the log with `inspect score`.")
    value = field(scores, scorer if scorer is not None else next(iter(scores)), path, where)
    value = value.get("value") if isinstance(value, dict) else value
    return _WORDS[value] if isinstance(value, str) and value in _WORDS else success(value, path, where)


def _read_json(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        log = json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise DataError(
            f"is not JSON ({str(problem)[:80]}).", file=path, remedy="give a complete log."
        ) from None
    if not isinstance(log, dict) or "eval" not in log:
        raise DataError(
            "is not an Inspect log.", file=path, remedy="give the .json or .eval file Inspect wrote."
        )
    if log.get("samples") is None:
        raise DataError(
            "holds no samples (a header-only log).",
            file=path,
            key="samples",
            remedy="log with samples included.",
        )
    if not isinstance(log["samples"], list):
        raise DataError("is no list.", file=path, key="samples", remedy="give the log as Inspect wrote it.")
    return log, log["samples"]


def _read_zip(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not path.is_file():
        raise DataError("no such file.", file=path, remedy="check the path.")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
                raise DataError("unpacks to more than 4 GB.", file=path, remedy="split the evaluation.")
            if "header.json" not in names:
                raise DataError(
                    "has no header.json: the evaluation was interrupted.",
                    file=path,
                    key="header.json",
                    remedy="finish it with `inspect eval-retry`, then import the new log.",
                )
            header = json.loads(archive.read("header.json"))
            if not isinstance(header, dict):
                raise ValueError("header.json is no mapping")
            kept = sorted(name for name in names if name.startswith("samples/") and name.endswith(".json"))
            return header, [json.loads(archive.read(name)) for name in kept]
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        LookupError,
        RuntimeError,
        EOFError,
        OSError,
    ) as problem:
        raise DataError(
            f"is not a readable .eval archive ({str(problem)[:80]}).",
            file=path,
            remedy="convert it with `inspect log convert --to json` and import the JSON.",
        ) from None
