"""The audit from outcome tables: every pair of arms, at each of the four questions, with Holm over the pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnscale.audit.panels import Panel
from turnscale.audit.summary import ALPHA
from turnscale.audit.verdicts import Verdict
from turnscale.errors import DataError
from turnscale.stats.intervals import compare
from turnscale.stats.multiplicity import holm
from turnscale.stats.outcomes import Counts, counts_by_arm
from turnscale.stats.passk import Metric
from turnscale.stats.question import Comparison, NotEstimable, Question


@dataclass(frozen=True)
class Answer:
    """One question about one pair of arms. ``p_holm`` is corrected over the pairs of the panel."""

    result: Comparison | NotEstimable
    verdict: Verdict
    p_holm: float | None = None


@dataclass(frozen=True)
class PairAudit:
    """Arm a against arm b on one panel and metric; the claim judged is that a is better. Fractions."""

    panel: Panel
    metric: str  # stored name, pass_at_1
    metric_label: str  # printed name, pass@1
    arm_a: str
    arm_b: str
    value_a: float
    value_b: float
    seeds_a: int
    seeds_b: int
    n_tasks: int
    attempts: int
    answers: dict[Question, Answer]

    @property
    def difference(self) -> float:
        return self.value_a - self.value_b


def audit_outcomes(
    panels: Sequence[Panel],
    metrics: Sequence[Metric],
    file: str | Path,
    *,
    reference: str | None = None,
    untrained: Sequence[str] = (),
) -> list[PairAudit]:
    """Compare every arm with ``reference`` (or every pair, the better arm first) on each panel and metric.

    ``untrained`` names base checkpoints: they have no training seed and are held fixed. Raises DataError for an
    unknown arm, a missing cell, a repeated attempt, or k above the attempts.
    """
    out = []
    known = {str(arm) for panel in panels for arm in panel.rows["arm"].unique()}
    for arm in untrained:
        if arm not in known:
            raise DataError(
                f"no arm {arm!r}.",
                file=file,
                key="--untrained",
                remedy=f"use one of {', '.join(sorted(known))}.",
            )
    for panel in panels:
        arms = _counts(panel, file, untrained)
        if len(arms) < 2:
            raise DataError(
                f"{panel.title}: only the arm {next(iter(arms))!r}.",
                file=file,
                key="arm",
                remedy="a comparison needs two arms; give several files or a table with both.",
            )
        if reference is not None and reference not in arms:
            raise DataError(
                f"no arm {reference!r} in {panel.title}.",
                file=file,
                key="--reference",
                remedy=f"use one of {', '.join(arms)}.",
            )
        for metric in metrics:
            out.extend(_panel(panel, metric, arms, reference))
    return out


def _counts(panel: Panel, file: str | Path, untrained: Sequence[str]) -> dict[str, Counts]:
    rows = panel.rows
    clusters = None
    if "cluster" in rows.columns:
        pairs = rows[["task", "cluster"]].drop_duplicates()
        twice = pairs["task"][pairs["task"].duplicated()]
        if len(twice):
            raise DataError(
                f"task {twice.iloc[0]!r} belongs to two clusters.",
                file=file,
                key="cluster",
                remedy="give each task one cluster.",
            )
        clusters = dict(zip(pairs["task"], pairs["cluster"], strict=True))
    present = set(rows["arm"])
    return counts_by_arm(
        rows, arm="arm", clusters=clusters, untrained=[a for a in untrained if a in present], file=str(file)
    )


def _panel(panel: Panel, metric: Metric, arms: dict[str, Counts], reference: str | None) -> list[PairAudit]:
    means = {name: float(arm.scores(metric).mean()) for name, arm in arms.items()}
    if reference is not None:
        pairs = [(name, reference) for name in arms if name != reference]
    else:
        pairs = [(a, b) if means[a] >= means[b] else (b, a) for a, b in itertools.combinations(arms, 2)]
    results = {
        pair: {q: compare(arms[pair[0]], arms[pair[1]], metric, q) for q in Question} for pair in pairs
    }
    corrected = {q: holm_over_pairs({pair: results[pair][q] for pair in pairs}) for q in Question}
    return [
        PairAudit(
            panel=panel,
            metric=metric.name,
            metric_label=metric.label,
            arm_a=a,
            arm_b=b,
            value_a=means[a],
            value_b=means[b],
            seeds_a=len(arms[a].seeds),
            seeds_b=len(arms[b].seeds),
            n_tasks=len(arms[a].tasks),
            attempts=min(arms[a].attempts, arms[b].attempts),
            answers={q: answer(results[a, b][q], corrected[q].get((a, b))) for q in Question},
        )
        for a, b in pairs
    ]


def holm_over_pairs(
    results: dict[tuple[str, str], Comparison | NotEstimable],
) -> dict[tuple[str, str], float]:
    """Holm-adjusted p value of every pair that has one."""
    tested = {pair: r.p for pair, r in results.items() if isinstance(r, Comparison) and r.p is not None}
    return dict(zip(tested, (float(p) for p in holm(list(tested.values()))), strict=True)) if tested else {}


def answer(result: Comparison | NotEstimable, p_holm: float | None) -> Answer:
    """The verdict on 'the first arm is better' that a result and its adjusted p value allow."""
    if isinstance(result, NotEstimable):
        return Answer(result, Verdict.NOT_TESTABLE)
    convincing = p_holm < ALPHA if p_holm is not None else result.significant
    if not convincing:
        return Answer(result, Verdict.NOT_DISTINGUISHABLE, p_holm)
    return Answer(result, Verdict.SUPPORTED if result.difference > 0 else Verdict.CONTRADICTED, p_holm)
