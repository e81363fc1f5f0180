"""Estimators for success rates over seeds, tasks and attempts; each result names the question it answers.

Start from `counts_by_arm` (the outcomes table to counts), then `estimate` and `compare` with a `Question`.
All numbers are fractions, all randomness comes from a `numpy.random.Generator` that the caller passes.

Nothing is imported before it is asked for: a plan or a GRIM check needs neither pandas nor the interval machinery.
"""

from importlib import import_module
from typing import Any

HOMES = {
    "aggregate": (
        "Profile",
        "improvement_interval",
        "interquartile_mean",
        "iqm_interval",
        "optimality_gap",
        "optimality_gap_interval",
        "performance_profile",
        "probability_of_improvement",
        "profile_band",
    ),
    "bootstrap": (
        "bootstrap_compare",
        "bootstrap_estimate",
    ),
    "curves": (
        "Curve",
        "curve",
    ),
    "grim": (
        "Grim",
        "feasible_share",
        "feasible_sizes",
        "grim",
    ),
    "intervals": (
        "compare",
        "estimate",
    ),
    "multiplicity": (
        "Family",
        "benjamini_hochberg",
        "holm",
    ),
    "outcomes": (
        "Counts",
        "counts_by_arm",
    ),
    "passk": (
        "CoarsePassKWarning",
        "Metric",
        "pass_at_k",
        "pass_hat_k",
    ),
    "power": (
        "detectable_ratio",
        "minimum_detectable",
        "power_two_sample",
        "seed_sd_tolerance",
        "seeds_needed",
    ),
    "question": (
        "Comparison",
        "Estimate",
        "NotEstimable",
        "Question",
    ),
    "selection": (
        "Optimism",
        "Selected",
        "expected_maximum",
        "expected_optimism",
        "select_checkpoint",
        "select_on",
    ),
    "sequential": (
        "Look",
        "SequentialPlan",
        "e_value",
        "e_value_from_scores",
        "obrien_fleming_levels",
    ),
    "tests_exact": (
        "ExactTest",
        "flip_seed_pairs",
        "flip_task_clusters",
        "mcnemar",
        "mcnemar_counts",
        "permutation_floor",
        "permute_seeds",
        "sign_flip_floor",
    ),
    "variance": (
        "Component",
        "VarianceComponents",
        "sd_interval",
        "variance_components",
    ),
}
"""Module -> what this package offers of it."""

__all__ = sorted(name for names in HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
