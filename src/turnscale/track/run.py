"""One training run in the tracking store: opened once, resumed rather than repeated, closed as it ended.

A run is found again by its tag ``turnscale.key``, so a job that was killed goes on in the same MLflow run
with its ``turnscale.attempt`` raised. Metrics are sent in batches with timestamps that follow from the
step, so the store drops a repeated row by itself. A store that is slow or away never stops training; only
`RunLog.finish` insists.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.errors import TrackingError, reason_of
from turnscale.files import sha256, write_json
from turnscale.masking import masked
from turnscale.study import Run
from turnscale.track.claim import IMPORTED, ORIGIN, claim
from turnscale.track.environment import code_revision, environment, gpus, model_device, source_hash
from turnscale.track.retry import insist
from turnscale.track.store import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities import Run as StoredRun

logger = logging.getLogger(__name__)

BATCH = 1000
"""Most metrics MLflow takes in one request."""
PARAMS = 100
"""Most params or tags MLflow takes in one request."""
METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
GPU_TAG = "turnscale.gpus"
RECORD = "record.json"
"""The artifact from which a run's record is rebuilt when ``results/`` is gone."""


class RunLog:
    """A run being written. Made by `open_run`.

    Attributes:
        run_id: MLflow's id of the run.
        attempt: 1 at first, one more each time the run is resumed.
        artifacts: name -> SHA-256 of every artifact logged through this object.
    """

    def __init__(
        self, client: MlflowClient, stored: StoredRun, attempt: int, record: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._record = dict(record)
        self._start = int(stored.info.start_time)
        self._buffer: list[Metric] = []
        self._next_flush = BATCH
        self._opened = time.monotonic()
        self.run_id: str = stored.info.run_id
        self.artifact_uri: str = stored.info.artifact_uri
        self.attempt = attempt
        self.artifacts: dict[str, str] = {}
        self.finished = False

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Buffer the metrics of one step; full batches are sent at once, the rest at the next `flush`.

        Args:
            step: the training step, 0 or more.
            values: name -> value. NaN and infinities are kept as MLflow keeps them.

        Raises:
            ValueError: a name MLflow would refuse or that is not letters, digits and underscores.
        """
        from mlflow.entities import Metric

        for name, value in values.items():
            if not METRIC.fullmatch(name):
                raise ValueError(f"'{name}' is not a legal metric name (letters, digits, '_')")
            # The timestamp follows from the step, so a step logged again is the same row and is dropped.
            self._buffer.append(Metric(name, float(value), self._start + int(step), int(step)))
        if len(self._buffer) >= self._next_flush:
            self.flush()

    def flush(self) -> bool:
        """Send the buffered metrics, with one try, so that training waits for no store.

        Returns:
            Whether all were sent. If not, they stay buffered and a warning says so; training goes on.
        """
        try:
            self._send(pauses=())
        except TrackingError as error:
            self._next_flush = len(self._buffer) + BATCH
            logger.warning("%s %d metric rows are kept for the next try.", error, len(self._buffer))
            return False
        return True

    def _send(self, pauses: Sequence[float] | None = None) -> None:
        while self._buffer:
            batch = self._buffer[:BATCH]
            insist(lambda: self._client.log_batch(self.run_id, metrics=batch), "log metrics", pauses)  # noqa: B023
            del self._buffer[: len(batch)]
        self._next_flush = BATCH

    def artifact(self, path: Path, folder: str = "") -> None:
        """Upload a file, or every file of a directory, and note its SHA-256.

        Args:
            path: a file or a directory, whose own name is not part of the artifacts' names.
            folder: where to put it in the run's artifacts, "" for the top.

        Raises:
            TrackingError: the store did not take it.
        """
        self.artifacts.update(upload(self._client, self.run_id, path, folder))

    def tag(self, name: str, value: object) -> None:
        """Set a tag ``turnscale.<name>``.

        Raises:
            TrackingError: the store did not take it.
        """
        insist(lambda: self._client.set_tag(self.run_id, f"turnscale.{name}", str(value)), "set a tag")

    def finish(self, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send what is left, upload the record, mark the run complete, then FINISHED.

        Args:
            extra: further plain JSON to put into the record, e.g. ``{"seconds": 81.2}``.

        Returns:
            The run's record, to be written as ``run.json``: key, study, scale, family, model, cell, method,
            seed, spec_hash, run_id, artifact_uri, status, attempt, artifacts, seconds, code_revision, and
            ``extra``.

        Raises:
            TrackingError: the store did not take everything; the job should fail and be run again.
        """
        self._send()
        record = {
            **self._record,
            "run_id": self.run_id,
            "artifact_uri": self.artifact_uri,
            "status": "FINISHED",
            "attempt": self.attempt,
            "seconds": round(time.monotonic() - self._opened, 1),
            "artifacts": dict(sorted(self.artifacts.items())),
            **(extra or {}),
        }
        upload_json(self._client, self.run_id, record, RECORD)
        self.tag("complete", 1)
        insist(lambda: self._client.set_terminated(self.run_id, "FINISHED"), "finish the run")
        self.finished = True
        return record

    def _abandon(self, status: str, reason: str, error: str = "") -> None:
        """Close the run as FAILED or KILLED; the first error matters more than one met here."""
        self.flush()
        try:
            self.tag("reason", reason)
            self.tag("error", masked(error)[:500])
            insist(lambda: self._client.set_terminated(self.run_id, status), "close the run")
        except TrackingError as error:
            logger.warning("%s The run's status in the store may be stale.", error)


@contextmanager
def open_run(
    run: Run,
    spec: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    root: Path = Path(),
) -> Iterator[RunLog]:
    """The MLflow run of ``run``: created, or found by its key and resumed.

    Leaving by an exception closes it as FAILED, by Ctrl-C or SIGTERM as KILLED. The tag ``turnscale.reason`` says why
    in a few words, under which such runs are counted, and ``turnscale.error`` in full. Leaving without
    `RunLog.finish` is an error of the caller and closes it as FAILED.

    Args:
        run: which run; ``run.key`` names it in the store.
        spec: its resolved specification; becomes params and the artifact ``config.json``.
        tags: further tags, e.g. panel hashes; names get the prefix ``turnscale.``.
        root: the project folder.

    Raises:
        TrackingError: the store cannot be reached, or holds other params under this key.
    """
    record = {
        "kind": "train",
        "key": run.key,
        "study": run.study,
        "scale": run.scale,
        "family": run.family,
        "model": run.model,
        "cell": run.cell,
        "method": run.method,
        "seed": run.seed,
        "spec_hash": run.spec.hash,
        "code_revision": code_revision(root),
        "source_hash": source_hash(),
    }
    name = f"{run.cell} seed {run.seed} ({run.scale}, {run.study}, {run.family}, {run.model})"
    with open_log(record, spec, name, tags or {}, root) as log:
        yield log


@contextmanager
def open_log(
    record: Mapping[str, Any],
    spec: Mapping[str, Any],
    name: str,
    tags: Mapping[str, str],
    root: Path,
) -> Iterator[RunLog]:
    """`open_run` for a record of any kind; ``record`` must hold ``key`` and ``kind``."""
    client, experiment = connect(root, patient=True)
    wanted = {f"turnscale.{key}": str(value) for key, value in {**record, **tags}.items()}
    stored, attempt = _find_or_create(client, experiment, str(record["key"]), name)
    log = RunLog(client, stored, attempt, record)
    with terminable():
        try:
            wanted |= {"turnscale.attempt": str(attempt), "turnscale.complete": "0"}
            wanted |= {"turnscale.reason": "", "turnscale.error": ""}
            wanted |= _gpu_tag(stored, spec)
            _describe(client, stored, spec, wanted)
            yield log
            if not log.finished:
                raise RuntimeError(f"run {record['key']} was left without finish()")
        except KeyboardInterrupt:
            log._abandon("KILLED", "interrupted")
            raise
        except BaseException as error:
            if not log.finished:
                log._abandon("FAILED", reason_of(error), f"{type(error).__name__}: {error}")
            raise


def _gpu_tag(stored: StoredRun, spec: Mapping[str, Any]) -> dict[str, str]:
    """UUIDs of the GPUs of this and earlier attempts, each once, so that a faulty one can be traced."""
    earlier = stored.data.tags.get(GPU_TAG, "").split()
    here = [str(gpu["uuid"]) for gpu in gpus(model_device(spec))]
    every = list(dict.fromkeys([*earlier, *here]))
    return {GPU_TAG: " ".join(every)} if every else {}


def _find_or_create(client: MlflowClient, experiment: str, key: str, name: str) -> tuple[StoredRun, int]:
    """The key's run and the number of this attempt at it."""
    stored, created = claim(client, experiment, key, name)
    if created:
        return stored, 1
    run_id = stored.info.run_id
    for tag in (ORIGIN, IMPORTED):  # it is made here from now on, no longer what was imported
        if tag in stored.data.tags:
            insist(lambda: client.delete_tag(run_id, tag), "remove a tag")  # noqa: B023
    if stored.info.status != "RUNNING":
        insist(lambda: client.update_run(run_id, status="RUNNING"), "resume the run")
    return stored, int(stored.data.tags.get("turnscale.attempt", "0")) + 1


def _describe(
    client: MlflowClient, stored: StoredRun, spec: Mapping[str, Any], tags: Mapping[str, str]
) -> None:
    from mlflow.entities import Param, RunTag

    run_id = stored.info.run_id
    params = [Param(key, value) for key, value in flatten(spec).items()]
    marks = [RunTag(key, value) for key, value in tags.items()]
    for start in range(0, max(len(params), len(marks)), PARAMS):
        window = slice(start, start + PARAMS)
        insist(
            lambda: client.log_batch(run_id, params=params[window], tags=marks[window]),  # noqa: B023
            "log the configuration",
        )
    upload_json(client, run_id, spec, "config.json")
    upload_json(client, run_id, environment(model_device(spec)), "environment.json")


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names with short values, within MLflow's limits.

    Characters MLflow refuses become '_'. Values longer than 500 characters end in '...': the whole is in
    ``config.json``.
    """
    flat: dict[str, str] = {}
    for key, item in value.items():
        name = re.sub(r"[^\w\-. /]", "_", f"{prefix}{key}", flags=re.ASCII)[:250]
        if isinstance(item, Mapping):
            flat.update(flatten(item, f"{name}."))
            continue
        text = item if isinstance(item, str) else json.dumps(item, sort_keys=True)
        flat[name] = text if len(text) <= 500 else f"{text[:497]}..."
    return flat


def upload(client: MlflowClient, run_id: str, path: Path, folder: str = "") -> dict[str, str]:
    """Upload a file or all files of a directory; artifact name -> SHA-256.

    Raises:
        TrackingError: the store did not take it.
        FileNotFoundError: there is nothing at ``path``.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    hashes: dict[str, str] = {}
    for file in files:
        inner = "" if path.is_file() else file.parent.relative_to(path).as_posix()
        target = "/".join(part for part in (folder, inner) if part not in ("", "."))
        insist(lambda: client.log_artifact(run_id, str(file), target or None), f"upload {file.name}")  # noqa: B023
        hashes["/".join(part for part in (target, file.name) if part)] = sha256(file)
    return hashes


def upload_json(client: MlflowClient, run_id: str, value: Mapping[str, Any], name: str) -> None:
    """Upload plain JSON under the artifact name ``name``.

    Raises:
        TrackingError: the store did not take it.
    """
    folder, _, file = name.rpartition("/")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / file
        write_json(value, path)
        upload(client, run_id, path, folder)


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt for the while, so that a cancelled job closes its run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
