"""Exact tests, with the smallest p value that the design can reach.

A permutation test over seeds answers for the method; a sign flip over task clusters answers for these
checkpoints on tasks like these. Three seeds against three cannot go below p = 0.10: at a level under its floor
a test is not run but refused, with the number of seeds that would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from turnscale.errors import DataError
from turnscale.stats.outcomes import Counts, check_same_tasks
from turnscale.stats.passk import Floats, Metric
from turnscale.stats.question import NotEstimable, Question

MAX_ARRANGEMENTS = 2_000_000
BLOCK = 65_536
SLACK = 1e-12  # two arrangements closer than this, relative to the data, are ties


@dataclass(frozen=True)
class ExactTest:
    """Two-sided p value of `difference`. `floor` is the smallest p of this design, `attainable` of these data.

    `exact` is False where the arrangements were sampled (then p = (1 + hits) / (1 + draws)).
    """

    name: str
    question: Question
    difference: float
    p: float
    floor: float
    attainable: float
    arrangements: int
    exact: bool


def permutation_floor(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of an exact permutation of n_a + n_b seeds: 2/C (equal arms) or 1/C."""
    return (2 if n_a == n_b else 1) / comb(n_a + n_b, n_a)


def sign_flip_floor(units: int) -> float:
    """Smallest two-sided p of an exact sign flip over `units` pairs or clusters."""
    return 2.0 / 2.0**units


def permute_seeds(a: ArrayLike, b: ArrayLike, *, alpha: float = 0.05) -> ExactTest | NotEstimable:
    """Exact permutation test of the difference of mean scores of two arms, one number per seed.

    Valid if the arms' seeds are exchangeable under the null. Returns NotEstimable if `alpha` lies below the
    floor. Raises DataError for an empty arm or more than 2,000,000 arrangements.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise DataError("a seed permutation takes one number per seed and at least one seed per arm")
    floor, total = permutation_floor(x.size, y.size), comb(x.size + y.size, x.size)
    if alpha < floor:
        enough = next(n for n in range(2, 100) if permutation_floor(n, n) <= alpha)
        return _below_floor(Question.METHOD_RETRAINED, floor, alpha, f"train {enough} seeds per arm", x, y)
    if total > MAX_ARRANGEMENTS:
        raise DataError(
            f"{total} arrangements of {x.size} and {y.size} seeds are too many to list",
            remedy="use the Welch interval, which is accurate with this many seeds",
        )
    pooled = np.concatenate([x, y])
    centred = pooled - pooled.mean()
    # The difference of means is proportional to the sum over the first arm once the pool is centred.
    observed = abs(centred[: x.size].sum())
    sums = np.concatenate(
        [np.abs(centred[block].sum(axis=1)) for block in _index_blocks(pooled.size, x.size)]
    )
    slack = SLACK * max(float(np.abs(pooled).max()), 1e-300) * pooled.size
    return ExactTest(
        name="seed_permutation",
        question=Question.METHOD_RETRAINED,
        difference=float(x.mean() - y.mean()),
        p=float(np.mean(sums >= observed - slack)),
        floor=floor,
        attainable=float(np.mean(sums >= sums.max() - slack)),
        arrangements=total,
        exact=True,
    )


def flip_seed_pairs(
    a: ArrayLike, b: ArrayLike, *, alpha: float = 0.05, rng: Generator | None = None
) -> ExactTest | NotEstimable:
    """Sign-flip test over seeds that were paired by design (same initialisation and data order in both arms).

    Returns NotEstimable if `alpha` lies below the floor 2/2^S.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or not x.size:
        raise DataError("paired seeds need the same number of scores in both arms")
    return _flip("seed_sign_flip", Question.METHOD_RETRAINED, x - y, alpha, "seed pairs", rng)


