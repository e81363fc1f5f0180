"""Several seeds of one cell in one process, one after another: imports, libraries and tracking are set up once.

Each seed is trained by :func:`turnscale.train.loop.train_run`, with its own streams, optimisers, checkpoints and
MLflow run, so its result is that of a process of its own to the last bit, and either can go on where the other was
killed.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnscale.envs.panels import Panels
from turnscale.study import Run
from turnscale.train.loop import train_run


@dataclass(frozen=True)
class Member:
    """One run of a pack, with the record of its warmed-up critic if its method has one, and its checkpoints."""

    run: Run
    critic_record: Mapping[str, Any] | None
    work: Path


def train_pack(
    members: Sequence[Member],
    base_record: Mapping[str, Any],
    panels: Panels,
    *,
    checkpoint_every: int = 10,
    root: Path = Path(),
) -> dict[str, Any]:
    """Train every member to its end, or go on from its newest checkpoint.

    The CPU seconds in a record are the run's own; the first one's include the start of the process. Peak memory is
    the process's up to the run's end.

    Returns:
        ``records``: seed -> record of the runs that ended well; ``failed``: seed -> what stopped the others. A
        failed run is closed as FAILED in the tracking store and its traceback is on stderr.

    Raises:
        KeyboardInterrupt: SIGTERM or Ctrl-C came; the run at work wrote a checkpoint first.
    """
    records: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for number, member in enumerate(members):
        seed = str(member.run.seed)
        before = time.process_time() if number else 0.0
        try:
            records[seed] = train_run(
                member.run,
                base_record,
                panels,
                member.critic_record,
                member.work,
                checkpoint_every=checkpoint_every,
                root=root,
                cpu_before=before,
            )
        except Exception as error:
            traceback.print_exc()
            failed[seed] = f"{type(error).__name__}: {error}"
            print(f"seed {seed} failed; the others go on.", file=sys.stderr)
    return {"records": records, "failed": failed}
