"""Verdicts: what each question may conclude, above all that one run per arm says nothing about a method."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.audit.ledger import Claim, Ledger, load_ledger
from turnscale.audit.local import Reproduced, judge_local
from turnscale.audit.summary import audit_claim, audit_claims
from turnscale.audit.verdicts import Judgement, Verdict, judge
from turnscale.stats.question import Question

ROOT = Path(__file__).parents[2]
QUICK = settings(max_examples=20, deadline=None)
Q1, Q2, Q3, Q4 = Question


@cache
def judged(study: str) -> dict[tuple[str, int | None], dict[Question, Judgement]]:
    ledger = load_ledger(ROOT / f"configs/claims/{study}.yaml")
    return {(a.claim.id, a.n_tasks): judge(a) for a in audit_claims(ledger)}


EXPECTED = {  # claim, tasks: verdict at "these checkpoints on these tasks", at "tasks like these"
    ("4b-bcp-vs-sao", 830): ("supported", "supported"),
    ("30b-bcp-vs-vapo", 830): ("supported", "supported"),
    ("30b-bcp-vs-vapo", 166): ("supported", "not distinguishable"),
    ("4b-gaia-vs-sao", 103): ("supported", "not distinguishable"),
    ("30b-gaia-vs-sao", 103): ("supported", "not distinguishable"),
    ("4b-gaia-pass3", 103): ("supported", "not distinguishable"),
    ("4b-hle-vs-gspo", 500): ("supported", "not distinguishable"),
    ("30b-hle-vs-sao", 500): ("not distinguishable", "not distinguishable"),
    ("4b-hle-pass32", 500): ("supported", "supported"),
    ("4b-claw-pass3", 300): ("supported", "not distinguishable"),
    ("4b-claw-pass3", 161): ("not distinguishable", "not distinguishable"),
    ("4b-claw-hat3", 300): ("not distinguishable", "not distinguishable"),
    ("30b-claw-hat3", 300): ("not distinguishable", "not distinguishable"),
    ("4b-ab-vs-sao", 600): ("not distinguishable", "not distinguishable"),
    ("4b-bcp-beta0", 830): ("supported", "supported"),
    ("4b-bcp-lambda-intra1", 830): ("not distinguishable", "not distinguishable"),
}


@pytest.mark.parametrize("key", EXPECTED, ids=str)
def test_checkpoint_verdicts(key: tuple[str, int]) -> None:
    found = judged("mpo")[key]
    assert (found[Q1].verdict.value, found[Q2].verdict.value) == EXPECTED[key]


@pytest.mark.parametrize("study", ["mpo", "agentopsd"])
def test_one_run_per_arm_never_yields_a_claim_about_a_method(study: str) -> None:
    for judgements in judged(study).values():
        assert judgements[Q3].verdict is Verdict.NOT_TESTABLE
        assert judgements[Q4].verdict is Verdict.NOT_TESTABLE


def test_the_refusal_names_the_seed_sd_that_would_undo_the_claim() -> None:
    assert "seed sd is below 1.55 points" in judged("mpo")["4b-bcp-vs-sao", 830][Q3].because
    assert "seed sd is below 1.41 points" in judged("mpo")["4b-bcp-vs-sao", 830][Q4].because
    assert "fails even without seed noise" in judged("mpo")["30b-hle-vs-sao", 500][Q3].because


def test_five_seeds_of_tree_and_traj() -> None:
    found = judged("grouping")
    tree = found["t5-tree-vs-traj", None][Q3]
    assert (tree.verdict, round(tree.p or 0, 2)) == (Verdict.NOT_DISTINGUISHABLE, 0.25)
    spread = found["t5-tree-spread", None][Q3]
    assert (spread.verdict, round(spread.p or 0, 2)) == (Verdict.NOT_DISTINGUISHABLE, 0.77)
    anchor = found["t5-anchor-vs-traj", None][Q3]
    assert anchor.verdict is Verdict.NOT_TESTABLE
    assert "below 35.86 points" in anchor.because


def test_a_count_fixed_by_the_design_is_not_a_statistical_claim() -> None:
    assert {j.verdict for j in judged("grouping")["t5-tree-calls", None].values()} == {Verdict.SUPPORTED}


def claim(**changes: Any) -> Claim:
    base: dict[str, Any] = {
        "id": "c",
        "arm_a": "A",
        "arm_b": "B",
        "metric": "pass_at",
        "k": 1,
        "benchmark": "b",
        "model": "m",
        "gap": 10.0,
        "level_a": 50.0,
        "level_b": 40.0,
        "runs_a": 1,
        "runs_b": 1,
        "checkpoint_rule": "last",
        "source": "a paper",
        "status": "exact",
        "confidence": "high",
        "family": "main",
    }
    return Claim.model_validate({**base, **changes})


def ledger_of(claims: list[Claim]) -> Ledger:
    shape = {"icc": 0.5, "source": "assumed"}
    benchmark = {"name": "B", "n_tasks": [200], "rollouts": 4, "heterogeneity": shape, "source": "a paper"}
    return Ledger.model_validate(
        {
            "schema_version": 1, "study": "s", "title": "t", "source": "a paper", "arms": ["A", "B"],
            "benchmarks": {"b": benchmark}, "claims": [c.model_dump() for c in claims],
        }
    )  # fmt: skip


def test_levels_that_do_not_give_the_gap_contradict_the_claim() -> None:
    entry = audit_claims(ledger_of([claim(gap=11.0)]))[0]
    assert {j.verdict for j in judge(entry).values()} == {Verdict.CONTRADICTED}
    assert "give +10.00, the claim says +11.00" in judge(entry)[Q1].because


def test_rounding_is_not_a_contradiction() -> None:
    entry = audit_claims(ledger_of([claim(gap=10.01)]))[0]
    assert judge(entry)[Q1].verdict is Verdict.SUPPORTED


def test_published_seeds_make_a_method_claim_testable() -> None:
    many = claim(runs_a=8, runs_b=8, seed_sd_a=2.0, seed_sd_b=2.0, seed_sd_basis="published")
    found = judge(audit_claims(ledger_of([many]))[0])
    assert found[Q3].verdict is Verdict.SUPPORTED
    assert found[Q4].verdict is Verdict.NOT_TESTABLE


@QUICK
@given(st.floats(0.1, 40.0), st.integers(10, 5000))
def test_a_lone_run_is_never_method_evidence(gap: float, n_tasks: int) -> None:
    one = claim(gap=gap, level_a=50.0, level_b=50.0 - gap)
    entry = audit_claim(ledger_of([one]), one, n_tasks)
    entry = type(entry)(**{**vars(entry), "p_holm": entry.p})
    found = judge(entry)
    assert {found[Q3].verdict, found[Q4].verdict} == {Verdict.NOT_TESTABLE}


METHOD = Question.METHOD_RETRAINED.value
LOCAL = [  # gap, lo, hi, direction, size
    (4.0, 1.0, 6.0, "reproduced", "reproduced"),
    (4.0, 1.0, 3.0, "reproduced", "not reproduced"),
    (4.0, -1.0, 6.0, "undecided", "undecided"),
    (4.0, -1.0, 3.0, "undecided", "not reproduced"),
    (4.0, -6.0, -1.0, "not reproduced", "not reproduced"),
    (-4.0, -6.0, -1.0, "reproduced", "reproduced"),
    (-4.0, 1.0, 6.0, "not reproduced", "not reproduced"),
]


@pytest.mark.parametrize(("gap", "lo", "hi", "direction", "size"), LOCAL)
def test_local_intervals(gap: float, lo: float, hi: float, direction: str, size: str) -> None:
    assert judge_local(gap, lo, hi, METHOD, 5) == (Reproduced(direction), Reproduced(size))


@pytest.mark.parametrize(
    ("gap", "question", "seeds"),
    [(4.0, METHOD, 1), (4.0, Question.THESE_CHECKPOINTS.value, 5), (None, METHOD, 5)],
)
def test_local_runs_that_decide_nothing(gap: float | None, question: str, seeds: int) -> None:
    assert judge_local(gap, 1.0, 6.0, question, seeds) == (Reproduced.UNDECIDED, Reproduced.UNDECIDED)
