"""What the workflow makes, as paths, and the sentences it prints. The rules are in ``workflow/rules``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import turnscale
from turnscale.config.hashing import digest
from turnscale.config.schema import MOST_SEEDS, Figure, Table
from turnscale.errors import ConfigError, DataError, TurnscaleError, complaint
from turnscale.planning import remaining_costs, status, wall_minutes
from turnscale.study import Plan, ResolvedCell

STALE = "its configuration has changed; 'turnscale plan' shows the present hashes."


def audit_files(scale: str, study: str) -> list[str]:
    """What the audit of a study's ledger writes: the report in four forms and the forest plot in two."""
    name = f"audit_{study}"
    report = [f"paper_tables/{scale}/{name}.{form}" for form in ("md", "tex", "csv", "json")]
    return report + [f"figures/{scale}/{name}.{form}" for form in ("pdf", "png")]


class Products:
    """Paths of a plan's products and the inputs of its jobs, as strings relative to the project folder.

    Args:
        plan: the study at a scale.
        partial: leave runs that are not finished out, so that tables of the finished ones train nothing.
        pack: seeds of a cell that one process trains; 1 gives each a process of its own.

    Raises:
        DataError: ``partial``, and no run is finished.
    """

    def __init__(self, plan: Plan, partial: bool = False, pack: int = 1) -> None:
        self.plan = plan
        self.partial = partial
        self.pack = pack
        chosen = [
            (cell, seed)
            for cell in plan.cells
            for seed in cell.seeds
            if not partial or self._finished(cell, seed)
        ]
        if not chosen:
            raise DataError(
                "no planned run is finished.",
                file=plan.results() / plan.study.study,
                remedy="run 'make reproduce', or 'turnscale runs restore' if the tracking store has them.",
            )
        self._chosen = chosen
        self.runs = [str(plan.run_path(cell, seed)) for cell, seed in chosen]
        self.evaluations = [str(plan.evaluation_path(cell, seed)) for cell, seed in chosen]

    def _finished(self, cell: ResolvedCell, seed: int) -> bool:
        root = self.plan.root
        paths = (self.plan.run_path(cell, seed), self.plan.evaluation_path(cell, seed))
        return all((root / path).exists() for path in paths)

    def share(self, asked: Any = None) -> list[str]:
        """Records of the runs that one of several machines makes; all of them if nothing is asked.

        Machines share by seed, since a seed's critic is one for all its cells; seeds that share a process stay
        together.

        Args:
            asked: ``1/3`` for the first of three machines.

        Raises:
            ConfigError: not of that form, or more machines than seeds, so that one would have nothing to do.
        """
        part, machines = _fraction("1/1" if asked is None else asked)
        mine = [(c, seed) for c, seed in self._chosen if seed // self.pack % machines == part - 1]
        if not mine:
            raise ConfigError(
                f"{asked} leaves this machine no run.",
                key="share",
                remedy="name fewer machines, or more seeds.",
            )
        records = [(self.plan.run_path(c, s), self.plan.evaluation_path(c, s)) for c, s in mine]
        return [str(path) for pair in records for path in pair]

    @property
    def _stem(self) -> Path:
        return Path(self.plan.scale.scale)

    @cached_property
    def tidy(self) -> list[str]:
        """The estimates, and the collected tables that they are made from."""
        names = ("estimates.csv", "comparisons.csv", "looks.csv", "outcomes.parquet", "metrics.parquet")
        folder = self.plan.results() / self.plan.study.study / "tables"
        return [str(folder / name) for name in (*names, "critic_values.parquet", "survivorship.csv")]

    @cached_property
    def tables(self) -> list[str]:
        """Every paper table in its three forms."""
        folder = Path("paper_tables") / self._stem
        return [
            str(folder / f"{name}.{form}") for name in self.plan.study.tables for form in ("csv", "md", "tex")
        ]

    @cached_property
    def audits(self) -> list[str]:
        """The audit of the study's claims, if it has a ledger: its report, and its plot among the figures."""
        if self.plan.study.claims is None:
            return []
        return audit_files(self.plan.scale.scale, self.plan.study.study)

    @property
    def ledgers(self) -> list[str]:
        """The study's claims ledger, if it has one."""
        return [] if self.plan.study.claims is None else [self.plan.study.claims]

    @property
    def missing(self) -> list[str]:
        """The records, tables and figures that are not there."""
        made = [*self.runs, *self.evaluations, *self.tidy, *self.tables, *self.figures, *self.audits]
        return [path for path in made if not (self.plan.root / path).exists()]

    @cached_property
    def figures(self) -> list[str]:
        """Every figure in its two forms, and the table it is drawn from."""
        folder = Path("figures") / self._stem
        return [
            str(folder / f"{name}.{form}")
            for name in self.plan.study.figures
            for form in ("pdf", "png", "csv")
        ]

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str, str], ResolvedCell]:
        return {(cell.family, cell.model, cell.cell, cell.train.hash): cell for cell in self.plan.cells}

    def cell(self, wildcards: Any) -> ResolvedCell:
        """The cell of a run's path.

        Raises:
            DataError: the path is not of this plan, e.g. it has the hash of an earlier configuration.
        """
        key = (wildcards.family, wildcards.model, wildcards.cell, wildcards.train)
        if key not in self._cells:
            raise DataError(
                f"no cell of the plan is {'/'.join(key[:3])}-{key[3]}.",
                remedy=STALE,
            )
        return self._cells[key]

    @cached_property
    def _critics(self) -> dict[str, ResolvedCell]:
        return {cell.critic.hash: cell for cell in self.plan.cells if cell.critic is not None}

    def base_inputs(self, wildcards: Any) -> dict[str, str]:
        """Inputs of a starting checkpoint, by the hash in its path."""
        for cell in self.plan.cells:
            if cell.base.hash == wildcards.base:
                return {"panels": str(self.plan.panels_path(cell))}
        raise DataError(f"no starting checkpoint of the plan has the hash {wildcards.base}.", remedy=STALE)

    def critic_inputs(self, wildcards: Any) -> dict[str, str]:
        """Inputs of a critic's warm-up, by the hash in its path."""
        cell = self._critics.get(wildcards.critic)
        if cell is None:
            raise DataError(f"no critic of the plan has the hash {wildcards.critic}.", remedy=STALE)
        return {"base": str(self.plan.base_path(cell)), "panels": str(self.plan.panels_path(cell))}

    def train_inputs(self, wildcards: Any) -> dict[str, str]:
        """Inputs of a training, by its path; ``critic`` only for methods with one."""
        cell = self.cell(wildcards)
        inputs = {"spec": str(self.plan.spec_path(cell.train)), **self.evaluate_inputs(wildcards)}
        if cell.critic is not None:
            inputs["critic"] = str(self.plan.critic_path(cell, int(wildcards.seed)))
        if self.pack > 1 and cell.trains:
            inputs["pack"] = str(self.plan.pack_path(cell, self.chunk(cell, int(wildcards.seed))))
        return inputs

    def chunk(self, cell: ResolvedCell, seed: int) -> tuple[int, ...]:
        """The planned seeds of a cell that share a process with ``seed``.

        Chunks are counted from seed 0, so that more seeds leave the full ones as they are.
        """
        first = seed // self.pack * self.pack
        return tuple(other for other in cell.seeds if first <= other < first + self.pack)

    def packed(self, wildcards: Any) -> list[int]:
        """The seeds that a pack, given by its path, has to train: those of its chunk without a record."""
        cell = self.cell(wildcards)
        chunk = range(int(wildcards.first), int(wildcards.last) + 1)
        return [seed for seed in chunk if not (self.plan.root / self.plan.run_path(cell, seed)).exists()]

    def pack_inputs(self, wildcards: Any) -> dict[str, str | list[str]]:
        """Inputs of a pack, by its path; ``critics`` only for methods with one, in the order of the seeds."""
        cell = self.cell(wildcards)
        inputs: dict[str, str | list[str]] = {
            "spec": str(self.plan.spec_path(cell.train)),
            **self.evaluate_inputs(wildcards),
        }
        if cell.critic is not None:
            inputs["critics"] = [str(self.plan.critic_path(cell, seed)) for seed in self.packed(wildcards)]
        return inputs

    def evaluate_inputs(self, wildcards: Any) -> dict[str, str]:
        """Inputs of an evaluation besides the run's record, by its path."""
        cell = self.cell(wildcards)
        return {"base": str(self.plan.base_path(cell)), "panels": str(self.plan.panels_path(cell))}

    def unfinished(self, stage: str) -> str:
        """Constraint on ``{family}`` that lets a rule's path match only where its record is still to be made.

        A record's path holds the hash of everything that can change it, so a record that exists is a fact and
        no job: neither a lost input far upstream nor an edited command can have it made again. To repeat a
        run, remove its record.

        Args:
            stage: ``critic``, ``train`` or ``evaluate``.
        """
        places: dict[str, list[str]] = {}
        for cell in self.plan.cells:
            for seed in cell.seeds:
                path = self._open_record(stage, cell, seed)
                if path is not None:
                    arm, _, last = path.parent.as_posix().rpartition("/seed-")
                    start = f"/{cell.family}/{cell.model}"
                    places.setdefault(arm[arm.rindex(start) + 1 :], []).append(last)
        if not places:
            return "(?!)"
        arms = (f"{re.escape(arm)}/seed-(?:{'|'.join(seeds)})" for arm, seeds in places.items())
        return f"(?=(?:{'|'.join(arms)})/)[^/]+"

    def _open_record(self, stage: str, cell: ResolvedCell, seed: int) -> Path | None:
        plan = self.plan
        run = plan.run_path(cell, seed)
        if stage == "critic":
            path = None if cell.critic is None else plan.critic_path(cell, seed)
            return path if path is not None and not (plan.root / path).exists() else None
        if stage == "train":
            return None if (plan.root / run).exists() else run
        made, evaluated = plan.root / run, plan.root / plan.evaluation_path(cell, seed)
        current = made.exists() and evaluated.exists() and evaluated.stat().st_mtime >= made.stat().st_mtime
        return None if current else run

    @cached_property
    def seeds(self) -> int:
        """Seeds per trained cell."""
        return len(self.plan.seeds)

    @cached_property
    def methods_hash(self) -> str:
        """Identity of the plan's methods, whose identities the gates check."""
        return digest([cell.method for cell in self.plan.cells])

    @property
    def gates(self) -> Path:
        """Record of the passed gates of the plan's methods."""
        folder = self.plan.results() / self.plan.study.study
        return folder / f"gates-{self.methods_hash}.json"

    @cached_property
    def cells_hash(self) -> str:
        """Identity of the set of planned cells, which survivorship counts."""
        return digest([[c.family, c.model, c.cell, c.train.hash, c.evaluation.hash] for c in self.plan.cells])

    @cached_property
    def study_hash(self) -> str:
        """Identity of what the study reports, apart from comments."""
        return digest([self.plan.study.model_dump(mode="json"), self.cells_hash])

    def _entries(self, kind: str) -> Mapping[str, Table | Figure]:
        study = self.plan.study
        return study.tables if kind == "tables" else study.figures

    def definition_hash(self, kind: str) -> str:
        """Identity of the study's ``tables`` or ``figures``: entries, groups, labels and the tables' plan."""
        study = self.plan.study
        entries = self._entries(kind)
        groups = {group: study.groups[group] for entry in entries.values() for group in entry.groups}
        labels = {cell: study.cells[cell].label for cells in groups.values() for cell in cells}
        declared = study.plan.words if study.plan is not None and kind == "tables" else None
        shown = {name: entry.model_dump(mode="json") for name, entry in entries.items()}
        return digest([shown, groups, labels, study.title, declared])

    def diagnosis(self, kind: str) -> list[str]:
        """What the study's ``tables`` or ``figures`` read besides the tidy tables, if any is of kind ``critic``."""
        if all(entry.kind != "critic" for entry in self._entries(kind).values()):
            return []
        folder = self.plan.results() / self.plan.study.study / "tables"
        return [str(folder / file) for file in ("critic_statistics.csv", "critic_trajectories.parquet")]

    @cached_property
    def published_files(self) -> list[str]:
        """Files of published values that the study's tables and figures name."""
        study = self.plan.study
        entries: list[Table | Figure] = [*study.tables.values(), *study.figures.values()]
        return sorted({entry.published.file for entry in entries if entry.published is not None})

    @staticmethod
    def sources(*names: str) -> list[str]:
        """Python files of the package, by folder or pattern under it; rules name them to follow their changes."""
        package = Path(turnscale.__file__).parent
        found: list[Path] = []
        for name in names:
            found += package.glob(name if "*" in name else f"{name}/**/*.py")
        here = Path.cwd()
        return sorted(str(path.relative_to(here) if path.is_relative_to(here) else path) for path in found)


