"""The claims ledger: every published difference of a study, as data that can be audited.

A ledger is YAML. It names the arms, the benchmarks (how many tasks, how many rollouts, how unequal the tasks are)
and the claims: arm A beats arm B by ``gap`` points on a metric. Levels and gaps are percentages and percentage
points, as papers print them; the calculations convert once, at their own border.

Bad input raises :class:`turnscale.errors.ConfigError` naming the file, the key and the remedy.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from turnscale.audit.textfile import read_text
from turnscale.config.declared import DeclaredPlan
from turnscale.config.load import Strict, read_yaml, validate
from turnscale.errors import ConfigError
from turnscale.stats.passk import Metric

MAX_COUNT = 10_000_000
"""Largest believable number of tasks, rollouts or runs; beyond it a slipped digit is likelier than a benchmark."""

MAX_ATTEMPTS = 100_000
"""Largest believable k or number of rollouts per task."""

Percent = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]
Points = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Attempts = Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


def _identifier(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", text):
        raise ValueError(
            "an id has 1 to 100 small letters, digits, '.', '_', '-', and begins with a letter or digit"
        )
    return text


def _study_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,59}", text):
        raise ValueError(
            "a study has 1 to 60 small letters, digits, '_' and '-', and begins with a letter or digit"
        )
    return text


Identifier = Annotated[str, AfterValidator(_identifier)]


class Measure(StrEnum):
    """What is compared. Only pass@k and pass^k have a noise bound that follows from published summaries."""

    PASS_AT = "pass_at"  # at least one of k rollouts succeeds, averaged over tasks
    PASS_HAT = "pass_hat"  # all of k rollouts succeed, averaged over tasks
    SCORE = "score"  # a graded score in percent; its variance cannot be bounded from its mean
    SLOPE = "slope"  # points lost per further turn
    SPREAD = "spread"  # range over seeds

    @property
    def is_pass(self) -> bool:
        return self in (Measure.PASS_AT, Measure.PASS_HAT)


class Status(StrEnum):
    """How the number got here: printed as such, or arithmetic on printed numbers (each rounding adds its error)."""

    EXACT = "exact"
    DERIVED = "derived"


class Heterogeneity(Strict):
    """How unequal the tasks are: two published levels of one arm, or an intra-class correlation taken on trust.

    Give exactly one of: ``pass_at_1`` with ``pass_at_k`` and ``k``; ``pass_at_k`` with ``pass_hat_k`` and ``k``;
    ``icc`` (0..1).
    """

    pass_at_1: Percent | None = None
    pass_at_k: Percent | None = None
    pass_hat_k: Percent | None = None
    k: Annotated[int, Field(ge=2, le=MAX_ATTEMPTS)] | None = None
    icc: Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)] | None = None
    source: Name


class Benchmark(Strict):
    """An evaluation set as a paper used it. ``n_tasks`` lists the possible sizes, the likeliest first."""

    name: Name
    n_tasks: Annotated[list[Count], Field(min_length=1)] | None = None
    rollouts: Attempts | None = None  # per task within one evaluation
    evaluations: Count = 1  # independent evaluations whose scores were averaged
    heterogeneity: Heterogeneity | None = None
    source: Name
    note: str | None = None


class LocalMap(Strict):
    """Which local arm, benchmark and model stand for the published ones when a comparisons table is laid beside."""

    study: Name
    arms: dict[str, Name]
    benchmarks: dict[str, Name]
    models: dict[str, Name]


class Claim(Strict):
    """One published difference: ``arm_a`` minus ``arm_b`` is ``gap`` points."""

    id: Identifier
    arm_a: Name
    arm_b: Name
    metric: Measure = Field(strict=False)
    k: Attempts | None = None
    benchmark: Name
    model: Name
    gap: Points | None = None  # None: claimed but never given a number
    unit: Literal["points", "points/turn", "count"] = "points"
    level_a: Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)] | None = None
    level_b: Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)] | None = None
    level_a_status: Status = Field(
        Status.EXACT, strict=False
    )  # a derived level carries the gap's rounding as well
    level_b_status: Status = Field(Status.EXACT, strict=False)
    imputed_level_a: Percent | None = (
        None  # a level assumed for the noise model only; never shown as published
    )
    decimals: Annotated[int, Field(ge=0, le=6)] = 2
    runs_a: Count  # independent training runs behind each level
    runs_b: Count
    seed_sd_a: Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)] | None = (
        None  # published, points
    )
    seed_sd_b: Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)] | None = None
    seed_sd_basis: Name | None = None
    checkpoint_rule: Name
    source: Name
    status: Status = Field(strict=False)
    derivation: Name | None = None
    confidence: Literal["high", "medium", "low"]
    n_tasks: Annotated[list[Count], Field(min_length=1)] | None = None  # overrides the benchmark's
    rollouts: Attempts | None = None  # overrides the benchmark's
    deterministic: bool = False  # fixed by the design, without noise (a count of environment calls)
    family: Name  # claims judged together when correcting for multiplicity
    conflicts_with: list[Name] = Field(default=[])
    below_one_percent: bool = False  # the levels really are below 1 %, not fractions by mistake
    note: str | None = None

    @property
    def label(self) -> str:
        """``MPO vs SAO, BrowseComp-Plus pass@1`` without the model."""
        return f"{self.arm_a} vs {self.arm_b}"

    @property
    def pass_metric(self) -> Metric | None:
        """The success metric as the estimators know it, or None for a score, a slope or a spread."""
        if self.k is None:
            return None
        return Metric("pass_at" if self.metric is Measure.PASS_AT else "pass_hat", self.k)

    @property
    def metric_label(self) -> str:
        """``pass@32``, ``pass^3``, ``score``."""
        metric = self.pass_metric
        return self.metric.value if metric is None else metric.label


class Expectation(StrEnum):
    """What a pattern says about the gaps of its claims, taken in the order listed."""

    ALL_POSITIVE = "all_positive"
    NOT_SHRINKING = "not_shrinking"
    GROWING = "growing"
    NO_DIFFERENCE = "no_difference"
    READING = "reading"  # an interpretation that no arithmetic on the gaps can settle


class Pattern(Strict):
    """A statement over several claims ("best in all nine metrics"), or a reading that another source denies.

    ``runs_behind`` are the independent training runs the claims come from; each entry is the number of
    configurations the authors could have picked from. ``competitors`` are the trained methods beaten.
    """

    id: Identifier
    statement: Name
    source: Name
    expect: Expectation = Field(strict=False)
    claims: list[Name] = Field(default=[])
    runs_behind: list[Count] = Field(default=[])
    competitors: Count | None = None
    conflicts_with: list[Name] = Field(default=[])
    note: str | None = None


class Selection(Strict):
    """How the reported checkpoint was chosen: the best of ``checkpoints`` on the evaluation tasks themselves."""

    checkpoints: Count
    correlation: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]  # of task success, neighbours
    source: Name


class Ledger(Strict):
    """Every claim of one study, with the evaluation sets behind them."""

    schema_version: Literal[1]
    study: Annotated[str, AfterValidator(_study_name)]
    title: Name
    source: Name
    arms: Annotated[list[Name], Field(min_length=2)]
    benchmarks: Annotated[dict[str, Benchmark], Field(min_length=1)]
    claims: Annotated[list[Claim], Field(min_length=1)]
    patterns: list[Pattern] = Field(default=[])
    selection: Selection | None = None
    local: LocalMap | None = None
    plan: DeclaredPlan | None = None
    note: str | None = None

    def claim(self, claim_id: str) -> Claim:
        """The claim of that id; KeyError when absent."""
        return {claim.id: claim for claim in self.claims}[claim_id]

    def sizes(self, claim: Claim) -> list[int]:
        """Possible numbers of tasks, the likeliest first; empty when unknown."""
        return claim.n_tasks or self.benchmarks[claim.benchmark].n_tasks or []

    def rollouts(self, claim: Claim) -> int | None:
        """Rollouts per task in one evaluation, or None when unknown."""
        return claim.rollouts or self.benchmarks[claim.benchmark].rollouts


def load_ledger(path: str | Path) -> Ledger:
    """Read and check a ledger. Raises ConfigError naming file, key and remedy."""
    from turnscale.audit.ledger_checks import check_ledger

    read_text(path, ConfigError)
    value = read_yaml(Path(path))
    if not {"schema_version", "arms"} & set(value):
        raise ConfigError(
            "is no claims ledger: it has neither 'schema_version' nor 'arms'.",
            file=path,
            remedy="name a file like those in configs/claims; docs/audit.md says what is in one.",
        )
    ledger = validate(Ledger, value, path, remedies=_REMEDIES)
    check_ledger(ledger, path)
    return ledger


_REMEDIES = {
    "finite_number": "give a finite number, or leave the key out when the value was not published.",
    "less_than_equal": "check for a slipped digit: levels are percentages (0 to 100), gaps are points.",
    "greater_than_equal": "check the sign: levels, k, tasks, rollouts and runs start at 0 or 1.",
    "greater_than": "the value must be strictly above the limit.",
}
"""pydantic's type of error -> what to do about it in a ledger."""