def flip_task_clusters(
    a: Counts, b: Counts, metric: Metric, *, alpha: float = 0.05, rng: Generator | None = None
) -> ExactTest | NotEstimable:
    """Swap the two arms' labels within whole task clusters (jointly over seeds and attempts).

    Answers TASKS_LIKE_THESE only: the checkpoints are fixed. Exact up to 20 clusters; beyond that `rng` draws
    99,999 flips, and without it DataError is raised.
    """
    check_same_tasks(a, b)
    difference = a.scores(metric).mean(axis=0) - b.scores(metric).mean(axis=0)
    sums = np.bincount(a.cluster_labels, weights=difference) / difference.size
    return _flip("task_sign_flip", Question.TASKS_LIKE_THESE, sums * sums.size, alpha, "task clusters", rng)


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided McNemar p value from the discordant tasks; 1.0 if there are none."""
    if won < 0 or lost < 0:
        raise DataError("discordant counts cannot be negative")
    return min(1.0, 2 * float(binom.cdf(min(won, lost), won + lost, 0.5))) if won + lost else 1.0


def mcnemar_counts(a: Counts, b: Counts) -> ExactTest:
    """McNemar's test of two checkpoints with one attempt per task.

    Raises DataError for more attempts or seeds: use the paired task interval, which uses all of them.
    """
    check_same_tasks(a, b)
    if a.c.shape[0] != 1 or b.c.shape[0] != 1 or a.n.max() > 1 or b.n.max() > 1:
        raise DataError(
            "McNemar's test takes one checkpoint per arm with one attempt per task",
            key=f"{a.arm}/{b.arm}",
            remedy="use compare(…, Question.TASKS_LIKE_THESE) for several attempts or seeds",
        )
    won, lost = int((a.c > b.c).sum()), int((a.c < b.c).sum())
    floor = mcnemar(won + lost, 0)
    return ExactTest(
        name="mcnemar_exact",
        question=Question.TASKS_LIKE_THESE,
        difference=(won - lost) / a.c.size,
        p=mcnemar(won, lost),
        floor=floor,
        attainable=floor,
        arrangements=2 ** (won + lost),
        exact=True,
    )


def _flip(
    name: str, question: Question, units: Floats, alpha: float, what: str, rng: Generator | None
) -> ExactTest | NotEstimable:
    """Sign-flip test of the mean of `units` [G] against zero."""
    floor = sign_flip_floor(units.size)
    if alpha < floor:
        enough = next(n for n in range(2, 200) if sign_flip_floor(n) <= alpha)
        return _below_floor(question, floor, alpha, f"collect {enough} {what}", units, np.zeros(1))
    exact = 2**units.size <= MAX_ARRANGEMENTS // 2
    if not exact and rng is None:
        raise DataError(f"{units.size} {what} are too many to flip exactly", remedy="pass a generator as rng")
    slack = SLACK * max(float(np.abs(units).max()), 1e-300) * units.size
    observed, largest = abs(float(units.sum())), float(np.abs(units).sum())
    hits = extreme = drawn = 0
    for signs in _sign_blocks(units.size) if exact else _drawn_signs(units.size, rng):
        sums = np.abs(signs @ units)
        hits += int((sums >= observed - slack).sum())
        extreme += int((sums >= largest - slack).sum())
        drawn += sums.size
    nonzero = int((np.abs(units) > slack / units.size).sum())
    return ExactTest(
        name=name,
        question=question,
        difference=float(units.mean()),
        p=hits / drawn if exact else (1 + hits) / (1 + drawn),
        floor=floor if exact else max(floor, 1 / (1 + drawn)),
        attainable=extreme / drawn if exact else max(sign_flip_floor(max(nonzero, 1)), 1 / (1 + drawn)),
        arrangements=drawn,
        exact=exact,
    )


def _index_blocks(size: int, chosen: int) -> Iterator[NDArray[np.int64]]:
    every = combinations(range(size), chosen)
    while block := list(islice(every, BLOCK)):
        yield np.array(block, dtype=np.int64)


def _sign_blocks(units: int) -> Iterator[Floats]:
    total = 2**units
    for start in range(0, total, BLOCK):
        codes = np.arange(start, min(start + BLOCK, total))
        yield np.where(codes[:, None] >> np.arange(units) & 1, 1.0, -1.0)


def _drawn_signs(units: int, rng: Generator | None, draws: int = 99_999) -> Iterator[Floats]:
    assert rng is not None
    block = max(1, BLOCK * 16 // units)
    for start in range(0, draws, block):
        yield rng.choice(np.array([-1.0, 1.0]), size=(min(block, draws - start), units))


def _below_floor(
    question: Question, floor: float, alpha: float, remedy: str, x: Floats, y: Floats
) -> NotEstimable:
    return NotEstimable(
        question=question,
        reason=f"the smallest attainable p is {floor:.3g}, above the level {alpha:g}",
        remedy=f"{remedy}, or use an interval",
        value=float(x.mean() - y.mean()),
        n_seeds=(x.size, y.size) if question.about_method else (),
    )
