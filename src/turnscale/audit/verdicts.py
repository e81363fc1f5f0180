"""One verdict per claim and question. One training run per arm never supports a claim about a method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution
from scipy.stats import ttest_ind_from_stats

from turnscale.audit.ledger import Claim, Measure
from turnscale.audit.published import arithmetic_problem
from turnscale.audit.summary import ALPHA, ROLLOUTS, TASKS_R80, ClaimAudit, Scenario
from turnscale.stats.question import Question


class Verdict(StrEnum):
    """What the evidence says about a claim at one question."""

    SUPPORTED = "supported"
    NOT_DISTINGUISHABLE = "not distinguishable"
    CONTRADICTED = "contradicted"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True)
class Judgement:
    """A verdict with the sentence that justifies it; ``p`` is the value it rests on, None where there is none."""

    question: Question
    verdict: Verdict
    because: str
    p: float | None = None


def judge(audit: ClaimAudit) -> dict[Question, Judgement]:
    """The verdict on one claim at each of the four questions, from published summaries alone."""
    problem = arithmetic_problem(audit.claim)
    if problem is not None:
        return {q: Judgement(q, Verdict.CONTRADICTED, problem) for q in Question}
    if audit.claim.deterministic:
        return {q: Judgement(q, Verdict.SUPPORTED, "fixed by the design, without noise") for q in Question}
    if audit.claim.gap is None:
        return {q: Judgement(q, Verdict.NOT_TESTABLE, "no gap was published") for q in Question}
    return {
        Question.THESE_CHECKPOINTS: _checkpoint(audit, Question.THESE_CHECKPOINTS, ROLLOUTS),
        Question.TASKS_LIKE_THESE: _checkpoint(audit, Question.TASKS_LIKE_THESE, TASKS_R80),
        Question.METHOD_RETRAINED: _method(audit),
        Question.METHOD_NEW_TASKS: _new_tasks(audit),
    }


def _checkpoint(audit: ClaimAudit, question: Question, scenario: Scenario) -> Judgement:
    if audit.reason is not None:
        return Judgement(question, Verdict.NOT_TESTABLE, audit.reason)
    raw, holm = audit.p[scenario.key], audit.p_holm[scenario.key]
    numbers = f"p {_p(raw)} with {scenario.label}, {_p(holm)} after Holm in the {audit.claim.family} family"
    if holm < ALPHA:
        return Judgement(question, Verdict.SUPPORTED, numbers + _caveat(audit, question), holm)
    if question is Question.TASKS_LIKE_THESE and audit.r_needed is not None and raw >= ALPHA:
        numbers += f"; needs r above {audit.r_needed:.2f}"
    return Judgement(question, Verdict.NOT_DISTINGUISHABLE, numbers, holm)


def _caveat(audit: ClaimAudit, question: Question) -> str:
    if question is Question.THESE_CHECKPOINTS:
        if audit.optimism is not None:
            worth = audit.optimism.after_fresh_attempts
            return f"; choosing the checkpoint on these tasks may be worth {worth:.2f} points"
        return "; a lower bound on noise"
    assert audit.r_needed is not None
    return "; at any r" if audit.r_needed == 0.0 else f"; holds for r above {audit.r_needed:.2f}"


def _method(audit: ClaimAudit) -> Judgement:
    question, claim = Question.METHOD_RETRAINED, audit.claim
    assert claim.gap is not None
    if min(claim.runs_a, claim.runs_b) < 2:
        return Judgement(
            question, Verdict.NOT_TESTABLE, "one training run per arm" + _stands(audit.tolerance_fixed)
        )
    if claim.unit == "count":
        return Judgement(question, Verdict.NOT_TESTABLE, "a count without a published spread over seeds")
    if claim.seed_sd_a is None or claim.seed_sd_b is None:
        stands = _stands(seed_tolerance(claim))
        return Judgement(question, Verdict.NOT_TESTABLE, "the seed sd was not published" + stands)
    test, p = _seed_test(claim, claim.seed_sd_a, claim.seed_sd_b)
    verdict = Verdict.SUPPORTED if p < ALPHA else Verdict.NOT_DISTINGUISHABLE
    return Judgement(question, verdict, f"{test} over {claim.runs_a} v {claim.runs_b} seeds: p {_p(p)}", p)


def seed_tolerance(claim: Claim) -> float | None:
    """Largest seed sd (points) at which the gap of several runs per arm would be significant; None without a test."""
    if claim.gap is None or claim.unit != "points" or min(claim.runs_a, claim.runs_b) < 2:
        return None
    df = claim.runs_a + claim.runs_b - 2
    return abs(claim.gap) / (
        float(t_distribution.isf(ALPHA / 2, df)) * math.sqrt(1 / claim.runs_a + 1 / claim.runs_b)
    )


def seed_interval(claim: Claim) -> tuple[float, float] | None:
    """95 % Welch interval of a gap in points from the published seed sds; None where they were not published.

    A difference of spreads has no such interval either.
    """
    a, b = claim.seed_sd_a, claim.seed_sd_b
    testable = claim.unit == "points" and claim.metric is not Measure.SPREAD and claim.gap is not None
    if a is None or b is None or not testable or min(claim.runs_a, claim.runs_b) < 2:
        return None
    assert claim.gap is not None
    parts = (a**2 / claim.runs_a, b**2 / claim.runs_b)
    df = sum(parts) ** 2 / (parts[0] ** 2 / (claim.runs_a - 1) + parts[1] ** 2 / (claim.runs_b - 1))
    half = float(t_distribution.isf(ALPHA / 2, df)) * math.sqrt(sum(parts))
    return claim.gap - half, claim.gap + half


def _seed_test(claim: Claim, sd_a: float, sd_b: float) -> tuple[str, float]:
    if claim.metric is Measure.SPREAD:
        f = f_distribution(claim.runs_a - 1, claim.runs_b - 1)
        ratio = (sd_a / sd_b) ** 2
        return "F test of the seed variances", float(min(1.0, 2 * min(f.cdf(ratio), f.sf(ratio))))
    assert claim.gap is not None
    result = ttest_ind_from_stats(claim.gap, sd_a, claim.runs_a, 0.0, sd_b, claim.runs_b, equal_var=False)
    return "Welch t", float(result.pvalue)


def _new_tasks(audit: ClaimAudit) -> Judgement:
    question, claim = Question.METHOD_NEW_TASKS, audit.claim
    if min(claim.runs_a, claim.runs_b) < 2:
        words = "one training run per arm" + _stands(audit.tolerance_tasks)
        return Judgement(question, Verdict.NOT_TESTABLE, words)
    return Judgement(question, Verdict.NOT_TESTABLE, "needs the outcome of every task under every seed")


def _stands(tolerance: float | None) -> str:
    if tolerance is None:
        return ""
    if tolerance == 0.0:
        return "; fails even without seed noise"
    return f"; stands only while the seed sd is below {tolerance:.2f} points"


def _p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}"