def _fraction(asked: Any) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", str(asked))
    part, machines = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= machines:
        raise ConfigError(
            f"is {str(asked)!r}, which is no machine out of some.",
            key="share",
            remedy="write 2/3 for the second of three machines.",
        )
    return part, machines


OPTIONS = ("study", "scale", "seeds", "partial", "pack", "share")
"""What ``snakemake --config`` may set."""


@contextmanager
def refusing() -> Iterator[None]:
    """End Snakemake as ``turnscale`` ends: the one line that says what is wrong and what to do, and exit code 2."""
    try:
        yield
    except TurnscaleError as error:
        print(complaint(error), file=sys.stderr)
        raise SystemExit(2) from None


def check_options(config: Mapping[str, Any], tabular: bool = False) -> bool:
    """Refuse settings of the workflow that nothing reads; whether ``partial`` is set.

    Args:
        config: the settings.
        tabular: whether they are of a study of tabular policies.

    Raises:
        ConfigError: an unknown name (a mistyped ``share`` would have every machine train every seed), or a
            ``partial`` that is neither true nor false.
    """
    unknown = sorted(set(config) - set(OPTIONS))
    if unknown:
        raise ConfigError(
            "is no setting of the workflow.", key=unknown[0], remedy=f"--config knows {', '.join(OPTIONS)}."
        )
    needless = sorted({"pack", "share"} & set(config)) if tabular else []
    if needless:
        raise ConfigError(
            "is of no use to a tabular study, whose runs take minutes.",
            key=needless[0],
            remedy="leave it out.",
        )
    partial = str(config.get("partial", False)).lower()
    if partial not in ("true", "false"):
        raise ConfigError(f"is '{partial}'.", key="partial", remedy="write partial=true or partial=false.")
    return partial == "true"


