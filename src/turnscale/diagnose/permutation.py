"""The turn-length permutation test: is the between-turn share larger than the same lengths in another order give?

Inside each trajectory the order of the turn lengths is permuted and the share computed again on the same values. If
the boundaries have nothing to do with the values, and every order of the lengths is as likely as any other, observed
and permuted shares are exchangeable, whatever process the values follow: the test is then exact. Excess = observed
minus the mean of the permuted shares. Turns of equal length leave nothing to permute: untestable.

Where lengths follow a pattern of their own (a short last answer, say) and the values change faster in some part of
a trajectory, the second condition fails; an excess can then have either sign without any turn effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from turnscale.diagnose.statistics import token_share
from turnscale.diagnose.summary import Statistic, cluster_t
from turnscale.diagnose.values import CriticValues
from turnscale.stats.passk import Floats, Ints

PERMUTATIONS = 99
ROUNDING = 1e-12
UNTESTABLE = "untestable: no trajectory has turns of different lengths"


@dataclass(frozen=True, eq=False)
class Permuted:
    """Shares under permuted turn lengths.

    Attributes:
        observed: [M] token-weighted shares; NaN where a trajectory is untestable.
        shares: [P, M] shares under permuted lengths, NaN at the same places.
    """

    observed: Floats
    shares: Floats

    @property
    def excess(self) -> Floats:
        """[M] observed share minus the mean of the permuted shares; rounding errors are 0."""
        found = self.observed - self.shares.mean(axis=0)
        return np.where(np.abs(found) < ROUNDING, 0.0, found)


def permuted_lengths(critic: CriticValues, rng: Generator) -> Ints:
    """[J] turn lengths in a uniformly random order inside each trajectory."""
    return critic.lengths[np.argsort(critic.row_of_turn + rng.random(critic.lengths.size))]


def permute(critic: CriticValues, rng: Generator, permutations: int = PERMUTATIONS) -> Permuted:
    """Observed and permuted shares of every trajectory that has turns of different lengths."""
    values = critic.centred
    center = np.add.reduceat(values, critic.token_starts) / critic.tokens
    total = np.add.reduceat((values - center[critic.row_of_token]) ** 2, critic.token_starts) / critic.tokens
    high = np.maximum.reduceat(critic.lengths, critic.row_starts)
    varied = high > np.minimum.reduceat(critic.lengths, critic.row_starts)
    total = np.where(varied, total, 0.0)
    observed = token_share(critic, critic.lengths, total)
    shares = [token_share(critic, permuted_lengths(critic, rng), total) for _ in range(permutations)]
    return Permuted(observed, np.stack(shares))


def excess_share(found: Permuted, prompt: Ints, chosen: Ints | None = None) -> dict[str, Statistic]:
    """The mean excess with a t interval over prompts, and the p values of an excess above 0.

    Args:
        found: from :func:`permute`.
        prompt: [M] cluster labels.
        chosen: indices of the trajectories to use, all by default.

    Returns:
        ``excess_share``; ``excess_p`` (cluster t, one-sided) and ``permutation_p`` (rank of the observed mean
        among the permuted ones, one-sided; at least 1 / (P + 1)).
    """
    keep = np.arange(prompt.size) if chosen is None else chosen
    excess, p = cluster_t(found.excess[keep], prompt[keep])
    testable = keep[np.isfinite(found.observed[keep])]
    rank = np.nan
    if testable.size:
        mean, other = found.observed[testable].mean(), found.shares[:, testable].mean(axis=1)
        rank = float(1 + (other >= mean * (1 - ROUNDING)).sum()) / (1 + other.size)
    note = "" if testable.size else UNTESTABLE
    counts = (excess.n_trajectories, excess.n_prompts, excess.left_out, note or excess.note)

    def bare(value: float) -> Statistic:
        return Statistic(value, np.nan, np.nan, *counts)

    return {
        "excess_share": Statistic(excess.value, excess.lo, excess.hi, *counts),
        "excess_p": bare(p),
        "permutation_p": bare(rank),
    }
