"""The long outcomes table of any origin: one row per arm, seed, task and attempt, checked before it is believed.

Columns: ``arm`` (or ``cell``), ``seed``, ``task``, ``attempt``, ``success``; optionally ``checkpoint``, ``cluster``,
and any of ``study``, ``scale``, ``family``, ``model``, ``benchmark``, which split the table into panels compared
separately. Every problem is a DataError that names the file, the row or the cell, and the remedy.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd

from turnscale.audit.textfile import read_text
from turnscale.errors import DataError

REQUIRED = ("arm", "seed", "task", "attempt", "success")
PANEL = ("study", "scale", "family", "model", "benchmark")
"""Columns that split a table: arms are compared only where all of these agree."""
SCORE_COLUMNS = ("arm", "seed", "score")
"""Columns of the other, poorer kind of table: one score per arm and seed, without tasks."""
MAX_INTEGER = 2**53

_TRUE = {"true", "1", "1.0", "yes"}
_FALSE = {"false", "0", "0.0", "no"}


def read_table(path: str | Path) -> pd.DataFrame:
    """A CSV (all text) or parquet table, column names stripped of blanks, not yet checked.

    The index holds what errors call the row: the line in a CSV file, the position from 1 in a parquet file.
    Raises DataError when it cannot be read, has no rows, or names a column twice.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError("is a folder.", file=path, remedy="name the files in it.")
    if path.suffix == ".parquet":
        frame = _read_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        frame = _read_csv(path)
    else:
        raise DataError(
            f"has the ending {path.suffix or '(none)'!r}: outcomes are in .csv, .tsv or .parquet, claims in .yaml.",
            file=path,
            remedy="give such a file, or convert another tool's log with 'turnscale import'.",
        )
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(
            f"has the column {twice[0]!r} twice.", file=path, key=twice[0], remedy="keep one of them."
        )
    if frame.empty:
        raise DataError("has a header and no rows.", file=path, remedy="give a table with outcomes.")
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError("no such file.", file=path, remedy="check the path.")
    try:
        frame = pd.read_parquet(path)
    except Exception as problem:  # pyarrow raises many unrelated classes for a broken file
        words = str(problem).splitlines()[0][:120]
        raise DataError(
            f"is not a readable parquet file: {words}.", file=path, remedy="write it again."
        ) from None
    return frame.set_axis(range(1, len(frame) + 1))


def _read_csv(path: Path) -> pd.DataFrame:
    text = read_text(path)
    separator = "\t" if path.suffix == ".tsv" else ","
    header = text.lstrip().splitlines()[0]
    if separator == "," and "," not in header and (";" in header or "\t" in header):
        found = ";" if ";" in header else "tab"
        raise DataError(
            f"separates its columns by {found}, not by a comma.",
            file=path,
            key="line 1",
            remedy="export with comma as separator and point as decimal sign.",
        )
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    names: list[str] = []
    rows, lines = [], []
    try:
        for cells in reader:
            if not cells:
                continue
            if not names:
                names = cells
            elif len(cells) != len(names):
                raise DataError(
                    f"has {len(cells)} cells where the header has {len(names)}.",
                    file=path,
                    key=f"line {reader.line_num}",
                    remedy="give every row the same cells; quote text that contains commas (12,5 is two cells).",
                )
            else:
                rows.append(cells)
                lines.append(reader.line_num)
    except csv.Error as problem:
        raise DataError(
            f"is not a regular table: {problem}.",
            file=path,
            key=f"line {reader.line_num}",
            remedy="close every quote; write each row on one line.",
        ) from None
    return pd.DataFrame(rows, columns=names, index=lines, dtype=str)


def is_score_table(frame: pd.DataFrame) -> bool:
    """True for a table of one score per arm and seed (no tasks)."""
    return "score" in frame.columns and "success" not in frame.columns


def check_outcomes(frame: pd.DataFrame, file: str | Path) -> pd.DataFrame:
    """The table with checked types: arm and task text, seed and attempt integers, success bool.

    Raises DataError naming the first bad row (the line in a CSV file).
    """
    frame = _arm_column(frame)
    lacking = [column for column in REQUIRED if column not in frame.columns]
    if lacking:
        raise DataError(
            f"no column {lacking[0]!r}; it has {', '.join(frame.columns)}.",
            file=file,
            key=lacking[0],
            remedy=f"an outcomes table needs {', '.join(REQUIRED)}.",
        )
    out = pd.DataFrame(index=frame.index)
    for column in ("arm", "task", *(c for c in (*PANEL, "checkpoint", "cluster") if c in frame.columns)):
        out[column] = _texts(frame[column], column, file)
    for column in ("seed", "attempt"):
        out[column] = _integers(frame[column], column, file)
    out["success"] = _successes(frame["success"], file)
    return out


