"""A study at a scale, resolved into specifications of jobs: panels, bases, critics, cells and runs.

Nothing here trains or opens a checkpoint, and importing it loads neither torch nor MLflow; plans are quick.

Every job is described by a *specification*: a plain JSON value that holds all that can change the job's
numbers, and nothing else. Its hash is the job's identity and stands in the path of its output, so a changed
value reruns exactly what depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from turnscale.config.hashing import digest
from turnscale.config.load import config_path, read_yaml, validate
from turnscale.config.references import check_products, method_of_cell, scales_of
from turnscale.config.schema import MOST_SEEDS, Cell, Scale, Study, Training
from turnscale.errors import ConfigError
from turnscale.files import write_json


@dataclass(frozen=True)
class Spec:
    """A job's specification and where its output goes.

    Attributes:
        kind: ``panels``, ``base``, ``critic``, ``train`` or ``evaluation``.
        value: plain JSON with everything that can change the job's numbers.
    """

    kind: str
    value: Mapping[str, Any]

    @cached_property
    def hash(self) -> str:
        """8 hex digits that identify the job."""
        return digest([self.kind, self.value])


@dataclass(frozen=True)
class Run:
    """One (study, family, model, cell, seed): one MLflow run."""

    study: str
    scale: str
    family: str
    model: str
    cell: str
    method: str
    seed: int
    spec: Spec

    @property
    def key(self) -> str:
        """The run's name in the tracking store: unique per configuration and seed."""
        arm = f"{self.scale}/{self.study}/{self.family}/{self.model}/{self.cell}-{self.spec.hash}"
        return f"{arm}/seed-{self.seed}"


@dataclass(frozen=True)
class ResolvedCell:
    """One cell for one family and model, with all its specifications."""

    family: str
    model: str
    cell: str
    label: str
    method_name: str
    method: Mapping[str, Any]
    trains: bool
    needs_critic: bool
    panels: Spec
    base: Spec
    critic: Spec | None
    train: Spec
    evaluation: Spec
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A study resolved at a scale."""

    study: Study
    scale: Scale
    cells: tuple[ResolvedCell, ...]
    seeds: tuple[int, ...]
    root: Path = field(default=Path())

    def results(self) -> Path:
        """Folder of this scale's results."""
        return Path("results") / self.scale.scale

    def runs(self) -> list[Run]:
        """Every planned run, in the order of the study's cells."""
        return [
            Run(
                study=self.study.study,
                scale=self.scale.scale,
                family=cell.family,
                model=cell.model,
                cell=cell.cell,
                method=cell.method_name,
                seed=seed,
                spec=cell.train,
            )
            for cell in self.cells
            for seed in cell.seeds
        ]

    def find(self, family: str, model: str, cell: str) -> ResolvedCell:
        """The resolved cell of that name.

        Raises:
            KeyError: the study has no such cell at this scale.
        """
        for candidate in self.cells:
            if (candidate.family, candidate.model, candidate.cell) == (family, model, cell):
                return candidate
        raise KeyError(f"{family}/{model}/{cell}")

    # Paths. One function per product; rules and code both take them from here.

    def spec_path(self, spec: Spec) -> Path:
        """The resolved specification as a file, named by kind and hash."""
        return self.results() / "specs" / f"{spec.kind}-{spec.hash}.json"

    def panels_path(self, cell: ResolvedCell) -> Path:
        """Frozen task panels of a family."""
        return self.results() / "panels" / f"{cell.family}-{cell.panels.hash}.json"

    def base_path(self, cell: ResolvedCell) -> Path:
        """Record of the starting checkpoint."""
        return self.results() / "base" / cell.family / f"{cell.model}-{cell.base.hash}" / "base.json"

    def critic_path(self, cell: ResolvedCell, seed: int) -> Path:
        """Record of a warmed-up critic.

        Raises:
            ValueError: the cell has no critic.
        """
        if cell.critic is None:
            raise ValueError(f"cell {cell.cell} has no critic")
        name = f"{cell.model}-{cell.critic.hash}"
        return self.results() / "critic" / cell.family / name / f"seed-{seed}" / "critic.json"

    def run_dir(self, cell: ResolvedCell, seed: int) -> Path:
        """Folder of one run's records."""
        name = f"{cell.cell}-{cell.train.hash}"
        return self.results() / self.study.study / "runs" / cell.family / cell.model / name / f"seed-{seed}"

    def run_path(self, cell: ResolvedCell, seed: int) -> Path:
        """Record of one finished training run."""
        return self.run_dir(cell, seed) / "run.json"

    def pack_path(self, cell: ResolvedCell, seeds: tuple[int, ...]) -> Path:
        """What one process found that trained these seeds of a cell; only until each has its own record."""
        name = f"{cell.cell}-{cell.train.hash}"
        folder = self.results() / self.study.study / "packs" / cell.family / cell.model / name
        return folder / f"seeds-{seeds[0]}-{seeds[-1]}.json"

    def evaluation_path(self, cell: ResolvedCell, seed: int) -> Path:
        """Record of one finished evaluation."""
        return self.run_dir(cell, seed) / f"evaluation-{cell.evaluation.hash}.json"

    def looks_path(self) -> Path:
        """The log of looks at this study at this scale: kept in version control, not under ``results``."""
        return Path("looks") / self.scale.scale / f"{self.study.study}.jsonl"

    def specs(self) -> list[Spec]:
        """Every distinct specification of the plan."""
        found: dict[tuple[str, str], Spec] = {}
        for cell in self.cells:
            for spec in (cell.panels, cell.base, cell.critic, cell.train, cell.evaluation):
                if spec is not None:
                    found[spec.kind, spec.hash] = spec
        return list(found.values())

    def write_specs(self) -> None:
        """Write each specification file that is not there yet (its name is its content's hash)."""
        for spec in self.specs():
            path = self.root / self.spec_path(spec)
            if path.exists():
                continue
            write_json(spec.value, path)

    def estimate_core_seconds(self) -> float:
        """Seconds of one idle core for the whole plan, from the scale's measured costs."""
        cost = self.scale.cost
        total = 0.0
        seen: set[tuple[str, str, int]] = set()
        for cell in self.cells:
            if ("base", cell.base.hash, 0) not in seen:
                seen.add(("base", cell.base.hash, 0))
                total += cost.base + cost.overhead
            for seed in cell.seeds:
                if cell.critic is not None and ("critic", cell.critic.hash, seed) not in seen:
                    seen.add(("critic", cell.critic.hash, seed))
                    total += cost.critic + cost.overhead
                if cell.trains:
                    total += (cost.train_critic if cell.needs_critic else cost.train_group) + cost.overhead
                total += cost.evaluate + cost.overhead
        return total


