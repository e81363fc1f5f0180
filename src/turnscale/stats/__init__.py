"""Estimators for success rates over seeds, tasks and attempts; each result names the question it answers.

Start from `counts_by_arm` (the outcomes table to counts), then `estimate` and `compare` with a `Question`.
All numbers are fractions, all randomness comes from a `numpy.random.Generator` that the caller passes.
"""

from turnscale.stats.aggregate import (
    Profile,
    improvement_interval,
    interquartile_mean,
    iqm_interval,
    optimality_gap,
    optimality_gap_interval,
    performance_profile,
    probability_of_improvement,
    profile_band,
)
from turnscale.stats.bootstrap import bootstrap_compare, bootstrap_estimate
from turnscale.stats.curves import Curve, curve
from turnscale.stats.grim import Grim, feasible_share, feasible_sizes, grim
from turnscale.stats.intervals import compare, estimate
from turnscale.stats.multiplicity import Family, benjamini_hochberg, holm
from turnscale.stats.outcomes import Counts, counts_by_arm
from turnscale.stats.passk import CoarsePassKWarning, Metric, pass_at_k, pass_hat_k
from turnscale.stats.power import (
    detectable_ratio,
    minimum_detectable,
    power_two_sample,
    seed_sd_tolerance,
    seeds_needed,
)
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question
from turnscale.stats.selection import (
    Optimism,
    Selected,
    expected_maximum,
    expected_optimism,
    select_checkpoint,
    select_on,
)
from turnscale.stats.sequential import (
    Look,
    SequentialPlan,
    e_value,
    e_value_from_scores,
    obrien_fleming_levels,
)
from turnscale.stats.tests_exact import (
    ExactTest,
    flip_seed_pairs,
    flip_task_clusters,
    mcnemar,
    mcnemar_counts,
    permutation_floor,
    permute_seeds,
    sign_flip_floor,
)
from turnscale.stats.variance import Component, VarianceComponents, sd_interval, variance_components

__all__ = [
    "CoarsePassKWarning",
    "Comparison",
    "Component",
    "Counts",
    "Curve",
    "Estimate",
    "ExactTest",
    "Family",
    "Grim",
    "Look",
    "Metric",
    "NotEstimable",
    "Optimism",
    "Profile",
    "Question",
    "Selected",
    "SequentialPlan",
    "VarianceComponents",
    "benjamini_hochberg",
    "bootstrap_compare",
    "bootstrap_estimate",
    "compare",
    "counts_by_arm",
    "curve",
    "detectable_ratio",
    "e_value",
    "e_value_from_scores",
    "estimate",
    "expected_maximum",
    "expected_optimism",
    "feasible_share",
    "feasible_sizes",
    "flip_seed_pairs",
    "flip_task_clusters",
    "grim",
    "holm",
    "improvement_interval",
    "interquartile_mean",
    "iqm_interval",
    "mcnemar",
    "mcnemar_counts",
    "minimum_detectable",
    "obrien_fleming_levels",
    "optimality_gap",
    "optimality_gap_interval",
    "pass_at_k",
    "pass_hat_k",
    "performance_profile",
    "permutation_floor",
    "permute_seeds",
    "power_two_sample",
    "probability_of_improvement",
    "profile_band",
    "sd_interval",
    "seed_sd_tolerance",
    "seeds_needed",
    "select_checkpoint",
    "select_on",
    "sign_flip_floor",
    "variance_components",
]
