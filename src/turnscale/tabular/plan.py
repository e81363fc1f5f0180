"""A tabular study at a scale: its configuration, its runs and the paths of its products.

A run is one cell, one number of turns and one block of seeds. Its specification holds all that can change its
numbers; which block a seed stands in does not change the seed's numbers, so a study with five seeds repeats the
first five of one with two hundred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from turnscale.config.hashing import digest
from turnscale.config.load import Name, Plain, Strict, config_path, read_yaml, validate
from turnscale.config.references import check_file, method_of_cell, scales_of
from turnscale.config.schema import MOST_SEEDS, RESERVED, File, Label, Positive, Rate, once
from turnscale.errors import ConfigError
from turnscale.methods import Method

FAMILY = "probe"
MODEL = "tabular"

SCORE = "score"
"""The metric name of a seed's greedy accuracy."""

ON_POLICY = "on-policy"
"""Where the sampler is the policy itself and every ratio is 1."""

TABLES = ("grouping_main", "grouping_verdicts", "grouping_estimators")
FIGURES = ("grouping_accuracy", "grouping_estimators")


Counts = Annotated[list[Positive], AfterValidator(once)]


class TabularCell(Strict):
    """One method of the comparison."""

    method: Name
    set: dict[str, Plain] = Field(default_factory=dict, description="dotted method key -> value")
    label: Label | None = None


class TabularTraining(Strict):
    """Training of every cell."""

    group_size: Annotated[int, Field(gt=0, le=1_000_000)]
    lr: Rate
    iterations: Annotated[int, Field(gt=0, le=10_000_000)]


class TabularEvaluation(Strict):
    """Evaluation of every seed's greedy policy."""

    targets: Annotated[int, Field(gt=0, le=10_000_000)]


class TabularPublished(Strict):
    """Published values of the same quantities."""

    file: File
    source: str
    metrics: dict[str, str] = Field(description="local metric -> its name in the file")


class EstimatorAudit(Strict):
    """What the audit of gradient estimators goes through."""

    credits: dict[Name, TabularCell] = Field(min_length=1)
    ratios: dict[Name, dict[str, Plain]] = Field(min_length=1)
    tokens: Annotated[list[Literal[1, 2]], AfterValidator(once)] = Field(min_length=1)
    turns: Counts = Field(min_length=1)
    group_sizes: Counts = Field(min_length=1)
    off_policy_kl: Rate


class TabularStudy(Strict):
    """A study of tabular policies."""

    study: Name
    kind: Literal["tabular"]
    title: Label
    paper: Label
    cells: dict[Name, TabularCell] = Field(min_length=1)
    turns: Counts = Field(min_length=1)
    training: TabularTraining
    evaluation: TabularEvaluation
    draw: Positive = Field(description="seeds behind each published mean")
    published: TabularPublished
    claims: File
    estimators: EstimatorAudit
    code_version: Annotated[int, Field(ge=1, le=1_000_000)] = 1

    @model_validator(mode="after")
    def _enumerable(self) -> TabularStudy:
        if self.study in RESERVED:
            raise ValueError(f"a study cannot be called '{self.study}': that folder under results is taken")
        longest = max(self.turns + self.estimators.turns)
        if longest > 6:
            raise ValueError(f"{longest} turns are too many to enumerate; at most 6")
        return self


class TabularScale(Strict):
    """How big to run a tabular study."""

    scale: Name
    kind: Literal["tabular"]
    description: Label
    seeds: Annotated[int, Field(ge=2, le=MOST_SEEDS)]
    block: Positive = Field(description="seeds trained together in one job and one MLflow run")
    estimator_batches: int = Field(ge=40, le=10_000_000, description="Monte-Carlo batches per estimator")


