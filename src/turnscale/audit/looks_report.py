"""The look log in words, and what it allows under a declared plan."""

from __future__ import annotations

from pathlib import Path

from turnscale.audit.adherence import judge, words
from turnscale.audit.looks import verify
from turnscale.config.declared import DeclaredPlan
from turnscale.errors import ConfigError


def looks_words(log: Path, head: str | None, ledger: Path | None, study: str | None = None) -> list[str]:
    """One line per look, then the head, then the verdict under the plan of a ledger or study, if one is named.

    Raises DataError when the log was altered, ConfigError when the ledger or study declares no plan.
    """
    entries = verify(log, head)
    lines = [
        f"{entry.index}  {entry.look.when}  {entry.look.comparison}  {entry.look.counts} seeds  "
        f"{100 * entry.look.difference:+.2f} points  {entry.look.statistic} {entry.look.value:.4g}"
        for entry in entries
    ]
    lines.append(f"{len(entries)} looks, chain intact, head {entries[-1].hash}")
    plan, source = _declared(ledger, study)
    if source is None:
        return lines
    if plan is None:
        raise ConfigError("declares no plan.", file=source, key="plan", remedy="add plan: to it.")
    lines.append(f"Declared: {plan.words}.")
    for comparison in dict.fromkeys(entry.look.comparison for entry in entries):
        lines.append(f"{comparison}: {words(plan, judge(plan, entries, comparison))}")
    return lines


def _declared(ledger: Path | None, study: str | None) -> tuple[DeclaredPlan | None, Path | None]:
    """The plan of the ledger or study named, and the file it would stand in; (None, None) if none is named."""
    if ledger is not None:
        from turnscale.audit.ledger import load_ledger

        return load_ledger(ledger).plan, ledger
    if study is not None:
        from turnscale.study import load_study

        return load_study(study).plan, Path("configs/studies") / f"{study}.yaml"
    return None, None
