"""Rows of the comparisons table: each cell of a table or figure against that product's reference cell.

The family of a Holm correction is what one product states under one question: all its cells, models, benchmarks
and metrics. Values of pass@k at several k count as one statement (they are functions of the same successes):
only the largest k reported enters the family, and the others carry no adjusted p.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from turnscale.config.schema import Figure, Study, Table
from turnscale.estimates.arm import QUESTIONS
from turnscale.estimates.pooled import Pooled, pooled
from turnscale.estimates.schema import ALL, BAND, VALIDATION
from turnscale.estimates.scores import ArmData
from turnscale.stats.intervals import ESTIMATORS, ROUNDING, compare
from turnscale.stats.multiplicity import holm
from turnscale.stats.passk import Metric
from turnscale.stats.power import minimum_detectable
from turnscale.stats.question import Comparison, NotEstimable, Question
from turnscale.stats.spread import combine, seeds_part

Row = dict[str, Any]
FIGURE_METRICS = ("pass_at_1",)
"""What a figure of gains compares."""


def cells_of(study: Study, entry: Table | Figure) -> list[str]:
    """Cells of the groups of a table or figure, each once, in order."""
    return list(dict.fromkeys(cell for group in entry.groups for cell in study.groups[group]))


def entries_of(study: Study) -> list[Table | Figure]:
    """Every table and figure of a study."""
    found: list[Table | Figure] = []
    found.extend(study.tables.values())
    found.extend(study.figures.values())
    return found


def products(study: Study) -> Iterator[tuple[str, Table | Figure, Sequence[str]]]:
    """(``table:<name>`` or ``figure:<name>``, entry, metrics) of everything that compares with a reference."""
    for name, table in study.tables.items():
        yield f"table:{name}", table, table.metrics
    for name, figure in study.figures.items():
        if figure.reference is not None and figure.kind == "gains":
            yield f"figure:{name}", figure, FIGURE_METRICS


def shown_ks(largest: int) -> list[int]:
    """The k of a pass@k curve that a table prints: powers of two and the largest."""
    return sorted({2**power for power in range(largest.bit_length()) if 2**power <= largest} | {largest})


def pair_rows(a: ArmData, b: ArmData, metric: str, ks: Sequence[int]) -> Iterator[Row]:
    """Every question about the difference `a` − `b` of one metric, per benchmark and for their mean.

    ``pass_at_k`` gives one set of rows for each of `ks`; ``auc`` is compared over seeds alone.
    """
    if metric == "auc":
        row = area_difference(a, b)
        if row is not None:
            yield row
        return
    shared = [benchmark for benchmark in a.outcomes if benchmark in b.outcomes]
    if not shared:
        return
    for k in ks if metric == BAND else [Metric.parse(metric).k]:
        wanted = Metric("pass_at", k) if metric == BAND else Metric.parse(metric)
        fixed = not a.cell.trains and not b.cell.trains
        for question in QUESTIONS:
            if fixed and question.about_method:
                continue
            for benchmark in shared:
                one, other = a.outcomes[benchmark], b.outcomes[benchmark]
                if min(one.attempts, other.attempts) >= k:
                    result = compare(one, other, wanted, question)
                    yield {"benchmark": benchmark, "metric": metric, "k": k, **_row(result)}
            pair = [{name: arm.outcomes[name] for name in shared} for arm in (a, b)]
            if min(counts.attempts for arm in pair for counts in arm.values()) >= k:
                yield {"benchmark": ALL, "metric": metric, "k": k, **_row(pooled(pair, [wanted], question))}


def area_difference(a: ArmData, b: ArmData) -> Row | None:
    """Welch t on the areas of the learning curves; None if either cell has none."""
    if not a.areas.size or not b.areas.size:
        return None
    difference = float(a.areas.mean() - b.areas.mean())
    row: Row = {
        "benchmark": VALIDATION,
        "metric": "auc",
        "difference": difference,
        "question": str(Question.METHOD_RETRAINED),
        "estimator": ESTIMATORS[Question.METHOD_RETRAINED],
        "n_seeds_a": a.areas.size,
        "n_seeds_b": b.areas.size,
    }
    if min(a.areas.size, b.areas.size) < 2:
        return {**row, "note": "not estimable: one seed has no spread"}
    se, df, _ = combine([seeds_part(arm.areas[:, None, None]) for arm in (a, b)])
    if se[0] <= ROUNDING:
        return {**row, "note": "not estimable: no variation between seeds"}
    half = float(se[0] * stdtrit(df[0], 0.975))
    return {
        **row,
        "lo": max(-1.0, difference - half),
        "hi": min(1.0, difference + half),
        "p": float(2 * stdtr(df[0], -abs(difference) / se[0])),
        "mde": minimum_detectable(float(se[0]), float(df[0]), 0.95),
    }


def add_holm(rows: list[Row]) -> None:
    """Fill ``p_holm`` and ``holm_size`` within each product and question (in place)."""
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        families.setdefault((row["product"], row["question"]), []).append(row)
    for family in families.values():
        largest = max((row["k"] for row in family if row["metric"] == BAND), default=None)
        stated = [
            row
            for row in family
            if _is_number(row.get("p")) and not (row["metric"] == BAND and row["k"] != largest)
        ]
        for row, adjusted in zip(stated, _holm([row["p"] for row in stated]), strict=True):
            row["p_holm"], row["holm_size"] = adjusted, len(stated)


def _holm(p: Iterable[float]) -> list[float]:
    values = list(p)
    return [float(value) for value in holm(values)] if values else []


def _row(result: Comparison | Pooled | NotEstimable) -> Row:
    question, estimator = str(result.question), ESTIMATORS[result.question]
    if isinstance(result, NotEstimable):
        return {
            "difference": result.value,
            "question": question,
            "estimator": estimator,
            "n_seeds_a": result.n_seeds[0],
            "n_seeds_b": result.n_seeds[1],
            "n_tasks": result.n_tasks,
            "seed_sd_tolerance": result.seed_sd_tolerance,
            "note": str(result),
        }
    if isinstance(result, Pooled):
        numbers = [float(array[0]) for array in (result.value, result.lo, result.hi, result.p, result.mde)]
        seeds = result.n_seeds
    else:
        p = math.nan if result.p is None else result.p
        mde = math.nan if result.mde is None else result.mde
        numbers = [result.difference, result.lo, result.hi, p, mde]
        seeds = (result.n_seeds_a, result.n_seeds_b)
    return {
        **dict(zip(("difference", "lo", "hi", "p", "mde"), numbers, strict=True)),
        "question": question,
        "estimator": result.estimator,
        "n_seeds_a": seeds[0],
        "n_seeds_b": seeds[1],
        "n_tasks": result.n_tasks,
        "note": "; ".join(result.notes),
    }


def _is_number(value: Any) -> bool:
    return value is not None and bool(np.isfinite(value))
