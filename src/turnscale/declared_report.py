"""A study's declared plan in words and numbers: when to look, what each look needs, costs and can find."""

from __future__ import annotations

from dataclasses import dataclass

from turnscale.audit.adherence import needed
from turnscale.audit.looks import Look
from turnscale.config.declared import DeclaredPlan
from turnscale.study import Plan, resolve


@dataclass(frozen=True)
class PlannedLook:
    """One look of a plan.

    Attributes:
        seeds: seeds per arm.
        needed: the p it must not exceed, or the e it must reach.
        core_seconds: cost of the whole study up to here, by the scale's measured costs.
    """

    seeds: int
    needed: float
    core_seconds: float


def planned_looks(plan: Plan, declared: DeclaredPlan) -> list[PlannedLook]:
    """Every declared look with what it is held to and what it costs."""
    found = []
    for seeds in declared.looks:
        limit = needed(declared, Look("", seeds, seeds, 0.0, 1.0, "p", ""))
        assert limit is not None, "a declared look has a limit"
        there = resolve(plan.study.study, plan.scale.scale, seeds=seeds, root=plan.root)
        found.append(PlannedLook(seeds, limit, there.estimate_core_seconds()))
    return found


def outside(declared: DeclaredPlan, seeds: int) -> str | None:
    """Why a number of seeds per arm is no declared look, or None if it is one."""
    if declared.rule == "e_value" and seeds <= declared.seeds_per_arm:
        return None
    if seeds in declared.looks:
        return None
    if seeds > declared.seeds_per_arm:
        return f"{seeds} seeds are more than the plan allows; tables will mark them"
    return f"a look at {seeds} seeds is not declared; tables made at {seeds} seeds will mark it"


def gap_words(declared: DeclaredPlan | None, gap: float, sd: float, seeds: int) -> list[str]:
    """Seeds that a true difference needs, and the chance that the seeds at hand, and the plan, find it.

    Args:
        declared: the plan, if there is one.
        gap, sd: true difference and across-seed sd, fractions.
        seeds: seeds per cell of the scale.
    """
    from turnscale.audit.preplan import needed as seeds_for
    from turnscale.stats.power import power_two_sample
    from turnscale.stats.sequential import plan_power

    enough = seeds_for(gap, sd)
    shown = "more than 1,000,000" if enough is None else f"{enough:,}"
    lines = [
        f"A true difference of {100 * gap:g} points at an across-seed sd of {100 * sd:.2g} points needs {shown} "
        "seeds per arm for 80 % power with a single look."
    ]
    if seeds >= 2:
        lines.append(
            f"{seeds} seeds find it with probability {power_two_sample(gap, sd, seeds, seeds):.0%} in a single look."
        )
    if declared is not None:
        chance, mean = plan_power(tuple(declared.looks), declared.rule, declared.alpha, gap / sd)
        lines.append(
            f"The declared plan finds it with probability {chance:.0%}, on average after {mean:.1f} seeds per arm."
        )
    return lines