def load_study(name: str, root: Path = Path()) -> Study:
    """The study ``configs/studies/<name>.yaml``.

    Raises:
        ConfigError: missing file, unknown key, wrong type, or a reference to something absent.
    """
    path = config_path("studies", name, root)
    raw = read_yaml(path)
    if raw.get("kind") == "tabular":
        raise ConfigError(
            "is a study of tabular policies.", file=path, key="kind", remedy=f"use 'turnscale plan {name}'."
        )
    study = validate(Study, raw, path)
    _name_matches(study.study, name, path, "study")
    return study


def load_scale(name: str, root: Path = Path()) -> Scale:
    """The scale ``configs/scales/<name>.yaml``.

    Raises:
        ConfigError: missing file, unknown key or wrong type.
    """
    path = config_path("scales", name, root)
    raw = read_yaml(path)
    if raw.get("kind") == "tabular":
        raise ConfigError(
            "is a scale of tabular studies, and this study trains models.",
            file=path,
            key="kind",
            remedy=f"use one of: {', '.join(scales_of(None, root))}.",
        )
    scale = validate(Scale, raw, path)
    _name_matches(scale.scale, name, path, "scale")
    return scale


def resolve(
    study_name: str,
    scale_name: str,
    *,
    seeds: int | None = None,
    root: Path = Path(),
) -> Plan:
    """Resolve a study at a scale into cells and runs.

    Args:
        study_name: file name under configs/studies without its ending.
        scale_name: file name under configs/scales without its ending.
        seeds: number of seeds per cell, over the scale's.
        root: the project folder.

    Raises:
        ConfigError: anything wrong in any of the configuration files, naming file and key.
    """
    study = load_study(study_name, root)
    scale = load_scale(scale_name, root)
    count = scale.seeds if seeds is None else seeds
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(
            f"must be a whole number of at least 1, got {count!r}.", key="seeds", remedy="give at least 1."
        )
    if count > MOST_SEEDS:
        raise ConfigError(
            f"{count} seeds per cell are more than {MOST_SEEDS}.", key="seeds", remedy="ask for fewer."
        )
    numbers = tuple(range(count))
    study_path = config_path("studies", study_name, root)
    scale_path = config_path("scales", scale_name, root)
    check_products(study, scale, root, study_path)
    _check_panels(study, scale, root, scale_path)
    wanted: list[str] = []
    for group in scale.groups:
        if group not in study.groups:
            raise ConfigError(
                f"names the group '{group}', which {study_path} does not define.",
                file=scale_path,
                key="groups",
                remedy=f"choose from: {', '.join(study.groups)}.",
            )
        wanted += [cell for cell in study.groups[group] if cell not in wanted]
    cells = [
        _resolve_cell(study, scale, family, model, name, numbers, root, study_path, scale_path)
        for family in study.families
        for model in scale.models
        for name in wanted
    ]
    return Plan(study=study, scale=scale, cells=tuple(cells), seeds=numbers, root=root)


