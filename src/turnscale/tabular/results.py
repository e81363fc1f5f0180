"""From per-seed numbers to estimates, comparisons and verdicts, in the columns of every study's tidy tables.

The question is always the method retrained on these tasks: seeds are the sample, intervals are t intervals over them,
and differences are Welch's. How often a handful of seeds shows the published order is counted by drawing that many
seeds of each arm, with replacement, from all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from turnscale.audit.local import judge_local
from turnscale.errors import DataError
from turnscale.estimates.published import published_rows
from turnscale.estimates.schema import COMPARISONS, ESTIMATES, frame
from turnscale.estimates.series import over_seeds
from turnscale.files import write_csv
from turnscale.seeding import numpy_stream
from turnscale.stats.multiplicity import holm
from turnscale.stats.power import minimum_detectable
from turnscale.stats.question import Question
from turnscale.stats.spread import combine, seeds_part
from turnscale.tabular.plan import FAMILY, MODEL, SCORE, TabularPlan

LEVEL = 0.95
DRAWS = 20_000
"""Draws of a few seeds per arm behind each share and range."""
RESAMPLES = 400
"""Resamples of all seeds behind the interval of a share."""
ENOUGH = 4
"""Drawing n seeds out of fewer than ``ENOUGH`` x n says nothing new, and is not done."""
RANGE = "score_of_draw"
"""Metric name of the row whose lo and hi hold 95 % of the means of ``draw`` seeds."""
RETRAINED = str(Question.METHOD_RETRAINED)

VERDICTS = [
    "study",
    "scale",
    "benchmark",
    "cell_a",
    "cell_b",
    "published",
    "difference",
    "lo",
    "hi",
    "p",
    "p_holm",
    "direction",
    "size",
    "draw",
    "order_share",
    "order_lo",
    "order_hi",
    "gap_share",
    "n_seeds_a",
    "n_seeds_b",
]

Array = np.ndarray


def write_results(plan: TabularPlan) -> None:
    """Write estimates.csv, comparisons.csv and verdicts.csv beside the collected tables.

    Raises:
        DataError: the collected or the published table is missing or lacks a column.
    """
    folder = plan.root / plan.tables_dir
    seeds = read_seeds(folder / "seeds.parquet")
    survivors = pd.read_csv(folder / "survivorship.csv")
    published = published_values(plan)
    estimates = frame(estimate_rows(plan, seeds, survivors, published), ESTIMATES)
    write_csv(estimates, folder / "estimates.csv")
    comparisons = comparison_rows(plan, seeds)
    write_csv(frame(comparisons, COMPARISONS), folder / "comparisons.csv")
    verdicts = verdict_rows(plan, seeds, comparisons, published)
    write_csv(pd.DataFrame(verdicts, columns=VERDICTS), folder / "verdicts.csv")


def read_seeds(path: Path) -> pd.DataFrame:
    """The per-seed table. Raises DataError when it is missing, or has a number twice."""
    try:
        table = pd.read_parquet(path)
    except FileNotFoundError:
        raise DataError("there is no such file.", file=path, remedy="run the collect stage first.") from None
    if table.duplicated(["cell", "benchmark", "metric", "seed"]).any():
        raise DataError("a seed has a number twice.", file=path, remedy="collect again.")
    return table


def published_values(plan: TabularPlan) -> dict[tuple[str, str, str], float]:
    """(metric, benchmark, cell) -> published value, percentages as fractions.

    Raises:
        DataError: the file is missing or a value of a wanted metric is no number.
    """
    path = plan.root / plan.study.published.file
    table = published_rows(path)
    found: dict[tuple[str, str, str], float] = {}
    for metric, name in plan.study.published.metrics.items():
        for row in table[table["metric"] == name].to_dict("records"):
            turns = row["params"] or row["benchmark"]
            if not turns.startswith("T="):
                turns = str(row["benchmark"])
            try:
                value = float(row["value"]) / (100 if row["unit"] == "percent" else 1)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise DataError(
                    f"{row['value']!r} is not a number.",
                    file=path,
                    key=name,
                    remedy="write a number with a decimal point.",
                )
            found[metric, turns.lower().replace("=", ""), row["method"]] = value
    return found


def scores(seeds: pd.DataFrame, cell: str, benchmark: str, metric: str = SCORE) -> Array:
    """[S] one number per seed, in the order of the seeds."""
    rows = seeds[
        (seeds["cell"] == cell) & (seeds["benchmark"] == benchmark) & (seeds["metric"] == metric)
    ].sort_values("seed")
    return rows["value"].to_numpy(dtype=np.float64)


def estimate_rows(
    plan: TabularPlan,
    seeds: pd.DataFrame,
    survivors: pd.DataFrame,
    published: dict[tuple[str, str, str], float],
) -> list[dict[str, Any]]:
    """One row per cell, number of turns and metric, the published value beside, and the optimum of each task."""
    rows = []
    arms = seeds[["benchmark", "cell", "method"]].drop_duplicates()
    for benchmark, cell, method in arms.itertuples(index=False):
        own = seeds[(seeds["cell"] == cell) & (seeds["benchmark"] == benchmark)]
        counts = survivors[(survivors["cell"] == cell) & (survivors["benchmark"] == benchmark)].iloc[0]
        common = {
            "study": plan.study.study,
            "scale": plan.scale.scale,
            "family": FAMILY,
            "model": MODEL,
            "benchmark": benchmark,
            "method": method,
            "cell": cell,
            "n_tasks": 8,
            "n_attempts": plan.study.evaluation.targets,
            **{name: counts[name] for name in ("planned", "finished", "failed", "excluded")},
            "run_ids": " ".join(sorted(own["run_id"].unique())),
            "spec_hash": str(own["spec_hash"].iloc[0]),
            "code_revision": " ".join(sorted(own["code_revision"].unique())),
        }
        for metric in own["metric"].unique():
            values = scores(seeds, cell, benchmark, metric)
            mean, lo, hi = (float(part[0]) for part in over_seeds(values[:, None]))
            number = published.get((metric, benchmark, cell))
            bounded = metric not in ("distinct_tools", "environment_calls")
            rows.append(
                {
                    **common,
                    "metric": metric,
                    "value": mean,
                    "lo": max(lo, 0.0) if bounded else lo,
                    "hi": min(hi, 1.0) if bounded else hi,
                    "question": RETRAINED,
                    "n_seeds": len(values),
                    "published": number,
                    "published_source": plan.study.published.source if number is not None else "",
                }
            )
        values = scores(seeds, cell, benchmark)
        if len(values) >= ENOUGH * plan.study.draw:
            means = draw_means(values, plan.study.draw, DRAWS, f"{cell}/{benchmark}")
            lo, hi = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            rows.append(
                {
                    **common,
                    "metric": RANGE,
                    "value": float(values.mean()),
                    "lo": float(lo),
                    "hi": float(hi),
                    "question": f"means of {plan.study.draw} seeds",
                    "n_seeds": len(values),
                    "note": f"lo and hi hold 95 % of the means of {plan.study.draw} seeds",
                }
            )
    return rows


def draw_means(values: Array, size: int, count: int, stream: str) -> Array:
    """[count] means of ``size`` of the values, drawn with replacement from a stream of their own."""
    picked = numpy_stream(0, "draws", stream).integers(len(values), size=(count, size))
    return values[picked].mean(axis=1)


def pairs(cells: Sequence[str]) -> list[tuple[str, str]]:
    """Every pair of cells, the later one first (tree against traj, as the claims have it)."""
    return [(b, a) for a, b in itertools.combinations(cells, 2)]


def comparison_rows(plan: TabularPlan, seeds: pd.DataFrame) -> list[dict[str, Any]]:
    """The difference in accuracy of every pair of cells at every number of turns; Holm over all of them."""
    rows: list[dict[str, Any]] = []
    present = set(zip(seeds["cell"], seeds["benchmark"], strict=True))
    for turns in plan.study.turns:
        benchmark = f"t{turns}"
        for cell_a, cell_b in pairs(list(plan.study.cells)):
            if (cell_a, benchmark) not in present or (cell_b, benchmark) not in present:
                continue
            a, b = scores(seeds, cell_a, benchmark), scores(seeds, cell_b, benchmark)
            rows.append(
                {
                    "study": plan.study.study,
                    "scale": plan.scale.scale,
                    "product": "grouping_verdicts",
                    "family": FAMILY,
                    "model": MODEL,
                    "benchmark": benchmark,
                    "metric": SCORE,
                    "cell_a": cell_a,
                    "cell_b": cell_b,
                    **welch(a, b),
                    "question": RETRAINED,
                    "estimator": "seeds_welch",
                    "n_seeds_a": len(a),
                    "n_seeds_b": len(b),
                    "n_tasks": 8,
                }
            )
    tested = [row for row in rows if row["p"] is not None]
    if tested:
        for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"], row["holm_size"] = float(adjusted), len(tested)
    return rows


def welch(a: Array, b: Array) -> dict[str, float | None]:
    """Difference of means with Welch's interval and p value; None where there is no spread to judge by."""
    difference = float(a.mean() - b.mean())
    se_all, df_all, _ = combine([seeds_part(values.reshape(-1, 1, 1)) for values in (a, b)])
    se, df = float(se_all[0]), float(df_all[0])
    if se <= 0:
        return {"difference": difference, "lo": None, "hi": None, "p": None, "mde": None}
    half = se * float(t.ppf(0.5 + LEVEL / 2, df))
    return {
        "difference": difference,
        "lo": difference - half,
        "hi": difference + half,
        "p": float(2 * t.sf(abs(difference) / se, df)),
        "mde": minimum_detectable(se, df, LEVEL),
    }


