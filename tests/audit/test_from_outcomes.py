"""The audit from outcome tables: the four questions, their corrections, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from tests.audit.builders import outcomes
from turnscale.audit.from_outcomes import PairAudit, audit_outcomes
from turnscale.audit.ledger import load_ledger
from turnscale.audit.local import local_findings, read_comparisons
from turnscale.audit.panels import panels
from turnscale.audit.seed_scores import audit_scores
from turnscale.audit.table import check_outcomes, check_scores
from turnscale.audit.verdicts import Verdict
from turnscale.errors import DataError
from turnscale.stats.passk import Metric
from turnscale.stats.question import Comparison, NotEstimable, Question

ROOT = Path(__file__).parents[2]
ONE = Metric("pass_at", 1)


def audit(
    frame: pd.DataFrame, reference: str | None = None, intersect: bool = False, **more: object
) -> list[PairAudit]:
    table = check_outcomes(frame, "outcomes.csv")
    parts = panels(table, "outcomes.csv", intersect=intersect, checkpoint=None)
    return audit_outcomes(parts, [ONE], "outcomes.csv", reference=reference, **more)  # type: ignore[arg-type]


def test_one_seed_per_arm_says_nothing_about_the_method() -> None:
    pair = audit(outcomes({"A": [0.9], "B": [0.1]}))[0]
    assert pair.answers[Question.THESE_CHECKPOINTS].verdict is Verdict.SUPPORTED
    for question in (Question.METHOD_RETRAINED, Question.METHOD_NEW_TASKS):
        answer = pair.answers[question]
        assert answer.verdict is Verdict.NOT_TESTABLE
        assert isinstance(answer.result, NotEstimable)
        assert answer.result.seed_sd_tolerance is not None


def test_several_seeds_do() -> None:
    frame = outcomes({"A": [0.80, 0.82, 0.78, 0.81, 0.79], "B": [0.40, 0.42, 0.38, 0.41, 0.39]})
    pair = audit(frame)[0]
    assert {answer.verdict for answer in pair.answers.values()} == {Verdict.SUPPORTED}
    result = pair.answers[Question.METHOD_RETRAINED].result
    assert isinstance(result, Comparison)
    means = frame.groupby(["arm", "seed"])["success"].mean()
    expected = ttest_ind(means["A"], means["B"], equal_var=False)
    assert result.p == pytest.approx(expected.pvalue)


def test_the_claim_that_the_first_arm_is_better_can_be_contradicted() -> None:
    frame = outcomes({"new": [0.3, 0.32, 0.28, 0.31, 0.29], "old": [0.7, 0.72, 0.68, 0.71, 0.69]})
    pair = audit(frame, reference="old")[0]
    assert (pair.arm_a, pair.arm_b) == ("new", "old")
    assert pair.answers[Question.METHOD_RETRAINED].verdict is Verdict.CONTRADICTED


def test_without_a_reference_every_pair_is_audited_better_arm_first() -> None:
    pairs = audit(outcomes({"A": [0.2] * 3, "B": [0.5] * 3, "C": [0.8] * 3}))
    assert [(p.arm_a, p.arm_b) for p in pairs] == [("B", "A"), ("C", "A"), ("C", "B")]
    assert all(p.difference > 0 for p in pairs)


def test_holm_runs_over_the_pairs_of_a_panel() -> None:
    pairs = audit(outcomes({"A": [0.45] * 3, "B": [0.5] * 3, "C": [0.55] * 3}))
    raw, adjusted = [], []
    for pair in pairs:
        answer = pair.answers[Question.METHOD_RETRAINED]
        assert (
            isinstance(answer.result, Comparison)
            and answer.result.p is not None
            and answer.p_holm is not None
        )
        raw.append(answer.result.p)
        adjusted.append(answer.p_holm)
    assert min(adjusted) == pytest.approx(min(1.0, 3 * min(raw)))


def test_an_unknown_reference() -> None:
    with pytest.raises(DataError, match="no arm 'Z'"):
        audit(outcomes({"A": [0.5], "B": [0.4]}), reference="Z")


def test_k_above_the_attempts() -> None:
    table = check_outcomes(outcomes({"A": [0.5], "B": [0.4]}), "outcomes.csv")
    with pytest.raises(DataError, match="at least 8"):
        audit_outcomes(panels(table, "o.csv", checkpoint=None), [Metric("pass_at", 8)], "o.csv")


def test_intersect_counts_what_it_drops() -> None:
    frame = outcomes({"A": [0.6] * 2, "B": [0.4] * 2}, n_tasks=20)
    frame = frame[~((frame["arm"] == "B") & (frame["seed"] == 1) & frame["task"].isin(["t003", "t004"]))]
    with pytest.raises(DataError, match="no attempt for arm 'B', seed 1, task 't003'"):
        audit(frame)
    pair = audit(frame, intersect=True)[0]
    assert (pair.n_tasks, pair.panel.dropped_tasks) == (18, 2)


def test_disjoint_panels_share_no_task() -> None:
    a, b = outcomes({"A": [0.5]}, n_tasks=4), outcomes({"B": [0.5]}, n_tasks=4)
    b["task"] = "other-" + b["task"]
    with pytest.raises(DataError, match="share no task"):
        audit(pd.concat([a, b]), intersect=True)


def test_ragged_attempts_are_averaged_within_tasks_when_allowed() -> None:
    frame = outcomes({"A": [0.6] * 2, "B": [0.4] * 2}, n_tasks=10)
    short = frame[~((frame["task"] == "t001") & (frame["attempt"] > 0))]
    table = check_outcomes(short, "o.csv")
    pair = audit_outcomes(panels(table, "o.csv", ragged=True, checkpoint=None), [ONE], "o.csv")[0]
    by_task = short.groupby(["arm", "seed", "task"])["success"].mean().groupby("arm").mean()
    assert abs(pair.difference) == pytest.approx(abs(by_task["A"] - by_task["B"]))


def test_panels_are_compared_separately() -> None:
    easy = outcomes({"A": [0.9] * 2, "B": [0.8] * 2}, n_tasks=12).assign(benchmark="easy")
    hard = outcomes({"A": [0.2] * 2, "B": [0.3] * 2}, n_tasks=9).assign(benchmark="hard")
    pairs = audit(pd.concat([easy, hard]))
    assert [(p.panel.label("benchmark"), p.n_tasks) for p in pairs] == [("easy", 12), ("hard", 9)]


def test_clusters_widen_the_interval_over_tasks() -> None:
    frame = outcomes({"A": [0.6] * 2, "B": [0.4] * 2}, n_tasks=40, attempts=2)
    copies = pd.concat([frame.assign(task=frame["task"] + f"-{i}", cluster=frame["task"]) for i in range(4)])
    alone = audit(copies.drop(columns="cluster"))[0].answers[Question.TASKS_LIKE_THESE].result
    together = audit(copies)[0].answers[Question.TASKS_LIKE_THESE].result
    assert isinstance(alone, Comparison) and isinstance(together, Comparison)
    assert together.se > 1.8 * alone.se


def test_an_untrained_arm_is_held_fixed() -> None:
    frame = outcomes({"A": [0.6, 0.62, 0.61], "base": [0.4]})
    plain = audit(frame, reference="base")[0]
    fixed = audit(frame, reference="base", untrained=["base"])[0]
    assert plain.answers[Question.METHOD_RETRAINED].verdict is Verdict.NOT_TESTABLE
    assert fixed.answers[Question.METHOD_RETRAINED].verdict is Verdict.SUPPORTED


def test_equal_arms_are_rarely_told_apart() -> None:
    wrong = 0
    for seed in range(40):
        pair = audit(outcomes({"A": [0.5] * 3, "B": [0.5] * 3}, n_tasks=30, attempts=2, seed=seed))[0]
        wrong += pair.answers[Question.METHOD_RETRAINED].verdict is not Verdict.NOT_DISTINGUISHABLE
    assert wrong <= 6  # 5 % of 40 is 2; P(more than 6) < .005


def test_seed_scores_answer_one_question_by_welch() -> None:
    a, b = [0.481, 0.469, 0.494], [0.440, 0.451, 0.427]
    frame = pd.DataFrame({"arm": ["A"] * 3 + ["B"] * 3, "seed": [0, 1, 2] * 2, "score": a + b})
    pair = audit_scores(check_scores(frame, "scores.csv"), "scores.csv")[0]
    result = pair.answers[Question.METHOD_RETRAINED].result
    assert isinstance(result, Comparison)
    assert result.p == pytest.approx(0.013793, abs=1e-6)
    assert 100 * np.array([result.lo, result.hi]) == pytest.approx([1.4187, 6.9813], abs=1e-4)
    others = [pair.answers[q].verdict for q in Question if q is not Question.METHOD_RETRAINED]
    assert others == [Verdict.NOT_TESTABLE] * 3


def test_one_seed_score_per_arm_is_refused() -> None:
    frame = pd.DataFrame({"arm": ["A", "B"], "seed": [0, 0], "score": [0.5, 0.4]})
    pair = audit_scores(check_scores(frame, "scores.csv"), "scores.csv")[0]
    assert pair.answers[Question.METHOD_RETRAINED].verdict is Verdict.NOT_TESTABLE


COMPARISONS = (
    "study,scale,model,benchmark,metric,k,cell_a,cell_b,difference,lo,hi,p,question,n_seeds_a,n_seeds_b\n"
    "mpo,cpu,qwen3-tiny,search-2hop,pass_at_1,1,mpo-token-is,mpo,-0.031,-0.05,-0.012,0.001,{q},5,5\n"
    "mpo,cpu,qwen3-tiny,search-3hop,pass_at_1,1,mpo,mpo-beta0,-0.04,-0.06,-0.02,0.001,{q},5,5\n"
    "mpo,cpu,qwen3-tiny,search-4hop,pass_at_1,1,mpo,mpo-lam0.85,0.01,,,,{q},1,1\n"
    "other,cpu,qwen3-tiny,search-2hop,pass_at_1,1,mpo,ppo,0.5,0.4,0.6,0.001,{q},5,5\n"
)


def test_local_runs_are_laid_beside_the_claims(tmp_path: Path) -> None:
    path = tmp_path / "comparisons.csv"
    path.write_text(COMPARISONS.replace("{q}", Question.METHOD_RETRAINED.value))
    found = local_findings(load_ledger(ROOT / "configs/claims/mpo.yaml"), read_comparisons(path))
    shown = {f.claim.id: (round(f.difference, 1), f.direction.value, f.size.value) for f in found}
    assert shown == {
        "4b-bcp-token-is": (3.1, "reproduced", "reproduced"),  # stored the other way round
        "4b-gaia-beta0": (-4.0, "not reproduced", "not reproduced"),
        "4b-hle-lambda85": (1.0, "undecided", "undecided"),
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("-0.031", "x", "'x' is not a number"),
        ("-0.031", "-3.1", "outside -1..1"),
        ("cell_a", "arm_a", "no column 'cell_a'"),
    ],
)
def test_spoilt_comparisons(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "comparisons.csv"
    path.write_text(COMPARISONS.replace(old, new))
    with pytest.raises(DataError, match=words):
        read_comparisons(path)
