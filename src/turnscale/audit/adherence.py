"""Do the looks on record follow the plan that was declared, and what do they allow to be said?

A comparison may be looked at under several configurations of its arms (a bug was mended, a value changed). Each
is an experiment of its own: the plan is held against the looks at one configuration, and the others are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnscale.audit.looks import NO_PLAN, Logged, Look
from turnscale.config.declared import DeclaredPlan
from turnscale.stats.sequential import SequentialPlan

SHOWN, GO_ON, NOT_SHOWN = "difference shown", "continue", "stop: not shown"
NOT_FOLLOWED, NO_LOOK = "no conclusion, the plan was not followed", "not looked at yet"


@dataclass(frozen=True)
class Judged:
    """What the looks at one comparison allow.

    Attributes:
        verdict: one of the constants of this module.
        statistic: ``p`` or ``e``, which the rule judges by.
        needed: what the last look's value is held to (a p at most, an e at least); None outside the plan.
        departures: what spoils the error rate, in words; with any, nothing is concluded.
        skipped: declared looks that are not on record; later ones keep their level, so nothing is spoilt.
        looks: the looks it rests on, oldest first.
        earlier: looks at the same comparison under other configurations.
    """

    verdict: str
    statistic: str
    needed: float | None
    departures: tuple[str, ...]
    skipped: tuple[int, ...]
    looks: tuple[Look, ...]
    earlier: int


def statistic_of(plan: DeclaredPlan) -> str:
    """``p`` or ``e``."""
    return "e" if plan.rule == "e_value" else "p"


def needed(plan: DeclaredPlan, look: Look) -> float | None:
    """The p that a look must not exceed, or the e that it must reach; None for a look outside the plan."""
    if plan.rule == "e_value":
        return 1 / plan.alpha
    seeds = set(look.trained)
    if len(seeds) != 1 or not seeds <= set(plan.looks):
        return None
    if plan.rule == "fixed":
        return plan.alpha
    levels = SequentialPlan(tuple(plan.looks), plan.alpha).levels
    return levels[plan.looks.index(seeds.pop())]


def judge(
    plan: DeclaredPlan, entries: Sequence[Logged], comparison: str, configuration: str | None = None
) -> Judged:
    """Hold the looks at one comparison against the plan.

    Args:
        plan: as declared now.
        entries: a verified log.
        comparison: name of the comparison.
        configuration: of the arms; that of the latest look by default.
    """
    every = [entry.look for entry in entries if entry.look.comparison == comparison]
    if configuration is None and every:
        configuration = every[-1].configuration
    seen = [look for look in every if look.configuration == configuration]
    found = tuple(_departures(plan, seen))
    at = [max(look.trained) for look in seen]
    skipped = () if plan.rule == "e_value" else tuple(n for n in plan.looks if at and n < max(at))
    skipped = tuple(n for n in skipped if n not in at)
    last = needed(plan, seen[-1]) if seen else None
    return Judged(
        _verdict(plan, seen, bool(found)),
        statistic_of(plan),
        last,
        found,
        skipped,
        tuple(seen),
        len(every) - len(seen),
    )


def _departures(plan: DeclaredPlan, seen: Sequence[Look]) -> list[str]:
    found = []
    statistic = statistic_of(plan)
    for look in seen:
        if look.plan == NO_PLAN:
            found.append(f"no plan was declared at the look at {look.counts} seeds")
        elif look.plan and look.plan != plan.words:
            found.append(f"another plan was declared at the look at {look.counts} seeds ({look.plan})")
        if look.statistic != statistic:
            found.append(f"a look at {look.counts} seeds used {look.statistic}, not {statistic}")
        if needed(plan, look) is None:
            found.append(f"an undeclared look at {look.counts} seeds")
    if plan.rule != "e_value":
        at = [look.counts for look in seen]
        found += [f"{at.count(n)} looks at {n} seeds" for n in dict.fromkeys(at) if at.count(n) > 1]
    most = max((n for look in seen for n in look.trained), default=0)
    if most > plan.seeds_per_arm:
        found.append(f"{most} seeds per arm where {plan.seeds_per_arm} were declared")
    return found


def _verdict(plan: DeclaredPlan, seen: Sequence[Look], departed: bool) -> str:
    if departed:
        return NOT_FOLLOWED
    if not seen:
        return NO_LOOK
    for look in seen:
        limit = needed(plan, look)
        assert limit is not None, "a look outside the plan is a departure"
        if look.value >= limit if plan.rule == "e_value" else look.value <= limit:
            return SHOWN
    ended = max(seen[-1].trained) >= plan.seeds_per_arm
    return NOT_SHOWN if ended else GO_ON


def words(plan: DeclaredPlan, judged: Judged) -> str:
    """The verdict in one line, with the last value and what it is held to, or how the looks departed."""
    if judged.departures:
        return f"{judged.verdict}: {'; '.join(judged.departures)}"
    if not judged.looks:
        return judged.verdict
    last = judged.looks[-1]
    rule = "at least" if plan.rule == "e_value" else "at most"
    text = (
        f"{judged.verdict} ({judged.statistic} {last.value:.4g} at {last.counts} seeds, "
        f"needed {rule} {judged.needed:.4g})"
    )
    if judged.skipped:
        text += f"; no look on record at {', '.join(map(str, judged.skipped))} seeds"
    return text
