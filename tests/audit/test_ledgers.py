"""The shipped ledgers: every published difference is in them, once, and what contradicts what is named."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from turnscale.audit.ledger import Ledger, Status, load_ledger
from turnscale.audit.published import arithmetic_problem, grim_findings, pattern_findings, win_loss

ROOT = Path(__file__).parents[2]
STUDIES = ("mpo", "agentopsd", "grouping")
NAMES = {
    "pass@1": ("pass_at", 1),
    "pass@3": ("pass_at", 3),
    "pass^3": ("pass_hat", 3),
    "pass@32": ("pass_at", 32),
}


@cache
def ledger(study: str) -> Ledger:
    return load_ledger(ROOT / f"configs/claims/{study}.yaml")


def published(name: str) -> list[dict[str, str]]:
    with (ROOT / f"configs/published/{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_published_difference_of_mpo_is_a_claim() -> None:
    mpo = ledger("mpo")
    claims = {
        (
            mpo.benchmarks[c.benchmark].name.replace(" ", "-"),
            c.model,
            c.metric.value,
            c.k,
            c.gap,
            c.arm_a,
            c.arm_b,
        )
        for c in mpo.claims
        if c.status is Status.EXACT
    }
    signed = {(b, m, metric, k, gap) for b, m, metric, k, gap, _, _ in claims} | {
        (b, m, metric, k, -(gap or 0)) for b, m, metric, k, gap, _, _ in claims
    }
    rows = published("mpo_published_differences")
    assert len(rows) == 31 == sum(c.status is Status.EXACT for c in mpo.claims)
    for row in rows:
        key = (row["benchmark"].replace(" ", "-"), row["model"], *NAMES[row["metric"]], float(row["value"]))
        assert key in signed, row


@pytest.mark.parametrize("table", ["mpo_main_scores", "mpo_ablation_scores", "mpo_passk"])
def test_levels_agree_with_the_published_tables(table: str) -> None:
    mpo = ledger("mpo")
    levels = {
        (mpo.benchmarks[c.benchmark].name, c.model, c.metric_label, level)
        for c in mpo.claims
        for level in (c.level_a, c.level_b)
    }
    for row in published(table):
        if row["benchmark"] == "Automation Bench" and row["model"] == "Qwen3-30B-A3B-Instruct":
            continue  # one level without a difference: no baseline was published
        benchmark = row["benchmark"].replace("-text", " text")
        assert (benchmark, row["model"], row["metric"], float(row["value"])) in levels, row


def test_every_level_and_slope_of_agentopsd_is_in_a_claim() -> None:
    values = {level for c in ledger("agentopsd").claims for level in (c.level_a, c.level_b)}
    rows = [r for r in published("agentopsd") if r["table"].startswith(("main", "horizon"))]
    assert len(rows) == 7
    assert {float(row["value"]) for row in rows} <= values


def test_every_accuracy_of_the_grouping_table_is_in_a_claim() -> None:
    grouping = ledger("grouping")
    levels = {
        (c.benchmark, arm, lv)
        for c in grouping.claims
        for arm, lv in ((c.arm_a, c.level_a), (c.arm_b, c.level_b))
    }
    rows = [r for r in published("grouping_toy") if r["metric"].startswith("answer accuracy")]
    assert len(rows) == 16
    for row in rows:
        key = (f"t{row['params'].removeprefix('T=')}", row["method"], round(100 * float(row["value"]), 1))
        assert key in levels, row


@pytest.mark.parametrize("study", STUDIES)
def test_printed_arithmetic_holds(study: str) -> None:
    assert [arithmetic_problem(claim) for claim in ledger(study).claims if arithmetic_problem(claim)] == []


@pytest.mark.parametrize("study", STUDIES)
def test_contradictions_are_recorded(study: str) -> None:
    found = ledger(study)
    assert any(item.conflicts_with for item in (*found.claims, *found.patterns))


def test_the_two_readings_of_the_sampling_curve_are_both_contradicted() -> None:
    holds = {f.pattern.id: f.holds for f in pattern_findings(ledger("mpo"))}
    assert holds["gap-kept-bcp"] is False
    assert holds["gap-grows-bcp"] is False
    assert holds["gap-kept-hle"] is True
    assert holds["values-jump-at-boundaries"] is None


def test_chance_of_winning_everything() -> None:
    chance = {f.pattern.id: f.chance for f in pattern_findings(ledger("mpo"))}
    assert chance["nine-of-nine-4b"] == pytest.approx(9 / 15 / 49)
    assert chance["nine-of-nine-30b"] == pytest.approx(1 / 343)
    assert chance["six-of-six-token-is"] == pytest.approx(0.25)


def test_whole_counts() -> None:
    counts = {(f.benchmark, f.metric, f.level, f.n_tasks): f.successes for f in grim_findings(ledger("mpo"))}
    assert counts["gaia_text", "pass@32", 69.90, 103] == (72,)
    assert counts["hle_text", "pass@32", 34.0, 500] == (170,)
    assert counts["browsecomp_plus", "pass@32", 75.9, 830] == (630,)
    assert counts["gaia_text", "pass@1", 39.47, 103] == (1301,)
    assert counts["automation_bench", "pass@1", 12.06, 600] == ()
    assert counts["browsecomp_plus", "pass@1", 46.73, 166] == ()
    assert ("gaia_text", "pass@1", 34.2, 103) not in counts  # derived, so not a printed number


def test_tasks_won() -> None:
    mpo = ledger("mpo")
    found = {
        (i, n): win_loss(mpo, mpo.claim(i), n) for i, n in (("4b-gaia-pass32", 103), ("4b-bcp-pass32", 830))
    }
    gaia, bcp = found["4b-gaia-pass32", 103], found["4b-bcp-pass32", 830]
    assert gaia is not None and bcp is not None
    assert (gaia.net, gaia.p_best, gaia.losses_survived) == (6, 0.03125, 0)
    assert (bcp.net, bcp.losses_survived) == (30, 94)
    small = win_loss(mpo, mpo.claim("4b-bcp-pass32"), 166)
    assert small is not None
    assert (small.net, small.losses_survived) == (6, 0)


def test_agentopsd_counts() -> None:
    counts = {(f.benchmark, f.level): f.successes for f in grim_findings(ledger("agentopsd"))}
    assert counts == {("alfworld", 89.1): (114,), ("webshop", 79.7): (102,)}
