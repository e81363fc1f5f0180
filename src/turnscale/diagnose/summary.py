"""From trajectories to one number each: medians, fractions, ratios of sums, with intervals over prompts.

Prompts are drawn again with all their trajectories, over every checkpoint that reuses them. The critic is not
drawn again: an interval of one training run is about prompts, not about critics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from turnscale.stats.bootstrap import percentile_interval, resample_rows
from turnscale.stats.passk import Floats, Ints

RESAMPLES = 1000
LEVEL = 0.95
ENOUGH_PROMPTS = 50
"""Below this many prompts a percentile interval is too narrow, which its note says."""

FEW_PROMPTS = "{} prompts: a percentile interval is too narrow below 50"
ONE_PROMPT = "one prompt: no interval"

SUMMED = (
    *("turns", "tokens", "one_token_turns", "boundaries", "pairs", "boundary_square", "total_square"),
    *("gap", "gap_square", "gap_boundary_square", "value", "value_square", "error", "error_square"),
    *("first_error", "last_error", "reward", "success"),
)
OTHER = ("share_token", "between", "within", "jump", "span", "boundary_change")

Sums = Mapping[str, Floats]


@dataclass(frozen=True)
class Statistic:
    """One number of a set of trajectories.

    Attributes:
        value: NaN where it is undefined.
        lo, hi: 95 % limits over prompts, NaN where there are none.
        n_trajectories, n_prompts: those that entered.
        left_out: trajectories that have no such number (one turn, constant values, nothing to test).
        note: what limits the interval, or why there is no value.
    """

    value: float
    lo: float
    hi: float
    n_trajectories: int
    n_prompts: int
    left_out: int
    note: str = ""


MEDIANS = {
    "share_token": "share_token",
    "share_turn": "share_turn",
    "share_long": "share_long",
    "boundary_share_median": "boundary_share",
}
"""statistic -> column whose median it is, over trajectories where it is defined."""


def _divide(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=np.asarray(bottom) > 0)


def _fraction(name: str) -> Callable[[Sums], Floats]:
    return lambda s: _divide(s[name], s[f"{name}_known"])


def _explained(error: str, weight: str, reward: str, centred: bool) -> Callable[[Sums], Floats]:
    def statistic(s: Sums) -> Floats:
        n = s[weight]
        spread = _divide(s[f"{reward}_square"], n) - _divide(s[reward], n) ** 2
        miss = _divide(s[f"{error}_square"], n) - (_divide(s[error], n) ** 2 if centred else 0.0)
        # A variance of equal rewards is a rounding error of their square.
        defined = spread > 1e-12 * np.maximum(_divide(s[f"{reward}_square"], n), np.finfo(float).tiny)
        return 1.0 - np.divide(miss, spread, out=np.full(np.shape(n), np.nan), where=defined)

    return statistic


def _slope(s: Sums) -> Floats:
    n = s["tokens"]
    covariance = _divide(s["value_reward"], n) - _divide(s["value"], n) * _divide(s["token_reward"], n)
    spread = _divide(s["value_square"], n) - _divide(s["value"], n) ** 2
    known = spread > 1e-12 * _divide(s["value_square"], n)
    return np.divide(covariance, spread, out=np.full(np.shape(n), np.nan), where=known)


def _enrichment(s: Sums) -> Floats:
    return _divide(_divide(s["boundary_square"], s["total_square"]), _divide(s["boundaries"], s["pairs"]))


def _clock(s: Sums) -> tuple[Floats, Floats]:
    """Intercept and slope of (change at a boundary)^2 on the observation tokens before it; NaN if those are equal."""
    n = s["boundaries"]
    gap, square = _divide(s["gap"], n), _divide(s["boundary_square"], n)
    spread = _divide(s["gap_square"], n) - gap**2
    known = spread > 1e-12 * np.maximum(_divide(s["gap_square"], n), np.finfo(float).tiny)
    covariance = _divide(s["gap_boundary_square"], n) - gap * square
    slope = np.divide(covariance, spread, out=np.full(np.shape(n), np.nan), where=known)
    return square - slope * gap, slope


def _clock_excess(s: Sums) -> Floats:
    """(Intercept - mean squared change within turns) / mean squared change at boundaries."""
    within = _divide(s["total_square"] - s["boundary_square"], s["pairs"] - s["boundaries"])
    return _divide(_clock(s)[0] - within, _divide(s["boundary_square"], s["boundaries"]))


def _clock_rate(s: Sums) -> Floats:
    """Squared change per elapsed token (observations included) at boundaries / squared change per token in turns."""
    within = _divide(s["total_square"] - s["boundary_square"], s["pairs"] - s["boundaries"])
    return _divide(_divide(s["boundary_square"], s["boundaries"] + s["gap"]), within)


RATIOS: dict[str, Callable[[Sums], Floats]] = {
    "between_exceeds_within": _fraction("exceeds"),
    "jump_exceeds_span": _fraction("jumps"),
    "boundary_share": lambda s: _divide(s["boundary_square"], s["total_square"]),
    "boundary_pairs": lambda s: _divide(s["boundaries"], s["pairs"]),
    "enrichment": _enrichment,
    "clock_intercept": lambda s: _clock(s)[0],
    "clock_slope": lambda s: _clock(s)[1],
    "clock_excess": _clock_excess,
    "clock_rate": _clock_rate,
    "one_token_turns": lambda s: _divide(s["one_token_turns"], s["turns"]),
    "turns": lambda s: _divide(s["turns"], s["rows"]),
    "tokens": lambda s: _divide(s["tokens"], s["rows"]),
    "success": lambda s: _divide(s["success"], s["rows"]),
    "explained_variance": _explained("error", "tokens", "token_reward", False),
    "explained_variance_centred": _explained("error", "tokens", "token_reward", True),
    "explained_variance_first": _explained("first_error", "rows", "reward", True),
    "explained_variance_last": _explained("last_error", "rows", "reward", True),
    "squared_error": lambda s: _divide(s["error_square"], s["tokens"]),
    "calibration_slope": _slope,
    "boundary_change_failed": lambda s: _divide(s["failed_change"], s["failed_boundaries"]),
    "boundary_change_succeeded": lambda s: _divide(s["succeeded_change"], s["succeeded_boundaries"]),
}
"""statistic -> function of sums over trajectories."""

STATISTICS = (*MEDIANS, *RATIOS)


def summarise(
    rows: pd.DataFrame, rng: np.random.Generator, *, resamples: int = RESAMPLES, level: float = LEVEL
) -> dict[str, Statistic]:
    """Every statistic of `STATISTICS` of some trajectories.

    Args:
        rows: from :func:`turnscale.diagnose.statistics.trajectory_statistics`, one or more.
        rng: source of the resamples.
        resamples: bootstrap draws of prompts.
        level: of the percentile intervals.
    """
    labels, prompt = np.unique(rows["prompt"].to_numpy(), return_inverse=True)
    terms = _terms(rows)
    names = list(terms)
    sums = np.stack([np.bincount(prompt, terms[name], labels.size) for name in names], axis=1)
    columns = {name: rows[column].to_numpy(np.float64) for name, column in MEDIANS.items()}
    medians = {name: _Median(column, prompt) for name, column in columns.items()}

    def of(weights: Ints) -> Floats:
        totals = dict(zip(names, (weights @ sums).T, strict=True))
        found = [median(weights) for median in medians.values()]
        found += [statistic(totals) for statistic in RATIOS.values()]
        return np.stack(found, axis=1)

    value = of(np.ones((1, labels.size), dtype=np.int64))[0]
    lo = hi = np.full(value.shape, np.nan)
    if labels.size > 1:
        draws = resample_rows(labels.size, resamples, rng, of, bytes_per_replicate=32 * len(rows))
        with np.errstate(invalid="ignore"):
            lo, hi = percentile_interval(draws, level)
    note = ONE_PROMPT if labels.size == 1 else ""
    if 1 < labels.size < ENOUGH_PROMPTS:
        note = FEW_PROMPTS.format(labels.size)
    found, counted = {}, dict[bytes, tuple[int, int, int]]()
    for place, name in enumerate(STATISTICS):
        entered = _entered(rows, name)
        mask = entered.tobytes()  # most statistics are about the same trajectories
        if mask not in counted:
            counted[mask] = (int(entered.sum()), np.unique(prompt[entered]).size, int((~entered).sum()))
        limits = (float(value[place]), float(lo[place]), float(hi[place]))
        found[name] = Statistic(*limits, *counted[mask], note)
    return found


def cluster_t(values: Floats, prompt: Ints, *, level: float = LEVEL) -> tuple[Statistic, float]:
    """Mean over trajectories with a t interval over prompts, and the one-sided p of a mean above 0.

    Args:
        values: [M]; NaN where a trajectory has none.
        prompt: [M] cluster labels.
    """
    known = np.isfinite(values)
    found, clusters = values[known], np.unique(prompt[known], return_inverse=True)[1]
    left_out, groups = int((~known).sum()), int(clusters.max()) + 1 if found.size else 0
    if not found.size:
        return Statistic(np.nan, np.nan, np.nan, 0, 0, left_out), np.nan
    mean = float(found.mean())
    if groups < 2:
        return Statistic(mean, np.nan, np.nan, found.size, groups, left_out, ONE_PROMPT), np.nan
    error = np.bincount(clusters, found - mean)
    se = float(np.sqrt(groups / (groups - 1) * (error**2).sum())) / found.size
    half = float(stdtrit(groups - 1, 0.5 + level / 2)) * se
    p = float(stdtr(groups - 1, -mean / se)) if se > 0 else np.nan
    return Statistic(mean, mean - half, mean + half, found.size, groups, left_out), p


class _Median:
    """Median of a column under integer weights of prompts, NaN entries left out."""

    def __init__(self, column: Floats, prompt: Ints) -> None:
        known = np.flatnonzero(np.isfinite(column))
        order = known[np.argsort(column[known], kind="stable")]
        self.values, self.prompt = column[order], prompt[order]

    def __call__(self, weights: Ints) -> Floats:
        """[R] medians under prompt weights [R, G]: the mean of the two middle ones, as ``numpy.median``."""
        if not self.values.size:
            return np.full(weights.shape[0], np.nan)
        counts = np.cumsum(weights.astype(np.int32)[:, self.prompt], axis=1, dtype=np.int32)
        total = counts[:, -1]
        middle = [
            self.values[np.minimum(np.count_nonzero(counts <= place[:, None], axis=1), self.values.size - 1)]
            for place in ((total - 1) // 2, total // 2)
        ]
        return np.where(total > 0, (middle[0] + middle[1]) / 2, np.nan)


def _entered(rows: pd.DataFrame, statistic: str) -> np.ndarray:
    """[M] trajectories that a statistic is about."""
    if statistic in MEDIANS:
        return np.isfinite(rows[MEDIANS[statistic]].to_numpy())
    if statistic == "between_exceeds_within":
        return np.isfinite(rows["share_token"].to_numpy())
    several = rows["turns"].to_numpy() > 1
    if statistic == "jump_exceeds_span" or statistic.startswith("clock_"):
        return several
    if statistic.startswith("boundary_change"):
        return several & (rows["success"].to_numpy() == statistic.endswith("succeeded"))
    return np.ones(len(rows), dtype=bool)


def _terms(rows: pd.DataFrame) -> dict[str, Floats]:
    """What the ratios are sums of, [M] each."""
    get = {name: rows[name].to_numpy(np.float64) for name in (*SUMMED, *OTHER)}
    shared, several = np.isfinite(get["share_token"]), get["turns"] > 1
    jump = np.nan_to_num(get["jump"])
    return {
        **{name: get[name] for name in SUMMED},
        "rows": np.ones(len(rows)),
        "exceeds": (shared & (get["between"] > get["within"])).astype(np.float64),
        "exceeds_known": shared.astype(np.float64),
        "jumps": (several & (jump > get["span"])).astype(np.float64),
        "jumps_known": several.astype(np.float64),
        "token_reward": get["tokens"] * get["reward"],
        "token_reward_square": get["tokens"] * get["reward"] ** 2,
        "value_reward": get["value"] * get["reward"],
        "reward_square": get["reward"] ** 2,
        "first_error_square": get["first_error"] ** 2,
        "last_error_square": get["last_error"] ** 2,
        "failed_change": get["boundary_change"] * (1 - get["success"]),
        "failed_boundaries": get["boundaries"] * (1 - get["success"]),
        "succeeded_change": get["boundary_change"] * get["success"],
        "succeeded_boundaries": get["boundaries"] * get["success"],
    }
