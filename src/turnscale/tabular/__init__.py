"""The grouping comparison on a tabular probe task, and the exact audit of gradient estimators."""
