"""The policy loss of a method: ratio, clip, aggregation, extra terms, and what is worth logging of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.segments import layout
from turnscale.finite import require_finite
from turnscale.objective.aggregate import LENGTH_BUCKETS, Denominators, bucket_of

if TYPE_CHECKING:
    from turnscale.methods import Method

LARGEST_LOG_RATIO = 20.0
"""Cap on log-ratios (a ratio of 4.9e8), so that a runaway product of token ratios stays finite.

The run goes on: a token at the cap gets no gradient, and ``ratio_max`` and ``ratio_capped`` record it.
"""


def bucket_name(low: int, high: int | None) -> str:
    """Metric name of a turn-length bucket."""
    return f"clip_fraction_len_{low}_{'up' if high is None else high}"


def policy_loss(
    method: Method,
    logp: Tensor,
    batch: TurnBatch,
    advantages: Tensor,
    old_logp: Tensor,
    denominators: Denominators,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of one micro-batch, its share of the minibatch's loss.

    Args:
        method: the row of choices.
        logp: [B, T] log-probabilities under the policy being trained, with gradient.
        batch: the micro-batch.
        advantages: [B, T], normalised over the whole batch and frozen.
        old_logp: [B, T] log-probabilities under the policy at the start of the update.
        denominators: counts over the whole minibatch; ``denominators(batch)`` when it is not split.

    Returns:
        The scalar loss, and metrics that ``merge_metrics`` combines over micro-batches: ``loss``,
        ``clip_fraction`` and ``clip_fraction_len_<lo>_<hi>`` (active clips over action tokens), ``kl``
        (mean of d^2 / 2, d the token log-ratio to old), ``ratio_max``, ``ratio_mean``, ``ess`` (in 0..1),
        ``ratio_capped`` (share of tokens at the cap) and ``term_<name>``.

    Raises:
        NumericalError: the loss is not finite.
    """
    lay = layout(batch)
    log_ratio = cast(Tensor, method.function("ratio")(logp, old_logp, batch))
    capped = log_ratio.detach() > LARGEST_LOG_RATIO
    ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
    objective, clipped = method.function("clip")(ratio, advantages.detach())
    weights = method.function("aggregation")(lay, denominators).to(logp.dtype)
    loss = -(weights * lay.take(objective)).sum()
    terms = {
        name: function(logp, batch, lay, weights, denominators) for name, function in method.term_functions()
    }
    for value in terms.values():
        loss = loss + value

    with torch.no_grad():
        tokens = max(denominators.tokens, 1)
        hit = lay.take(clipped).double()
        held = lay.take(ratio.detach()).double()
        drift = lay.take(logp.detach() - old_logp).double()
        per_bucket = torch.zeros(len(LENGTH_BUCKETS), dtype=torch.float64, device=hit.device)
        per_bucket.index_add_(0, bucket_of(lay.tokens_per_turn)[lay.segment], hit)
        scalars = torch.stack(
            [
                loss.detach().double(),
                hit.sum() / tokens,
                (drift**2 / 2).sum() / tokens,
                held.sum() / tokens,
                (held**2).sum() / tokens,
                held.max() if len(held) else held.new_zeros(()),
                lay.take(capped).double().sum() / tokens,
                *[value.detach().double() for value in terms.values()],
            ]
        ).tolist()
    names = ["loss", "clip_fraction", "kl", "ratio_mean", "ratio_square_mean", "ratio_max", "ratio_capped"]
    metrics = dict(zip([*names, *(f"term_{name}" for name in terms)], scalars, strict=True))
    require_finite("loss", metrics["loss"], "look at ratio_max and the learning rate of the steps before.")
    for (low, high), count, value in zip(
        LENGTH_BUCKETS, denominators.bucket_tokens, per_bucket.tolist(), strict=True
    ):
        if count:
            metrics[bucket_name(low, high)] = value / count
    return loss, merge_metrics([metrics])


def merge_metrics(parts: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of a minibatch from those of its micro-batches: sums, except a maximum and the ESS."""
    merged: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name == "ratio_max":
                merged[name] = max(merged.get(name, value), value)
            else:
                merged[name] = merged.get(name, 0.0) + value
    square = merged["ratio_square_mean"]
    merged["ess"] = merged["ratio_mean"] ** 2 / square if square > 0 else 0.0
    return merged
