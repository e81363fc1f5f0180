"""Ratios, clipping, aggregation, normalisation, extra terms: the losses of every method."""

from turnscale.objective.aggregate import Denominators, denominators
from turnscale.objective.policy import merge_metrics, policy_loss
from turnscale.objective.value import explained_variance, value_loss

__all__ = [
    "Denominators",
    "denominators",
    "explained_variance",
    "merge_metrics",
    "policy_loss",
    "value_loss",
]
