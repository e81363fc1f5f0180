"""Small good inputs that the tests then spoil, one way at a time."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

LEDGER = """\
schema_version: 1
study: demo
title: A demonstration
source: a paper
arms: [A, B, C]
benchmarks:
  bench:
    name: Bench
    n_tasks: [100]
    rollouts: 4
    heterogeneity: {icc: 0.5, source: assumed}
    source: a paper
claims:
  - id: first
    arm_a: A
    arm_b: B
    metric: pass_at
    k: 1
    benchmark: bench
    model: small
    gap: 4.33
    level_a: 48.08
    level_b: 43.75
    runs_a: 1
    runs_b: 1
    checkpoint_rule: last
    source: table 1
    status: exact
    confidence: high
    family: main
"""

CSV = """\
arm,seed,task,attempt,success
A,0,t1,0,1
A,0,t1,1,0
A,0,t2,0,1
A,0,t2,1,1
B,0,t1,0,0
B,0,t1,1,0
B,0,t2,0,1
B,0,t2,1,0
"""


def write(path: Path, text: str | bytes) -> Path:
    """Write text (UTF-8) or bytes and return the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def outcomes(
    rates: dict[str, list[float]], n_tasks: int = 60, attempts: int = 4, spread: float = 0.5, seed: int = 0
) -> pd.DataFrame:
    """A balanced outcomes table: one rate per arm and training seed; tasks differ by a shared random shift."""
    rng = np.random.default_rng(seed)
    shift = rng.normal(0.0, spread, size=n_tasks)
    rows = []
    for arm, seeds in rates.items():
        for s, rate in enumerate(seeds):
            p = 1 / (1 + np.exp(-(np.log(rate / (1 - rate)) + shift)))
            hits = rng.random((n_tasks, attempts)) < p[:, None]
            rows += [
                (arm, s, f"t{task:03d}", attempt, bool(hits[task, attempt]))
                for task, attempt in itertools.product(range(n_tasks), range(attempts))
            ]
    return pd.DataFrame(rows, columns=["arm", "seed", "task", "attempt", "success"])
