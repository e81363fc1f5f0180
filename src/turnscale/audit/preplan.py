"""Before any GPU time: how many seeds a claim needs, and what a given number of seeds can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnscale.audit.ledger import Claim, Ledger
from turnscale.audit.summary import SEED_SDS, SEEDS_LIMIT
from turnscale.errors import DataError
from turnscale.stats.power import detectable_ratio, power_two_sample, seeds_needed


@dataclass(frozen=True)
class ClaimPower:
    """For one claim and several across-seed sds (points): seeds per arm needed, and power with ``seeds`` per arm.

    ``needed`` is None beyond a million; ``power`` is empty with fewer than two seeds, which have no test.
    """

    claim: Claim
    seeds: int | None
    needed: dict[float, int | None]
    power: dict[float, float]


def preplan(
    ledger: Ledger, *, seeds: int | None = None, sds: Sequence[float] = SEED_SDS, power: float = 0.8
) -> list[ClaimPower]:
    """Power and seeds for every claim in points with a non-zero gap, tasks fixed, two-sided 5 %."""
    out = []
    for claim in ledger.claims:
        if claim.gap is None or claim.gap == 0.0 or claim.unit != "points" or claim.deterministic:
            continue
        size = abs(claim.gap)
        found = {sd: power_two_sample(size, sd, seeds, seeds) for sd in sds} if seeds and seeds >= 2 else {}
        out.append(ClaimPower(claim, seeds, {sd: needed(size, sd, power) for sd in sds}, found))
    return out


def needed(gap: float, sd: float, power: float = 0.8) -> int | None:
    """Seeds per arm for a two-sided 5 % t test to find ``gap`` at ``sd``; None beyond a million."""
    if power_two_sample(gap, sd, SEEDS_LIMIT, SEEDS_LIMIT) < power:
        return None
    return seeds_needed(gap, sd, power=power, limit=SEEDS_LIMIT)


def detectable_gap(sd: float, seeds: int, power: float = 0.8) -> float:
    """Smallest gap, in the unit of ``sd``, that ``seeds`` per arm find with the given power."""
    if seeds < 2 or not sd > 0:
        raise DataError(
            f"{seeds} seeds at sd {sd} have no test.", key="--seeds", remedy="two seeds or more per arm."
        )
    return sd * (2.0 / seeds) ** 0.5 * detectable_ratio(2 * seeds - 2, 0.95, power)
