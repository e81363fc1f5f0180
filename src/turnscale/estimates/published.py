"""Published values beside local ones: which published row stands beside which cell, decided by code.

A row belongs to a cell if the study maps the cell to the row's method name (`cells:`) and the parameters that
the row states are those of the resolved method. Where the study maps no cells (an ablation), the parameters
alone decide, and the cell may differ from the table's reference in nothing but those parameters.
Published models and benchmarks are never the local ones; the source says which they are.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.textfile import read_text
from turnscale.config.schema import Published
from turnscale.errors import ConfigError, DataError

COLUMNS = [
    "study",
    "table",
    "model",
    "benchmark",
    "metric",
    "method",
    "params",
    "value",
    "unit",
    "status",
    "derivation",
]
UNITS = {"percent": 0.01, "fraction": 1.0}

PARAMETERS = {
    "lambda": "credit.lam",
    "lambda_intra": "credit.lam_intra",
    "beta": "credit.beta",
    "gamma": "credit.gamma",
    "alpha": "credit.alpha",
}
"""Name of a parameter in the published files -> key of the resolved method."""

DESCRIPTIVE = {"name", "title"}
"""Top-level keys of a resolved method that describe it and change no number."""


@dataclass(frozen=True)
class PublishedValue:
    """One published number at its place among the local rows.

    Attributes:
        model, benchmark: the local names that it stands beside.
        cell: the local cell, "" if none runs that method.
        method: the published name of the method.
        metric: such as ``pass_at_1``.
        value: fraction.
        source: file, publication, table, published model and benchmark, and how the value was obtained.
    """

    model: str
    benchmark: str
    metric: str
    cell: str
    method: str
    value: float
    source: str


def local_metric(name: str) -> str | None:
    """``pass_at_<k>`` for ``pass@<k>``, ``pass_hat_<k>`` for ``pass^<k>``; None for anything else."""
    found = re.fullmatch(r"pass([@^])([1-9][0-9]*)", name)
    if not found:
        return None
    return f"pass_{'at' if found[1] == '@' else 'hat'}_{found[2]}"


def published_values(
    declaration: Published,
    methods: Mapping[str, Mapping[str, Any]],
    reference: str | None,
    root: Path,
) -> list[PublishedValue]:
    """The published values that one table or figure of a study puts beside its cells.

    Args:
        declaration: the study's ``published:`` section.
        methods: cell -> resolved method, for the cells of the table at this scale.
        reference: the table's reference cell, needed where the parameters alone decide.
        root: folder that ``declaration.file`` is relative to.

    Raises:
        ConfigError: the declaration names a model or a benchmark that the file does not have.
        DataError: the file cannot be read, or gives two values for one place.
    """
    path = root / declaration.file
    rows = _read(path)
    for key, mapping, column in (
        ("models", declaration.models, "model"),
        ("benchmarks", declaration.benchmarks, "benchmark"),
    ):
        for local, name in mapping.items():
            if name not in set(rows[column]):
                raise ConfigError(
                    f"published.{key}.{local} names '{name}', which {path} does not have.",
                    file=path,
                    key=column,
                    remedy=f"choose from: {', '.join(sorted(set(rows[column]) - {''}))}.",
                )
    found: dict[tuple[str, str, str, str, str], PublishedValue] = {}
    for row in _records(rows):
        metric = local_metric(row["metric"])
        if metric is None or not math.isfinite(row["value"]):
            continue
        cells = _cells(row, declaration, methods, reference)
        label = row["method"]
        if not cells:
            if not declaration.cells:
                continue
            cells = [""]
            if row["method"] in declaration.cells.values() and row["params"]:
                label = f"{row['method']} ({row['params']})"
        for model, benchmark in _places(row, declaration):
            for cell in cells:
                value = PublishedValue(
                    model,
                    benchmark,
                    metric,
                    cell,
                    label,
                    row["value"] * UNITS[row["unit"]],
                    f"{declaration.file}: {_source(row)}",
                )
                place = (model, benchmark, metric, cell, "" if cell else label)
                if place in found and not math.isclose(found[place].value, value.value, abs_tol=1e-9):
                    raise DataError(
                        f"has two values for {model}, {benchmark}, {metric}, {cell or label}.",
                        file=path,
                        key="value",
                        remedy="keep one of them.",
                    )
                found[place] = value
    return list(found.values())


def parse_params(text: str) -> dict[str, float]:
    """``lambda=0.80;beta=1`` as a mapping; "" is empty.

    Raises:
        ValueError: anything else.
    """
    pairs = [part.split("=") for part in text.split(";") if part.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(text)
    return {key.strip(): float(value) for key, value in pairs}


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            flat.update(flatten(item, f"{name}."))
        else:
            flat[name] = item
    return flat


def published_rows(path: Path) -> pd.DataFrame:
    """The columns of ``COLUMNS`` of a file of published values, all text.

    Raises:
        DataError: the file is missing, no such table, or lacks a column.
    """
    text = read_text(path)
    try:
        rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.ParserError) as error:
        reason = (str(error).splitlines() or ["no table"])[0][:120]
        raise DataError(
            f"is no regular table ({reason}).", file=path, remedy="give every line the header's cells."
        ) from None
    lacking = [column for column in COLUMNS if column not in rows.columns]
    if lacking:
        raise DataError(
            "the column is missing.", file=path, key=lacking[0], remedy=f"need {', '.join(COLUMNS)}."
        )
    return rows[COLUMNS].fillna("")


def _read(path: Path) -> pd.DataFrame:
    rows = published_rows(path)
    for number, row in enumerate(_records(rows), start=2):
        try:
            parse_params(row["params"])
        except ValueError:
            raise DataError(
                f"line {number}: '{row['params']}' is not name=number;name=number.",
                file=path,
                key="params",
                remedy="write lambda=0.80;beta=1.",
            ) from None
        if local_metric(row["metric"]) and row["value"] and row["unit"] not in UNITS:
            raise DataError(
                f"line {number}: unit '{row['unit']}'.",
                file=path,
                key="unit",
                remedy="use percent or fraction.",
            )
    numbers = pd.to_numeric(rows["value"].replace("", "nan"), errors="coerce")
    wrong = numbers.isna() & ~rows["value"].isin(["", "nan", "NaN"])
    if wrong.any():
        first = int(wrong.to_numpy().argmax())
        raise DataError(
            f"line {first + 2}: '{rows['value'][first]}' is no number.",
            file=path,
            key="value",
            remedy="write a number with a decimal point, or nothing.",
        )
    return rows.assign(value=numbers.astype("float64"))


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]


def _places(row: Mapping[str, Any], declaration: Published) -> Iterable[tuple[str, str]]:
    for model, published_model in declaration.models.items():
        for benchmark, published_benchmark in declaration.benchmarks.items():
            if (row["model"], row["benchmark"]) == (published_model, published_benchmark):
                yield model, benchmark


def _cells(
    row: Mapping[str, Any],
    declaration: Published,
    methods: Mapping[str, Mapping[str, Any]],
    reference: str | None,
) -> list[str]:
    params = parse_params(row["params"])
    if declaration.cells:
        named = [
            cell for cell, method in declaration.cells.items() if method == row["method"] and cell in methods
        ]
        return [cell for cell in named if _agrees(methods[cell], params)]
    if not params or reference is None or reference not in methods:
        return []
    base = _numbers(methods[reference])
    free = {PARAMETERS.get(name, name) for name in params}
    return [
        cell
        for cell, method in methods.items()
        if _agrees(method, params) and _differ(_numbers(method), base) <= free
    ]


def _numbers(method: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(method).items() if key not in DESCRIPTIVE}


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {key for key in {*one, *other} if key not in one or key not in other or one[key] != other[key]}


def _agrees(method: Mapping[str, Any], params: Mapping[str, float]) -> bool:
    flat = flatten(method)
    for name, value in params.items():
        held = flat.get(PARAMETERS.get(name, name))
        if isinstance(held, bool) or not isinstance(held, (int, float)):
            return False
        if not math.isclose(held, value, rel_tol=1e-9, abs_tol=1e-12):
            return False
    return True


def _source(row: Mapping[str, Any]) -> str:
    origin = row["status"] + (f": {row['derivation']}" if row["derivation"] else "")
    return f"{row['study']}, {row['table']}; {row['model']} on {row['benchmark']} ({origin})"
