"""Time and memory of the cluster bootstrap at benchmark size, beside rliable's stratified bootstrap.

    python benchmarks/bootstrap.py [--resamples 10000] [--peer-resamples 300]

Two arms of 10 seeds × 830 tasks × 32 attempts. rliable and a plain loop over copied rows run in the same process
on the same 10 × 830 matrix of one arm. rliable draws a run independently for each task and so answers another
question; only the time per replicate is compared. Whole rows need no copies: a replicate is ten multiplicities,
and means, trimmed means and win rates follow from sums per row. Prints Markdown.

rliable 1.2 needs arch < 8, which does not import beside pandas 3: measure it in an environment with
`pip install rliable "pandas<3" scipy` and `PYTHONPATH=src`.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rows import Row, write
from scipy.stats import trim_mean

from turnscale.stats import (
    Counts,
    Metric,
    Question,
    bootstrap_compare,
    bootstrap_estimate,
    compare,
    iqm_interval,
)

SEEDS, TASKS, ATTEMPTS = 10, 830, 32
PASS1 = Metric("pass_at", 1)


def simulate(rng: np.random.Generator, arm: str, ability: np.ndarray, shift: float) -> Counts:
    """Counts [SEEDS, TASKS]: logistic success with task, seed and seed × task effects."""
    logit = (
        ability + shift + 0.15 * rng.standard_normal((SEEDS, 1)) + 0.5 * rng.standard_normal((SEEDS, TASKS))
    )
    c = rng.binomial(ATTEMPTS, 1 / (1 + np.exp(-logit)))
    n = np.full_like(c, ATTEMPTS)
    return Counts(arm, tuple(range(SEEDS)), tuple(f"task{i}" for i in range(TASKS)), c, n)


def quarter_trimmed(table: np.ndarray) -> float:
    """Interquartile mean of a copied table, as the plain loop computes it."""
    return float(trim_mean(table, 0.25, axis=None))


def median_time(run: Callable[[], object], repeats: int = 5) -> float:
    """Median CPU time of `repeats` runs, in seconds (one thread; a busy machine inflates wall time)."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def peak_memory(run: Callable[[], object]) -> float:
    """Peak of memory allocated while `run` works, in MiB."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def own_rows(a: Counts, b: Counts, resamples: int) -> list[tuple[str, Callable[[], object]]]:
    """The two-arm intervals to time."""
    rows: list[tuple[str, Callable[[], object]]] = []
    for question, method in (
        (Question.METHOD_RETRAINED, "percentile"),
        (Question.METHOD_RETRAINED, "studentized"),
        (Question.TASKS_LIKE_THESE, "percentile"),
        (Question.TASKS_LIKE_THESE, "studentized"),
        (Question.METHOD_NEW_TASKS, "percentile"),
    ):
        rows.append(
            (
                f"{question.resamples}, {method}",
                lambda q=question, m=method: bootstrap_compare(
                    a, b, PASS1, q, rng=np.random.default_rng(1), resamples=resamples, method=m
                ),
            )
        )
    return rows


def rliable_or_reason() -> tuple[ModuleType, ModuleType] | str:
    """rliable's library and metrics modules, or why they are not there."""
    try:
        from rliable import library, metrics
    except (ImportError, TypeError) as error:  # TypeError: arch 7 beside pandas 3
        return f"not importable ({type(error).__name__})"
    return library, metrics


def main() -> None:
    """Run and print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--peer-resamples", type=int, default=300)
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    options = parser.parse_args()
    found: list[Row] = []
    rng = np.random.default_rng(0)
    ability = 2 * rng.standard_normal(TASKS)
    a, b = simulate(rng, "a", ability, 0.15), simulate(rng, "b", ability, 0.0)
    resamples = options.resamples

    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, one thread")
    print(
        f"\nTwo arms of {SEEDS} seeds × {TASKS} tasks × {ATTEMPTS} attempts, {resamples:,} resamples, pass@1\n"
    )
    print("| drawn again | CPU seconds | µs per replicate | peak MiB |")
    print("|---|---|---|---|")
    for name, run in own_rows(a, b, resamples):
        seconds = median_time(run)
        found.append(Row(f"two-arm bootstrap, {name}", "µs/replicate", 1e6 * seconds / resamples))
        print(f"| {name} | {seconds:.3f} | {1e6 * seconds / resamples:.2f} | {peak_memory(run):.1f} |")
    seconds = median_time(lambda: compare(a, b, PASS1, Question.METHOD_NEW_TASKS), 20)
    print(f"| none (crossed Satterthwaite, closed form) | {seconds:.5f} | | |")

    matrix = a.scores(PASS1)
    peer = rliable_or_reason()
    peers = options.peer_resamples

    def loop(statistic: Callable[[np.ndarray], float]) -> Callable[[], object]:
        draw = np.random.default_rng(1)
        return lambda: [statistic(matrix[draw.integers(0, SEEDS, SEEDS)]) for _ in range(peers)]

    def own(statistic: str) -> Callable[[], object]:
        def run() -> object:
            generator = np.random.default_rng(1)
            if statistic == "mean":
                return bootstrap_estimate(
                    a, PASS1, Question.METHOD_RETRAINED, rng=generator, resamples=resamples
                )
            return iqm_interval(a, PASS1, rng=generator, resamples=resamples)

        return run

    def theirs(library: ModuleType, metrics: ModuleType, statistic: str) -> Callable[[], object]:
        function = metrics.aggregate_mean if statistic == "mean" else metrics.aggregate_iqm
        return lambda: library.get_interval_estimates(
            {"a": matrix}, lambda x: np.array([function(x)]), method="percentile", reps=peers
        )

    print(f"\nOne arm, {SEEDS} × {TASKS} matrix, CPU µs per replicate\n")
    print("| statistic | this package | plain loop over rows | rliable | loop / this | rliable / this |")
    print("|---|---|---|---|---|---|")
    for statistic, function in (("mean", np.mean), ("interquartile mean", quarter_trimmed)):
        mine = 1e6 * median_time(own(statistic)) / resamples
        plain = 1e6 * median_time(loop(function)) / peers
        note = f"rliable {peer}" if isinstance(peer, str) else ""
        label = f"bootstrap of the {statistic}, against a loop over copied rows"
        found.append(Row(label, "µs/replicate", mine, plain, plain / mine, note=note))
        row = f"| {statistic} | {mine:.3f} | {plain:.1f} "
        if isinstance(peer, str):
            print(f"{row}| {peer} | {plain / mine:.0f} | |")
        else:
            other = 1e6 * median_time(theirs(*peer, statistic)) / peers
            print(f"{row}| {other:.1f} | {plain / mine:.0f} | {other / mine:.0f} |")
            found.append(
                Row(
                    f"bootstrap of the {statistic}, against rliable",
                    "µs/replicate",
                    mine,
                    other,
                    other / mine,
                )
            )
    if options.rows:
        write(options.rows, found)


if __name__ == "__main__":
    main()
