"""Estimators for success rates over seeds, tasks and attempts; each result names the question it answers.

Start from `counts_by_arm` (the outcomes table to counts), then `estimate` and `compare` with a `Question`.
"""

from turnscale.stats.bootstrap import bootstrap_compare, bootstrap_estimate
from turnscale.stats.curves import Curve, curve
from turnscale.stats.intervals import compare, estimate
from turnscale.stats.outcomes import Counts, counts_by_arm
from turnscale.stats.passk import CoarsePassKWarning, Metric, pass_at_k, pass_hat_k
from turnscale.stats.power import (
    minimum_detectable,
    power_two_sample,
    seed_sd_tolerance,
    seeds_needed,
)
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question

__all__ = [
    "CoarsePassKWarning",
    "Comparison",
    "Counts",
    "Curve",
    "Estimate",
    "Metric",
    "NotEstimable",
    "Question",
    "bootstrap_compare",
    "bootstrap_estimate",
    "compare",
    "counts_by_arm",
    "curve",
    "estimate",
    "minimum_detectable",
    "pass_at_k",
    "pass_hat_k",
    "power_two_sample",
    "seed_sd_tolerance",
    "seeds_needed",
]
