"""What became of the runs that a table does not show, with the reasons, in sentences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from turnscale.errors import DataError


def survivors(survivorship: pd.DataFrame, cells: Sequence[str]) -> list[str]:
    """Sentences about failed, excluded and unfinished runs and lost episodes; none where all is well.

    Args:
        survivorship: with the columns ``schema.SURVIVORSHIP``.
        cells: the cells of the table.

    Raises:
        DataError: reasons that are no JSON object, or that do not add up to their count.
    """
    rows = survivorship[survivorship["cell"].isin(list(cells))]
    planned, finished, failed, excluded = (
        int(rows[name].sum()) for name in ("planned", "finished", "failed", "excluded")
    )
    runs = f"of {planned} run{'s' * (planned != 1)}"
    sentences = []
    for count, column, words in (
        (failed, "failed_reasons", "failed"),
        (excluded, "excluded_reasons", "trained without being evaluated"),
    ):
        reasons = _reasons(rows, column)
        if reasons.total() != count:
            raise DataError(
                f"counts {count} runs and gives reasons for {reasons.total()}.",
                key=column,
                remedy="collect again.",
            )
        if count:
            sentences.append(f"{count} {runs} {words} ({by_reason(reasons)}).")
    left = planned - finished - failed - excluded
    if left:
        sentences.append(f"{left} {runs} {'has' if left == 1 else 'have'} not ended.")
    lost = _reasons(rows, "lost")
    if lost:
        sentences.append(
            f"{lost.total()} episode{'s' * (lost.total() != 1)} of finished runs lost to the environment count as "
            f"unsolved ({by_reason(lost)})."
        )
    return sentences


def by_reason(reasons: Mapping[str, int]) -> str:
    """The reasons, commonest first, with their numbers where there are several."""
    if len(reasons) == 1:
        return next(iter(reasons))
    return ", ".join(f"{reasons[name]} {name}" for name in sorted(reasons, key=lambda n: (-reasons[n], n)))


def _reasons(rows: pd.DataFrame, column: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for text in rows[column]:
        try:
            total.update({str(name): int(count) for name, count in json.loads(text).items()})
        except (ValueError, AttributeError, TypeError):
            raise DataError(
                f"holds {text!r}, which counts nothing.", key=column, remedy="collect again."
            ) from None
    return total