def pack_size(plan: Plan, asked: Any = None) -> int:
    """Seeds of a cell that share a process: what was asked for, else the scale's ``runtime.pack``.

    Raises:
        ConfigError: not a whole number from 1 to the most seeds that there may be.
    """
    size = plan.scale.runtime.pack if asked is None else asked
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_SEEDS:
        raise ConfigError(
            f"must be a whole number from 1 to {MOST_SEEDS}, got {size!r}.",
            key="pack",
            remedy="say how many seeds of a cell share a process; 1 gives each its own.",
        )
    return size


def unused(plan: Plan, pack: int) -> list[str]:
    """What a scale sets and nothing reads, one sentence each.

    Args:
        plan: the study at the scale.
        pack: seeds of a cell that share a process.
    """
    if not plan.scale.runtime.stack or pack > 1:
        return []
    return [
        "runtime.stack has no effect while each seed has a process of its own: set runtime.pack, or --pack."
    ]


def summary_before(plan: Plan, cores: int) -> str:
    """What is about to run and how long it takes."""
    costs = remaining_costs(plan)
    runs = sum(path.name == "run.json" for path in costs)
    if not costs:
        return f"{plan.study.study} at scale {plan.scale.scale}: nothing is left to train or evaluate."
    minutes = wall_minutes(plan, costs, cores)
    return (
        f"{plan.study.study} at scale {plan.scale.scale}: {runs} runs to train, {len(costs)} jobs in all, "
        f"about {minutes:.0f} minutes on {cores} idle cores. "
        f"Progress of each job: tail -f logs/{plan.scale.scale}/*/*.log"
    )


def summary_after(plan: Plan) -> str:
    """Where everything is."""
    scale, study = plan.scale.scale, plan.study.study
    finished = sum(row.evaluated for row in status(plan))
    planned = sum(row.planned for row in status(plan))
    return "\n".join(
        [
            f"{study} at scale {scale}: {finished} of {planned} runs finished.",
            f"  tables    paper_tables/{scale}/",
            f"  figures   figures/{scale}/",
            f"  tidy data results/{scale}/{study}/tables/",
            "  runs      make ui",
        ]
    )
