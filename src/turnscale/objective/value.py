"""The critic's loss and how well it explains the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from turnscale.batch import Credit, TurnBatch
from turnscale.credit.segments import Layout, layout
from turnscale.errors import DataError
from turnscale.finite import require_finite
from turnscale.objective.aggregate import Denominators

if TYPE_CHECKING:
    from turnscale.methods import Method


def squared_error(values: Tensor, targets: Tensor, lay: Layout, at: str, count: Denominators) -> Tensor:
    """Half the mean squared error over every action token (``tokens``) or one token a turn.

    Args:
        values, targets: [B, T].
        lay: layout of the micro-batch.
        at: ``tokens``, ``turn_first`` or ``turn_last``.
        count: counts over the minibatch.
    """
    error = (lay.take(values) - lay.take(targets)) ** 2 / 2
    if at == "tokens":
        return error.sum() / max(count.tokens, 1)
    return error[lay.first if at == "turn_first" else lay.last].sum() / max(count.turns, 1)


def value_loss(
    method: Method,
    values: Tensor,
    batch: TurnBatch,
    credit: Credit,
    denominators: Denominators,
    values_turn: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Half the mean squared error of the critic's head(s): one micro-batch's share of the minibatch's.

    Args:
        method: tells at which tokens each head learns.
        values: [B, T] predictions with gradient.
        batch: the micro-batch.
        credit: its targets, rows in the same order as ``batch``.
        denominators: counts over the whole minibatch.
        values_turn: [B, T] predictions of the turn head, for two-head critics.

    Returns:
        The scalar loss and ``value_loss`` (and ``value_loss_turn``), which add up over micro-batches.

    Raises:
        DataError: the method has no critic, or a head's predictions or targets are missing.
        NumericalError: the loss is not finite.
    """
    if credit.returns is None or method.critic.heads == 0:
        raise DataError(
            "the method has no critic targets", key="critic.heads", remedy="do not train a critic."
        )
    lay = layout(batch)
    loss = squared_error(values, credit.returns, lay, method.critic.trained_at, denominators)
    metrics = {"value_loss": float(loss.detach())}
    if method.critic.heads == 2:
        if values_turn is None or credit.returns_turn is None:
            raise DataError("a two-head critic needs its turn head's values", key="values_turn")
        second = squared_error(
            values_turn, credit.returns_turn, lay, method.critic.turn_trained_at, denominators
        )
        metrics["value_loss_turn"] = float(second.detach())
        loss = loss + second
    require_finite("value loss", loss.detach())
    return loss, metrics


def explained_variance(values: Tensor, batch: TurnBatch) -> dict[str, float]:
    """How much of the terminal reward's variance the critic explains, over action tokens.

    Args:
        values: [B, T] predictions.
        batch: the batch; the reward of a token is its trajectory's.

    Returns:
        ``explained_variance``: 1 - mean (R - V)^2 / var R, which a wrong level lowers;
        ``explained_variance_centred``: 1 - var (R - V) / var R, blind to the level;
        ``explained_variance_first`` and ``_last``: the centred form at each trajectory's first and last
        action token. Empty when the reward does not vary: there is nothing to explain.
    """
    lay = layout(batch)
    value = lay.take(values).double()
    reward = batch.reward.double()[lay.row]
    places = {
        "": None,
        "_centred": None,
        "_first": lay.first[lay.turns_before == 0],
        "_last": lay.last[lay.ends_row()],
    }
    out: dict[str, float] = {}
    for suffix, place in places.items():
        target = reward if place is None else reward[place]
        guess = value if place is None else value[place]
        spread = float(target.var(correction=0)) if len(target) else 0.0
        if spread == 0.0:
            return {}
        error = target - guess
        miss = error.var(correction=0) if suffix else (error**2).mean()
        out[f"explained_variance{suffix}"] = 1.0 - float(miss) / spread
    return out