def verdict_rows(
    plan: TabularPlan,
    seeds: pd.DataFrame,
    comparisons: Sequence[dict[str, Any]],
    published: dict[tuple[str, str, str], float],
) -> list[dict[str, Any]]:
    """Each comparison beside the published difference of the same cells.

    ``direction`` and ``size`` say whether the interval here reproduces the published sign and size.
    ``order_share`` is the share of draws of ``draw`` seeds per arm whose means stand in the published order (a tie
    counts half), ``gap_share`` that of draws whose difference is at least the published one.
    """
    rows = []
    for row in comparisons:
        benchmark, cell_a, cell_b = row["benchmark"], row["cell_a"], row["cell_b"]
        levels = [published.get((SCORE, benchmark, cell)) for cell in (cell_a, cell_b)]
        if levels[0] is None or levels[1] is None:
            continue
        gap = round(levels[0] - levels[1], 10)
        a, b = scores(seeds, cell_a, benchmark), scores(seeds, cell_b, benchmark)
        low, high = (None if row[end] is None else 100 * row[end] for end in ("lo", "hi"))
        direction, size = judge_local(100 * gap, low, high, RETRAINED, min(len(a), len(b)))
        shares: dict[str, float] = {}
        if gap and min(len(a), len(b)) >= ENOUGH * plan.study.draw:
            shares = draw_shares(a, b, gap, plan.study.draw, f"{cell_a}/{cell_b}/{benchmark}")
        rows.append(
            {
                **{name: row.get(name) for name in VERDICTS if name in row},
                "published": gap,
                "direction": str(direction),
                "size": str(size),
                "draw": plan.study.draw,
                **shares,
            }
        )
    return rows


