"""What a ledger must satisfy beyond the type of each key: names that exist, sizes that fit, units that agree."""

from __future__ import annotations

from pathlib import Path

from turnscale.audit.ledger import Benchmark, Claim, Ledger, Measure, Pattern, Status
from turnscale.errors import ConfigError


def check_ledger(ledger: Ledger, file: str | Path) -> None:
    """Raise ConfigError for the first inconsistency, naming file, key and remedy."""
    _unique("arms", ledger.arms, file)
    _unique("claims", [claim.id for claim in ledger.claims], file)
    _unique("patterns", [pattern.id for pattern in ledger.patterns], file)
    for name, benchmark in ledger.benchmarks.items():
        _check_benchmark(name, benchmark, file)
    for index, claim in enumerate(ledger.claims):
        _check_claim(ledger, claim, f"claims[{index}] ({claim.id})", file)
    known = {claim.id for claim in ledger.claims} | {pattern.id for pattern in ledger.patterns}
    items: list[Claim | Pattern] = [*ledger.claims, *ledger.patterns]
    for item in items:
        for other in item.conflicts_with:
            if other not in known or other == item.id:
                raise ConfigError(
                    f"conflicts with {other!r}, which is not another claim or pattern of this ledger.",
                    file=file,
                    key=f"{item.id}.conflicts_with",
                    remedy="name the id of another claim or pattern.",
                )
    claim_ids = {claim.id for claim in ledger.claims}
    for pattern in ledger.patterns:
        for other in pattern.claims:
            if other not in claim_ids:
                raise ConfigError(
                    f"rests on {other!r}, which is not a claim of this ledger.",
                    file=file,
                    key=f"{pattern.id}.claims",
                    remedy="name the id of a claim.",
                )
    if ledger.local is not None:
        for field, names, known_names in (
            ("arms", ledger.local.arms, set(ledger.arms)),
            ("benchmarks", ledger.local.benchmarks, set(ledger.benchmarks)),
            ("models", ledger.local.models, {claim.model for claim in ledger.claims}),
        ):
            for name in names:
                if name not in known_names:
                    raise ConfigError(
                        f"{name!r} occurs nowhere else in this ledger.",
                        file=file,
                        key=f"local.{field}",
                        remedy=f"use one of {', '.join(sorted(known_names))}.",
                    )


def _unique(key: str, names: list[str], file: str | Path) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{name!r} appears twice.", file=file, key=key, remedy="give each a name of its own."
            )


def _check_benchmark(name: str, benchmark: Benchmark, file: str | Path) -> None:
    shape = benchmark.heterogeneity
    if shape is None:
        return
    key = f"benchmarks.{name}.heterogeneity"
    given = frozenset(
        field
        for field in ("pass_at_1", "pass_at_k", "pass_hat_k", "k", "icc")
        if getattr(shape, field) is not None
    )
    if given not in (
        {"pass_at_1", "pass_at_k", "k"},
        {"pass_at_k", "pass_hat_k", "k"},
        {"icc"},
    ):
        raise ConfigError(
            f"has {', '.join(sorted(given)) or 'no numbers'}.",
            file=file,
            key=key,
            remedy="give pass_at_1 + pass_at_k + k, or pass_at_k + pass_hat_k + k, or icc.",
        )
    low = shape.pass_at_1 if shape.pass_at_1 is not None else shape.pass_hat_k
    if low is not None and shape.pass_at_k is not None and not 0.0 < low < shape.pass_at_k < 100.0:
        raise ConfigError(
            f"needs 0 < {low} < pass_at_k = {shape.pass_at_k} < 100.",
            file=file,
            key=key,
            remedy="pass@k grows with k and lies above pass^k; check the two levels.",
        )


def _check_claim(ledger: Ledger, claim: Claim, key: str, file: str | Path) -> None:
    def bad(field: str, problem: str, remedy: str) -> ConfigError:
        return ConfigError(problem, file=file, key=f"{key}.{field}", remedy=remedy)

    for field, arm in (("arm_a", claim.arm_a), ("arm_b", claim.arm_b)):
        if arm not in ledger.arms:
            raise bad(
                field, f"unknown arm {arm!r}.", f"use one of {', '.join(ledger.arms)}, or add it to arms."
            )
    if claim.arm_a == claim.arm_b:
        raise bad("arm_b", "compares an arm with itself.", "name two different arms.")
    if claim.benchmark not in ledger.benchmarks:
        names = ", ".join(ledger.benchmarks)
        raise bad(
            "benchmark", f"unknown benchmark {claim.benchmark!r}.", f"use one of {names}, or describe it."
        )
    if claim.metric.is_pass != (claim.k is not None):
        raise bad(
            "k",
            f"metric {claim.metric.value} {'needs k' if claim.metric.is_pass else 'has no k'}.",
            "give k for pass_at and pass_hat (1 for plain success), and for nothing else.",
        )
    rollouts = ledger.rollouts(claim)
    if claim.k is not None and rollouts is not None and claim.k > rollouts:
        raise bad(
            "k",
            f"k = {claim.k} is more than the {rollouts} rollouts per task.",
            "pass@k needs at least k rollouts; correct k or rollouts.",
        )
    levels = [level for level in (claim.level_a, claim.level_b) if level is not None]
    if claim.metric is not Measure.SLOPE:
        if any(level < 0 for level in levels):
            raise bad("level_a", "a level is below 0 %.", "levels are percentages from 0 to 100.")
        if levels and all(0.0 < level <= 1.0 for level in levels) and not claim.below_one_percent:
            raise bad(
                "level_a",
                f"levels {levels} look like fractions; a ledger holds percentages.",
                "multiply levels and gap by 100, or set below_one_percent: true if they really are that low.",
            )
    if claim.gap is None and not claim.note:
        raise bad("gap", "no gap and no note.", "give the published gap, or say in note why there is none.")
    if claim.status is Status.DERIVED and not claim.derivation:
        raise bad(
            "derivation", "a derived number needs its arithmetic.", "write it, for example 48.08-43.75."
        )
    if (claim.seed_sd_a is None) != (claim.seed_sd_b is None):
        raise bad("seed_sd_b", "only one arm has a seed sd.", "give both, or neither.")
    if claim.seed_sd_a is not None and min(claim.runs_a, claim.runs_b) < 2:
        raise bad(
            "seed_sd_a", "one run has no spread over seeds.", "correct runs_a and runs_b, or drop seed_sd."
        )
    if claim.seed_sd_a is not None and not claim.seed_sd_basis:
        raise bad(
            "seed_sd_basis", "does not say where the seed sd comes from.", "write it, for example published."
        )
