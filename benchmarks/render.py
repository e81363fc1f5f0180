"""Time of everything after training on an invented study of 300 runs x 400 tasks x 16 attempts.

    python benchmarks/render.py [--runs 300] [--tasks 400] [--attempts 16]

Prints the seconds of each stage, its share, and the total as a ratio of the 60-second budget.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from synthetic_study import BENCHMARKS, make_plan, make_tables

from turnscale.diagnose import write_diagnosis
from turnscale.estimates import write_estimates
from turnscale.render import render_figure, render_table

BUDGET = 60.0


def main() -> None:
    """Build the tables, then time estimates, tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tasks", type=int, default=400, help="over all benchmarks")
    parser.add_argument("--attempts", type=int, default=16)
    options = parser.parse_args()
    models = ("qwen3-tiny", "qwen3-moe-tiny")
    trained = len(make_plan(seeds=1, models=models).cells) - len(models)
    seeds = max(1, round(options.runs / trained))
    plan = make_plan(seeds=seeds, models=models)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tables(
            plan, folder, tasks=options.tasks // len(BENCHMARKS), attempts=options.attempts, steps=100
        )
        print(f"{sum(len(cell.seeds) for cell in plan.cells)} runs, {len(plan.cells)} cells, {seeds} seeds")
        stages: dict[str, Callable[[], object]] = {"estimates": partial(write_estimates, plan, folder)}
        stages["diagnose"] = partial(write_diagnosis, plan.study, "quick", folder, plan.root)
        for name in plan.study.tables:
            stages[f"table {name}"] = partial(render_table, plan.study, "quick", name, folder, folder / "t")
        for name in plan.study.figures:
            stages[f"figure {name}"] = partial(render_figure, plan.study, "quick", name, folder, folder / "f")
        seconds = {}
        for stage, work in stages.items():
            start = time.perf_counter()
            work()
            seconds[stage] = time.perf_counter() - start
    total = sum(seconds.values())
    for stage, spent in seconds.items():
        print(f"{stage:24} {spent:7.2f} s  {spent / total:6.1%}")
    print(f"{'total':24} {total:7.2f} s  {total / BUDGET:.2f} of the budget of {BUDGET:.0f} s")


if __name__ == "__main__":
    main()
