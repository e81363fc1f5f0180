"""Statistics of one trajectory's critic values: how much of their variation lies between turns.

A trajectory has turns t = 1..K of L_t action tokens, N = sum L_t; observation tokens carry no value and are left
out; variances divide by the count. mu_t and s_t^2 are a turn's mean and variance, mu the mean over tokens.

* token-weighted: B = sum (L_t/N) (mu_t - mu)^2, W = sum (L_t/N) s_t^2, share = B / (B + W); B + W is the variance;
* turn-equal: the same with every turn counting once;
* jump = mean over boundaries of |first value of a turn - last value of the turn before|;
  span = mean over turns of the 95th minus the 5th percentile within the turn (linear);
* boundary share = squared changes at boundaries / all squared changes between adjacent action tokens.

A single turn has no between-turn share (it would be 0 by algebra) and no jump; constant values have no share: NaN,
counted by the caller. A turn of one token has no spread and inflates the share, so a version without them is given.
Source: MPO (arXiv 2610.35013, appendix C and figure 2, read through secondary sources); the controls are ours.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from turnscale.diagnose.values import CriticValues
from turnscale.errors import NumericalError
from turnscale.stats.passk import Floats, Ints

TOLERANCE = 1e-9


def trajectory_statistics(critic: CriticValues) -> pd.DataFrame:
    """One row per trajectory, in order; all columns float64 but ``prompt`` and the counts.

    Returns:
        ``prompt``, ``reward``, ``success``; counts ``turns, tokens, one_token_turns, boundaries, pairs``;
        ``between, within`` (token-weighted variances), ``share_token, share_turn, share_long`` (share_token over
        turns of two tokens or more), ``jump, span``, ``boundary_square, total_square, boundary_share``,
        ``boundary_change`` (sum of signed changes at boundaries), ``gap, gap_square, gap_boundary_square`` (sums
        over boundaries of the observation tokens, their square, and their product with the squared change),
        ``value, value_square, error, error_square`` (sums over tokens of V, V^2, R - V, (R - V)^2),
        ``first_error, last_error`` (R - V at the first and last action token).

    Raises:
        NumericalError: B + W differs from the plain variance, so the arithmetic cannot be trusted.
    """
    values = critic.centred
    lengths = critic.lengths.astype(np.float64)
    mean = critic.per_turn(values) / lengths
    variance = critic.per_turn((values - mean[critic.turn_of_token]) ** 2) / lengths
    varies = _varies(critic, np.ones(critic.lengths.size, dtype=bool))
    between, within = _split(critic, mean, variance, lengths)
    _check(critic, values, between + within)
    between_turn, within_turn = _split(critic, mean, variance, np.ones_like(lengths))
    long = _split(critic, mean, variance, np.where(critic.lengths > 1, lengths, 0.0))
    several = critic.turns > 1
    long_turns = critic.per_row((critic.lengths > 1).astype(np.float64))

    later = np.flatnonzero(critic.boundaries)
    places = critic.turn_starts[later]
    change = critic.values[places] - critic.values[places - 1]
    row = critic.row_of_turn[later]
    at_boundary = {
        "boundary_change": change,
        "boundary_square": change**2,
        "jump": np.abs(change),
        "gap": critic.gaps[later],
        "gap_square": critic.gaps[later] ** 2,
        "gap_boundary_square": critic.gaps[later] * change**2,
    }
    sums = {
        name: np.bincount(row, item, critic.size).astype(np.float64) for name, item in at_boundary.items()
    }
    steps = np.diff(critic.values, prepend=0.0) ** 2
    steps[critic.token_starts] = 0.0
    total_square = np.add.reduceat(steps, critic.token_starts)
    boundaries = critic.turns - 1
    error = critic.reward[critic.row_of_token] - critic.values
    last = critic.token_starts + critic.tokens - 1

    def by_tokens(item: Floats) -> Floats:
        return np.add.reduceat(item, critic.token_starts)

    return pd.DataFrame(
        {
            "prompt": critic.prompt,
            "reward": critic.reward,
            "success": critic.success,
            "turns": critic.turns,
            "tokens": critic.tokens,
            "one_token_turns": critic.per_row((critic.lengths == 1).astype(np.float64)),
            "boundaries": boundaries,
            "pairs": critic.tokens - 1,
            "between": between,
            "within": within,
            "share_token": _ratio(between, between + within, several & varies),
            "share_turn": _ratio(between_turn, between_turn + within_turn, several & varies),
            "share_long": _ratio(
                long[0], long[0] + long[1], (long_turns > 1) & _varies(critic, critic.lengths > 1)
            ),
            **sums,
            "jump": _ratio(sums["jump"], boundaries, several),
            "span": critic.per_row(spans(critic)) / critic.turns,
            "total_square": total_square,
            "boundary_share": _ratio(sums["boundary_square"], total_square, several),
            "value": by_tokens(critic.values),
            "value_square": by_tokens(critic.values**2),
            "error": by_tokens(error),
            "error_square": by_tokens(error**2),
            "first_error": error[critic.token_starts],
            "last_error": error[last],
        }
    )


def spans(critic: CriticValues) -> Floats:
    """[J] 95th minus 5th percentile of the values of each turn, linear between order statistics; 0 for one token."""
    ordered = critic.values[np.lexsort((critic.values, critic.turn_of_token))]

    def quantile(q: float) -> Floats:
        place = (critic.lengths - 1) * q
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, critic.lengths - 1)
        below, above = ordered[critic.turn_starts + low], ordered[critic.turn_starts + high]
        return below + (above - below) * (place - low)

    return quantile(0.95) - quantile(0.05)


def token_share(critic: CriticValues, lengths: Ints, total: Floats) -> Floats:
    """[M] token-weighted share of the same values under other turn lengths; NaN where ``total`` is 0 or K = 1.

    Args:
        critic: the values.
        lengths: [J] turn lengths with the same sum in every trajectory.
        total: [M] variance of each trajectory's values.
    """
    starts = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(critic.centred, starts)
    center = critic.per_row(sums) / critic.tokens
    between = critic.per_row(lengths * (sums / lengths - center[critic.row_of_turn]) ** 2) / critic.tokens
    return _ratio(between, total, critic.turns > 1)


def _split(critic: CriticValues, mean: Floats, variance: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """[M] between and within parts of the variance with these weights of turns [J]; 0 where all weights are 0."""
    total = np.maximum(critic.per_row(weights), 1.0)
    center = critic.per_row(weights * mean) / total
    between = critic.per_row(weights * (mean - center[critic.row_of_turn]) ** 2) / total
    return between, critic.per_row(weights * variance) / total


def _varies(critic: CriticValues, turns: np.ndarray) -> np.ndarray:
    """[M] whether the values of these turns [J] differ at all; exact, where a variance may be a rounding error."""
    kept = turns[critic.turn_of_token]
    high = np.maximum.reduceat(np.where(kept, critic.values, -np.inf), critic.token_starts)
    return high > np.minimum.reduceat(np.where(kept, critic.values, np.inf), critic.token_starts)


def _check(critic: CriticValues, values: Floats, total: Floats) -> None:
    """B + W is the variance, up to 1e-9 of it and the rounding of the values themselves."""
    center = np.add.reduceat(values, critic.token_starts) / critic.tokens
    plain = np.add.reduceat((values - center[critic.row_of_token]) ** 2, critic.token_starts) / critic.tokens
    size = np.maximum.reduceat(np.abs(critic.values), critic.token_starts)
    allowed = TOLERANCE * plain + (64 * np.finfo(np.float64).eps * size) ** 2
    if not (np.abs(total - plain) <= allowed).all():
        worst = int(np.argmax(np.abs(total - plain) - allowed))
        raise NumericalError(
            f"trajectory {worst}: variance between and within turns add up to {total[worst]:.17g}, not to the "
            f"variance {plain[worst]:.17g}.",
            key="value",
        )


def _ratio(part: Floats, whole: Floats | Ints, valid: np.ndarray) -> Floats:
    """part / whole where it is defined, NaN elsewhere."""
    known = valid & (np.asarray(whole) > 0)
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=known)
