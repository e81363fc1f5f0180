"""The audit of outcome tables as a document, as tidy rows (CSV) and as one JSON value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from turnscale.audit.document import Column, Document, Section
from turnscale.audit.from_outcomes import Answer, PairAudit
from turnscale.render.text import p_value, points
from turnscale.stats.question import Comparison, NotEstimable, Question


def document(audits: Sequence[PairAudit], title: str, notes: Sequence[str] = ()) -> Document:
    """The report a reviewer reads: one table per panel and metric, then why some questions have no answer."""
    groups: dict[tuple[str, str], list[PairAudit]] = {}
    for audit in audits:
        groups.setdefault((audit.panel.title, audit.metric_label), []).append(audit)
    sections = [_section(*key, members) for key, members in groups.items()]
    return Document(
        title=title,
        lead=(
            "Each difference is answered at four questions: would it come back with (1) the same checkpoints and "
            "tasks, (2) other tasks like these, (3) the method trained again, (4) trained again and tested on other "
            "tasks? Intervals are 95 %; verdicts use Holm over the pairs of a table.",
            *notes,
        ),
        sections=tuple(sections),
    )


def _section(panel: str, metric: str, audits: Sequence[PairAudit]) -> Section:
    rows = []
    refusals: dict[str, None] = {}
    for audit in audits:
        for question in Question:
            answer = audit.answers[question]
            rows.append(
                (
                    f"{audit.arm_a} vs {audit.arm_b}",
                    question.value,
                    points(audit.difference, signed=True),
                    _interval(answer),
                    "–" if answer.p_holm is None else p_value(answer.p_holm),
                    _detectable(answer),
                    f"{audit.seeds_a}+{audit.seeds_b}",
                    str(audit.n_tasks),
                    answer.verdict.value,
                )
            )
            if isinstance(answer.result, NotEstimable):
                refusals[_refusal(answer.result)] = None
    dropped = audits[0].panel.dropped_tasks
    notes = [*refusals]
    if dropped:
        notes.append(f"{dropped} tasks that not every arm and seed had were left out.")
    return Section(
        f"{metric}, {panel} (points)",
        (
            Column("pair"), Column("question"), Column("difference", True), Column("95 % interval", True),
            Column("p, Holm", True), Column("detectable", True), Column("seeds", True), Column("tasks", True),
            Column("verdict"),
        ),
        tuple(rows),
        tuple(notes),
    )  # fmt: skip


def _interval(answer: Answer) -> str:
    r = answer.result
    return (
        "–" if isinstance(r, NotEstimable) else f"[{points(r.lo, signed=True)}, {points(r.hi, signed=True)}]"
    )


def _detectable(answer: Answer) -> str:
    r = answer.result
    return points(r.mde) if isinstance(r, Comparison) and r.mde is not None else "–"


def _refusal(result: NotEstimable) -> str:
    text = f"{result.question.value}: not testable, {result.reason}; {result.remedy}."
    if result.seed_sd_tolerance is not None:
        text += f" It stands only while the seed sd is below {points(result.seed_sd_tolerance, 2)} points."
    return text


def tidy_rows(audits: Sequence[PairAudit]) -> list[dict[str, Any]]:
    """One row per pair, metric and question; fractions."""
    out = []
    for audit in audits:
        for question, answer in audit.answers.items():
            r = answer.result
            compared = isinstance(r, Comparison)
            out.append(
                {
                    **dict(audit.panel.labels),
                    "metric": audit.metric,
                    "arm_a": audit.arm_a,
                    "arm_b": audit.arm_b,
                    "value_a": audit.value_a,
                    "value_b": audit.value_b,
                    "difference": audit.difference,
                    "lo": r.lo if isinstance(r, Comparison) else None,
                    "hi": r.hi if isinstance(r, Comparison) else None,
                    "p": r.p if isinstance(r, Comparison) else None,
                    "p_holm": answer.p_holm,
                    "mde": r.mde if isinstance(r, Comparison) else None,
                    "df": r.df if isinstance(r, Comparison) and math.isfinite(r.df) else None,
                    "question": question.value,
                    "estimator": r.estimator if isinstance(r, Comparison) else None,
                    "verdict": answer.verdict.value,
                    "seed_sd_tolerance": None if compared else r.seed_sd_tolerance,  # type: ignore[union-attr]
                    "note": "; ".join(r.notes) if isinstance(r, Comparison) else r.reason,
                    "n_seeds_a": audit.seeds_a,
                    "n_seeds_b": audit.seeds_b,
                    "n_tasks": audit.n_tasks,
                    "n_attempts": audit.attempts,
                    "dropped_tasks": audit.panel.dropped_tasks,
                }
            )
    return out
