"""Train every cell of the grouping study and time it; with --write, put the table into docs/grouping.md.

    python benchmarks/grouping.py --seeds 200 --write docs/grouping.md

The numbers are those of `make reproduce STUDY=grouping SCALE=grouping200`: the same seeds, the same streams.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from turnscale.estimates.series import over_seeds
from turnscale.seeding import fix_threads
from turnscale.tabular import training
from turnscale.tabular.plan import load_tabular_study, method_of
from turnscale.tabular.task import ProbeTask

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def interval(values: np.ndarray, factor: float, digits: int) -> str:
    """Mean and t interval over seeds."""
    mean, lo, hi = (float(part[0]) * factor for part in over_seeds(values[:, None]))
    return f"{mean:.{digits}f}" if np.isnan(lo) else f"{mean:.{digits}f} [{lo:.{digits}f}, {hi:.{digits}f}]"


def main() -> None:
    """Train, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    fix_threads(1)
    study = load_tabular_study("grouping")
    seeds = range(arguments.seeds)
    lines = [
        "| T | method | accuracy, % | sd over seeds | degenerate rate, % | dead steps, % | distinct tools | calls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total = 0.0
    for turns in study.turns:
        for name, cell in study.cells.items():
            task, stream, started = ProbeTask(turns), f"{name}-t{turns}", time.process_time()
            trained = training.train(
                seeds, stream, method_of(cell), task,
                group_size=study.training.group_size, lr=study.training.lr, iterations=study.training.iterations,
            )  # fmt: skip
            acted = training.greedy(trained.logits, task)
            targets = training.evaluation_targets(seeds, stream, study.evaluation.targets)
            score = np.take_along_axis(acted.success, targets, axis=1).mean(axis=1)
            distinct = np.take_along_axis(acted.distinct, targets, axis=1).mean(axis=1)
            spent = time.process_time() - started
            total += spent
            lone, dead, calls = (
                trained.metrics[key].mean(axis=1)
                for key in ("singleton_bucket_share", "dead_step_share", "environment_calls")
            )
            lines.append(
                f"| {turns} | {name} | {interval(score, 100, 1)} | {100 * score.std(ddof=1):.1f} | "
                f"{100 * lone.mean():.1f} | {100 * dead.mean():.1f} | {interval(distinct, 1, 2)} | {calls[0]:.0f} |"
            )
            print(f"{lines[-1]}  {spent:.1f} s", flush=True)
    print(f"{arguments.seeds} seeds of every cell: {total:.0f} s of one core")
    if arguments.write is not None:
        before, rest = arguments.write.read_text(encoding="utf-8").split(BEGIN)
        _, after = rest.split(END)
        table = "\n".join(lines)
        arguments.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
