"""Means over seeds of quantities logged during training, with the interval over seeds at each step."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from turnscale.stats.intervals import ROUNDING
from turnscale.stats.passk import Floats
from turnscale.stats.spread import combine, seeds_part


def over_seeds(values: Floats, level: float = 0.95) -> tuple[Floats, Floats, Floats]:
    """Mean and t interval over the rows of ``values`` [S, K], at each of the K steps alone.

    Returns:
        mean, lo and hi, each [K]; lo and hi are NaN for one seed, and where all seeds agree.
    """
    mean = values.mean(axis=0)
    if values.shape[0] < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    se, df, _ = combine([seeds_part(values[:, None, :])])
    half = np.where(se > ROUNDING, stdtrit(df, 0.5 + level / 2) * se, np.nan)
    return mean, mean - half, mean + half


def blocks(steps: Floats, values: Floats, count: int) -> tuple[Floats, Floats]:
    """At most ``count`` means over equal runs of neighbouring steps (the last may be shorter).

    Args:
        steps: [K] ascending.
        values: [S, K].

    Returns:
        Mean step [B] and mean value [S, B] of each block.
    """
    width = -(-steps.size // count)
    starts = np.arange(0, steps.size, width)
    sizes = np.diff(np.append(starts, steps.size))
    return np.add.reduceat(steps, starts) / sizes, np.add.reduceat(values, starts, axis=1) / sizes
