"""The audit from summaries against the worked table: every difference, every size, every digit."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from turnscale.audit.ledger import load_ledger
from turnscale.audit.summary import (
    PUBLISHED,
    ROLLOUTS,
    SCENARIOS,
    SEED_1,
    SEED_2,
    SEEDS_LIMIT,
    TASKS_R80,
    TASKS_R95,
    UNPAIRED,
    ClaimAudit,
    audit_claims,
    count_families,
)

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden_summary.csv")
TABLE = list(csv.DictReader(GOLDEN.open(encoding="utf-8")))


@cache
def mpo() -> list[ClaimAudit]:
    return audit_claims(load_ledger(ROOT / "configs/claims/mpo.yaml"))


def find(claim: str, n_tasks: int) -> ClaimAudit:
    return next(a for a in mpo() if a.claim.id == claim and a.n_tasks == n_tasks)


def printed(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}"


def test_the_table_holds_all_31_differences() -> None:
    assert len(TABLE) == 44
    assert len({row["claim"] for row in TABLE}) == 31


@pytest.mark.parametrize("row", TABLE, ids=[f"{row['claim']}-{row['n_tasks']}" for row in TABLE])
def test_golden_row(row: dict[str, str]) -> None:
    audit = find(row["claim"], int(row["n_tasks"]))
    assert f"{audit.claim.gap:+.2f}" == row["gap"]
    for scenario in SCENARIOS:
        if f"se_{scenario.key}" in row:
            assert f"{audit.se[scenario.key]:.2f}" == row[f"se_{scenario.key}"], scenario.key
        assert printed(audit.p[scenario.key]) == row[f"p_{scenario.key}"], scenario.key
    for scenario, suffix in ((TASKS_R80, "r80"), (SEED_2, "r80_seed2")):
        interval = audit.interval(scenario)
        assert interval is not None
        assert [f"{end:.2f}" for end in interval] == [row[f"lo_{suffix}"], row[f"hi_{suffix}"]]
    assert f"{audit.mde[TASKS_R80.key]:.1f}" == row["mde_r80"]
    assert f"{audit.tolerance_fixed:.2f}" == row["tolerance_fixed"]
    assert f"{audit.tolerance_tasks:.2f}" == row["tolerance_r80"]
    for sd in (1.0, 2.0, 3.0):
        expected, count = row[f"seeds_sd{sd:.0f}"], audit.seeds_needed[sd]
        if expected == "–":  # the table gives up above a thousand seeds; the numbers themselves are known
            assert count is not None and 1000 < count < SEEDS_LIMIT
        else:
            assert str(count) == expected


def test_seeds_for_the_smallest_gap() -> None:
    assert find("30b-hle-vs-sao", 500).seeds_needed == pytest.approx(
        {1.0: 1092, 2.0: 4362, 3.0: 9813}, rel=2e-4
    )


COUNTS = {  # scenario: (raw, BH, Holm) over the 31 published claims, and Holm within the 12 main ones
    ROLLOUTS.key: (27, 27, 24, 8),
    TASKS_R95.key: (18, 18, 12, 4),
    TASKS_R80.key: (10, 6, 5, 2),
    UNPAIRED.key: (3, 0, 0, 0),
    SEED_1.key: (4, 1, 1, 0),
    SEED_2.key: (1, 0, 0, 0),
}


@pytest.mark.parametrize("key", COUNTS)
def test_multiplicity_counts(key: str) -> None:
    counts = {(f.family, f.scenario.key): f for f in count_families(mpo())}
    published, main = counts[PUBLISHED, key], counts["main", key]
    assert (published.claims, main.claims) == (31, 12)
    assert (published.raw, published.bh, published.holm, main.holm) == COUNTS[key]


def test_the_survivors_are_the_named_ones() -> None:
    holds = {
        a.claim.id
        for a in mpo()
        if a.reading == 0 and a.claim.family == "main" and a.p_holm[TASKS_R95.key] < 0.05
    }
    assert holds == {"4b-bcp-vs-sao", "30b-bcp-vs-vapo", "4b-gaia-pass3", "30b-gaia-pass3"}


def test_no_main_claim_survives_a_seed_sd_above_2_1() -> None:
    tolerances = [a.tolerance_fixed for a in mpo() if a.claim.family == "main"]
    assert max(t for t in tolerances if t is not None) < 2.1


def test_selection_optimism_of_gaia() -> None:
    optimism = find("4b-gaia-vs-sao", 103).optimism
    assert optimism is not None
    assert f"{optimism.reported:.2f} {optimism.after_fresh_attempts:.2f}" == "2.06 1.57"


def test_a_claim_without_a_gap_still_has_a_detectable_effect() -> None:
    audits = audit_claims(load_ledger(ROOT / "configs/claims/agentopsd.yaml"))
    mde = {a.claim.id: a.mde.get(UNPAIRED.key) for a in audits}
    assert round(mde["alfworld-best"] or 0, 1) == 10.9
    assert round(mde["webshop-best"] or 0, 1) == 14.1
