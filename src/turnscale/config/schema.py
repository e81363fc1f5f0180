"""What a study and a scale may say. Methods, models and task families have schemas beside their code."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from turnscale.config.declared import DeclaredPlan
from turnscale.config.load import Strict

NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,62}[A-Za-z0-9+])?$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
"""Names become file names, MLflow tags and LaTeX cells: letters, digits, '.', '_', '+', '-', at most 64."""

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Panels(Strict):
    """Sizes of the frozen task panels."""

    train: Positive
    validation: Positive
    test: Positive | dict[Name, Positive] = Field(
        description="tasks in each test benchmark: one number for all, or benchmark -> number"
    )


class BaseTraining(Strict):
    """Supervised warm-up that makes a small local checkpoint from imperfect demonstrations."""

    steps: Positive
    batch: Positive
    lr: Rate
    seed: int = 0
    report_tasks: Positive = Field(100, description="tasks per benchmark on which the base is measured")
    report_attempts: Positive = Field(32, description="sampled attempts at each of them")


class CriticTraining(Strict):
    """Warm-up of the critic on Monte-Carlo returns of rollouts from the fixed base policy."""

    batches: Positive
    rollouts: Positive = Field(64, description="rollouts per batch")
    epochs: Positive
    lr: Rate
    minibatch: Positive = 64
    fresh_rollouts: Positive = Field(512, description="fresh rollouts for measuring explained variance")


class Training(Strict):
    """One reinforcement-learning run."""

    steps: Positive
    prompts: Positive = Field(description="prompts per step")
    group_size: Positive = Field(description="rollouts per prompt, unless the method fixes it")
    minibatches: Positive = 2
    epochs: Positive = 2
    lr: Rate
    lr_final: Share = Field(0.1, description="fraction of lr at the last step of the linear decay")
    critic_lr: Rate
    critic_minibatches: Positive = 2
    critic_epochs: Positive = 1
    beta1: Share = 0.9
    beta2: Share = 0.99
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    grad_clip: Rate = 1.0
    micro_batch: Positive = Field(256, description="rows per forward and backward pass")
    old_logp: Literal["sampler", "trainer"] = Field(
        "sampler",
        description="where the old log-probabilities come from; trainer costs one more forward pass",
    )
    temperature: Rate = 1.0
    validate_every: Positive = 10
    validation_attempts: Positive = 2
    probe_rollouts: Positive = Field(64, description="trajectories on which critic values are logged")
    probe_checkpoints: Positive = 8
    rollout_gap_limit: Rate = Field(
        3e-4, description="a larger |trainer - sampler| log-probability gap on fresh rollouts stops the run"
    )


class Evaluation(Strict):
    """Evaluation of one checkpoint."""

    attempts: Positive
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
    job_minutes: Positive = 30
    gpus: Annotated[int, Field(ge=0)] = 0
    pack: Positive = 1


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
    description: str
    seeds: Positive
    families: dict[str, str] | None = Field(
        None, description="study family -> family file to use at this scale, where it differs"
    )
    models: list[Name] = Field(min_length=1)
    groups: list[Name] = Field(min_length=1, description="cell groups of the study to run")
    panels: Panels
    base: BaseTraining | None = Field(None, description="absent when checkpoints are given, not made")
    critic: CriticTraining
    train: Training
    eval: Evaluation
    runtime: Runtime = Runtime()
    cost: Cost
    threads: Positive = Field(1, description="threads per job; in a run's identity, since it changes bits")


class Cell(Strict):
    """One column of a study: a method and the values it changes."""

    method: Name
    set: dict[str, Any] = Field(default_factory=dict, description="dotted method key -> value")
    train: dict[str, Any] = Field(default_factory=dict, description="training key -> value, over the scale's")
    label: str | None = None
    note: str | None = Field(None, description="why these values, with source")


class Published(Strict):
    """Where published values stand beside local ones; never the same model or benchmark."""

    file: str
    models: dict[str, str] = Field(default_factory=dict, description="local model -> published model")
    benchmarks: dict[str, str] = Field(default_factory=dict, description="local benchmark -> published one")
    cells: dict[str, str] = Field(default_factory=dict, description="cell -> method name in the file")


class Table(Strict):
    """One table of the paper."""

    title: str
    kind: Literal["main", "ablation", "passk", "critic"]
    groups: list[Name] = Field(min_length=1)
    metrics: list[str] = Field(
        default_factory=list, description="what it reports of outcomes; none for kind critic"
    )
    reference: Name = Field(description="the cell others are compared with")
    published: Published | None = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, value: list[str]) -> list[str]:
        for metric in value:
            if not re.fullmatch(r"pass_(at|hat)_[1-9][0-9]*|auc|pass_at_k", metric):
                raise ValueError(f"'{metric}' is not pass_at_<k>, pass_hat_<k>, pass_at_k or auc")
        return value

    @model_validator(mode="after")
    def _metrics_of_outcomes(self) -> Table:
        if (self.kind == "critic") == bool(self.metrics):
            raise ValueError(f"a table of kind {self.kind} {'takes no' if self.metrics else 'needs'} metrics")
        return self


class Figure(Strict):
    """One figure of the paper."""

    title: str
    kind: Literal["learning", "passk", "ablation", "dynamics", "gains", "critic"]
    groups: list[Name] = Field(min_length=1)
    reference: Name | None = None
    published: Published | None = None


class Study(Strict):
    """What a paper reports: its cells, tables and figures."""

    study: Name
    title: str
    paper: str
    families: list[Name] = Field(min_length=1)
    models: list[Name] = Field(min_length=1)
    cells: dict[Name, Cell] = Field(min_length=1)
    groups: dict[Name, list[Name]] = Field(min_length=1)
    tables: dict[Name, Table] = Field(default_factory=dict)
    figures: dict[Name, Figure] = Field(default_factory=dict)
    plan: DeclaredPlan | None = Field(
        None,
        description="seeds and looks, declared before the first run; holds for each table's first metric",
    )
    claims: str | None = Field(None, description="claims ledger of the study")
    code_version: int = Field(1, description="raise it by hand when a change of code changes numbers")

    @model_validator(mode="after")
    def _references(self) -> Study:
        for group, cells in self.groups.items():
            for cell in cells:
                if cell not in self.cells:
                    raise ValueError(f"groups.{group} names the cell '{cell}', which is not in cells")
        for kind, entries in (("tables", self.tables), ("figures", self.figures)):
            for name, entry in entries.items():
                for group in entry.groups:
                    if group not in self.groups:
                        raise ValueError(f"{kind}.{name} names the group '{group}', which is not in groups")
                if entry.reference is not None and entry.reference not in self.cells:
                    raise ValueError(f"{kind}.{name}.reference names '{entry.reference}', which is no cell")
        return self
