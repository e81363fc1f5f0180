"""Columns of the tables that a run logs as artifacts, for those who write them and those who read them back."""

METRICS = ("step", "metric", "value")
CRITIC = (
    "checkpoint",
    "set",
    "trajectory",
    "prompt",
    "turn",
    "token",
    "value",
    "observation_tokens",
    "reward",
    "success",
)