def _resolve_cell(
    study: Study,
    scale: Scale,
    family_name: str,
    model_name: str,
    cell_name: str,
    seeds: tuple[int, ...],
    root: Path,
    study_path: Path,
    scale_path: Path,
) -> ResolvedCell:
    cell = study.cells[cell_name]
    method = method_of_cell(cell.method, cell.set, cell_name, root, study_path)
    family = _family(scale, family_name, root)
    model = _model(model_name, root, scale_path)
    if model["kind"] == "local" and scale.base is None:
        raise ConfigError(
            f"is required, since the model '{model_name}' is made by the workflow.",
            file=scale_path,
            key="base",
            remedy="add the section, or name models with given checkpoints.",
        )
    training = _training(scale, cell, cell_name, study_path)
    common = {"code_version": study.code_version, "threads": scale.threads}
    panels = Spec("panels", {"family": family, "panels": scale.panels.model_dump()})
    base_training = None if model["kind"] != "local" or scale.base is None else scale.base.model_dump()
    base = Spec("base", {**common, **panels.value, "model": model, "training": base_training})
    critic = None
    resolved = method.resolved()
    if method.needs_critic:
        critic = Spec(
            "critic",
            {
                **common,
                "base": base.value,
                "critic": scale.critic.model_dump(),
                "heads": method.critic.heads,
                "temperature": training.temperature,
            },
        )
    train = Spec(
        "train",
        {
            **common,
            "family": family_name,
            "model": model_name,
            "panels": panels.value,
            "base": base.value,
            "critic": None if critic is None else critic.value,
            "method": resolved,
            "training": training.model_dump() if method.train else None,
        },
    )
    evaluation = Spec("evaluation", scale.eval.model_dump(exclude={"batch"}))
    return ResolvedCell(
        family=family_name,
        model=model_name,
        cell=cell_name,
        label=cell.label or method.title,
        method_name=method.name,
        method=resolved,
        trains=method.train,
        needs_critic=method.needs_critic,
        panels=panels,
        base=base,
        critic=critic,
        train=train,
        evaluation=evaluation,
        seeds=seeds if method.train else seeds[:1],
    )


def _training(scale: Scale, cell: Cell, cell_name: str, study_path: Path) -> Training:
    merged = {**scale.train.model_dump(), **cell.train}
    return validate(Training, merged, study_path, prefix=f"cells.{cell_name}.train")


def _check_panels(study: Study, scale: Scale, root: Path, scale_path: Path) -> None:
    """Raise ConfigError if the scale's panels name other test benchmarks than the study's families have."""
    from turnscale.envs.panels import split_sizes
    from turnscale.envs.registry import read_family

    for name in study.families:
        family = read_family(_family_path(scale, name, root))
        split_sizes(scale.panels.model_dump(), family.benchmarks, scale_path)


def _family(scale: Scale, name: str, root: Path) -> dict[str, Any]:
    from turnscale.envs.registry import read_family_config

    return read_family_config(_family_path(scale, name, root)).model_dump(mode="json")


def _family_path(scale: Scale, name: str, root: Path) -> Path:
    return config_path("families", (scale.families or {}).get(name, name), root)


def _model(name: str, root: Path, scale_path: Path) -> dict[str, Any]:
    from turnscale.agent.config import ModelConfig

    path = config_path("models", name, root)
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ConfigError(
            f"names the model '{name}', and there is no {path}.",
            file=scale_path,
            key="models",
            remedy=f"choose from: {', '.join(known)}.",
        )
    return validate(ModelConfig, read_yaml(path), path).model_dump(mode="json")


def _name_matches(value: str, name: str, path: Path, key: str) -> None:
    if value != name:
        raise ConfigError(
            f"is '{value}' in a file named '{name}.yaml'.", file=path, key=key, remedy="make them equal."
        )
