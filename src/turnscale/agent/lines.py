"""Which rows of a rollout are one line of the decoder: those whose tokens have been the same so far.

What a causal model computes for a token depends on the tokens before it alone, so rows that agree up to a position
need it once. They begin as one line and part where their tokens do: the rollouts of a prompt at the first token that
they sample differently, the branches of a prefix likewise. Parted lines never join again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEPARATE = 0.8
"""With more lines than this share of the rows, every row gets its own: what is shared no longer pays for looking."""

Indices = NDArray[np.int64]


class Lines:
    """The decoder's lines and who is on them.

    Attributes:
        line: [B] line of each unfinished row.
        leader: [n] for each line an unfinished row on it, whose tokens it is fed; a finished one where all are.
    """

    def __init__(self, size: int, compaction: float, share: bool) -> None:
        self.line: Indices = np.zeros(size, dtype=np.int64) if share else np.arange(size)
        self.leader: Indices = np.empty(0, dtype=np.int64)
        self._compaction = compaction
        self._share = share

    def arrange(self, active: Indices, coming: NDArray[np.int64]) -> Indices | None:
        """Part lines whose rows differ in the next tokens and drop finished ones when they are too many.

        Args:
            active: [n] the unfinished rows, ascending.
            coming: [B, m] the tokens that come next.

        Returns:
            For each line from now on the line so far that it continues, or None when lines stay as they are.
        """
        before = self.line[active]
        leader, now, parted = active, np.arange(len(active)), False
        if self._share:
            places: dict[tuple[int, bytes], int] = {}
            same = [
                places.setdefault((line, coming[row].tobytes()), len(places))
                for row, line in zip(active.tolist(), before.tolist(), strict=True)
            ]
            self._share = len(places) <= SEPARATE * len(active)
            if self._share:
                now = np.array(same)
                leader = active[np.unique(now, return_index=True)[1]]
            parted = len(leader) > len(np.unique(before))
        if len(self.leader) and not parted and len(leader) >= self._compaction * len(self.leader):
            self.leader[self.line[leader]] = leader
            return None
        kept: Indices = self.line[leader]
        self.line[active] = now
        self.leader = leader.copy()
        return kept
