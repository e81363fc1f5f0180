"""Holm and Benjamini-Hochberg adjustment over a family that was declared before the results were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from turnscale.errors import DataError
from turnscale.stats.passk import Floats


def _checked(p: ArrayLike) -> Floats:
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.all((values >= 0) & (values <= 1)):
        raise DataError("p values must be a non-empty list of numbers between 0 and 1")
    return values


def holm(p: ArrayLike) -> Floats:
    """Holm (1979) step-down adjusted p values, in the order given: familywise error under any dependence."""
    values = _checked(p)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(values.size, 0, -1)
    out = np.empty_like(values)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return out


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Benjamini and Hochberg (1995) adjusted p values: false discovery rate under positive dependence."""
    values = _checked(p)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * values.size / np.arange(1, values.size + 1)
    out = np.empty_like(values)
    out[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return out


@dataclass(frozen=True)
class Family:
    """A named set of claims that are judged together; `holm` for headline claims, `bh` for exploratory grids."""

    name: str
    members: tuple[str, ...]
    method: Literal["holm", "bh"] = "holm"

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) != len(self.members):
            raise DataError(f"family {self.name!r} needs distinct members", key=self.name)
        if self.method not in ("holm", "bh"):
            raise DataError(
                f"family {self.name!r}: no method {self.method!r}", key=self.name, remedy="holm or bh"
            )

    def adjust(self, p: Mapping[str, float | None]) -> dict[str, float | None]:
        """Adjusted p value per member. A claim that could not be tested (None) still counts, as p = 1.

        Raises DataError if `p` names other claims than were declared: a family cannot shrink or grow later.
        """
        strangers = sorted(set(p) ^ set(self.members))
        if strangers:
            where = "undeclared" if strangers[0] in p else "missing"
            raise DataError(
                f"family {self.name!r}: claim {strangers[0]!r} is {where}",
                key=self.name,
                remedy="give one p value (or None) for each declared claim and for no other",
            )
        raw = [p[member] for member in self.members]
        adjust = holm if self.method == "holm" else benjamini_hochberg
        adjusted = adjust([1.0 if value is None else value for value in raw])
        return {
            member: None if value is None else float(found)
            for member, value, found in zip(self.members, raw, adjusted, strict=True)
        }
