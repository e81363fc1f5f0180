"""Critics that know nothing of turns, at the same turn and observation lengths as the trajectories at hand.

What these give is what a between-turn share means by itself: any slowly varying curve cut into pieces has pieces
with different means. Expected share over K equal turns: 1 - 1/K for a random walk, (K - 1)/(N - 1) for white noise,
(K^2 - 1) L^2 / (K^2 L^2 - 1) for a straight line.

Every null is a process on action tokens; the steps between adjacent tokens of a trajectory may depend on whether a
turn boundary, with its observation tokens, lies between them. Scales do not matter: every statistic that is compared
is a share or a comparison within a trajectory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from turnscale.diagnose.values import CriticValues
from turnscale.stats.passk import Floats

INFORMATION = 9.0
"""Variance of the log odds that a trajectory of average length gathers. Much more evidence settles the posterior
early and lowers the share: 0.83 of varying turns at 9, 0.51 at 64."""
NOISE = 0.1
"""Standard deviation of the noise around the drift, as a part of its range."""
MOST = 1000
"""Trajectories simulated at most; lengths are drawn from those at hand if there are more."""


def white_noise(critic: CriticValues, rng: Generator) -> Floats:
    """Independent values."""
    return rng.standard_normal(critic.values.size)


def random_walk(critic: CriticValues, rng: Generator) -> Floats:
    """One step per action token; observations are no time."""
    return walk(critic, rng.standard_normal(critic.values.size))


def walk_through_observations(critic: CriticValues, rng: Generator) -> Floats:
    """A random walk over all tokens, of which those of observations are not seen."""
    return walk(critic, rng.standard_normal(critic.values.size) * np.sqrt(_elapsed(critic)))


def martingale(critic: CriticValues, rng: Generator) -> Floats:
    """The probability of success of a Bayesian to whom every action token brings equally much evidence.

    The log odds move by N(+-s^2/2, s^2) a token, up in trajectories that succeed; what each value expects of the
    next is itself.
    """
    step = np.sqrt(INFORMATION / critic.tokens.mean())
    success = rng.random(critic.size) < 0.5
    drift = np.where(success, 0.5, -0.5)[critic.row_of_token] * step**2
    odds = walk(critic, drift + step * rng.standard_normal(critic.values.size))
    return 1.0 / (1.0 + np.exp(-odds))


def drift(critic: CriticValues, rng: Generator) -> Floats:
    """A straight line over action tokens."""
    return np.arange(critic.values.size, dtype=np.float64) - critic.token_starts[critic.row_of_token]


def drift_with_noise(critic: CriticValues, rng: Generator) -> Floats:
    """A straight line with white noise of 0.1 of its range."""
    line = drift(critic, rng) / np.maximum(critic.tokens - 1, 1)[critic.row_of_token]
    return line + NOISE * rng.standard_normal(line.size)


def mean_reverting(time: float) -> Callable[[CriticValues, Generator], Floats]:
    """An Ornstein-Uhlenbeck process, stationary from the start.

    Args:
        time: relaxation time as a part of the mean number of action tokens of a trajectory.
    """

    def process(critic: CriticValues, rng: Generator) -> Floats:
        from scipy.signal import lfilter  # most of a second, which tables and figures need not wait for

        keep = float(np.exp(-1.0 / (time * critic.tokens.mean())))
        noise = rng.standard_normal(critic.values.size) * np.sqrt(1.0 - keep**2)
        noise[critic.token_starts] /= np.sqrt(1.0 - keep**2)
        width = int(critic.tokens.max())
        column = np.arange(critic.values.size) - critic.token_starts[critic.row_of_token]
        found = np.empty(critic.values.size)
        batch = max(1, 4_000_000 // width)
        for first in range(0, critic.size, batch):
            chosen = (critic.row_of_token >= first) & (critic.row_of_token < first + batch)
            place = (critic.row_of_token[chosen] - first, column[chosen])
            padded = np.zeros((min(batch, critic.size - first), width))
            padded[place] = noise[chosen]
            found[chosen] = lfilter([1.0], [1.0, -keep], padded, axis=1)[place]
        return found

    return process


def steps(critic: CriticValues, rng: Generator) -> Floats:
    """Constant inside a turn, a random walk over turns."""
    jumps = np.zeros(critic.values.size)
    jumps[critic.turn_starts] = rng.standard_normal(critic.turn_starts.size)
    return walk(critic, jumps)


NULLS: dict[str, tuple[str, Callable[[CriticValues, Generator], Floats]]] = {
    "white_noise": ("white noise", white_noise),
    "ou_fast": ("mean-reverting, 5 % of a trajectory", mean_reverting(0.05)),
    "ou_slow": ("mean-reverting, 50 % of a trajectory", mean_reverting(0.5)),
    "random_walk": ("random walk", random_walk),
    "walk_observations": ("random walk through observations", walk_through_observations),
    "martingale": ("Bayesian posterior", martingale),
    "drift_noise": ("straight line with noise", drift_with_noise),
    "drift": ("straight line", drift),
    "steps": ("steps at boundaries only", steps),
}
"""name -> (printed name, process). All but the last know nothing of turns."""

TURN_FREE = tuple(name for name in NULLS if name != "steps")


def simulate(critic: CriticValues, name: str, rng: Generator, most: int = MOST) -> CriticValues:
    """A null's values at lengths of the trajectories at hand, each trajectory a cluster of its own.

    Args:
        critic: whose lengths and gaps to use.
        name: a key of `NULLS`.
        rng: draws lengths (if more than ``most`` trajectories are at hand) and values.
    """
    chosen = np.arange(critic.size)
    if critic.size > most:
        chosen = np.sort(rng.choice(critic.size, most, replace=False))
    part = critic.rows(chosen)
    values = NULLS[name][1](part, rng)
    return CriticValues(
        values, part.turn_starts, part.row_starts, part.gaps, part.reward, part.success, np.arange(part.size)
    )


def walk(critic: CriticValues, increments: Floats) -> Floats:
    """[N] running sums of increments [N] inside each trajectory, starting from 0."""
    total = np.cumsum(np.where(np.arange(increments.size) == 0, 0.0, increments))
    return total - total[critic.token_starts][critic.row_of_token]


def _elapsed(critic: CriticValues) -> Floats:
    """[N] tokens from the action token before to each one, observations included; 1 inside a turn."""
    elapsed = np.ones(critic.values.size)
    later = critic.boundaries
    elapsed[critic.turn_starts[later]] += critic.gaps[later]
    return elapsed
