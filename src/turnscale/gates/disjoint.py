"""Disjoint panels: no task, and no task content, is in two of train, validation and the test benchmarks."""

from __future__ import annotations

from collections import Counter

from turnscale.envs.panels import Panels
from turnscale.gates.identities import GateResult


def disjoint(panels: Panels) -> GateResult:
    """Count the tasks of a family's panels that occur a second time, by identity or by content.

    Args:
        panels: as frozen or as read; nothing of what froze or read them is relied upon.

    Returns:
        The gate ``disjoint/<family>``; its difference is the number of repetitions, none of which is allowed.
    """
    identities: dict[str, str] = {}
    contents: dict[str, str] = {}
    repeated: Counter[str] = Counter()
    for split, tasks in panels.tasks.items():
        for task in tasks:
            content = panels.content[task.hash]
            other = identities.get(task.hash, contents.get(content))
            if other is not None:
                repeated[f"{other} and {split}"] += 1
            identities.setdefault(task.hash, split)
            contents.setdefault(content, split)
    sizes = ", ".join(f"{split} {len(tasks)}" for split, tasks in panels.tasks.items())
    found = "".join(f"; {count} in {pair}" for pair, count in sorted(repeated.items()))
    return GateResult(
        name=f"disjoint/{panels.family}",
        passed=not repeated,
        difference=float(repeated.total()),
        tolerance=0.0,
        detail=f"every task occurs once, by identity and by content ({sizes}){found}",
    )
