"""Laying local re-runs beside published claims: was the direction reproduced, was the size?

The local estimates come from a comparisons table (one row per difference, fractions). The published benchmark and
model are not the local ones, so a match says that the *effect* reappears, not that the number was measured again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.audit.ledger import Claim, Ledger
from turnscale.errors import DataError
from turnscale.stats.question import Question

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "study", "model", "benchmark", "metric", "k", "cell_a", "cell_b", "difference", "lo", "hi", "question",
    "n_seeds_a", "n_seeds_b",
)  # fmt: skip


class Reproduced(StrEnum):
    """How a local interval relates to a published claim."""

    YES = "reproduced"
    NO = "not reproduced"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class LocalFinding:
    """One local difference beside one claim; points, oriented as the claim (arm_a minus arm_b)."""

    claim: Claim
    model: str
    benchmark: str
    difference: float
    lo: float | None
    hi: float | None
    question: str
    seeds_a: int
    seeds_b: int
    direction: Reproduced
    size: Reproduced


def read_comparisons(path: str | Path) -> pd.DataFrame:
    """A comparisons table with numeric columns checked. Raises DataError naming file, row and column."""
    import pandas as pd

    from turnscale.audit.table import read_table

    frame = read_table(path)
    lacking = [column for column in COLUMNS if column not in frame.columns]
    if lacking:
        raise DataError(
            f"no column {lacking[0]!r}.",
            file=path,
            key=lacking[0],
            remedy="give a comparisons table written by this package.",
        )
    frame = frame.copy()
    for column in ("difference", "lo", "hi", "n_seeds_a", "n_seeds_b", "k"):
        text = frame[column].astype(str).str.strip()
        numbers = pd.to_numeric(text.where(text.str.lower().ne("nan"), ""), errors="coerce")
        bad = numbers.isna() & ~text.str.lower().isin(("", "nan", "none", "<na>"))
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise DataError(
                f"{text.iloc[row]!r} is not a number.",
                file=path,
                key=f"row {frame.index[row]}, column {column}",
                remedy="write the table again.",
            )
        frame[column] = numbers
    too_big = frame[["difference", "lo", "hi"]].abs().max(axis=1) > 1
    if too_big.any():
        raise DataError(
            "a difference lies outside -1..1.",
            file=path,
            key=f"row {frame.index[int(too_big.to_numpy().argmax())]}",
            remedy="comparisons are fractions; divide points by 100.",
        )
    return frame


def local_findings(ledger: Ledger, comparisons: pd.DataFrame) -> list[LocalFinding]:
    """Every local difference that stands for a claim, in ledger order. Empty without a ``local`` section."""
    if ledger.local is None:
        return []
    rows = comparisons[comparisons["study"] == ledger.local.study]
    return [finding for claim in ledger.claims for finding in _claim(ledger, claim, rows)]


def _claim(ledger: Ledger, claim: Claim, rows: pd.DataFrame) -> list[LocalFinding]:
    where = ledger.local
    assert where is not None
    a, b = where.arms.get(claim.arm_a), where.arms.get(claim.arm_b)
    if a is None or b is None:
        return []
    stored = {f"{claim.metric.value}_{claim.k}"} if claim.k is not None else {claim.metric.value}
    bare = {claim.metric.value, f"{claim.metric.value}_k"}
    names = rows["metric"].isin(stored) | (rows["metric"].isin(bare) & (rows["k"] == claim.k))
    here = rows[
        names
        & (rows["benchmark"] == where.benchmarks.get(claim.benchmark))
        & (rows["model"] == where.models.get(claim.model))
    ]
    out = []
    for cell_a, cell_b, sign in ((a, b, 1.0), (b, a, -1.0)):
        matching = here[(here["cell_a"] == cell_a) & (here["cell_b"] == cell_b)]
        out += [_finding(claim, row, sign) for row in matching.to_dict("records")]
    return out


def _finding(claim: Claim, row: Mapping[Hashable, Any], sign: float) -> LocalFinding:
    import pandas as pd

    difference = 100.0 * sign * float(row["difference"])
    ends = [None if pd.isna(row[end]) else 100.0 * sign * float(row[end]) for end in ("lo", "hi")]
    lo, hi = (ends[0], ends[1]) if sign > 0 else (ends[1], ends[0])
    seeds = [0 if pd.isna(row[n]) else int(row[n]) for n in ("n_seeds_a", "n_seeds_b")]
    direction, size = judge_local(claim.gap, lo, hi, str(row["question"]), min(seeds))
    return LocalFinding(
        claim, str(row["model"]), str(row["benchmark"]), difference, lo, hi, str(row["question"]), seeds[0], seeds[1],
        direction, size,
    )  # fmt: skip


def judge_local(
    gap: float | None, lo: float | None, hi: float | None, question: str, seeds: int
) -> tuple[Reproduced, Reproduced]:
    """(direction, size) of a local 95 % interval [lo, hi], in points, against a published gap.

    Direction: reproduced when the interval lies on the claimed side of zero, not reproduced when on the other side.
    Size: not reproduced when the claimed gap lies outside; reproduced when it lies inside an interval that excludes
    zero; otherwise undecided. With fewer than two seeds per arm, or an interval about checkpoints, both stay
    undecided.
    """
    undecided = Reproduced.UNDECIDED
    about_method = question in {q.value for q in Question if q.about_method}
    if gap is None or gap == 0.0 or lo is None or hi is None or seeds < 2 or not about_method:
        return undecided, undecided
    low, high = (lo, hi) if gap > 0 else (-hi, -lo)
    direction = Reproduced.YES if low > 0 else Reproduced.NO if high < 0 else undecided
    if not low <= abs(gap) <= high:
        return direction, Reproduced.NO
    return direction, Reproduced.YES if low > 0 else undecided
