"""From the runs of a cell to the method: means over seeds, and differences between cells paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.special import stdtrit

from turnscale.diagnose.summary import MEDIANS
from turnscale.stats.question import Question

P_VALUES = ("excess_p", "permutation_p")
COMPARED = (
    "share_token",
    "share_turn",
    "excess_share",
    "boundary_share",
    "enrichment",
    "clock_excess",
    "explained_variance",
    "explained_variance_centred",
)
"""Statistics of which differences between cells are reported."""

SHARES = (
    *MEDIANS,
    *("between_exceeds_within", "jump_exceeds_span", "boundary_share", "boundary_pairs"),
    *("one_token_turns", "success"),
)
"""Statistics that lie in [0, 1], to which their intervals over seeds are cut."""

COMMON = "common"
"""The set of rollouts of the base policy that all critics of a seed are read on."""

METHOD_QUESTION = str(Question.METHOD_NEW_TASKS)
ONE_SEED = "one training run: the interval is about prompts, not about critics"

Row = dict[str, Any]


def method_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Means over seeds of what the runs of a cell give; seeds without a value are left out and named."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    place = ("family", "model", "cell", "method", "set", "checkpoint", "statistic")
    for row in rows:
        if row["kind"] == "run" and row["statistic"] not in P_VALUES:
            groups.setdefault(tuple(row[name] for name in place), []).append(row)
    for key, group in groups.items():
        known = [row for row in group if np.isfinite(row["value"])]
        lost = [str(row["seed"]) for row in group if not np.isfinite(row["value"])]
        values = np.array([row["value"] for row in known], dtype=np.float64)
        half = _half_width(values)
        notes = [ONE_SEED] if values.size == 1 else []
        notes += [f"undefined for seeds {', '.join(lost)}"] if lost else []
        mean = float(values.mean()) if values.size else np.nan
        bounds = (0.0, 1.0) if key[-1] in SHARES else (-np.inf, np.inf)
        yield {
            **dict(zip(place, key, strict=True)),
            "kind": "method",
            "value": mean,
            "lo": float(np.clip(mean - half, *bounds)),
            "hi": float(np.clip(mean + half, *bounds)),
            "question": METHOD_QUESTION,
            "n_seeds": values.size,
            "n_prompts": sum(row["n_prompts"] for row in known),
            "n_trajectories": sum(row["n_trajectories"] for row in known),
            "left_out": sum(row["left_out"] for row in group),
            "run_ids": " ".join(row["run_ids"] for row in known),
            "note": "; ".join(notes),
        }


def difference_rows(rows: Iterable[Row], reference: str) -> Iterator[Row]:
    """Each cell minus the reference on the common rollouts, paired by seed."""
    values: dict[tuple[str, str, str, str], dict[str, dict[int, Row]]] = {}
    for row in rows:
        shared = row["kind"] == "run" and row["set"] == COMMON and row["checkpoint"] is None
        if shared and row["statistic"] in COMPARED and np.isfinite(row["value"]):
            key = (row["family"], row["model"], row["set"], row["statistic"])
            values.setdefault(key, {}).setdefault(row["cell"], {})[int(row["seed"])] = row
    for (family, model, name, statistic), cells in values.items():
        base = cells.get(reference, {})
        for cell, own in cells.items():
            seeds = sorted(own.keys() & base.keys())
            if cell == reference or not seeds:
                continue
            gaps = np.array([own[seed]["value"] - base[seed]["value"] for seed in seeds])
            half = _half_width(gaps)
            yield {
                "kind": "difference",
                "family": family,
                "model": model,
                "cell": cell,
                "method": own[seeds[0]]["method"],
                "set": name,
                "checkpoint": None,
                "statistic": statistic,
                "value": float(gaps.mean()),
                "lo": float(gaps.mean()) - half,
                "hi": float(gaps.mean()) + half,
                "question": METHOD_QUESTION,
                "n_seeds": len(seeds),
                "run_ids": " ".join(arm[seed]["run_ids"] for arm in (own, base) for seed in seeds),
                "note": f"minus {reference}, paired by seed",
            }


def _half_width(values: np.ndarray) -> float:
    """Half the 95 % t interval over seeds; NaN for fewer than two, or where they do not differ."""
    if values.size < 2 or float(np.ptp(values)) == 0.0:
        return np.nan
    return float(stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / np.sqrt(values.size))
