"""Processes that log to one store at once, as the jobs of a workflow do."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Empty
from typing import Any

from turnscale.study import Run, Spec
from turnscale.track.run import open_run
from turnscale.track.store import connect

METRICS = 10
SECONDS = 900


@dataclass(frozen=True)
class Work:
    """What every process does.

    Attributes:
        root: the project folder.
        uri: the store's address, "" for the project's own.
        steps: steps of a run, each sent as one batch of `METRICS`.
        keys: how many runs one after the other.
        shared: all processes open the same keys, at the same moment.
    """

    root: Path
    uri: str
    steps: int
    keys: int = 1
    shared: bool = False


@dataclass(frozen=True)
class Done:
    """What a process tells: run ids in order, warnings, and the error that ended it if one did."""

    run_ids: tuple[str, ...]
    warnings: tuple[str, ...]
    error: str
    slowest: float


def run_of(writer: int, key: int) -> Run:
    """The run that a writer opens."""
    return Run("mpo", "smoke", "search", "tiny", f"cell{key}", "grpo", writer, Spec("train", {"lr": 0.1}))


def together(writers: int, work: Work) -> list[Done]:
    """Run that many processes at once, which begin together."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "turnscale.track.run"])
    answers: Any = context.Queue()
    barrier = context.Barrier(writers)
    started = [
        context.Process(target=_write, args=(index, work, barrier, answers.put)) for index in range(writers)
    ]
    for process in started:
        process.start()
    try:
        return [answers.get(timeout=SECONDS) for _ in started]
    except Empty:
        raise AssertionError("a process was lost without a word") from None
    finally:
        for process in started:
            process.join(10)
            if process.is_alive():
                process.kill()


def _write(index: int, work: Work, barrier: Barrier, tell: Callable[[Done], None]) -> None:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if work.uri:
        os.environ["MLFLOW_TRACKING_URI"] = work.uri
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    ids: list[str] = []
    error, slowest = "", 0.0
    try:
        connect(work.root)
        for key in range(work.keys):
            run = run_of(0 if work.shared else index, key)
            barrier.wait(SECONDS)
            with open_run(run, run.spec.value, {}, work.root) as log:
                ids.append(log.run_id)
                for step in range(work.steps):
                    before = time.monotonic()
                    log.metrics(step, {f"metric_{number}": step * number for number in range(METRICS)})
                    log.flush()
                    slowest = max(slowest, time.monotonic() - before)
                log.finish()
    except BaseException as problem:
        barrier.abort()
        error = f"{type(problem).__name__}: {problem}"
    tell(Done(tuple(ids), tuple(warnings), error, slowest))


def assert_whole(work: Work, keys: set[str], steps: int) -> None:
    """Every key has one finished run, and every run every row, once."""
    client, experiment = connect(work.root)
    runs = client.search_runs([experiment], max_results=1000)
    assert sorted(run.data.tags["turnscale.key"] for run in runs) == sorted(keys), "lost or made twice"
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags["turnscale.complete"] == "1"
        for number in range(METRICS):
            rows = client.get_metric_history(run.info.run_id, f"metric_{number}")
            found = sorted((row.step, row.value) for row in rows)
            assert found == [(step, step * number) for step in range(steps)], "rows lost or double"
