"""Steps, retrievals and demonstrations per second of every task family. Run: ``python benchmarks/envs.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from turnscale.envs.protocol import Family
from turnscale.envs.registry import read_family
from turnscale.envs.report import play, random_policy
from turnscale.errors import TaskError

FAMILIES = Path(__file__).parents[1] / "configs" / "families"
PROMPTS, GROUP = 16, 4


def seconds(action: Callable[[], object]) -> tuple[float, object]:
    """Elapsed time of a call, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def measure(family: Family) -> dict[str, float]:
    """Time to the random policy's turns in 64 episodes (16 new tasks, 4 each) and to 300 demonstrations."""
    rng = np.random.default_rng(0)
    family.make().reset(family.task("train", 0), 0)  # start whatever has to be started once

    def rollouts() -> int:
        size = family.size("train") or PROMPTS
        tasks = [family.task("train", i % size) for i in range(PROMPTS)]
        return sum(
            len(play(family, t, random_policy(family), rng).turns) for t in tasks for _ in range(GROUP)
        )

    def demonstrations() -> int:
        size = family.size("train") or 300
        return sum(
            len(family.demonstrate(family.task("train", i % size), rng, i % 3 == 0).turns) for i in range(300)
        )

    first, turns = seconds(rollouts)
    again, _ = seconds(rollouts)
    shown, _ = seconds(demonstrations)
    assert isinstance(turns, int)
    return {
        "turns": turns,
        "ms per turn, new tasks": 1e3 * first / turns,
        "ms per turn, known tasks": 1e3 * again / turns,
        "ms per demonstration": 1e3 * shown / 300,
    }


def main() -> None:
    """Print one line per family; families whose extra is not installed say so."""
    for path in sorted(FAMILIES.glob("*.yaml")):
        family = read_family(path)
        try:
            figures = measure(family)
        except TaskError as error:
            print(f"{path.stem:22} {error}")
            continue
        print(f"{path.stem:22} " + "  ".join(f"{name}: {value:.3g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
