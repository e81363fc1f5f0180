"""Reading the store: artifacts by run id with their checksums, and records rebuilt when ``results/`` is gone."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from turnscale.errors import TrackingError
from turnscale.files import replacing, sha256
from turnscale.track.claim import IMPORTED, ORIGIN, SUPERSEDED
from turnscale.track.retry import insist
from turnscale.track.run import RECORD
from turnscale.track.store import connect, is_default, store_dir

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun


LOST = (
    "restore it from a backup; or remove the record under results/ that names this run (run.json, or for outcomes "
    "evaluation-*.json) and run the workflow again: training goes on from its checkpoint."
)


@dataclass(frozen=True)
class StoredJob:
    """A run of any kind as the store tells it; ``ended`` in seconds since the epoch, 0 while it runs.

    Attributes:
        run_id: the run's identity, in records and tables: its id in the store it was made in.
        stored_id: its id in this store; another only if it was imported.
        imported: digest of what was imported, "" if nothing was or the import was interrupted.
    """

    run_id: str
    stored_id: str
    kind: str
    key: str
    status: str
    complete: bool
    superseded: bool
    imported: str
    attempt: int
    ended: float
    tags: Mapping[str, str]


class Store:
    """A connection for reading.

    Args:
        root: the project folder.
        patient: whether to wait for a store that is away as jobs do (`connect`).
        later: connect at the first question that only the store can answer. Artifacts that are files of the
            project's own store are none, and MLflow's imports are seconds.

    Raises:
        TrackingError: the store was never initialised, or cannot be reached.
    """

    def __init__(self, root: Path = Path(), patient: bool = False, *, later: bool = False) -> None:
        self.root = root
        self._patient = patient
        self._imported: dict[str, str] | None = None
        if not later:
            _ = self._connection

    @cached_property
    def _connection(self) -> tuple[MlflowClient, str]:
        return connect(self.root, self._patient)

    @property
    def _client(self) -> MlflowClient:
        return self._connection[0]

    @property
    def _experiment(self) -> str:
        return self._connection[1]

    def jobs(self, scale: str) -> dict[str, StoredJob]:
        """The runs of a scale by key; superseded and deleted ones are left out."""
        return {job.key: job for job in self.all_jobs(scale) if not job.superseded}

    def all_jobs(self, scale: str) -> list[StoredJob]:
        """Every run of a scale, oldest first, superseded ones too."""
        found: list[StoredJob] = []
        token: str | None = None
        while True:
            page = insist(
                lambda: self._client.search_runs(
                    [self._experiment],
                    filter_string=f"tags.`turnscale.scale` = '{scale}'",
                    order_by=["attributes.start_time ASC"],
                    max_results=1000,
                    page_token=token,  # noqa: B023
                ),
                "list runs",
            )
            found += [_job(run) for run in page]
            token = page.token
            if not token:
                break
        return found

    def stored_id(self, run_id: str) -> str:
        """The id in this store of a run that records and tables name by ``run_id``.

        Raises:
            TrackingError: the store cannot be read.
        """
        if self._imported is None:
            self._imported = imported_ids(self._client, self._experiment)
        return self._imported.get(run_id, run_id)

    def details(self, job: StoredJob) -> StoredRun:
        """Everything of a run but its metrics' history and artifacts."""
        return insist(lambda: self._client.get_run(job.stored_id), "look up the run")

    def history(self, job: StoredJob, metric: str) -> list[tuple[int, int, float]]:
        """Every row of a metric: step, time in ms since the epoch, value; sorted."""
        rows = insist(lambda: self._client.get_metric_history(job.stored_id, metric), "read a metric")
        return sorted((int(row.step), int(row.timestamp), float(row.value)) for row in rows)

    def find(self, key: str) -> StoredJob | None:
        """The oldest finished job of that key; None if there is none."""
        found = insist(
            lambda: self._client.search_runs(
                [self._experiment],
                filter_string=f"tags.`turnscale.key` = '{key}' and attributes.status = 'FINISHED'",
                order_by=["attributes.start_time ASC"],
            ),
            "look up a job",
        )
        jobs = [job for job in map(_job, found) if job.complete and not job.superseded]
        return jobs[0] if jobs else None

    @contextmanager
    def artifact(self, run_id: str, name: str, checksum: str | None = None) -> Iterator[Path]:
        """A run's artifact as a readable file or folder, for the length of the ``with`` block.

        Args:
            run_id: MLflow's id.
            name: the artifact's name, folders included; "" is all of them.
            checksum: expected SHA-256 of a file.

        Raises:
            TrackingError: it is not there, or its bytes are not those that were logged.
        """
        if checksum is not None and is_default(self.root):
            # Whatever the store may say of a run made here, these are the bytes asked for.
            own = store_dir(self.root) / "artifacts" / run_id / "artifacts" / name
            if own.is_file() and sha256(own) == checksum:
                yield own
                return
        local = self._local(run_id)
        if local is not None:
            path = local / name
            if not path.exists():
                raise TrackingError(f"run {run_id} has no artifact '{name}'.", file=path, remedy=LOST)
            yield _as_logged(path, run_id, name, checksum)
            return
        with tempfile.TemporaryDirectory() as scratch:
            stored = self.stored_id(run_id)
            found = insist(
                lambda: self._client.download_artifacts(stored, name, scratch), f"download '{name}'"
            )
            yield _as_logged(Path(found), run_id, name, checksum)

    def record(self, job: StoredJob, name: str = RECORD) -> dict[str, Any]:
        """A record that a finished job left in the store.

        Raises:
            TrackingError: it is not there or is not JSON.
        """
        with self.artifact(job.run_id, name) as path:
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise TrackingError("is not JSON.", file=path, remedy="run the job again.") from error
        if not isinstance(value, dict):
            raise TrackingError("is not a record.", file=path, remedy="run the job again.")
        return value

    def has(self, job: StoredJob, name: str) -> bool:
        """Whether the run has an artifact of that name."""
        local = self._local(job.run_id)
        if local is not None:
            return (local / name).exists()
        folder = name.rpartition("/")[0] or None
        listed = insist(lambda: self._client.list_artifacts(job.stored_id, folder), "list artifacts")
        return any(item.path == name for item in listed)

    def copy_artifacts(self, run_id: str, checksums: Mapping[str, str], target: Path) -> None:
        """Copy artifacts into a folder under their names, each checked.

        Raises:
            TrackingError: one is not there or differs.
        """
        for name, checksum in checksums.items():
            with self.artifact(run_id, name, checksum) as path:
                place = target / name
                with replacing(place) as temporary:
                    shutil.copyfile(path, temporary)

    def _local(self, run_id: str) -> Path | None:
        """Folder of the run's artifacts when they are files here, also after the project was moved."""
        stored = self.stored_id(run_id)
        if is_default(self.root):
            moved = store_dir(self.root) / "artifacts" / stored / "artifacts"
            if moved.is_dir():
                return moved
        uri = insist(lambda: self._client.get_run(stored), "look up the run").info.artifact_uri
        parts = urlparse(uri)
        if parts.scheme in ("", "file"):
            return Path(unquote(parts.path))
        return None


