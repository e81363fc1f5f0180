"""The look log: every time somebody looked at a comparison while seeds were still being added.

A false-positive rate can only be defended if all looks are on record. The log is a text file with one JSON object a
line; each holds the SHA-256 of the line before it, so a look that is altered, removed or reordered is found. Cutting
off the *end*, or writing the whole file anew, cannot be found from the file alone: keep the last hash elsewhere (a
commit, an experiment tracker) and pass it to :func:`verify` as ``head``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnscale.audit.ledger import DeclaredPlan
from turnscale.audit.textfile import read_text
from turnscale.errors import DataError
from turnscale.stats.sequential import SequentialPlan

GENESIS = "0" * 64
"""What stands in place of a previous hash in the first line."""


@dataclass(frozen=True)
class Look:
    """One look: the comparison, the seeds per arm seen, the difference (fraction) and the p or e value."""

    comparison: str
    seeds_a: int
    seeds_b: int
    difference: float
    value: float
    statistic: str  # "p" or "e"
    when: str  # ISO 8601, given by the caller
    note: str = ""


@dataclass(frozen=True)
class Logged:
    """A look as it stands in the log."""

    index: int
    look: Look
    previous: str
    hash: str


def _hash(index: int, look: Look, previous: str) -> str:
    body = json.dumps(
        {"index": index, "look": asdict(look), "previous": previous}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(body.encode()).hexdigest()


def append(path: str | Path, look: Look) -> Logged:
    """Verify the log, add one look and force it to disk. Returns the new entry; its hash is the new head.

    Raises DataError when the log does not verify or the look has a value that cannot be right.
    """
    _check(look)
    entries = verify(path) if Path(path).exists() else []
    previous = entries[-1].hash if entries else GENESIS
    entry = Logged(len(entries), look, previous, _hash(len(entries), look, previous))
    line = json.dumps({"index": entry.index, "look": asdict(look), "previous": previous, "hash": entry.hash})
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return entry


def verify(path: str | Path, head: str | None = None) -> list[Logged]:
    """All looks of a log whose chain holds. Raises DataError naming the first line that does not fit.

    ``head``: the hash that the last line must have, as noted down elsewhere.
    """
    entries: list[Logged] = []
    previous = GENESIS
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        entry = _parse(line, path, number)
        if (
            entry.index != number - 1
            or entry.previous != previous
            or entry.hash != _hash(entry.index, entry.look, previous)
        ):
            raise DataError(
                "the look log has been altered here, or a line before it was removed.",
                file=path,
                key=f"line {number}",
                remedy="restore the log from version control; looks cannot be edited.",
            )
        entries.append(entry)
        previous = entry.hash
    if head is not None and previous != head:
        raise DataError(
            f"ends at {previous[:12]}, not at the recorded head {head[:12]}.",
            file=path,
            key="last line",
            remedy="looks are missing at the end; restore the log from version control.",
        )
    return entries


def _parse(line: str, path: str | Path, number: int) -> Logged:
    try:
        raw: dict[str, Any] = json.loads(line)
        return Logged(int(raw["index"]), Look(**raw["look"]), str(raw["previous"]), str(raw["hash"]))
    except (ValueError, KeyError, TypeError):
        raise DataError(
            "is not an entry of a look log.",
            file=path,
            key=f"line {number}",
            remedy="restore the log from version control.",
        ) from None


def _check(look: Look) -> None:
    problem = None
    if look.statistic not in ("p", "e"):
        problem = "statistic", "must be p or e"
    elif not math.isfinite(look.value) or look.value < 0 or (look.statistic == "p" and look.value > 1):
        problem = "value", f"{look.value} is not a {look.statistic} value"
    elif not math.isfinite(look.difference) or abs(look.difference) > 1:
        problem = "difference", f"{look.difference} is not a difference of fractions"
    elif min(look.seeds_a, look.seeds_b) < 1:
        problem = "seeds", "an arm without seeds cannot be looked at"
    if problem is not None:
        raise DataError(f"{problem[1]}.", key=problem[0], remedy="log the values the comparison gave.")


def departures(plan: DeclaredPlan, looks: list[Logged], comparison: str) -> list[str]:
    """How the looks at one comparison differ from the declared plan, in words; empty when they follow it."""
    seen = [entry.look for entry in looks if entry.look.comparison == comparison]
    found = []
    statistic = "e" if plan.rule == "e_value" else "p"
    for look in seen:
        if look.statistic != statistic:
            found.append(
                f"a look at {look.seeds_a}+{look.seeds_b} seeds used {look.statistic}, not {statistic}"
            )
        if plan.rule != "e_value" and not (look.seeds_a == look.seeds_b and look.seeds_a in plan.looks):
            found.append(f"an undeclared look at {look.seeds_a}+{look.seeds_b} seeds")
    counts = [look.seeds_a for look in seen]
    if plan.rule != "e_value":
        found += [f"{counts.count(n)} looks at {n} seeds" for n in sorted(set(counts)) if counts.count(n) > 1]
        found += [
            f"the declared look at {n} seeds is missing"
            for n in plan.looks
            if counts and n < max(counts) and n not in counts
        ]
    if counts and max(counts) > plan.seeds_per_arm:
        found.append(f"{max(counts)} seeds per arm where {plan.seeds_per_arm} were declared")
    return found


def conclusion(plan: DeclaredPlan, looks: list[Logged], comparison: str) -> str:
    """What the looks at one comparison allow under the declared rule: ``difference shown``, ``continue``, ….

    Looks that departed from the plan allow nothing, and the text says how they departed.
    """
    departed = departures(plan, looks, comparison)
    if departed:
        return f"no conclusion, the plan was not followed: {'; '.join(departed)}"
    seen = [entry.look for entry in looks if entry.look.comparison == comparison]
    if not seen:
        return "not looked at yet"
    if plan.rule == "e_value":
        best = max(look.value for look in seen)
        return (
            "difference shown"
            if best >= 1 / plan.alpha
            else f"continue: e {best:.3g} of {1 / plan.alpha:.3g}"
        )
    if plan.rule == "fixed":
        return "difference shown" if seen[-1].value <= plan.alpha else "stop: not shown"
    judged = SequentialPlan(tuple(plan.looks), plan.alpha).judge([look.value for look in seen])[-1]
    words = "difference shown" if judged.verdict == "reject" else judged.verdict
    return f"{words} (p {judged.p:.4f}, needs {judged.needed:.4f} at {judged.seeds} seeds)"