@dataclass(frozen=True)
class TabularRun:
    """One (cell, turns, block of seeds): one job and one MLflow run.

    Attributes:
        cell: name of the cell.
        turns: T.
        seeds: the block's seeds, consecutive.
        spec: plain JSON with everything that can change the numbers.
    """

    study: str
    scale: str
    cell: str
    turns: int
    method: str
    seeds: range
    spec: dict[str, Any]

    @property
    def hash(self) -> str:
        """Identity of the specification."""
        return digest(["tabular", self.spec])

    @property
    def benchmark(self) -> str:
        """Name of the task: t2, t3, ..."""
        return f"t{self.turns}"

    @property
    def block(self) -> str:
        """Name of the block of seeds."""
        return f"seeds-{self.seeds.start}-{self.seeds.stop - 1}"

    @property
    def name(self) -> str:
        """Cell, task and hash, as in paths."""
        return f"{self.cell}-{self.benchmark}-{self.hash}"

    @property
    def key(self) -> str:
        """The run's name in the tracking store."""
        return f"{self.scale}/{self.study}/{FAMILY}/{MODEL}/{self.name}/{self.block}"

    @property
    def path(self) -> Path:
        """Its record, written last."""
        runs = Path("results") / self.scale / self.study / "runs" / FAMILY / MODEL
        return runs / self.name / self.block / "run.json"


@dataclass(frozen=True)
class TabularPlan:
    """A tabular study at a scale."""

    study: TabularStudy
    scale: TabularScale
    seeds: int
    runs: tuple[TabularRun, ...]
    estimators: dict[str, Any]
    root: Path

    @property
    def tables_dir(self) -> Path:
        """Folder of the tidy tables."""
        return Path("results") / self.scale.scale / self.study.study / "tables"

    @property
    def estimators_hash(self) -> str:
        """Identity of the estimator audit."""
        return digest(["estimators", self.estimators])

    @property
    def estimators_key(self) -> str:
        """The estimator audit's name in the tracking store."""
        return f"{self.scale.scale}/{self.study.study}/{FAMILY}/{MODEL}/estimators-{self.estimators_hash}"

    @property
    def estimators_path(self) -> Path:
        """Record of the estimator audit."""
        folder = Path("results") / self.scale.scale / self.study.study / "estimators"
        return folder / f"estimators-{self.estimators_hash}.json"

    @property
    def tables(self) -> list[str]:
        """Every paper table in its three forms."""
        folder = Path("paper_tables") / self.scale.scale
        return [str(folder / f"{name}.{form}") for name in TABLES for form in ("csv", "md", "tex")]

    @property
    def figures(self) -> list[str]:
        """Every figure in its two forms, and the table it is drawn from."""
        folder = Path("figures") / self.scale.scale
        return [str(folder / f"{name}.{form}") for name in FIGURES for form in ("pdf", "png", "csv")]

    @property
    def audits(self) -> list[str]:
        """The audit of the study's claims: its report, and its plot among the figures."""
        from turnscale.workflow import audit_files

        return audit_files(self.scale.scale, self.study.study)

    @staticmethod
    def seeds_until(path: Path) -> int:
        """Seeds of the smallest plan with the block of seeds that a record's path names.

        Raises:
            ConfigError: the path names no block.
        """
        found = re.fullmatch(r"seeds-[0-9]+-([0-9]+)", path.parent.name)
        if found is None:
            raise ConfigError("is not in a folder seeds-<first>-<last>.", file=path, key="--out")
        return int(found[1]) + 1

    def run_at(self, path: Path) -> TabularRun:
        """The run whose record is at ``path``.

        Raises:
            ConfigError: no run of the plan, e.g. of an earlier configuration.
        """
        for run in self.runs:
            if run.path == path:
                return run
        raise ConfigError("is no record of the study as configured now.", file=path, key="--out")

    def label(self, cell: str) -> str:
        """The printed name of a cell."""
        return self.study.cells[cell].label or cell


def is_tabular(study: str, root: Path = Path()) -> bool:
    """Whether a study is of tabular policies.

    Raises:
        ConfigError: its file cannot be read.
    """
    return read_yaml(config_path("studies", study, root)).get("kind") == "tabular"


def load_tabular_study(name: str, root: Path = Path()) -> TabularStudy:
    """The study ``configs/studies/<name>.yaml``. Raises ConfigError for anything wrong in it."""
    path = config_path("studies", name, root)
    raw = read_yaml(path)
    if raw.get("kind") != "tabular":
        raise ConfigError(
            "is not a study of tabular policies.", file=path, key="kind", remedy="name one, e.g. grouping."
        )
    study = validate(TabularStudy, raw, path)
    if study.study != name:
        raise ConfigError(
            f"is '{study.study}' in a file named '{name}.yaml'.",
            file=path,
            key="study",
            remedy="make them equal.",
        )
    check_file(study.published.file, root, path, "published.file")
    check_file(study.claims, root, path, "claims")
    return study


