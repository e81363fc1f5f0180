"""Invented critic values: lengths like those of a search agent, values from processes that are known."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from turnscale.diagnose.values import CriticValues

Process = Callable[[CriticValues, np.random.Generator], np.ndarray]


def lengths(
    size: int,
    rng: np.random.Generator,
    *,
    turns: int | None = None,
    low: int = 50,
    high: int = 500,
    gap: int = 0,
) -> CriticValues:
    """Trajectories of 2 + Poisson(6) turns (or exactly ``turns``) of ``low`` to ``high`` tokens, all values 0."""
    counts = 2 + rng.poisson(6, size) if turns is None else np.full(size, turns)
    tokens = rng.integers(low, high + 1, int(counts.sum()))
    return CriticValues(
        np.zeros(int(tokens.sum())),
        np.cumsum(tokens) - tokens,
        np.cumsum(counts) - counts,
        np.full(tokens.size, float(gap)),
        np.zeros(size),
        np.zeros(size, dtype=bool),
        np.arange(size),
    )


def run_frame(
    process: Process,
    *,
    seed: int,
    checkpoints: Sequence[int] = (0, 20, 40, 60),
    size: int = 48,
    groups: int = 4,
    sets: Sequence[str] = ("common", "probe"),
) -> pd.DataFrame:
    """The critic values of one invented run, in the columns of the training loop."""
    rng = np.random.default_rng(seed)
    frames = []
    common = lengths(size, rng, low=3, high=14, gap=5)
    for checkpoint in checkpoints:
        for name in sets:
            if name == "probe" and checkpoint == 0:
                continue
            base = common if name == "common" else lengths(size, rng, low=3, high=14, gap=5)
            values = process(base, rng)
            success = rng.random(size) < 0.4
            frames.append(
                pd.DataFrame(
                    {
                        "checkpoint": checkpoint,
                        "set": name,
                        "trajectory": base.row_of_token,
                        "prompt": [f"task-{name}-{row // groups}" for row in base.row_of_token],
                        "turn": base.turn_of_token - base.row_starts[base.row_of_token],
                        "token": np.arange(values.size) - base.turn_starts[base.turn_of_token],
                        "value": 0.4 + 0.02 * values,
                        "observation_tokens": base.gaps[base.turn_of_token].astype(int)
                        + base.turn_of_token % 3,
                        "reward": success[base.row_of_token].astype(float),
                        "success": success[base.row_of_token],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def study_frame(
    processes: dict[str, Process], *, seeds: int, study: str = "mpo", scale: str = "quick", **options: object
) -> pd.DataFrame:
    """Critic values of several cells and seeds; the model is the dense local one."""
    frames = [
        run_frame(process, seed=100 * number + seed, **options).assign(  # type: ignore[arg-type]
            study=study,
            scale=scale,
            family="search",
            model="qwen3-tiny",
            cell=cell,
            method=cell,
            seed=seed,
            run_id=f"{cell}.{seed}",
        )
        for number, (cell, process) in enumerate(processes.items())
        for seed in range(seeds)
    ]
    return pd.concat(frames, ignore_index=True)
