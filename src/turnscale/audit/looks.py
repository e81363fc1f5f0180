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
from typing import Any, TextIO

from turnscale.audit.textfile import read_text
from turnscale.errors import DataError

GENESIS = "0" * 64
"""What stands in place of a previous hash in the first line."""


NO_PLAN = "none"
"""What a look remembers as its plan where the study declared none; empty means that nobody recorded it."""


@dataclass(frozen=True)
class Look:
    """One look: the comparison, the seeds per arm seen, the difference (fraction) and the p or e value.

    Attributes:
        comparison: its name, the same at every look.
        seeds_a, seeds_b: seeds seen of each arm.
        difference: first arm minus second, a fraction.
        value: the p or the e value.
        statistic: ``p`` or ``e``.
        when: ISO 8601, given by the caller.
        note: anything worth remembering.
        fixed: ``a`` or ``b`` where that arm is one checkpoint that no run trains; empty where both are trained.
        data: identity of the outcomes looked at.
        configuration: identity of how both arms were trained and tested.
        plan: the plan as it was declared then, in words; `NO_PLAN` for none.
    """

    comparison: str
    seeds_a: int
    seeds_b: int
    difference: float
    value: float
    statistic: str
    when: str
    note: str = ""
    fixed: str = ""
    data: str = ""
    configuration: str = ""
    plan: str = ""

    @property
    def trained(self) -> tuple[int, ...]:
        """Seeds of the trained arms."""
        return tuple(seeds for arm, seeds in (("a", self.seeds_a), ("b", self.seeds_b)) if arm != self.fixed)

    @property
    def counts(self) -> str:
        """``3+3``; an arm that is not trained has a dash."""
        return "+".join(
            "-" if arm == self.fixed else str(n) for arm, n in (("a", self.seeds_a), ("b", self.seeds_b))
        )


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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        _lock(file)
        entries = verify(path) if path.stat().st_size else []
        previous = entries[-1].hash if entries else GENESIS
        entry = Logged(len(entries), look, previous, _hash(len(entries), look, previous))
        line = {"index": entry.index, "look": asdict(look), "previous": previous, "hash": entry.hash}
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return entry


def read(path: str | Path) -> list[Logged]:
    """As `verify`, and no looks where there is no log yet or an empty one."""
    path = Path(path)
    return verify(path) if path.exists() and path.stat().st_size else []


def _lock(file: TextIO) -> None:
    """Keep other writers out until the file is closed, where the system can."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one writer at a time is up to the caller
        return
    fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def verify(path: str | Path, head: str | None = None) -> list[Logged]:
    """All looks of a log, which must not be empty. Raises DataError naming the first line that breaks the chain.

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
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
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
    elif look.fixed not in ("", "a", "b"):
        problem = "fixed", "must be a, b or empty"
    elif min(look.seeds_a, look.seeds_b) < 1:
        problem = "seeds", "an arm without seeds cannot be looked at"
    if problem is not None:
        raise DataError(f"{problem[1]}.", key=problem[0], remedy="log the values the comparison gave.")
