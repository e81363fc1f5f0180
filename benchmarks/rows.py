"""Rows of the table of benchmarks: what was measured, against what, and whether the target was met."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        unit: of ``ours`` and ``peer``.
        ours, peer: medians of the same run; ``peer`` None where there is a budget instead of a peer.
        ratio: how many times better than the peer, or the budget over what was used; None where there is neither.
        target: least ratio wanted; None where nothing was promised.
        note: what is needed to read the numbers; the reason where the target was missed.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or - where there was no target."""
        if self.target is None or self.ratio is None:
            return "-"
        return "met" if self.ratio >= self.target else "missed"


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Row]:
    """Rows written by :func:`write`."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
