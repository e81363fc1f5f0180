"""What a study and a scale may say. Methods, models and task families have schemas beside their code."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from turnscale.config.declared import DeclaredPlan
from turnscale.config.load import Name, Plain, Strict

MOST_SEEDS = 10_000
"""More seeds per cell than this are taken for a slip."""

RESERVED = ("base", "critic", "panels", "specs")
"""Folders beside the studies under ``results/<scale>``."""

Item = TypeVar("Item")


def once(values: list[Item]) -> list[Item]:
    """The list itself.

    Raises:
        ValueError: an entry stands in it twice.
    """
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"'{value}' is named twice")
    return values


def one_line(text: str) -> str:
    """The text itself.

    Raises:
        ValueError: it is empty or has a line break or another character that cannot be printed.
    """
    if not text.strip() or not text.isprintable():
        raise ValueError(
            "text that is printed in tables and figures must be one line of printable characters"
        )
    return text


def file_name(text: str) -> str:
    """The path itself.

    Raises:
        ValueError: characters that have a meaning for the workflow or the shell.
    """
    if not re.fullmatch(r"[\w./+][\w./+ -]*", text):
        raise ValueError(
            "a path has letters, digits, blanks, '.', '_', '+', '-', '/', and does not begin with '-'"
        )
    return text


Names = Annotated[list[Name], AfterValidator(once)]
Label = Annotated[str, AfterValidator(one_line)]
File = Annotated[str, AfterValidator(file_name)]
Positive = Annotated[int, Field(gt=0, le=1_000_000_000)]
Steps = Annotated[int, Field(gt=0, le=10_000_000)]
Tasks = Annotated[int, Field(gt=0, le=1_000_000)]
Attempts = Annotated[int, Field(gt=0, le=100_000)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Panels(Strict):
    """Sizes of the frozen task panels."""

    train: Tasks
    validation: Tasks
    test: Tasks | dict[Name, Tasks] = Field(
        description="tasks in each test benchmark: one number for all, or benchmark -> number"
    )


class BaseTraining(Strict):
    """Supervised warm-up that makes a small local checkpoint from imperfect demonstrations."""

    steps: Steps
    batch: Positive
    lr: Rate
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    report_tasks: Tasks = Field(100, description="tasks per benchmark on which the base is measured")
    report_attempts: Attempts = Field(32, description="sampled attempts at each of them")


class CriticTraining(Strict):
    """Warm-up of the critic on Monte-Carlo returns of rollouts from the fixed base policy."""

    batches: Steps
    rollouts: Positive = Field(64, description="rollouts per batch")
    epochs: Positive
    lr: Rate
    minibatch: Positive = 64
    fresh_rollouts: Positive = Field(512, description="fresh rollouts for measuring explained variance")


class Training(Strict):
    """One reinforcement-learning run."""

    steps: Steps
    prompts: Positive = Field(description="prompts per step")
    group_size: Positive = Field(description="rollouts per prompt, unless the method fixes it")
    minibatches: Positive = 2
    epochs: Positive = 2
    lr: Rate
    lr_final: Share = Field(0.1, description="fraction of lr at the last step of the linear decay")
    critic_lr: Rate
    critic_minibatches: Positive = 2
    critic_epochs: Positive = 1
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    grad_clip: Rate = 1.0
    micro_batch: Positive = Field(256, description="rows per forward and backward pass")
    old_logp: Literal["sampler", "trainer"] = Field(
        "sampler",
        description="where the old log-probabilities come from; trainer costs one more forward pass",
    )
    temperature: Rate = 1.0
    validate_every: Positive = 10
    validation_attempts: Attempts = 2
    probe_rollouts: Positive = Field(64, description="trajectories on which critic values are logged")
    probe_checkpoints: Positive = 8
    rollout_gap_limit: Rate = Field(
        3e-4, description="a larger |trainer - sampler| log-probability gap on fresh rollouts stops the run"
    )


class Evaluation(Strict):
    """Evaluation of one checkpoint."""

    attempts: Attempts
    temperature: Rate = 1.0
    batch: Positive = 256

    @property
    def largest_k(self) -> int:
        """pass@k is reported for k up to half the attempts."""
        return max(1, self.attempts // 2)


class Runtime(Strict):
    """What cannot change a run's numbers, and so stays out of its identity."""

    checkpoint_every: Positive = 10
    job_memory_mb: Positive = 2000
    job_minutes: Annotated[int, Field(gt=0, le=1_000_000)] = 30
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    pack: Annotated[int, Field(gt=0, le=10_000)] = 1
    stack: bool = False


class Cost(Strict):
    """Measured seconds of one idle core per job, used only for the estimate printed before a run."""

    base: Rate
    critic: Rate
    train_group: Rate
    train_critic: Rate
    evaluate: Rate
    overhead: Rate = 12.0


