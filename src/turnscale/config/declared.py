"""What a study, or a claims ledger, promises before anybody looks at its results."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from turnscale.config.load import Strict

Count = Annotated[int, Field(ge=1, le=10_000_000)]
RULES = {"fixed": "one look", "obrien_fleming": "O'Brien-Fleming spending", "e_value": "e-values"}


class DeclaredPlan(Strict):
    """Seeds per arm, when to look, how the error rate is spent.

    ``fixed``: one test at the last look. ``obrien_fleming``: a p value at each look, held to a level that spends
    ``alpha`` over all looks. ``e_value``: any look whatever; the difference is shown once e reaches 1/alpha.
    """

    seeds_per_arm: Count = Field(description="the most seeds of each trained arm")
    rule: Literal["fixed", "obrien_fleming", "e_value"] = "fixed"
    alpha: Annotated[float, Field(gt=0.0, lt=0.5, allow_inf_nan=False)] = 0.05
    looks: Annotated[list[Count], Field(min_length=1, description="seeds per arm at each look, increasing")]

    @field_validator("looks")
    @classmethod
    def _looks_fit(cls, value: list[int], info: ValidationInfo) -> list[int]:
        most = info.data.get("seeds_per_arm")
        if info.data.get("rule") == "fixed" and len(value) != 1:
            raise ValueError(f"a fixed plan has one look, not {len(value)}; use rule obrien_fleming for more")
        if value[0] < 2:
            raise ValueError("a look needs two seeds per arm or more")
        if any(b <= a for a, b in pairwise(value)) or (most is not None and value[-1] != most):
            raise ValueError(f"looks {value} must increase and end at seeds_per_arm = {most}")
        return value

    @property
    def words(self) -> str:
        """The plan in one line; also how the look log remembers it."""
        at = ", ".join(map(str, self.looks[:-1]))
        when = f"{at} and {self.looks[-1]}" if at else str(self.looks[-1])
        return (
            f"{self.seeds_per_arm} seeds per arm, looks at {when}, {RULES[self.rule]}, alpha {self.alpha:g}"
        )
