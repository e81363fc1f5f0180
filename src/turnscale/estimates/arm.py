"""Rows of the estimates table: one cell, one benchmark or their mean, one metric, one question."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from turnscale.estimates.pooled import Pooled, pooled
from turnscale.estimates.schema import ALL, BAND, VALIDATION
from turnscale.estimates.scores import ArmData
from turnscale.stats.curves import Curve, curve
from turnscale.stats.intervals import ROUNDING, estimate
from turnscale.stats.outcomes import Counts
from turnscale.stats.passk import Metric
from turnscale.stats.question import Estimate, NotEstimable, Question
from turnscale.stats.spread import combine, seeds_part

QUESTIONS = (
    Question.METHOD_NEW_TASKS,
    Question.METHOD_RETRAINED,
    Question.TASKS_LIKE_THESE,
    Question.THESE_CHECKPOINTS,
)
"""In the order of the rows: the first is the default."""

Row = dict[str, Any]


def questions_for(untrained: bool) -> Sequence[Question]:
    """The questions that make sense: nothing about retraining for a checkpoint that no run trains."""
    return [question for question in QUESTIONS if not (untrained and question.about_method)]


def metric_rows(data: ArmData, metric: Metric) -> Iterator[Row]:
    """Every question for every benchmark and for their mean; without data one row of the mean says why."""
    shared = {"metric": metric.name, "k": metric.k}
    if not data.outcomes:
        yield {**shared, "benchmark": ALL, "note": not_run(data)}
        return
    for question in questions_for(not data.cell.trains):
        for benchmark, counts in data.outcomes.items():
            yield {**shared, "benchmark": benchmark, **_single(counts, metric, question)}
        yield {**shared, "benchmark": ALL, **_all(data.outcomes, metric, question)}


def band_rows(data: ArmData, ks: Sequence[int], seed: int = 0) -> Iterator[Row]:
    """The pass@k curve over all k together, for each benchmark and their mean, with a simultaneous band.

    The question is the default one; a single checkpoint gets the band over tasks.
    """
    metrics = [Metric("pass_at", k) for k in ks]
    several = data.cell.trains and any(len(counts.seeds) > 1 for counts in data.outcomes.values())
    question = Question.METHOD_NEW_TASKS if several else Question.TASKS_LIKE_THESE
    for benchmark in (*data.outcomes, ALL):
        rng = np.random.default_rng(seed)
        result: Curve | Pooled | NotEstimable
        if benchmark == ALL:
            result = pooled([data.outcomes], metrics, question, band=rng)
            sizes = list(data.outcomes.values())
        else:
            result = curve([data.outcomes[benchmark]], ks, "pass_at", question, rng=rng)
            sizes = [data.outcomes[benchmark]]
        values = [float(np.mean([counts.scores(metric).mean() for counts in sizes])) for metric in metrics]
        for index, k in enumerate(ks):
            row: Row = {"benchmark": benchmark, "metric": BAND, "k": k, "value": values[index]}
            if isinstance(result, NotEstimable):
                row.update(lo=math.nan, hi=math.nan, note=str(result))
            else:
                row.update(
                    lo=float(result.lo[index]), hi=float(result.hi[index]), note="; ".join(result.notes)
                )
            row.update(
                question=str(question),
                n_seeds=len(sizes[0].seeds),
                n_tasks=sum(len(counts.tasks) for counts in sizes),
                n_attempts=min(counts.attempts for counts in sizes),
            )
            yield row


def area_row(data: ArmData) -> Row | None:
    """Area under the validation curve, over seeds; None for a cell without training."""
    if not data.cell.trains:
        return None
    row: Row = {"benchmark": VALIDATION, "metric": "auc", "question": str(Question.METHOD_RETRAINED)}
    if not data.areas.size:
        reason = not_run(data) if not data.counts["finished"] else "fewer than two validations in a run"
        return {**row, "note": reason}
    row.update(value=float(data.areas.mean()), n_seeds=data.areas.size)
    if data.areas.size < 2:
        return {**row, "note": "not estimable: one seed has no spread"}
    se, df, _ = combine([seeds_part(data.areas[:, None, None])])
    if se[0] <= ROUNDING:
        return {**row, "note": "not estimable: no variation between seeds"}
    half = float(stdtrit(df[0], 0.975) * se[0])
    return {**row, "lo": max(0.0, row["value"] - half), "hi": min(1.0, row["value"] + half)}


def not_run(data: ArmData) -> str:
    """Why there is no value."""
    counts = data.counts
    return (
        f"no result: {counts['failed']} failed, {counts['excluded']} excluded of {counts['planned']} planned"
    )


def _single(counts: Counts, metric: Metric, question: Question) -> Row:
    if counts.attempts < metric.k:
        return _too_few(question, len(counts.seeds), len(counts.tasks), counts.attempts, metric)
    return _row(estimate(counts, metric, question))


def _all(outcomes: Mapping[str, Counts], metric: Metric, question: Question) -> Row:
    attempts = min(counts.attempts for counts in outcomes.values())
    tasks = sum(len(counts.tasks) for counts in outcomes.values())
    if attempts < metric.k:
        return _too_few(question, len(next(iter(outcomes.values())).seeds), tasks, attempts, metric)
    return _row(pooled([outcomes], [metric], question))


def _row(result: Estimate | Pooled | NotEstimable) -> Row:
    if isinstance(result, NotEstimable):
        value, lo, hi, seeds, note = result.value, math.nan, math.nan, result.n_seeds[0], str(result)
    elif isinstance(result, Pooled):
        value, lo, hi = float(result.value[0]), float(result.lo[0]), float(result.hi[0])
        seeds, note = result.n_seeds[0], "; ".join(result.notes)
    else:
        value, lo, hi, seeds, note = (
            result.value,
            result.lo,
            result.hi,
            result.n_seeds,
            "; ".join(result.notes),
        )
    return {
        "value": value,
        "lo": lo,
        "hi": hi,
        "question": str(result.question),
        "n_seeds": seeds,
        "n_tasks": result.n_tasks,
        "n_attempts": result.n_attempts,
        "note": note,
    }


def _too_few(question: Question, seeds: int, tasks: int, attempts: int, metric: Metric) -> Row:
    return {
        "question": str(question),
        "n_seeds": seeds,
        "n_tasks": tasks,
        "n_attempts": attempts,
        "note": f"{metric.label} needs {metric.k} attempts per task, and there are {attempts}",
    }