class Scale(Strict):
    """How big to run."""

    scale: Name
    description: Label
    seeds: Annotated[int, Field(gt=0, le=MOST_SEEDS)]
    families: dict[Name, Name] | None = Field(
        None, description="study family -> family file to use at this scale, where it differs"
    )
    models: Names = Field(min_length=1)
    groups: Names = Field(min_length=1, description="cell groups of the study to run")
    panels: Panels
    base: BaseTraining | None = Field(None, description="absent when checkpoints are given, not made")
    critic: CriticTraining
    train: Training
    eval: Evaluation
    runtime: Runtime = Runtime()
    cost: Cost
    threads: Annotated[int, Field(gt=0, le=1024)] = Field(
        1, description="threads per job; in a run's identity, since it changes bits"
    )


class Cell(Strict):
    """One column of a study: a method and the values it changes."""

    method: Name
    set: dict[str, Plain] = Field(default_factory=dict, description="dotted method key -> value")
    train: dict[str, Plain] = Field(
        default_factory=dict, description="training key -> value, over the scale's"
    )
    label: Label | None = None
    note: str | None = Field(None, description="why these values, with source")


class Published(Strict):
    """Where published values stand beside local ones; never the same model or benchmark."""

    file: File
    models: dict[str, str] = Field(default_factory=dict, description="local model -> published model")
    benchmarks: dict[str, str] = Field(default_factory=dict, description="local benchmark -> published one")
    cells: dict[str, str] = Field(default_factory=dict, description="cell -> method name in the file")


class Table(Strict):
    """One table of the paper."""

    title: Label
    kind: Literal["main", "ablation", "passk", "critic"]
    groups: Names = Field(min_length=1)
    metrics: Annotated[list[str], AfterValidator(once)] = Field(
        default_factory=list, description="what it reports of outcomes; none for kind critic"
    )
    reference: Name = Field(description="the cell others are compared with")
    published: Published | None = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, value: list[str]) -> list[str]:
        for metric in value:
            if not re.fullmatch(r"pass_(at|hat)_[1-9][0-9]{0,5}|auc|pass_at_k", metric):
                raise ValueError(f"{metric!r} is not pass_at_<k>, pass_hat_<k>, pass_at_k or auc")
        return value

    @property
    def ks(self) -> dict[str, int]:
        """Metric -> k, for the metrics with one k."""
        return {
            m: int(m.rpartition("_")[2]) for m in self.metrics if m.startswith("pass_") and m != "pass_at_k"
        }

    @model_validator(mode="after")
    def _metrics_of_outcomes(self) -> Table:
        if (self.kind == "critic") == bool(self.metrics):
            raise ValueError(f"a table of kind {self.kind} {'takes no' if self.metrics else 'needs'} metrics")
        return self


class Figure(Strict):
    """One figure of the paper."""

    title: Label
    kind: Literal["learning", "passk", "ablation", "dynamics", "gains", "critic"]
    groups: Names = Field(min_length=1)
    reference: Name | None = None
    published: Published | None = None


class Study(Strict):
    """What a paper reports: its cells, tables and figures."""

    study: Name
    title: Label
    paper: Label
    families: Names = Field(min_length=1)
    models: Names = Field(min_length=1)
    cells: dict[Name, Cell] = Field(min_length=1)
    groups: dict[Name, Names] = Field(min_length=1)
    tables: dict[Name, Table] = Field(default_factory=dict)
    figures: dict[Name, Figure] = Field(default_factory=dict)
    plan: DeclaredPlan | None = Field(
        None,
        description="seeds and looks, declared before the first run; holds for each table's first metric",
    )
    claims: File | None = Field(None, description="claims ledger of the study")
    code_version: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1, description="raise it by hand when a change of code changes numbers"
    )

    @model_validator(mode="after")
    def _references(self) -> Study:
        if self.study in RESERVED:
            raise ValueError(f"a study cannot be called '{self.study}': that folder under results is taken")
        for group, cells in self.groups.items():
            for cell in cells:
                if cell not in self.cells:
                    raise ValueError(f"groups.{group} names the cell '{cell}', which is not in cells")
        for kind, entries in (("tables", self.tables), ("figures", self.figures)):
            for name, entry in entries.items():
                if name.startswith("audit_"):
                    raise ValueError(f"{kind}.{name}: names that begin with 'audit_' are kept for audits")
                for group in entry.groups:
                    if group not in self.groups:
                        raise ValueError(f"{kind}.{name} names the group '{group}', which is not in groups")
                if entry.reference is not None and entry.reference not in self.cells:
                    raise ValueError(f"{kind}.{name}.reference names '{entry.reference}', which is no cell")
        return self
