"""Several seeds of one cell in one process: imports, libraries, tracking and the frozen base are there once.

Each seed is trained by :func:`turnscale.train.loop.train_run`, with its own adapters, optimisers, streams,
checkpoints and MLflow run; either can go on where the other was killed, a pack or a run alone. There are two ways:

* one after another (the default): a seed's result is that of a process of its own to the last bit;
* ``stack``: side by side over one base, their rollouts decoded as one batch. Small models keep their bits
  (:mod:`turnscale.agent.stack`); wide ones share the base's products, which changes rounding
  (:mod:`turnscale.agent.trunk`). Updates are taken in turn: they are bound by arithmetic, of which there is as much.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peft import PeftModel

from turnscale.agent import transformer
from turnscale.agent.adapter import lora_config
from turnscale.agent.checkpoint import Checkpoint
from turnscale.agent.decode import Decoder
from turnscale.agent.lockstep import Outcome, Strand, run_together
from turnscale.agent.stack import StackedDecoder, step_together
from turnscale.agent.trunk import Trunk, TrunkDecoder, share
from turnscale.envs.panels import Panels
from turnscale.envs.registry import FamilyConfig, load_family
from turnscale.errors import ConfigError
from turnscale.seeding import fix_threads
from turnscale.study import Run
from turnscale.train.loop import deferred_stop, train_run
from turnscale.train.trainer import Around
from turnscale.train.warmup import open_base


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
    stack: bool = False,
) -> dict[str, Any]:
    """Train every member to its end, or go on from its newest checkpoint.

    The CPU seconds in a record are the run's own, those of common decoding in equal shares. Without ``stack`` the
    first one's include the start of the process. Peak memory is the process's up to the run's end.

    Args:
        members: runs of one cell.
        base_record: record of the starting checkpoint.
        panels: frozen task panels.
        checkpoint_every: steps between checkpoints.
        root: the project folder (for the tracking store).
        stack: train them side by side and decode together.

    Returns:
        ``records``: seed -> record of the runs that ended well; ``failed``: seed -> what stopped the others. A
        failed run is closed as FAILED in the tracking store and its traceback is on stderr.

    Raises:
        KeyboardInterrupt: SIGTERM or Ctrl-C came; the runs at work wrote a checkpoint first.
    """

    def train(member: Member, around: Around) -> dict[str, Any]:
        return train_run(
            member.run,
            base_record,
            panels,
            member.critic_record,
            member.work,
            checkpoint_every=checkpoint_every,
            root=root,
            around=around,
        )

    if stack:
        outcomes = _side_by_side(members, base_record, train)
    else:
        outcomes = _one_after_another(members, train)
    records: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for member, outcome in zip(members, outcomes, strict=True):
        if outcome.error is None:
            records[str(member.run.seed)] = outcome.result
            continue
        if not isinstance(outcome.error, Exception):
            raise outcome.error
        traceback.print_exception(outcome.error)
        print(f"seed {member.run.seed} failed.", file=sys.stderr)
        failed[str(member.run.seed)] = f"{type(outcome.error).__name__}: {outcome.error}"
    return {"records": records, "failed": failed}


Train = Callable[[Member, Around], dict[str, Any]]


def _one_after_another(members: Sequence[Member], train: Train) -> list[Outcome]:
    outcomes = []
    before = 0.0
    for member in members:
        spent = partial(_since, before)
        try:
            outcomes.append(Outcome(result=train(member, Around(cpu_seconds=spent))))
        except Exception as error:  # reported by the caller; the others go on
            outcomes.append(Outcome(error=error))
        before = time.process_time()
    return outcomes


def _since(before: float) -> float:
    return time.process_time() - before


def _side_by_side(members: Sequence[Member], base_record: Mapping[str, Any], train: Train) -> list[Outcome]:
    spec = members[0].run.spec.value
    fix_threads(int(spec["threads"]))
    family = load_family(FamilyConfig.model_validate(spec["base"]["family"]))
    base = open_base(spec["base"], base_record, family)
    fused = transformer.worthwhile(base.model.config)
    if not fused and lora_config(base.model, base.config.lora).target_parameters:
        raise ConfigError(
            "adapters of experts cannot be decoded side by side.",
            key="runtime.stack",
            remedy="set it to false, or leave the feed-forward part out of lora.targets.",
        )
    trunk = None if fused else Trunk(base)
    print(
        f"{len(members)} seeds side by side: rollouts decoded together, "
        + ("products by seed (same bits as alone)" if fused else "products shared (rounding differs)")
        + "; updates in turn.",
        file=sys.stderr,
    )
    main = time.pthread_getcpuclockid(threading.get_ident())
    with deferred_stop() as stop:

        def work(member: Member, checkpoint: Checkpoint, strand: Strand) -> dict[str, Any]:
            def decoder(model: PeftModel, adapter: str) -> Decoder:
                if trunk is None:
                    return StackedDecoder(strand, model, adapter)
                return TrunkDecoder(strand, trunk, model)

            def spent() -> float:
                return time.thread_time() + time.clock_gettime(main) / len(members)

            return train(member, Around(checkpoint, decoder, stop, spent))

        works = [partial(work, member, share(base)) for member in members]
        return run_together(works, step_together if trunk is None else trunk.answer)
