"""What of a plan is done, what it still costs, and what its seeds can detect. Reads records' names only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from turnscale.errors import ConfigError
from turnscale.files import write_bytes
from turnscale.study import Plan, ResolvedCell


@dataclass(frozen=True)
class CellStatus:
    """Progress of one cell.

    Attributes:
        cell: the resolved cell.
        trained, evaluated: seeds with that record.
    """

    cell: ResolvedCell
    trained: int
    evaluated: int

    @property
    def planned(self) -> int:
        """Seeds planned."""
        return len(self.cell.seeds)


def status(plan: Plan) -> list[CellStatus]:
    """Progress of every cell, in the order of the plan."""
    return [
        CellStatus(
            cell,
            sum((plan.root / plan.run_path(cell, seed)).exists() for seed in cell.seeds),
            sum((plan.root / plan.evaluation_path(cell, seed)).exists() for seed in cell.seeds),
        )
        for cell in plan.cells
    ]


def job_costs(plan: Plan) -> dict[Path, float]:
    """Record -> seconds of one idle core to make it, for every base, critic, training and evaluation."""
    cost = plan.scale.cost
    found: dict[Path, float] = {}
    for cell in plan.cells:
        found[plan.base_path(cell)] = cost.base + cost.overhead
        for seed in cell.seeds:
            if cell.critic is not None:
                found[plan.critic_path(cell, seed)] = cost.critic + cost.overhead
            training = cost.train_critic if cell.needs_critic else cost.train_group
            found[plan.run_path(cell, seed)] = (training if cell.trains else 0.0) + cost.overhead
            found[plan.evaluation_path(cell, seed)] = cost.evaluate + cost.overhead
    return found


def remaining_costs(plan: Plan) -> dict[Path, float]:
    """`job_costs` of the records that are not there. A base or critic counts only if a training needs it."""
    costs = job_costs(plan)
    absent = {path for path in costs if not (plan.root / path).exists()}
    needed: set[Path] = set()
    for cell in plan.cells:
        for seed in cell.seeds:
            trains, evaluates = (
                plan.run_path(cell, seed) in absent,
                plan.evaluation_path(cell, seed) in absent,
            )
            if trains or evaluates:
                needed |= {plan.base_path(cell), plan.run_path(cell, seed), plan.evaluation_path(cell, seed)}
            if trains and cell.critic is not None:
                needed.add(plan.critic_path(cell, seed))
    return {path: costs[path] for path in costs if path in absent & needed}


def wall_minutes(plan: Plan, costs: dict[Path, float], cores: int) -> float:
    """Minutes the jobs take on ``cores`` idle cores, by filling the free slot with the next job of the stage.

    Stages (bases, critics, trainings, evaluations) are taken one after another, which is a little pessimistic.
    """
    slots = max(1, cores // plan.scale.threads)
    total = 0.0
    for stage in ("base.json", "critic.json", "run.json", "evaluation-"):
        ends = [0.0] * slots
        for path, seconds in sorted(costs.items(), key=lambda item: -item[1]):
            if path.name.startswith(stage):
                first = ends.index(min(ends))
                ends[first] += seconds
        total += max(ends)
    return total / 60


def comparisons(plan: Plan) -> list[tuple[str, ResolvedCell, ResolvedCell]]:
    """(table, cell, reference) of every comparison that the study's tables make at this scale."""
    found = []
    for name, table in plan.study.tables.items():
        if not table.metrics:
            continue
        names = [cell for group in table.groups for cell in plan.study.groups[group]]
        for reference in plan.cells:
            if reference.cell != table.reference:
                continue
            for cell in plan.cells:
                same = (cell.family, cell.model) == (reference.family, reference.model)
                if same and cell.cell != reference.cell and cell.cell in names:
                    found.append((name, cell, reference))
    return found


def detectable(seeds_a: int | None, seeds_b: int | None, sd: float) -> float | None:
    """Smallest true difference that the seeds find with 80 % power at the 5 % level; None if there is no test.

    Args:
        seeds_a, seeds_b: seeds of each cell, None for one that is not trained and so has no seed noise.
        sd: across-seed standard deviation of a trained cell's score, a fraction.
    """
    from turnscale.stats.power import minimum_detectable

    trained = [seeds for seeds in (seeds_a, seeds_b) if seeds is not None]
    if not trained or min(trained) < 2:
        return None
    return minimum_detectable(sd * math.sqrt(sum(1 / n for n in trained)), sum(trained) - len(trained))


def measured_sd(plan: Plan) -> tuple[float, int] | None:
    """Across-seed sd of pass@1 over all benchmarks, pooled over trained cells, and its degrees of freedom.

    Read from the collected outcomes; None before there are two seeds of some cell. The sd contains the
    noise of the attempts.
    """
    path = plan.root / plan.results() / plan.study.study / "tables" / "outcomes.parquet"
    if not path.exists():
        return None
    import pandas as pd

    table = pd.read_parquet(path, columns=["family", "model", "cell", "seed", "success"])
    scores = table.groupby(["family", "model", "cell", "seed"], observed=True)["success"].mean()
    arms = scores.groupby(["family", "model", "cell"], observed=True)
    freedom = int((arms.count() - 1).sum())
    if freedom < 1:
        return None
    squares = float((arms.var(ddof=1).fillna(0.0) * (arms.count() - 1)).sum())
    return math.sqrt(squares / freedom), freedom


def raise_seeds(path: Path, to: int) -> int:
    """Set ``seeds:`` of a scale file, leaving every other byte as it is.

    Args:
        path: the scale file.
        to: seeds per cell, more than it has now.

    Returns:
        The number of seeds before.

    Raises:
        ConfigError: no top-level ``seeds`` with a whole number, or ``to`` is not more.
    """
    data = path.read_bytes()
    line = rb"(?m)^(seeds:[ \t]*)([1-9][0-9]*)(?=[ \t]*\r?$|[ \t]+#)"
    found = [number for _, number in re.findall(line, data)]
    if len(found) != 1:
        raise ConfigError("has no single line 'seeds: <number>'.", file=path, key="seeds", remedy="add it.")
    before = int(found[0])
    if to <= before:
        raise ConfigError(
            f"is {before} already; {to} is not more.",
            file=path,
            key="seeds",
            remedy="ask for more, or edit the file to use fewer (finished runs are kept).",
        )
    write_bytes(re.sub(line, rb"\g<1>%d" % to, data, count=1), path)
    return before