def _as_logged(path: Path, run_id: str, name: str, checksum: str | None) -> Path:
    """The path itself. Raises TrackingError if its bytes are not those of the checksum."""
    if checksum is not None and sha256(path) != checksum:
        raise TrackingError(
            f"artifact '{name}' of run {run_id} is not what was logged (its SHA-256 differs).",
            file=path,
            remedy=LOST,
        )
    return path


def stored_id(client: MlflowClient, experiment: str, run_id: str) -> str:
    """The id in the store of one run that records and tables name by ``run_id``. Raises TrackingError."""
    return imported_ids(client, experiment).get(run_id, run_id)


def imported_ids(client: MlflowClient, experiment: str) -> dict[str, str]:
    """Identity -> id in the store of every run that was imported, whole or not.

    Raises:
        TrackingError: the store cannot be read.
    """
    found: dict[str, str] = {}
    token: str | None = None
    while True:
        page = insist(
            lambda: client.search_runs(
                [experiment],
                filter_string=f"tags.`{ORIGIN}` LIKE '%'",
                max_results=1000,
                page_token=token,  # noqa: B023
            ),
            "look for imported runs",
        )
        found |= {run.data.tags[ORIGIN]: run.info.run_id for run in page if SUPERSEDED not in run.data.tags}
        token = page.token
        if not token:
            return found


def _job(run: StoredRun) -> StoredJob:
    tags = run.data.tags
    return StoredJob(
        run_id=tags.get(ORIGIN, run.info.run_id),
        stored_id=run.info.run_id,
        kind=tags.get("turnscale.kind", ""),
        key=tags.get("turnscale.key", ""),
        status=run.info.status,
        complete=tags.get("turnscale.complete") == "1",
        superseded=SUPERSEDED in tags,
        imported=tags.get(IMPORTED, ""),
        attempt=int(tags.get("turnscale.attempt", "0")),
        ended=(run.info.end_time or 0) / 1000,
        tags={key.removeprefix("turnscale."): value for key, value in tags.items()},
    )
