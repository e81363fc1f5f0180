"""What every importer shares: reading JSON lines, telling a success from a failure, numbering attempts."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.textfile import read_text
from turnscale.errors import DataError

HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half a character (a surrogate)."""


@dataclass(frozen=True)
class Imported:
    """An outcomes (or seed-score) table and what a reader must know about how it came to be."""

    table: pd.DataFrame
    notes: tuple[str, ...] = ()


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSON-lines file. Raises DataError for a line that is not a JSON object."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(
                "is not JSON.",
                file=path,
                key=f"line {number}",
                remedy="give one JSON object a line; a run that was killed may have left half a line.",
            ) from None
        if HALF.search(line) and not _whole(value):
            raise DataError(
                "holds half a character.",
                file=path,
                key=f"line {number}",
                remedy="remove the escape \\ud800 to \\udfff that stands alone.",
            )
        if not isinstance(value, dict):
            raise DataError(
                "is not a JSON object.", file=path, key=f"line {number}", remedy="one object a line."
            )
        yield number, value


def _whole(value: Any) -> bool:
    """Whether all text in a JSON value can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def field(row: dict[str, Any], name: str, path: str | Path, where: str) -> Any:
    """``row[name]``, or DataError listing what the row has."""
    if name not in row:
        raise DataError(
            f"has no {name!r}; it has {', '.join(sorted(map(str, row)))[:200]}.",
            file=path,
            key=where,
            remedy="check that the file is of the named format, or name another field.",
        )
    return row[name]


def success(value: Any, path: str | Path, where: str, threshold: float | None = None) -> bool:
    """True or False from a recorded outcome; graded scores need a ``threshold`` (success is value >= threshold)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 1e300:
        if threshold is not None:
            return value >= threshold
        if value in (0, 1):
            return value == 1
    raise DataError(
        f"outcome {reprlib.repr(value)} is not 0 or 1.",
        file=path,
        key=where,
        remedy="name the field that holds the outcome, or give --threshold to call a graded score a success.",
    )


def task_name(prompt: Any) -> str:
    """A stable name for a task that has no identifier: 12 hex digits of the hash of its prompt."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def number_attempts(tasks: list[str]) -> list[int]:
    """0, 1, 2, ... within each task, in file order."""
    seen: Counter[str] = Counter()
    out = []
    for task in tasks:
        out.append(seen[task])
        seen[task] += 1
    return out


def not_empty(rows: list[Any], path: str | Path) -> None:
    """Raise DataError when a file of the right format holds no outcome."""
    if not rows:
        raise DataError("holds no outcome.", file=path, remedy="check that the run finished and was logged.")
