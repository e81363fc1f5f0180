"""The whole audit of a ledger, and the document a reviewer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnscale.audit.document import Column, Document, Section
from turnscale.audit.ledger import Claim, Ledger
from turnscale.audit.local import LocalFinding
from turnscale.audit.published import (
    GrimFinding,
    PatternFinding,
    WinLoss,
    grim_findings,
    pattern_findings,
    win_loss,
)
from turnscale.audit.summary import (
    SCENARIOS,
    SEED_SDS,
    SEEDS_LIMIT,
    TASKS_R80,
    ClaimAudit,
    FamilyCount,
    audit_claims,
    count_families,
)
from turnscale.audit.verdicts import Judgement, judge
from turnscale.render.text import p_value
from turnscale.stats.question import Question


@dataclass(frozen=True)
class LedgerAudit:
    """Everything the audit of a ledger found."""

    ledger: Ledger
    claims: list[ClaimAudit]
    judgements: list[dict[Question, Judgement]]  # one per entry of claims
    families: list[FamilyCount]
    grim: list[GrimFinding]
    tasks_won: list[WinLoss]
    patterns: list[PatternFinding]
    local: list[LocalFinding]


def audit_ledger(ledger: Ledger, local: Sequence[LocalFinding] = ()) -> LedgerAudit:
    """Audit every claim, whole count and pattern of a ledger; ``local`` findings are carried along."""
    claims = audit_claims(ledger)
    won = [win_loss(ledger, claim, size) for claim in ledger.claims for size in ledger.sizes(claim)]
    return LedgerAudit(
        ledger=ledger,
        claims=claims,
        judgements=[judge(audit) for audit in claims],
        families=count_families(claims),
        grim=grim_findings(ledger),
        tasks_won=[entry for entry in won if entry is not None],
        patterns=pattern_findings(ledger),
        local=list(local),
    )


def verdict_of_pattern(finding: PatternFinding) -> str:
    """Contradicted by the printed gaps; supported when chance alone rarely does it; otherwise what is missing."""
    if finding.holds is False:
        return "contradicted"
    if finding.holds is None or finding.chance is None:
        return "not testable"
    return "supported" if finding.chance < 0.05 else "not distinguishable"


def document(audit: LedgerAudit, *, reasons: bool = False) -> Document:
    """The report a reviewer reads: verdicts, numbers behind them, families, whole counts, patterns, local re-runs.

    ``reasons`` adds the sentence behind every verdict, for files rather than the terminal.
    """
    sections = [_verdicts(audit), *([_reasons(audit)] if reasons else []), _numbers(audit)]
    sections += [_families(audit), _counts(audit)]
    if audit.patterns:
        sections.append(_patterns(audit))
    if audit.local:
        sections.append(_local(audit))
    return Document(
        title=f"Audit of {audit.ledger.title}",
        lead=(
            f"Source: {audit.ledger.source}. {len(audit.ledger.claims)} claims, judged at four questions: would the "
            "difference come back with (1) the same checkpoints and tasks, (2) other tasks like these, (3) the "
            "method trained again, (4) trained again and tested on other tasks?",
        ),
        sections=tuple(sections),
    )


def _name(claim: Claim, ledger: Ledger) -> str:
    return f"{claim.label}, {ledger.benchmarks[claim.benchmark].name} {claim.metric_label}"


def _verdicts(audit: LedgerAudit) -> Section:
    rows = []
    for entry, judgements in zip(audit.claims, audit.judgements, strict=True):
        words = tuple(judgements[q].verdict.value for q in Question)
        rows.append(
            (
                entry.claim.id,
                f"{_name(entry.claim, audit.ledger)}, {entry.claim.model}",
                "?" if entry.n_tasks is None else str(entry.n_tasks),
                gap(entry.claim),
                *words,
            )
        )
    return Section(
        "Verdicts",
        (
            Column("claim"),
            Column("what is claimed"),
            Column("tasks", True),
            Column("gap", True),
            Column("1 same checkpoints"),
            Column("2 tasks like these"),
            Column("3 method retrained"),
            Column("4 method, new tasks"),
        ),
        tuple(rows),
        (
            "Question 1 is a lower bound on noise; 2 assumes that the arms' success correlates .8 over tasks. Both "
            "use Holm within the claim's family. Questions 3 and 4 need several training runs per arm.",
        ),
    )


def _reasons(audit: LedgerAudit) -> Section:
    rows = tuple(
        (
            entry.claim.id,
            "?" if entry.n_tasks is None else str(entry.n_tasks),
            judgements[Question.THESE_CHECKPOINTS].because,
            judgements[Question.TASKS_LIKE_THESE].because,
            judgements[Question.METHOD_RETRAINED].because,
        )
        for entry, judgements in zip(audit.claims, audit.judgements, strict=True)
    )
    columns = (
        Column("claim"), Column("tasks", True), Column("1 same checkpoints"), Column("2 tasks like these"),
        Column("3 method retrained"),
    )  # fmt: skip
    return Section("Reasons for the verdicts", columns, rows)


def _numbers(audit: LedgerAudit) -> Section:
    rows = []
    for entry in audit.claims:
        if not entry.se:
            continue
        interval = entry.interval(TASKS_R80)
        tolerance = f"{_two(entry.tolerance_fixed)} / {_two(entry.tolerance_tasks)}"
        rows.append(
            (
                f"{entry.claim.id}",
                str(entry.n_tasks),
                gap(entry.claim),
                " / ".join(f"{entry.se[s.key]:.2f}" for s in SCENARIOS[:4]),
                " / ".join(p_value(entry.p[s.key]) for s in SCENARIOS) if entry.p else "–",
                "–" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]",
                f"{entry.mde[TASKS_R80.key]:.1f}",
                tolerance if entry.p else "–",
                "/".join(seeds(entry.seeds_needed.get(sd)) for sd in SEED_SDS),
            )
        )
    return Section(
        "Numbers behind the verdicts (points)",
        (
            Column("claim"),
            Column("tasks", True),
            Column("gap", True),
            Column("SE rollouts / r .95 / r .8 / unpaired", True),
            Column("p, same order, then seed sd 1 / 2", True),
            Column("95 % interval, r .8", True),
            Column("detectable", True),
            Column("seed sd tolerated", True),
            Column("seeds at sd 1/2/3", True),
        ),
        tuple(rows),
        (
            "Detectable: smallest true gap found with probability 80 % (r .8). Seed sd tolerated: with the tasks "
            "fixed / r .8; a larger spread over training seeds undoes the claim. Seeds: per arm, for 80 % power.",
        ),
    )


def _families(audit: LedgerAudit) -> Section:
    rows = tuple(
        (f.family, f.scenario.label, str(f.claims), str(f.raw), str(f.bh), str(f.holm))
        for f in audit.families
    )
    columns = (
        Column("family"), Column("noise assumed"), Column("claims", True), Column("p < .05", True),
        Column("after BH", True), Column("after Holm", True),
    )  # fmt: skip
    return Section("Claims that remain after correcting for their number", columns, rows)


def _counts(audit: LedgerAudit) -> Section:
    rows = []
    for f in audit.grim:
        fit = "impossible" if not f.successes else _range(f.successes)
        rows.append(
            (f.arm, f.model, audit.ledger.benchmarks[f.benchmark].name, f.metric, f"{f.level:.{f.decimals}f}",
             str(f.n_tasks), fit, str(f.trials))
        )  # fmt: skip
    notes = [
        f"{w.claim.id}, {w.n_tasks} tasks: the gap is {w.net} tasks; p = {w.p_best:.2g} if none was lost, "
        + (
            f"below .05 while at most {w.losses_survived} were lost."
            if w.losses_survived >= 0
            else "not below .05 in any case."
        )
        for w in audit.tasks_won
    ]
    columns = (
        Column("arm"), Column("model"), Column("benchmark"), Column("metric"), Column("level", True),
        Column("tasks", True), Column("successes", True), Column("of trials", True),
    )  # fmt: skip
    return Section("Whole counts behind the printed levels", columns, tuple(rows), tuple(notes))


def _range(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


def _patterns(audit: LedgerAudit) -> Section:
    rows = tuple(
        (f.pattern.statement, verdict_of_pattern(f), f.words, ", ".join(f.pattern.conflicts_with))
        for f in audit.patterns
    )
    columns = (Column("statement"), Column("verdict"), Column("because"), Column("conflicts with"))
    return Section("Statements over several claims", columns, rows)


def _local(audit: LedgerAudit) -> Section:
    rows = tuple(
        (
            f.claim.id,
            f"{f.benchmark}, {f.model}",
            gap(f.claim),
            f"{f.difference:+.1f}",
            "–" if f.lo is None or f.hi is None else f"[{f.lo:+.1f}, {f.hi:+.1f}]",
            f.question,
            f"{f.seeds_a}+{f.seeds_b}",
            f.direction.value,
            f.size.value,
        )
        for f in audit.local
    )
    columns = (
        Column("claim"), Column("local benchmark, model"), Column("published", True), Column("local", True),
        Column("95 % interval", True), Column("question"), Column("seeds", True), Column("direction"), Column("size"),
    )  # fmt: skip
    note = "Local benchmarks and models stand in for the published ones: this is the effect again, not the number."
    return Section("Local re-runs beside the claims", columns, rows, (note,))


def gap(claim: Claim) -> str:
    """``+4.33``, or a dash when no size was published."""
    return "–" if claim.gap is None else f"{claim.gap:+.{claim.decimals}f}"


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def seeds(count: int | None) -> str:
    """Seeds per arm, or the limit when it is out of reach."""
    return f">{SEEDS_LIMIT:,}" if count is None else f"{count}"
