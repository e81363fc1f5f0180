"""The audit of a ledger as tidy rows (CSV) and as one JSON value."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from turnscale.audit.ledger_report import LedgerAudit, verdict_of_pattern
from turnscale.audit.summary import SCENARIOS, SEED_SDS
from turnscale.stats.question import Question


def tidy_rows(audit: LedgerAudit) -> list[dict[str, Any]]:
    """One row per claim and possible number of tasks, every number and verdict in a column of its own."""
    out = []
    for entry, judgements in zip(audit.claims, audit.judgements, strict=True):
        claim = entry.claim
        row: dict[str, Any] = {
            "study": audit.ledger.study, "claim": claim.id, "arm_a": claim.arm_a, "arm_b": claim.arm_b,
            "benchmark": audit.ledger.benchmarks[claim.benchmark].name, "model": claim.model,
            "metric": claim.metric.value, "k": claim.k, "unit": claim.unit, "gap": claim.gap,
            "level_a": claim.level_a, "level_b": claim.level_b, "runs_a": claim.runs_a, "runs_b": claim.runs_b,
            "status": claim.status.value, "family": claim.family, "conflicts_with": " ".join(claim.conflicts_with),
            "reading": entry.reading, "n_tasks": entry.n_tasks, "icc": entry.icc,
        }  # fmt: skip
        for scenario in SCENARIOS:
            row[f"se_{scenario.key}"] = entry.se.get(scenario.key)
            row[f"p_{scenario.key}"] = entry.p.get(scenario.key)
            row[f"p_holm_{scenario.key}"] = entry.p_holm.get(scenario.key)
            row[f"p_bh_{scenario.key}"] = entry.p_bh.get(scenario.key)
            row[f"mde_{scenario.key}"] = entry.mde.get(scenario.key)
        row["seed_sd_tolerance_fixed_tasks"] = entry.tolerance_fixed
        row["seed_sd_tolerance_r80"] = entry.tolerance_tasks
        row["r_needed"] = entry.r_needed
        for sd in SEED_SDS:
            row[f"seeds_per_arm_sd{sd:g}"] = entry.seeds_needed.get(sd)
        row["selection_optimism"] = None if entry.optimism is None else entry.optimism.after_fresh_attempts
        for question in Question:
            row[f"verdict_{question.name.lower()}"] = judgements[question].verdict.value
            row[f"because_{question.name.lower()}"] = judgements[question].because
        out.append(row)
    return out


def as_json(audit: LedgerAudit) -> dict[str, Any]:
    """The whole audit as plain JSON values."""
    return {
        "study": audit.ledger.study,
        "title": audit.ledger.title,
        "source": audit.ledger.source,
        "claims": tidy_rows(audit),
        "families": [
            {"family": f.family, "scenario": f.scenario.key, "claims": f.claims, "raw": f.raw, "bh": f.bh,
             "holm": f.holm}
            for f in audit.families
        ],
        "whole_counts": [asdict(f) for f in audit.grim],
        "tasks_won": [
            {"claim": w.claim.id, "n_tasks": w.n_tasks, "net": w.net, "p_best": w.p_best,
             "losses_survived": w.losses_survived}
            for w in audit.tasks_won
        ],
        "patterns": [
            {"id": f.pattern.id, "statement": f.pattern.statement, "verdict": verdict_of_pattern(f),
             "because": f.words, "gaps": list(f.gaps), "chance": f.chance,
             "conflicts_with": list(f.pattern.conflicts_with)}
            for f in audit.patterns
        ],
        "local": [
            {"claim": f.claim.id, "benchmark": f.benchmark, "model": f.model, "published": f.claim.gap,
             "difference": f.difference, "lo": f.lo, "hi": f.hi, "question": f.question, "seeds_a": f.seeds_a,
             "seeds_b": f.seeds_b, "direction": f.direction.value, "size": f.size.value}
            for f in audit.local
        ],
    }  # fmt: skip
