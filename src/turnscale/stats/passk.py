"""Unbiased pass@k and pass^k from counts, and the unbiased attempt-level covariance of both.

pass@k: probability that at least one of k attempts succeeds (Chen et al. 2021, arXiv 2107.03374).
pass^k: probability that all k attempts succeed (τ-bench, arXiv 2406.12045).
Both are per task; average over tasks with equal weight and never pool successes over tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnscale.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kind = Literal["pass_at", "pass_hat"]


class CoarsePassKWarning(UserWarning):
    """k is above half the attempts: few distinct values, large attempt noise, no variance estimate."""


@lru_cache(maxsize=512)
def none_of_k(n: int, k: int) -> Floats:
    """[n + 1] probability that k of n attempts, drawn without replacement, miss all c successes, c = 0..n.

    C(n − c, k) / C(n, k) as the running product of 1 − k/i over i = n, n − 1, …: exact zeros, no factorials.
    Read-only. Raises DataError for k < 1 or k > n.
    """
    if k < 1 or n < 1:
        raise DataError(f"k = {k} of n = {n} attempts: both must be at least 1", remedy="ask for k >= 1")
    if k > n:
        raise DataError(
            f"pass@k and pass^k with k = {k} need at least {k} attempts per task, and one has {n}",
            remedy=f"run {k} attempts or more (2k = {2 * k} for an interval), or ask for k <= {n}",
        )
    factors = np.maximum(1 - k / np.arange(n, 0, -1), 0.0)
    table = np.concatenate([[1.0], np.cumprod(factors)])
    table.flags.writeable = False
    return table


def _check_counts(c: ArrayLike, n: ArrayLike) -> tuple[Ints, Ints]:
    successes, attempts = np.broadcast_arrays(np.asarray(c), np.asarray(n))
    for name, array in (("successes", successes), ("attempts", attempts)):
        if array.dtype.kind not in "iu":
            raise DataError(f"{name} must be integers, not {array.dtype}", remedy="pass counts, not rates")
    if np.any(successes < 0) or np.any(successes > attempts):
        raise DataError("successes must lie between 0 and the number of attempts")
    return successes.astype(np.int64), attempts.astype(np.int64)


def _lookup(c: Ints, n: Ints, table: Callable[[int], Floats]) -> Floats:
    """Value of `table(n)[c]` for each cell; one table per distinct n."""
    distinct = np.unique(n)
    if distinct.size == 1:
        return np.asarray(table(int(distinct[0])))[c]
    out = np.empty(c.shape)
    for size in distinct:
        here = n == size
        out[here] = table(int(size))[c[here]]
    return out


def _warn_coarse(n: Ints, k: int) -> None:
    if n.size and 2 * k > int(n.min()):
        warnings.warn(
            f"k = {k} is above half of n = {int(n.min())} attempts: run at least {2 * k}",
            CoarsePassKWarning,
            stacklevel=3,
        )


@lru_cache(maxsize=512)
def _table(kind: Kind, n: int, k: int) -> Floats:
    """[n + 1] value of the metric for c = 0..n successes."""
    if kind == "pass_at":
        return 1 - none_of_k(n, k)
    return none_of_k(n, k)[::-1]


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k, elementwise over attempts `n` and successes `c` (broadcast together).

    1 − C(n − c, k) / C(n, k). Raises DataError if any n < k or c is not in 0..n; warns
    `CoarsePassKWarning` if k > n/2 anywhere.
    """
    successes, attempts = _check_counts(c, n)
    values = _lookup(successes, attempts, lambda size: _table("pass_at", size, k))
    _warn_coarse(attempts, k)
    return values


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Unbiased pass^k, elementwise: C(c, k) / C(n, k). Errors and warning as in `pass_at_k`."""
    successes, attempts = _check_counts(c, n)
    values = _lookup(successes, attempts, lambda size: _table("pass_hat", size, k))
    _warn_coarse(attempts, k)
    return values


@dataclass(frozen=True)
class Metric:
    """A per-task success metric: pass@k or pass^k. pass@1 and pass^1 are both the mean success."""

    kind: Kind
    k: int

    def __post_init__(self) -> None:
        if self.kind not in ("pass_at", "pass_hat") or self.k < 1:
            raise DataError(
                f"no metric {self.kind!r} with k = {self.k}", remedy="pass_at or pass_hat, k >= 1"
            )

    @classmethod
    def parse(cls, name: str) -> Metric:
        """The metric of a stored name such as ``pass_at_1`` or ``pass_hat_3``."""
        head, _, tail = name.rpartition("_")
        if head not in ("pass_at", "pass_hat") or not tail.isdigit():
            raise DataError(f"unknown metric {name!r}", remedy="use pass_at_<k> or pass_hat_<k>")
        return cls("pass_at" if head == "pass_at" else "pass_hat", int(tail))

    @property
    def name(self) -> str:
        """Stored form, legal as a column and as a tracking-store key."""
        return f"{self.kind}_{self.k}"

    @property
    def label(self) -> str:
        """Printed form."""
        return f"pass{'@' if self.kind == 'pass_at' else '^'}{self.k}"

    def score(self, c: Ints, n: Ints) -> Floats:
        """Metric of each cell, same shape as `c`; no warning (results carry a note instead)."""
        successes, attempts = _check_counts(c, n)
        return _lookup(successes, attempts, lambda size: _table(self.kind, size, self.k))

    def coarse(self, n: Ints) -> bool:
        """True if k exceeds half the attempts of some cell."""
        return bool(2 * self.k > int(np.min(n)))


def within_cell_covariance(metrics: Sequence[Metric], c: Ints, n: Ints) -> Floats:
    """[..., K, K] unbiased estimate of the attempt-level covariance of K same-kind metrics in each cell.

    With h_k the estimate of q^k (q the failure probability for pass@k, the success probability for pass^k),
    h_j·h_k − h_{j+k} is unbiased for Cov(h_j, h_k), since h_{j+k} is unbiased for q^j·q^k; it is never
    negative on the diagonal. At k = 1 it is p(1 − p)/(n − 1) with the observed p.
    Needs j + k attempts in every cell: raises DataError otherwise.
    """
    kind = metrics[0].kind
    if any(metric.kind != kind for metric in metrics):
        raise DataError("pass@k and pass^k cannot share one covariance", remedy="ask for one kind at a time")

    def power(k: int) -> Floats:
        if kind == "pass_at":
            return _lookup(c, n, lambda size: none_of_k(size, k))
        return _lookup(c, n, lambda size: none_of_k(size, k)[::-1])

    singles = [power(metric.k) for metric in metrics]
    sums = {j + k: power(j + k) for j in {m.k for m in metrics} for k in {m.k for m in metrics}}
    out = np.empty((*c.shape, len(metrics), len(metrics)))
    for i, first in enumerate(metrics):
        for j, second in enumerate(metrics):
            out[..., i, j] = singles[i] * singles[j] - sums[first.k + second.k]
    return out