def check_scores(frame: pd.DataFrame, file: str | Path) -> pd.DataFrame:
    """A table of seed scores with checked types: arm text, seed integer, score a finite number (fraction).

    Raises DataError for a bad row, or when an arm has a seed twice.
    """
    frame = _arm_column(frame)
    lacking = [column for column in SCORE_COLUMNS if column not in frame.columns]
    if lacking:
        raise DataError(
            f"no column {lacking[0]!r}.",
            file=file,
            key=lacking[0],
            remedy=f"needs {', '.join(SCORE_COLUMNS)}.",
        )
    out = pd.DataFrame(index=frame.index)
    for column in ("arm", *(c for c in PANEL if c in frame.columns)):
        out[column] = _texts(frame[column], column, file)
    out["seed"] = _integers(frame["seed"], "seed", file)
    out["score"] = _fractions(frame["score"], file)
    check_once(out, file)
    return out


def check_once(scores: pd.DataFrame, file: str | Path) -> None:
    """Raise DataError if an arm has a seed twice in a panel: one run, counted twice, would pass for two."""
    keys = [column for column in scores.columns if column != "score"]
    twice = np.flatnonzero(scores.duplicated(keys).to_numpy())
    if twice.size:
        row = scores.iloc[int(twice[0])]
        raise DataError(
            f"arm {row['arm']!r} has seed {row['seed']} twice.",
            file=file,
            key=f"row {scores.index[int(twice[0])]}",
            remedy="keep one row per run; a resumed run counts once.",
        )


def _arm_column(frame: pd.DataFrame) -> pd.DataFrame:
    return (
        frame.rename(columns={"cell": "arm"})
        if "arm" not in frame.columns and "cell" in frame.columns
        else frame
    )


def _texts(column: pd.Series, name: str, file: str | Path) -> pd.Series:
    blank = column.isna().to_numpy() | (column.astype(str).str.strip() == "").to_numpy()
    if blank.any():
        raise _bad(file, column, blank, name, "is empty", "give every row a value")
    return column.astype(str).str.strip()


def _integers(column: pd.Series, name: str, file: str | Path) -> np.ndarray:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(numbers)
    if bad.any():
        raise _bad(file, column, bad, name, f"{_shown(column, bad)} is not a whole number", "number from 0")
    bad = (numbers != np.round(numbers)) | (numbers < 0) | (numbers > MAX_INTEGER)
    if bad.any():
        raise _bad(
            file,
            column,
            bad,
            name,
            f"{_shown(column, bad)} is not a whole number from 0 to 2^53",
            "number from 0",
        )
    return numbers.astype(np.int64)


def _successes(column: pd.Series, file: str | Path) -> np.ndarray:
    words = column.astype(str).str.strip().str.lower()
    true, false = words.isin(_TRUE).to_numpy(), words.isin(_FALSE).to_numpy()
    bad = ~(true | false)
    if bad.any():
        raise _bad(
            file,
            column,
            bad,
            "success",
            f"{_shown(column, bad)} is not 0 or 1",
            "give the outcome of each attempt (true/false or 1/0), not a rate or a percentage",
        )
    return true


def _fractions(column: pd.Series, file: str | Path) -> np.ndarray:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(numbers)
    if bad.any():
        raise _bad(
            file,
            column,
            bad,
            "score",
            f"{_shown(column, bad)} is not a number",
            "use a decimal point, no % sign",
        )
    bad = (numbers < 0) | (numbers > 1)
    if bad.any():
        raise _bad(
            file,
            column,
            bad,
            "score",
            f"{_shown(column, bad)} is not a fraction",
            "divide percentages by 100",
        )
    return numbers


def _shown(column: pd.Series, bad: np.ndarray) -> str:
    text = repr(str(column.iloc[int(np.flatnonzero(bad)[0])]))
    return text if len(text) <= 40 else text[:37] + "...'"


def _bad(
    file: str | Path, column: pd.Series, bad: np.ndarray, name: str, what: str, remedy: str
) -> DataError:
    row = column.index[int(np.flatnonzero(bad)[0])]
    more = f" ({int(bad.sum())} such rows)" if bad.sum() > 1 else ""
    return DataError(f"{name} {what}{more}.", file=file, key=f"row {row}, column {name}", remedy=f"{remedy}.")
