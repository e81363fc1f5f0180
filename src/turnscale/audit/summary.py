"""The audit from published summaries: what each claim is worth when only a table was published.

For every claim and every possible number of tasks: the standard error with tasks fixed (a lower bound on noise), with
tasks drawn again at several pairings, with an assumed spread over seeds on top; p-values, intervals, the smallest
detectable effect, the largest seed sd the claim survives, and the seeds per arm that would settle it. All numbers
in a :class:`ClaimAudit` are percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from scipy.stats import norm

from turnscale.audit.ledger import Claim, Ledger, Status
from turnscale.audit.noise import (
    TaskVariance,
    correlation_needed,
    fit_heterogeneity,
    mix_from_level,
    standard_error,
    task_variance,
)
from turnscale.audit.selection import selection_optimism
from turnscale.errors import DataError
from turnscale.stats.multiplicity import Family
from turnscale.stats.power import minimum_detectable, seed_sd_tolerance, seeds_needed
from turnscale.stats.selection import Optimism

ALPHA = 0.05
SEED_SDS = (1.0, 2.0, 3.0)
"""Across-seed standard deviations, in points, for which seeds per arm are computed: assumptions, not estimates."""
SEEDS_LIMIT = 1_000_000


@dataclass(frozen=True)
class Scenario:
    """One assumption about noise: ``r`` pairs the arms over tasks (None: tasks fixed), ``seed_sd`` in points."""

    key: str
    label: str
    r: float | None
    seed_sd: float = 0.0


ROLLOUTS = Scenario("rollouts", "rollouts only, tasks fixed", None)
TASKS_R95 = Scenario("tasks_r95", "tasks, r = .95", 0.95)
TASKS_R80 = Scenario("tasks_r80", "tasks, r = .8", 0.80)
UNPAIRED = Scenario("unpaired", "tasks, unpaired", 0.0)
SEED_1 = Scenario("r80_seed1", "tasks r = .8, seed sd 1", 0.80, 1.0)
SEED_2 = Scenario("r80_seed2", "tasks r = .8, seed sd 2", 0.80, 2.0)
SCENARIOS = (ROLLOUTS, TASKS_R95, TASKS_R80, UNPAIRED, SEED_1, SEED_2)


@dataclass(frozen=True)
class ClaimAudit:
    """The audit of one claim at one possible number of tasks; keys of the dictionaries are scenario keys.

    ``reason`` says why there is no noise bound (the dictionaries are then empty). ``p_holm`` and ``p_bh`` are
    corrected within the claim's family.
    """

    claim: Claim
    reading: int
    n_tasks: int | None
    icc: float | None = None
    se: dict[str, float] = field(default_factory=dict)
    p: dict[str, float] = field(default_factory=dict)
    p_holm: dict[str, float] = field(default_factory=dict)
    p_bh: dict[str, float] = field(default_factory=dict)
    mde: dict[str, float] = field(default_factory=dict)
    tolerance_fixed: float | None = None
    tolerance_tasks: float | None = None
    r_needed: float | None = None
    seeds_needed: dict[float, int | None] = field(default_factory=dict)
    optimism: Optimism | None = None
    reason: str | None = None

    def interval(self, scenario: Scenario) -> tuple[float, float] | None:
        """95 % interval of the gap under a scenario, or None without a gap or a noise bound."""
        if self.claim.gap is None or scenario.key not in self.se:
            return None
        half = float(norm.ppf(1 - ALPHA / 2)) * self.se[scenario.key]
        return self.claim.gap - half, self.claim.gap + half


def audit_claims(ledger: Ledger) -> list[ClaimAudit]:
    """Every claim at every possible size, with family-wise corrections. Claims in ledger order, sizes inside.

    The number of tasks is often uncertain; *reading* 0 takes the likeliest size of every benchmark, reading 1 the
    second, and so on (a benchmark with one size keeps it). Corrections are made within a reading and a family.
    """
    readings = max((len(ledger.sizes(claim)) for claim in ledger.claims), default=1) or 1
    audits: list[list[ClaimAudit]] = []
    for reading in range(readings):
        row = []
        for claim in ledger.claims:
            sizes = ledger.sizes(claim)
            size = sizes[min(reading, len(sizes) - 1)] if sizes else None
            row.append(audit_claim(ledger, claim, size, reading))
        audits.append(_correct(row))
    out: list[ClaimAudit] = []
    for index, claim in enumerate(ledger.claims):
        distinct = max(len(ledger.sizes(claim)), 1)
        out.extend(audits[reading][index] for reading in range(distinct))
    return out


def audit_claim(ledger: Ledger, claim: Claim, n_tasks: int | None, reading: int = 0) -> ClaimAudit:
    """The audit of one claim if the benchmark has ``n_tasks`` tasks; no multiplicity correction yet."""
    bare = ClaimAudit(claim=claim, reading=reading, n_tasks=n_tasks)
    if claim.gap is not None and claim.gap != 0.0 and claim.unit == "points":
        bare = replace(bare, seeds_needed={sd: _seeds(abs(claim.gap), sd) for sd in SEED_SDS})
    noise = _noise(ledger, claim, n_tasks)
    if isinstance(noise, str):
        return replace(bare, reason=noise)
    icc, a, b = noise
    assert n_tasks is not None
    se = {
        s.key: math.hypot(100.0 * standard_error(a, b, n_tasks, s.r), math.sqrt(2.0) * s.seed_sd)
        for s in SCENARIOS
    }
    audit = replace(
        bare,
        icc=icc,
        se=se,
        mde={key: minimum_detectable(value, math.inf) for key, value in se.items() if value > 0},
        optimism=_optimism(ledger, claim, n_tasks, icc),
    )
    if claim.gap is None:
        return replace(audit, reason="no gap was published")
    z = float(norm.ppf(1 - ALPHA / 2))
    return replace(
        audit,
        p={key: float(2 * norm.sf(abs(claim.gap) / value)) for key, value in se.items() if value > 0},
        tolerance_fixed=seed_sd_tolerance(claim.gap, se[ROLLOUTS.key]) or 0.0,
        tolerance_tasks=seed_sd_tolerance(claim.gap, se[TASKS_R80.key]) or 0.0,
        r_needed=correlation_needed(a, b, n_tasks, claim.gap / 100.0, z),
    )


def _noise(
    ledger: Ledger, claim: Claim, n_tasks: int | None
) -> tuple[float, TaskVariance, TaskVariance] | str:
    """icc and the per-task variances of both arms, or the reason why summaries cannot give them."""
    metric = claim.pass_metric
    shape = ledger.benchmarks[claim.benchmark].heterogeneity
    rollouts = ledger.rollouts(claim)
    if metric is None:
        return f"the variance of a {claim.metric.value} does not follow from its mean"
    if n_tasks is None:
        return "the number of tasks is not known"
    if rollouts is None:
        return "the number of rollouts per task is not known"
    if shape is None:
        return "nothing published tells how unequal the tasks are"
    levels = _levels(claim)
    if levels is None:
        return "no level was published and none is imputed"
    if not all(0.0 < level < 100.0 for level in levels):
        return "a level of exactly 0 % or 100 % leaves no variance to bound"
    icc = fit_heterogeneity(shape)
    evaluations = ledger.benchmarks[claim.benchmark].evaluations
    a, b = (
        task_variance(mix_from_level(metric, level / 100.0, icc), metric, rollouts, evaluations)
        for level in levels
    )
    return icc, a, b


def _levels(claim: Claim) -> tuple[float, float] | None:
    """The two levels for the noise model; a missing one follows from the other and the gap (0 if unpublished)."""
    gap = claim.gap or 0.0
    a = claim.level_a if claim.level_a is not None else claim.imputed_level_a
    if a is None and claim.level_b is None:
        return None
    if a is None:
        assert claim.level_b is not None
        a = claim.level_b + gap
    return a, claim.level_b if claim.level_b is not None else a - gap


def _optimism(ledger: Ledger, claim: Claim, n_tasks: int, icc: float) -> Optimism | None:
    rule, rollouts = ledger.selection, ledger.rollouts(claim)
    if rule is None or claim.k != 1 or claim.level_a is None or rollouts is None:
        return None
    return selection_optimism(
        claim.level_a / 100.0, icc, n_tasks, rollouts, rule.checkpoints, rule.correlation
    )


@lru_cache(maxsize=1024)
def _seeds(gap: float, sd: float) -> int | None:
    try:
        return seeds_needed(gap, sd, limit=SEEDS_LIMIT)
    except DataError:
        return None  # more seeds than anyone could run; the reports print "> 1,000,000"


def _correct(audits: Sequence[ClaimAudit]) -> list[ClaimAudit]:
    """Holm and Benjamini-Hochberg within each family, scenario by scenario; an untestable claim counts as p = 1."""
    corrected = {audit.claim.id: audit for audit in audits}
    for family in _families(audits):
        members = [audit for audit in audits if audit.claim.family == family]
        adjusted = {s.key: (_adjust(members, s, "holm"), _adjust(members, s, "bh")) for s in SCENARIOS}
        for audit in members:
            if audit.p:
                name = audit.claim.id
                corrected[name] = replace(
                    audit,
                    p_holm={key: values[0][name] for key, values in adjusted.items()},
                    p_bh={key: values[1][name] for key, values in adjusted.items()},
                )
    return list(corrected.values())


def _adjust(
    members: Sequence[ClaimAudit], scenario: Scenario, method: Literal["holm", "bh"]
) -> dict[str, float]:
    family = Family("claims", tuple(audit.claim.id for audit in members), method)
    adjusted = family.adjust({audit.claim.id: audit.p.get(scenario.key) for audit in members})
    return {name: p for name, p in adjusted.items() if p is not None}


@dataclass(frozen=True)
class FamilyCount:
    """How many claims of a family stay below 5 % under a scenario: uncorrected, by BH, by Holm."""

    family: str
    scenario: Scenario
    claims: int
    raw: int
    bh: int
    holm: int


PUBLISHED = "all published"
"""Name of the family of all exact claims of a ledger, whatever family each belongs to."""


def count_families(audits: Sequence[ClaimAudit]) -> list[FamilyCount]:
    """Counts per family and scenario at the likeliest sizes, with all exact claims together as a last family."""
    first = [audit for audit in audits if audit.reading == 0]
    groups = {family: [a for a in first if a.claim.family == family] for family in _families(first)}
    groups[PUBLISHED] = [a for a in first if a.claim.status is Status.EXACT]
    return [
        FamilyCount(
            family,
            scenario,
            len(members),
            sum(a.p[scenario.key] < ALPHA for a in members if a.p),
            sum(p < ALPHA for p in _adjust(members, scenario, "bh").values()),
            sum(p < ALPHA for p in _adjust(members, scenario, "holm").values()),
        )
        for family, members in groups.items()
        for scenario in SCENARIOS
        if any(a.p for a in members)
    ]


def _families(audits: Sequence[ClaimAudit]) -> list[str]:
    return list(dict.fromkeys(audit.claim.family for audit in audits))