def draw_shares(a: Array, b: Array, gap: float, size: int, stream: str) -> dict[str, float]:
    """How often ``size`` seeds per arm show the published order, with an interval, and the published gap.

    The interval redraws all seeds (percentile bootstrap): it says how well the share itself is known.
    """
    sign = np.sign(gap)

    def order(differences: Array, axis: int | None = None) -> Array:
        oriented = sign * differences
        return np.asarray(((oriented > 1e-12) + 0.5 * (np.abs(oriented) <= 1e-12)).mean(axis=axis))

    difference = draw_means(a, size, DRAWS, f"{stream}/a") - draw_means(b, size, DRAWS, f"{stream}/b")
    generator = numpy_stream(0, "shares", stream)
    redrawn = []
    for values in (a, b):
        again = values[generator.integers(len(values), size=(RESAMPLES, len(values)))]
        picked = generator.integers(len(values), size=(RESAMPLES, DRAWS // 40, size))
        redrawn.append(again[np.arange(RESAMPLES)[:, None, None], picked].mean(axis=2))
    lo, hi = np.quantile(order(redrawn[0] - redrawn[1], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "order_share": float(order(difference)),
        "order_lo": float(lo),
        "order_hi": float(hi),
        "gap_share": float((sign * difference >= abs(gap) - 1e-12).mean()),
    }
