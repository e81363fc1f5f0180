"""The audit from one score per training seed: of the four questions only one can be answered, by Welch's t."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

from turnscale.audit.from_outcomes import Answer, PairAudit, answer, holm_over_pairs
from turnscale.audit.panels import Panel
from turnscale.audit.table import PANEL
from turnscale.audit.verdicts import Verdict
from turnscale.errors import DataError
from turnscale.stats.power import minimum_detectable
from turnscale.stats.question import Comparison, NotEstimable, Question
from turnscale.stats.spread import combine, seeds_part

LEVEL = 0.95


def audit_scores(table: pd.DataFrame, file: str | Path, *, reference: str | None = None) -> list[PairAudit]:
    """Compare arms by their seeds' scores (fractions), panel by panel.

    Raises DataError for an unknown reference or a single arm.
    """
    present = [column for column in PANEL if column in table.columns]
    groups = list(table.groupby(present, sort=True)) if present else [((), table)]
    out = []
    for values, rows in groups:
        panel = Panel(tuple(zip(present, map(str, values), strict=True)), rows)
        arms = {str(name): part["score"].to_numpy() for name, part in rows.groupby("arm", sort=True)}
        if len(arms) < 2 or (reference is not None and reference not in arms):
            raise DataError(
                f"{panel.title} has the arms {', '.join(arms)}.",
                file=file,
                key="arm",
                remedy="a comparison needs two arms, and --reference must be one of them.",
            )
        out.extend(_panel(panel, arms, reference))
    return out


def _panel(panel: Panel, arms: dict[str, np.ndarray], reference: str | None) -> list[PairAudit]:
    if reference is not None:
        pairs = [(name, reference) for name in arms if name != reference]
    else:
        pairs = [
            (a, b) if arms[a].mean() >= arms[b].mean() else (b, a) for a, b in itertools.combinations(arms, 2)
        ]
    results = {(a, b): _welch(arms[a], arms[b]) for a, b in pairs}
    corrected = holm_over_pairs(results)
    return [
        PairAudit(
            panel=panel,
            metric="score",
            metric_label="seed score",
            arm_a=a,
            arm_b=b,
            value_a=float(arms[a].mean()),
            value_b=float(arms[b].mean()),
            seeds_a=len(arms[a]),
            seeds_b=len(arms[b]),
            n_tasks=0,
            attempts=0,
            answers={
                q: answer(results[a, b], corrected.get((a, b)))
                if q is Question.METHOD_RETRAINED
                else _unknown(q)
                for q in Question
            },
        )
        for a, b in pairs
    ]


def _unknown(question: Question) -> Answer:
    reason = "the table has one score per seed and no tasks"
    return Answer(
        NotEstimable(question, reason, "give the outcome of every task and attempt"), Verdict.NOT_TESTABLE
    )


def _welch(a: np.ndarray, b: np.ndarray) -> Comparison | NotEstimable:
    question, difference = Question.METHOD_RETRAINED, float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return NotEstimable(
            question, "an arm has one seed, which has no spread", "train at least 3 seeds", difference
        )
    se_all, df_all, _ = combine([seeds_part(scores.reshape(-1, 1, 1)) for scores in (a, b)])
    se, df = float(se_all[0]), float(df_all[0])
    if se <= 0:
        return NotEstimable(question, "no variation between seeds", "check that the seeds differ", difference)
    half = se * float(t.ppf(0.5 + LEVEL / 2, df))
    return Comparison(
        difference=difference,
        lo=max(-1.0, difference - half),
        hi=min(1.0, difference + half),
        p=float(2 * t.sf(abs(difference) / se, df)),
        se=se,
        df=df,
        level=LEVEL,
        question=question,
        estimator="seeds_welch",
        metric="score",
        n_seeds_a=len(a),
        n_seeds_b=len(b),
        n_tasks=0,
        n_attempts=0,
        mde=minimum_detectable(se, df, LEVEL),
    )
