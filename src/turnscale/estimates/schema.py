"""Columns of the tidy tables and their types, and reading them.

Values are fractions. Empty text fields are empty strings and absent numbers are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.errors import DataError

ARM = ["family", "model", "cell"]
COUNTS = ["planned", "finished", "failed", "excluded"]

ESTIMATES = [
    "study",
    "scale",
    "family",
    "model",
    "benchmark",
    "metric",
    "k",
    "method",
    "cell",
    "value",
    "lo",
    "hi",
    "question",
    "n_seeds",
    "n_tasks",
    "n_attempts",
    *COUNTS,
    "published",
    "published_source",
    "run_ids",
    "spec_hash",
    "evaluation_hash",
    "code_revision",
    "note",
]
COMPARISONS = [
    "study",
    "scale",
    "product",
    "family",
    "model",
    "benchmark",
    "metric",
    "k",
    "cell_a",
    "cell_b",
    "difference",
    "lo",
    "hi",
    "p",
    "p_holm",
    "holm_size",
    "question",
    "estimator",
    "n_seeds_a",
    "n_seeds_b",
    "n_tasks",
    "mde",
    "seed_sd_tolerance",
    "note",
]
LOOKS = [
    "study",
    "scale",
    "family",
    "model",
    "metric",
    "k",
    "cell_a",
    "cell_b",
    "n_seeds_a",
    "n_seeds_b",
    "statistic",
    "value",
    "needed",
    "verdict",
    "looks",
    "earlier_looks",
    "departures",
    "skipped",
]
REASONS = ["failed_reasons", "excluded_reasons", "lost"]
"""Columns of survivorship that count by reason, each a JSON object."""

SURVIVORSHIP = [*ARM, *COUNTS, *REASONS]
TEXT = {
    *REASONS,
    *("verdict", "departures", "skipped"),
    "study",
    "scale",
    "product",
    "family",
    "model",
    "benchmark",
    "metric",
    "method",
    "cell",
    "cell_a",
    "cell_b",
    "question",
    "estimator",
    "published_source",
    "run_ids",
    "spec_hash",
    "evaluation_hash",
    "code_revision",
    "note",
    "kind",
    "set",
    "statistic",
}
INTEGERS = {
    *("k", "n_seeds", "n_tasks", "n_attempts", "n_seeds_a", "n_seeds_b", "holm_size", *COUNTS),
    *("seed", "checkpoint", "n_prompts", "n_trajectories", "left_out"),
}

INTEGERS |= {"looks", "earlier_looks"}

ALL = "all"
"""The benchmark name of the mean over benchmarks, each with equal weight."""

VALIDATION = "validation"
"""The benchmark name of quantities measured during training on the validation panel."""

BAND = "pass_at_k"
"""The metric name of a pass@k curve, whose lo and hi are a band over all its k together."""

PUBLISHED_ONLY = "published only"
"""The question of a row that has a published value and no local one."""


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The rows as a table with exactly these columns, text as strings and whole numbers as Int64.

    Raises:
        DataError: a row with a key that is not a column.
    """
    entries = list(rows)
    for row in entries:
        unknown = sorted(set(row) - set(columns))
        if unknown:
            raise DataError(f"has no column {unknown[0]!r}.", key=unknown[0])
    table = pd.DataFrame(entries, columns=list(columns))
    for column in columns:
        if column in TEXT:
            table[column] = table[column].astype(object).fillna("").astype(str)
        elif column in INTEGERS:
            table[column] = table[column].astype("Int64")
        else:
            table[column] = table[column].astype("float64")
    return table


def read_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table written by `turnscale.files.write_csv`, with the same types.

    Raises:
        DataError: a missing file, a missing column, or a number that is none.
    """
    try:
        raw = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except FileNotFoundError:
        raise DataError(
            "there is no such file.",
            file=path,
            remedy="run the estimates stage of this study and scale first.",
        ) from None
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"is not a CSV table ({error}).", file=path, remedy="make it again.") from None
    lacking = [column for column in columns if column not in raw.columns]
    if lacking:
        raise DataError("the column is missing.", file=path, key=lacking[0], remedy="make the table again.")
    table = raw[list(columns)].copy()
    for column in columns:
        if column in TEXT:
            continue
        try:
            numbers = pd.to_numeric(table[column].where(table[column] != "", None))
            table[column] = numbers.astype("Int64" if column in INTEGERS else "float64")
        except (ValueError, TypeError):
            raise DataError(
                "holds something that is not a number.", file=path, key=column, remedy="make the table again."
            ) from None
    return table
