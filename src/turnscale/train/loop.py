"""One reinforcement-learning run from its start, or its newest checkpoint, to its end; resumable bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from turnscale.batch import TurnBatch
from turnscale.envs.panels import Panels
from turnscale.errors import NumericalError
from turnscale.files import write_tensors
from turnscale.seeding import fix_threads
from turnscale.study import Run
from turnscale.track.columns import METRICS
from turnscale.track.run import RunLog, open_run
from turnscale.train import state
from turnscale.train.trainer import Around, Stop, Trainer


def train_run(
    run: Run,
    base_record: Mapping[str, Any],
    panels: Panels,
    critic_record: Mapping[str, Any] | None,
    work: Path,
    *,
    checkpoint_every: int = 10,
    root: Path = Path(),
    around: Around | None = None,
) -> dict[str, Any]:
    """Train one run to its end, or go on from its newest checkpoint.

    Args:
        run: which run, with its ``train`` specification.
        base_record: record of the starting checkpoint.
        panels: frozen task panels.
        critic_record: record of the warmed-up critic, for methods with one.
        work: the run's checkpoint folder, kept across kills.
        checkpoint_every: steps between checkpoints.
        root: the project folder (for the tracking store).
        around: what a process of several runs provides; by default the run has a process of its own.

    Returns:
        The run's record.

    Raises:
        NumericalError: NaN or inf; the batch is in ``work`` and in the tracking store, the run is FAILED.
        KeyboardInterrupt: SIGTERM or Ctrl-C came; a checkpoint was written first.
    """
    spec = run.spec.value
    fix_threads(int(spec["threads"]))
    around = around or Around()
    tags = {"panels": panels.hash, "base": str(base_record["hash"])}
    with state.exclusive(work), open_run(run, spec, tags, root) as log:
        if spec["training"] is None:
            return log.finish({"adapter": None, "steps": 0, "lost": {}})
        trainer = Trainer(run, base_record, panels, critic_record, around)
        trainer.resume(work, log)
        with deferred_stop() if around.stop is None else nullcontext(around.stop) as stop:
            for step in tqdm(
                range(trainer.step, trainer.settings.steps),
                desc=f"{run.cell} seed {run.seed}",
                initial=trainer.step,
                total=trainer.settings.steps,
                mininterval=2,
            ):
                try:
                    trainer.advance()
                except NumericalError:
                    _dump(trainer, work, log)
                    raise
                last = step + 1 == trainer.settings.steps
                if last or stop.requested or (step + 1) % checkpoint_every == 0:
                    # Kept before sent: a step that is repeated after a kill is never in the store already, where
                    # its other wall-clock times would make a second row.
                    state.save(work, trainer.snapshot())
                    trainer.send(log)
                    log.flush()
                if stop.requested and not last:
                    raise KeyboardInterrupt
        return trainer.finish(log, work)


@contextmanager
def deferred_stop() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C only ask for a stop, which the loop grants after a checkpoint."""
    stop = Stop()

    def ask(signum: int, frame: object) -> None:
        stop.requested = True

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _dump(trainer: Trainer, work: Path, log: RunLog) -> None:
    """Keep the batch on which a run failed, beside its checkpoints and in the tracking store.

    The metrics since the last checkpoint go with it as a table, since a rerun repeats their steps.
    """
    unsent = pd.DataFrame(trainer.metrics[trainer.sent :], columns=list(METRICS))
    table = work / f"failed-step-{trainer.step:06d}-metrics.csv"
    unsent.to_csv(table, index=False, lineterminator="\n")
    log.artifact(table, "failure")
    if trainer.last_batch is None:
        return
    batch = trainer.last_batch
    fields = {name: getattr(batch, name) for name in TurnBatch.__dataclass_fields__}
    path = work / f"failed-step-{trainer.step:06d}.safetensors"
    write_tensors({k: v.clone() for k, v in fields.items() if v is not None}, path)
    log.artifact(path, "failure")
    log.tag("failed_step", trainer.step)
