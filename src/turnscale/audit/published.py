"""What the printed numbers say about themselves: arithmetic, whole counts of tasks, statements over many cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnscale.audit.ledger import Claim, Expectation, Ledger, Pattern, Status
from turnscale.audit.selection import best_everywhere_bound
from turnscale.audit.summary import ALPHA
from turnscale.stats.grim import grim
from turnscale.stats.tests_exact import mcnemar


def arithmetic_problem(claim: Claim) -> str | None:
    """Why the printed levels and the printed gap cannot all be right, or None.

    Three numbers rounded to d decimals may disagree by 1.5 units of the last digit; a derived gap by as much.
    """
    if claim.gap is None or claim.level_a is None or claim.level_b is None:
        return None
    implied = claim.level_a - claim.level_b
    unit = 10.0**-claim.decimals
    if abs(implied - claim.gap) <= 1.5 * unit + 1e-9:
        return None
    return (
        f"levels {claim.level_a:.{claim.decimals}f} and {claim.level_b:.{claim.decimals}f} give "
        f"{implied:+.{claim.decimals}f}, the claim says {claim.gap:+.{claim.decimals}f}"
    )


@dataclass(frozen=True)
class GrimFinding:
    """Which whole counts a printed level can be. ``successes`` is empty when the level is impossible."""

    benchmark: str
    model: str
    arm: str
    metric: str
    level: float
    decimals: int
    n_tasks: int
    trials: int
    successes: tuple[int, ...]


def grim_findings(ledger: Ledger) -> list[GrimFinding]:
    """Every printed (not derived) count against every possible number of tasks.

    pass@1 pools all attempts, so it is a count out of tasks x rollouts x evaluations; pass@k and pass^k with k equal
    to the rollouts of an evaluation are counts out of tasks x evaluations. Others average fractions: not tested.
    """
    found: dict[tuple[str, str, str, str, float, int], GrimFinding] = {}
    for claim in ledger.claims:
        rollouts, metric = ledger.rollouts(claim), claim.pass_metric
        if rollouts is None or metric is None:
            continue
        evaluations = ledger.benchmarks[claim.benchmark].evaluations
        for arm, level, status in (
            (claim.arm_a, claim.level_a, claim.level_a_status),
            (claim.arm_b, claim.level_b, claim.level_b_status),
        ):
            if level is None or status is Status.DERIVED:
                continue
            for n_tasks in ledger.sizes(claim):
                if claim.k not in (1, rollouts):
                    continue
                trials = n_tasks * evaluations * (rollouts if claim.k == 1 else 1)
                key = (claim.benchmark, claim.model, arm, claim.metric_label, level, n_tasks)
                counts = grim(level, claim.decimals, trials).feasible
                found[key] = GrimFinding(
                    claim.benchmark,
                    claim.model,
                    arm,
                    claim.metric_label,
                    level,
                    claim.decimals,
                    n_tasks,
                    trials,
                    counts,
                )
    return list(found.values())


@dataclass(frozen=True)
class WinLoss:
    """A pass@k gap read as whole tasks: ``net`` won, the best p value, and how many lost tasks it survives.

    ``p_best`` is the exact McNemar p when no task is lost; ``losses_survived`` is the largest number of lost tasks
    (with net + that many won) at which p stays below 5 %, -1 when none.
    """

    claim: Claim
    n_tasks: int
    net: int
    p_best: float
    losses_survived: int


def win_loss(ledger: Ledger, claim: Claim, n_tasks: int) -> WinLoss | None:
    """The gap in whole tasks, when both levels are single whole counts out of ``n_tasks``; None otherwise."""
    if claim.k is None or claim.k < 2 or claim.k != ledger.rollouts(claim):
        return None
    if ledger.benchmarks[claim.benchmark].evaluations != 1 or claim.level_a is None or claim.level_b is None:
        return None
    a = grim(claim.level_a, claim.decimals, n_tasks).feasible
    b = grim(claim.level_b, claim.decimals, n_tasks).feasible
    if len(a) != 1 or len(b) != 1:
        return None
    net = abs(a[0] - b[0])
    most = n_tasks - max(a[0], b[0])  # tasks the better arm fails: only these can be lost

    def p(lost: int) -> float:
        return mcnemar(net + lost, lost)

    survived = -1
    while survived < most and p(survived + 1) < ALPHA:
        survived += 1
    return WinLoss(claim, n_tasks, net, p(0), survived)


@dataclass(frozen=True)
class PatternFinding:
    """What the printed gaps say about a statement. ``holds`` is None when arithmetic cannot settle it."""

    pattern: Pattern
    holds: bool | None
    gaps: tuple[float, ...]
    chance: float | None
    words: str


def pattern_findings(ledger: Ledger) -> list[PatternFinding]:
    """Every pattern of the ledger against the printed gaps of its claims."""
    return [_pattern(ledger, pattern) for pattern in ledger.patterns]


def _pattern(ledger: Ledger, pattern: Pattern) -> PatternFinding:
    gaps = [ledger.claim(name).gap for name in pattern.claims]
    known = tuple(gap for gap in gaps if gap is not None)
    bare = PatternFinding(
        pattern, None, known, None, "an interpretation; no arithmetic on the gaps settles it"
    )
    if pattern.expect is Expectation.READING:
        return bare
    if len(known) < len(gaps) or not known:
        return replace(bare, words="some of its gaps were never published")
    shown = ", ".join(f"{gap:+g}" for gap in known)
    problem = _violation(pattern.expect, known)
    if problem is not None:
        return replace(bare, holds=False, words=f"the printed gaps {shown} {problem}")
    if (
        pattern.expect is not Expectation.ALL_POSITIVE
        or pattern.competitors is None
        or not pattern.runs_behind
    ):
        return replace(
            bare, holds=True, words=f"the printed gaps {shown} agree; their noise is judged claim by claim"
        )
    chance = best_everywhere_bound(pattern.runs_behind, pattern.competitors)
    runs = len(pattern.runs_behind)
    return replace(
        bare,
        holds=True,
        chance=chance,
        words=f"{len(known)} gaps from {runs} independent run{'s' * (runs != 1)}; equal methods do this with "
        f"probability up to {chance:.2g}",
    )


def _violation(expect: Expectation, gaps: Sequence[float]) -> str | None:
    steps = [b - a for a, b in itertools.pairwise(gaps)]
    if expect is Expectation.ALL_POSITIVE and any(gap <= 0 for gap in gaps):
        return "are not all above zero"
    if expect is Expectation.NOT_SHRINKING and any(step < 0 for step in steps):
        return "shrink"
    if expect is Expectation.GROWING and any(step <= 0 for step in steps):
        return "do not grow at every step"
    return None