def resolve_tabular(
    study_name: str, scale_name: str, *, seeds: int | None = None, root: Path = Path()
) -> TabularPlan:
    """Resolve a tabular study at a scale.

    Args:
        study_name, scale_name: file names under configs/studies and configs/scales, without ending.
        seeds: number of seeds, over the scale's.
        root: the project folder.

    Raises:
        ConfigError: anything wrong in a configuration file, naming file and key.
    """
    study = load_tabular_study(study_name, root)
    path = config_path("scales", scale_name, root)
    raw = read_yaml(path)
    if raw.get("kind") != "tabular":
        raise ConfigError(
            f"is a scale of studies that train models, and '{study_name}' is a tabular one.",
            file=path,
            key="kind",
            remedy=f"use one of: {', '.join(scales_of('tabular', root))}.",
        )
    scale = validate(TabularScale, raw, path)
    if scale.scale != scale_name:
        raise ConfigError(
            f"is '{scale.scale}' in a file named '{scale_name}.yaml'.",
            file=path,
            key="scale",
            remedy="make them equal.",
        )
    count = scale.seeds if seeds is None else seeds
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ConfigError(
            f"must be a whole number of at least 2, got {count!r}.", key="seeds", remedy="give at least 2."
        )
    if count > MOST_SEEDS:
        raise ConfigError(
            f"{count} seeds per cell are more than {MOST_SEEDS}.", key="seeds", remedy="ask for fewer."
        )
    runs = [
        _run(study, scale, name, cell, turns, range(start, min(start + scale.block, count)), root)
        for name, cell in study.cells.items()
        for turns in study.turns
        for start in range(0, count, scale.block)
    ]
    credits = {
        name: method.resolved() | {"label": study.estimators.credits[name].label or name}
        for name, method in credits_of(study, root).items()
    }
    estimators = {
        "code_version": study.code_version,
        "batches": scale.estimator_batches,
        **study.estimators.model_dump(),
        "credits": credits,
    }
    return TabularPlan(study, scale, count, tuple(runs), estimators, root)


def method_of(study: TabularStudy, name: str, root: Path = Path()) -> Method:
    """The method row of a cell with its overrides. Raises ConfigError as `method_of_cell`."""
    cell, path = study.cells[name], config_path("studies", study.study, root)
    return method_of_cell(cell.method, cell.set, name, root, path)


def credits_of(study: TabularStudy, root: Path = Path()) -> dict[str, Method]:
    """The methods whose estimators are audited. Raises ConfigError as `method_of_cell`."""
    path = config_path("studies", study.study, root)
    return {
        name: method_of_cell(cell.method, cell.set, name, root, path, "estimators.credits")
        for name, cell in study.estimators.credits.items()
    }


def _run(
    study: TabularStudy,
    scale: TabularScale,
    name: str,
    cell: TabularCell,
    turns: int,
    seeds: range,
    root: Path,
) -> TabularRun:
    spec = {
        "code_version": study.code_version,
        "method": method_of(study, name, root).resolved(),
        "training": study.training.model_dump(),
        "evaluation": study.evaluation.model_dump(),
        "turns": turns,
        "stream": f"{name}-t{turns}",
    }
    return TabularRun(study.study, scale.scale, name, turns, cell.method, seeds, spec)


def summary_before(plan: TabularPlan, cores: int) -> str:
    """What is about to run."""
    missing = sum(not (plan.root / run.path).exists() for run in plan.runs)
    blocks = f"{missing} of {len(plan.runs)} blocks of seeds to train on {cores} cores"
    return f"{plan.study.study} at scale {plan.scale.scale}: {blocks}."


def summary_after(plan: TabularPlan) -> str:
    """Where everything is."""
    scale = plan.scale.scale
    return f"{plan.study.study} at scale {scale}: see paper_tables/{scale}/ and figures/{scale}/."
