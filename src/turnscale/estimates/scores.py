"""From the collected tables to counts and learning-curve areas per arm, with the survivorship of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from turnscale.errors import DataError
from turnscale.estimates.schema import ARM, COUNTS
from turnscale.stats.outcomes import Counts, counts_by_arm
from turnscale.study import Plan, ResolvedCell

OUTCOMES = [*ARM, "seed", "benchmark", "task", "attempt", "success", "run_id"]
METRICS = [*ARM, "seed", "step", "metric", "value"]
SURVIVORSHIP = [*ARM, *COUNTS]
CURVE = "val_pass_at_1"


@dataclass(frozen=True, eq=False)
class ArmData:
    """Everything measured on one cell of one family and model.

    Attributes:
        cell: the resolved cell.
        counts: planned, finished, failed and excluded runs.
        outcomes: benchmark -> successes and attempts; empty if no run was evaluated.
        areas: [S] area under the validation pass@1 curve, one per seed in ascending order; empty if none.
        run_ids: runs that the numbers come from, sorted.
    """

    cell: ResolvedCell
    counts: Mapping[str, int]
    outcomes: Mapping[str, Counts] = field(default_factory=dict)
    areas: np.ndarray = field(default_factory=lambda: np.empty(0))
    run_ids: tuple[str, ...] = ()


def arms(
    plan: Plan, outcomes: pd.DataFrame, metrics: pd.DataFrame, survivorship: pd.DataFrame
) -> dict[tuple[str, str, str], ArmData]:
    """The data of every planned cell, by (family, model, cell), in the order of the plan.

    Raises:
        DataError: a missing column, a hole or a repeat in the outcomes, a benchmark that only some cells were
            tested on, outcomes of a cell that is not planned, more evaluated seeds than finished runs, or
            learning curves of one cell with different steps.
    """
    for table, columns, name in (
        (outcomes, OUTCOMES, "outcomes"),
        (metrics, METRICS, "metrics"),
        (survivorship, SURVIVORSHIP, "survivorship"),
    ):
        lacking = [column for column in columns if column not in table.columns]
        if lacking:
            raise DataError(
                f"the {name} table lacks the column '{lacking[0]}'.",
                key=lacking[0],
                remedy=f"need {', '.join(columns)}.",
            )
    planned = {(cell.family, cell.model, cell.cell): cell for cell in plan.cells}
    survivors = _survivorship(survivorship)
    counts: dict[tuple[str, str, str], dict[str, Counts]] = {key: {} for key in planned}
    run_ids: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for (family, model, benchmark), part in outcomes.groupby(["family", "model", "benchmark"], observed=True):
        here = {key[2] for key in planned if key[:2] == (family, model)}
        present = {str(name) for name in part["cell"].unique()}
        stray = sorted(present - here)
        if stray:
            raise DataError(
                f"outcomes of {family}/{model} hold the cell '{stray[0]}', which is not planned.",
                key="cell",
                remedy="collect the runs of this study and scale only.",
            )
        fixed = [cell for cell in present if not planned[str(family), str(model), cell].trains]
        for cell_name, counted in counts_by_arm(part, untrained=fixed).items():
            counts[str(family), str(model), cell_name][str(benchmark)] = counted
    pairs = outcomes[[*ARM, "run_id"]].drop_duplicates()
    for (family, model, trained), part in pairs.groupby(ARM, observed=True):
        run_ids[str(family), str(model), str(trained)] = tuple(sorted(part["run_id"].astype(str)))
    areas = curve_areas(metrics)
    found: dict[tuple[str, str, str], ArmData] = {}
    for key, cell in planned.items():
        survivor = survivors.get(key)
        if survivor is None:
            raise DataError(
                f"survivorship has no row for {'/'.join(key)}.", key="cell", remedy="collect again."
            )
        tested = {name for other in planned if other[:2] == key[:2] for name in counts[other]}
        untested = sorted(tested - set(counts[key])) if counts[key] else []
        if untested:
            raise DataError(
                f"{'/'.join(key)} was not evaluated on '{untested[0]}', which other cells were.",
                key="benchmark",
                remedy="evaluate it again, or exclude its runs.",
            )
        seeds = {counted.seeds for counted in counts[key].values()}
        if len(seeds) > 1:
            raise DataError(f"{'/'.join(key)} was evaluated with other seeds on some benchmarks.", key="seed")
        evaluated = next(iter(seeds), None)
        if evaluated is not None and len(evaluated) > survivor["finished"]:
            raise DataError(
                f"{'/'.join(key)} has outcomes of {len(evaluated)} seeds and {survivor['finished']} finished runs.",
                key="finished",
                remedy="collect again.",
            )
        area = areas.get(key, {})
        kept = [area[seed] for seed in sorted(area) if evaluated is None or seed in evaluated]
        found[key] = ArmData(cell, survivor, counts[key], np.array(kept), run_ids.get(key, ()))
    return found


def curve_areas(metrics: pd.DataFrame) -> dict[tuple[str, str, str], dict[int, float]]:
    """Mean height of each run's validation pass@1 curve: its area by trapezoids over its span of steps.

    Returns:
        (family, model, cell) -> seed -> area, a fraction. A curve of a single point has no area and is left out.

    Raises:
        DataError: two values at one step, or seeds of one cell validated at different steps.
    """
    curve = metrics[metrics["metric"] == CURVE]
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    steps_of: dict[tuple[str, str, str], np.ndarray] = {}
    for key, run in curve.groupby([*ARM, "seed"], observed=True):
        run = run.sort_values("step", kind="stable")
        steps = run["step"].to_numpy(dtype=np.float64)
        arm = (str(key[0]), str(key[1]), str(key[2]))
        if np.any(np.diff(steps) <= 0):
            raise DataError(f"{'/'.join(arm)} seed {key[3]} has two validations at one step.", key="step")
        if not np.array_equal(steps_of.setdefault(arm, steps), steps):
            raise DataError(
                f"{'/'.join(arm)} seed {key[3]} was validated at other steps than the seeds before it.",
                key="step",
                remedy="exclude unfinished runs.",
            )
        if steps.size > 1:
            values = run["value"].to_numpy(dtype=np.float64)
            found.setdefault(arm, {})[int(str(key[3]))] = float(
                np.trapezoid(values, steps) / (steps[-1] - steps[0])
            )
    return found


def _survivorship(table: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, int]]:
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in table.to_dict("records"):
        key = (str(row["family"]), str(row["model"]), str(row["cell"]))
        if key in found:
            raise DataError(f"survivorship has two rows for {'/'.join(key)}.", key="cell")
        found[key] = {name: int(row[name]) for name in COUNTS}
    return found
