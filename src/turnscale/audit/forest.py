"""What a forest plot shows: one row per difference, three nested intervals, and what can be said.

Narrow and dark: the same checkpoints answer the same tasks again (rollouts). Wider: other tasks like these. Widest
and pale: the method is trained again as well (seeds). A row whose pale bar crosses zero is no claim about a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnscale.audit.from_outcomes import PairAudit
from turnscale.audit.ledger_report import LedgerAudit, gap
from turnscale.audit.summary import ROLLOUTS, SEED_2, TASKS_R80, ClaimAudit, Scenario
from turnscale.audit.verdicts import Judgement, seed_interval, seed_tolerance
from turnscale.render.text import p_value, points
from turnscale.stats.question import Comparison, Question

LONG_LABEL = 70  # characters; the benchmark of a longer label moves to the line below
Z = 1.96  # standard errors to each side of a 95 % interval
Interval = tuple[float, float] | None
Judged = dict[Question, Judgement]


@dataclass(frozen=True)
class Row:
    """One line of the plot, in points.

    Attributes:
        label, detail: left of the axes.
        centre: where the marker stands; None where no size was published, or in another unit than points.
        intervals: rollouts, tasks, seeds; None where it cannot be estimated.
        remark: right of the axes, after ``gap``.
        gap: the difference as printed.
        section: heading under which the row stands.
    """

    label: str
    detail: str
    centre: float | None
    intervals: tuple[Interval, Interval, Interval]
    remark: str
    gap: str = ""
    section: str = ""

    @property
    def around_zero(self) -> bool:
        """Whether the bars show noise alone, because no size was published."""
        return self.centre is None and any(interval is not None for interval in self.intervals)


@dataclass(frozen=True)
class Forest:
    """A plot to draw: rows and the words of its legend."""

    title: str
    rows: tuple[Row, ...]
    legend: tuple[str, str, str]
    remark_heading: str
    gap_heading: str = "printed"


def from_ledger(audit: LedgerAudit) -> Forest:
    """Every claim at the likeliest number of tasks, by family, with each interval that can be given.

    Where no size was published the bars stand around zero: a difference inside them is noise.
    """
    first = [
        (entry, judged)
        for entry, judged in zip(audit.claims, audit.judgements, strict=True)
        if not entry.reading
    ]
    families: dict[str, list[tuple[ClaimAudit, Judged]]] = {}
    for entry, judged in first:
        families.setdefault(entry.claim.family, []).append((entry, judged))
    rows = [
        _claim_row(audit, entry, judged, f"{family.replace('_', ' ')} ({len(members)})")
        for family, members in families.items()
        for entry, judged in members
    ]
    published = any(row.intervals[2] and not row.intervals[1] for row in rows)
    assumed = any(row.intervals[2] and row.intervals[1] for row in rows)
    spread = [
        *(["seed sd of 2 points assumed: one run published"] if assumed else []),
        *(["seed sd as published"] if published else []),
    ]
    single = all(min(entry.claim.runs_a, entry.claim.runs_b) < 2 for entry, _ in first)
    return Forest(
        f"{audit.ledger.title}\nHow far could each published difference move?"
        + (" One training run per arm: no row can speak for a method." if single else ""),
        tuple(rows),
        (
            "same checkpoints, same tasks (rollout noise)",
            "same checkpoints, other tasks like these (arms correlate .8)",
            f"method trained again too ({'; '.join(spread)})",
        ),
        "what can be said, after correcting within the family",
    )


def _claim_row(audit: LedgerAudit, entry: ClaimAudit, judged: Judged, section: str) -> Row:
    claim = entry.claim
    intervals = tuple(
        entry.interval(scenario) or _around_zero(entry, scenario)
        for scenario in (ROLLOUTS, TASKS_R80, SEED_2)
    )
    if not entry.se:
        intervals = (None, None, seed_interval(claim))
    tasks = "" if entry.n_tasks is None else f", {entry.n_tasks} tasks"
    runs = "" if min(claim.runs_a, claim.runs_b) < 2 else f", {claim.runs_a}+{claim.runs_b} seeds"
    unit = {"points": "", "points/turn": " per turn", "count": " (count)"}[claim.unit]
    measured = "" if claim.unit == "count" else f" {claim.metric_label}"
    where = f"{audit.ledger.benchmarks[claim.benchmark].name}{measured}"
    long = len(claim.label) + len(where) > LONG_LABEL
    return Row(
        label=claim.label if long else f"{claim.label}: {where}",
        detail=f"{claim.id}; {f'{where}; ' * long}{claim.model}{tasks}{runs}",
        centre=claim.gap if claim.unit == "points" else None,
        intervals=(intervals[0], intervals[1], intervals[2]),
        remark=_claim_remark(entry, judged),
        gap=gap(claim).replace("-", "−") + unit,
        section=section,
    )


def _around_zero(entry: ClaimAudit, scenario: Scenario) -> Interval:
    if entry.claim.gap is not None or scenario.key not in entry.se:
        return None
    half = Z * entry.se[scenario.key]
    return -half, half


def _claim_remark(entry: ClaimAudit, judged: Judged) -> str:
    claim = entry.claim
    if claim.deterministic:
        return "fixed by the design"
    if claim.gap is None:
        return "no size was printed" + ("; inside the bars it is noise" if entry.se else "")
    if entry.p:
        return _remark([judged[question].verdict.value for question in Question][:2])
    retrained = judged[Question.METHOD_RETRAINED]
    if retrained.p is not None:
        return f"{retrained.verdict.value} over seeds, p {p_value(retrained.p)}"
    tolerance = seed_tolerance(claim)
    if tolerance is None:
        return "not testable: nothing published bounds its noise"
    if tolerance < 0.05:
        return "not testable: the seed sd was not published"
    return f"not testable: stands only while the seed sd is below {tolerance:.1f}"


def _remark(verdicts: list[str]) -> str:
    these, tasks = (verdict == "supported" for verdict in verdicts)
    if tasks:
        return "these checkpoints differ, on other tasks too"
    return "these checkpoints differ, on these tasks only" if these else "not distinguishable from noise"


def from_pairs(audits: Sequence[PairAudit], title: str) -> Forest:
    """Measured differences: rollouts, tasks, and seeds with tasks where there are several seeds."""
    questions = (Question.THESE_CHECKPOINTS, Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS)
    rows = []
    for audit in audits:
        intervals = [_points(audit, question) for question in questions]
        if intervals[0] is None and intervals[1] is None and intervals[2] is None:
            continue
        verdict = audit.answers[Question.METHOD_NEW_TASKS].verdict.value
        if min(audit.seeds_a, audit.seeds_b) < 2 and intervals[2] is None:
            verdict = "not testable (one seed)"
        rows.append(
            Row(
                label=f"{audit.arm_a} vs {audit.arm_b}: {audit.metric_label}",
                detail=f"{audit.panel.title}, {audit.n_tasks} tasks, {audit.seeds_a}+{audit.seeds_b} seeds",
                centre=100 * audit.difference,
                intervals=(intervals[0], intervals[1], intervals[2]),
                remark=verdict,
                gap=points(audit.difference, signed=True),
            )
        )
    return Forest(
        title,
        tuple(rows),
        (
            "same checkpoints, same tasks (rollout noise)",
            "same checkpoints, other tasks like these",
            "method trained again, other tasks (seeds and tasks)",
        ),
        "the method, on new tasks, after correction",
        "measured",
    )


def _points(audit: PairAudit, question: Question) -> Interval:
    result = audit.answers[question].result
    return (100 * result.lo, 100 * result.hi) if isinstance(result, Comparison) else None
