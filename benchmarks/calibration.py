"""Do the intervals cover and the tests keep their level? Simulated studies with a known truth, as Markdown.

    python benchmarks/calibration.py [--studies 500] [--seed 0]

Success is logistic in a task effect (sd 2), a method × task effect (sd 0.5), a seed effect and a seed × task
effect (sd 0.5); both methods have the same mean, so new tasks have a true difference of zero, and on the drawn
tasks the true difference is integrated numerically. Every row calls the public functions of turnscale.stats;
the rows marked "outside" are common practice, computed here for contrast. With 500 studies the simulation
error of a coverage near 95 % is one point.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.random import Generator
from scipy import stats as scipy_stats

from turnscale.stats import (
    Comparison,
    Counts,
    Curve,
    Metric,
    NotEstimable,
    Question,
    bootstrap_compare,
    compare,
    curve,
    e_value,
    flip_task_clusters,
    obrien_fleming_levels,
    permute_seeds,
    select_checkpoint,
    variance_components,
)

TASK_SD, METHOD_TASK_SD, SEED_TASK_SD = 2.0, 0.5, 0.5
PASS1 = Metric("pass_at", 1)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def success(logit: np.ndarray) -> np.ndarray:
    """Logistic function."""
    return 1 / (1 + np.exp(-logit))


def study(
    rng: Generator, seeds: int, tasks: int, attempts: int, seed_sd: float, metric: Metric = PASS1
) -> tuple[list[Counts], float]:
    """Two arms on newly drawn tasks, and the true difference of the methods on exactly those tasks."""
    ability = TASK_SD * rng.standard_normal(tasks) + METHOD_TASK_SD * rng.standard_normal((2, tasks))
    spread = np.hypot(seed_sd, SEED_TASK_SD)
    p = success(ability[..., None] + spread * NODES)
    value = 1 - (1 - p) ** metric.k if metric.kind == "pass_at" else p**metric.k
    truth = (value @ WEIGHTS).mean(axis=1)
    arms = []
    for name, level in zip("ab", ability, strict=True):
        logit = level + seed_sd * rng.standard_normal((seeds, 1))
        c = rng.binomial(attempts, success(logit + SEED_TASK_SD * rng.standard_normal((seeds, tasks))))
        names = tuple(f"t{i}" for i in range(tasks))
        arms.append(Counts(name, tuple(range(seeds)), names, c, np.full_like(c, attempts)))
    return arms, float(truth[0] - truth[1])


def independent_runs(rng: Generator, a: Counts, b: Counts, resamples: int = 200) -> tuple[float, float]:
    """Outside: draws a run independently for each task, normal limits from the bootstrap error."""
    values = []
    for arm in (a, b):
        table = arm.scores(PASS1)
        rows = rng.integers(0, len(table), (resamples, *table.shape))
        values.append(table[rows, np.arange(table.shape[1])].mean(axis=(1, 2)))
    centre = a.scores(PASS1).mean() - b.scores(PASS1).mean()
    half = 1.96 * float((values[0] - values[1]).std(ddof=1))
    return centre - half, centre + half


Limits = Callable[[Counts, Counts, Generator], tuple[float, float] | None]


def limits_of(found: Comparison | NotEstimable) -> tuple[float, float] | None:
    """Lower and upper limit, or None for a refusal."""
    return None if isinstance(found, NotEstimable) else (found.lo, found.hi)


def boot(question: Question, method: str) -> Limits:
    """A bootstrap of 400 resamples as an entry of the coverage table."""
    return lambda a, b, rng: limits_of(
        bootstrap_compare(a, b, PASS1, question, rng=rng, resamples=400, method=method)
    )


ESTIMATORS: dict[str, Limits] = {
    "tasks t": lambda a, b, _: limits_of(compare(a, b, PASS1, Question.TASKS_LIKE_THESE)),
    "outside: run drawn per task": lambda a, b, rng: independent_runs(rng, a, b),
    "seed rows, percentile": boot(Question.METHOD_RETRAINED, "percentile"),
    "seed rows, bootstrap-t": boot(Question.METHOD_RETRAINED, "studentized"),
    "**Welch** (default, retrained)": lambda a, b, _: limits_of(
        compare(a, b, PASS1, Question.METHOD_RETRAINED)
    ),
    "rows and tasks, percentile": boot(Question.METHOD_NEW_TASKS, "percentile"),
    "**crossed** (default, new tasks)": lambda a, b, _: limits_of(
        compare(a, b, PASS1, Question.METHOD_NEW_TASKS)
    ),
}


def coverage(rng: Generator, studies: int) -> None:
    """Coverage of the difference of two methods, on these tasks and on new ones."""
    designs = [
        (3, 100, 1, 0.15),
        (5, 100, 1, 0.15),
        (10, 100, 1, 0.15),
        (3, 100, 16, 0.15),
        (10, 100, 16, 0.15),
    ]
    results: dict[str, list[str]] = {name: [] for name in ESTIMATORS}
    spreads = []
    for seeds, tasks, attempts, seed_sd in designs:
        inside = {name: [0, 0, 0] for name in ESTIMATORS}
        seed_means = []
        for _ in range(studies):
            (a, b), truth = study(rng, seeds, tasks, attempts, seed_sd)
            seed_means.append(a.scores(PASS1).mean(axis=1).var(ddof=1))
            for name, limits in ESTIMATORS.items():
                found = limits(a, b, rng)
                if found is not None:
                    inside[name][0] += found[0] <= truth <= found[1]
                    inside[name][1] += found[0] <= 0 <= found[1]
                    inside[name][2] += 1
        spreads.append(100 * float(np.sqrt(np.mean(seed_means))))
        for name, (fixed, new, given) in inside.items():
            results[name].append(f"{fixed / given:.3f} / {new / given:.3f}" if given else "refused")
    print(f"\n### Coverage of 95 % intervals, these tasks / new tasks ({studies} studies a column)\n")
    heads = [f"S={s}, T={t}, R={r}" for s, t, r, _ in designs]
    print("| interval | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(heads))
    for name, cells in results.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("| sd of seed means, points | " + " | ".join(f"{x:.1f}" for x in spreads) + " |")


def pass_k(rng: Generator, studies: int) -> None:
    """Coverage for pass@k and pass^k, of single values and of whole curves."""
    print(f"\n### pass@k and pass^k ({studies} studies)\n\n| target | coverage |\n|---|---|")
    for metric in (Metric("pass_at", 8), Metric("pass_hat", 4)):
        inside = 0
        for _ in range(studies):
            arms, truth = study(rng, 5, 100, 16, 0.15, metric)
            found = compare(*arms, metric, Question.METHOD_RETRAINED)
            inside += isinstance(found, Comparison) and found.lo <= truth <= found.hi
        print(f"| {metric.label}, method on these tasks, 5 seeds | {inside / studies:.3f} |")
    p = rng.beta(0.3, 0.5, (2, 80))
    n = np.full((1, 80), 16)
    names = tuple(str(i) for i in range(80))
    for kind in ("pass_at", "pass_hat"):
        q = 1 - p if kind == "pass_at" else p
        truth = np.array([(q[0] ** k - q[1] ** k).mean() for k in (1, 2, 4, 8)])
        truth = -truth if kind == "pass_at" else truth
        one = band = 0
        for _ in range(studies):
            arms = [Counts("x", (0,), names, rng.binomial(16, row)[None], n) for row in p]
            found = compare(*arms, Metric(kind, 8), Question.THESE_CHECKPOINTS)
            one += isinstance(found, Comparison) and found.lo <= truth[-1] <= found.hi
            whole = curve(arms, (1, 2, 4, 8), kind, Question.THESE_CHECKPOINTS, rng=rng)
            band += isinstance(whole, Curve) and bool(np.all((whole.lo <= truth) & (truth <= whole.hi)))
        name = Metric(kind, 8).label
        print(f"| {name} from 16 attempts, these checkpoints | {one / studies:.3f} |")
        print(f"| curve to {name}, whole band, these checkpoints | {band / studies:.3f} |")


def tests_and_looks(rng: Generator, studies: int) -> None:
    """False-positive rates of tests and of adding seeds."""
    print("\n### False-positive rates at a nominal 5 %\n\n| rule | rate |\n|---|---|")
    many = 40_000
    for seeds in (3, 5, 10):
        a, b = rng.standard_normal((2, many, seeds))
        rate = np.mean(scipy_stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue < 0.05)
        print(f"| Welch, {seeds} seeds per arm | {rate:.3f} |")
    rate = np.mean([permute_seeds(*rng.standard_normal((2, 4)), alpha=0.05).p <= 0.05 for _ in range(4000)])
    print(f"| exact permutation, 4 seeds per arm (attainable: {2 / 70:.3f}) | {rate:.3f} |")
    hits = 0
    for _ in range(studies):
        (a, b), _ = study(rng, 1, 15, 64, 0.0)
        hits += flip_task_clusters(a, b, PASS1).p <= 0.05
    print(f"| task sign flip, 15 tasks (ties make it conservative) | {hits / studies:.3f} |")
    looks = tuple(range(3, 11))
    a, b = rng.standard_normal((2, many, 20))

    def p_at(seeds: int) -> np.ndarray:
        return scipy_stats.ttest_ind(a[:, :seeds], b[:, :seeds], axis=1, equal_var=False).pvalue

    p = np.stack([p_at(n) for n in range(3, 21)], axis=1)
    print(f"| outside: add a seed until p < .05, 3 to 10 | {(p[:, :8] < 0.05).any(axis=1).mean():.3f} |")
    print(f"| outside: the same, 3 to 20 | {(p < 0.05).any(axis=1).mean():.3f} |")
    levels = np.array(obrien_fleming_levels(looks))
    print(f"| O'Brien-Fleming looks, 3 to 10 | {(p[:, :8] <= levels).any(axis=1).mean():.3f} |")
    reached = np.zeros(2000, dtype=bool)
    for n in range(3, 21):
        t = scipy_stats.ttest_ind(a[:2000, :n], b[:2000, :n], axis=1).statistic
        reached |= np.array([e_value(x, n) for x in t]) >= 20
    print(f"| e-value >= 20, any look from 3 to 20 | {reached.mean():.3f} |")


def variances_and_selection(rng: Generator, studies: int) -> None:
    """Variance limits and the optimism of the best checkpoint."""
    print("\n### Variance components and checkpoint choice\n\n| quantity | value |\n|---|---|")
    for seeds in (3, 10):
        inside = 0
        for _ in range(studies):
            p = 0.5 + 0.03 * rng.standard_normal((seeds, 1)) + 0.1 * rng.standard_normal(60)
            p = np.clip(p + 0.05 * rng.standard_normal((seeds, 60)), 0, 1)
            c = rng.binomial(16, p)
            arm = Counts("x", tuple(range(seeds)), tuple(map(str, range(60))), c, np.full_like(c, 16))
            found = variance_components(arm, PASS1).seed
            inside += found.lo <= 0.03**2 <= found.hi
        print(f"| coverage of the seed variance, {seeds} seeds | {inside / studies:.3f} |")
    runs = []
    for _ in range(studies):
        p = np.clip(0.4 + 0.25 * rng.standard_normal(100) + 0.05 * rng.standard_normal((30, 100)), 0, 1)
        found = select_checkpoint(rng.binomial(4, p) / 4, rng=rng, folds=5)
        truth = p.mean()
        runs.append((found.best - truth, found.cross_fitted - truth, p[found.best_checkpoint].mean() - truth))
    bias, error = 100 * np.mean(runs, axis=0), 100 * np.std(runs, axis=0) / np.sqrt(studies)
    for name, value, sd in zip(
        ("best of 30 checkpoints, reported", "cross-fitted", "best, fresh attempts on the same tasks"),
        bias,
        error,
        strict=True,
    ):
        print(f"| bias in points: {name} | {value:+.2f} ± {sd:.2f} |")


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.process_time()
    for position, part in enumerate((coverage, pass_k, tests_and_looks, variances_and_selection)):
        part(np.random.default_rng([options.seed, position]), options.studies)
    print(f"\n{options.studies} studies, seed {options.seed}, {time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
