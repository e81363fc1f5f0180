"""Reading the store: artifacts by run id with their checksums, and records rebuilt when ``results/`` is gone."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from turnscale.errors import TrackingError
from turnscale.files import replacing, sha256
from turnscale.track.run import RECORD, insist
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
    """A run of any kind as the store tells it; ``ended`` in seconds since the epoch, 0 while it runs."""

    run_id: str
    kind: str
    key: str
    status: str
    complete: bool
    superseded: bool
    attempt: int
    ended: float
    tags: Mapping[str, str]


class Store:
    """A connection for reading.

    Args:
        root: the project folder.

    Raises:
        TrackingError: the store was never initialised, or cannot be reached.
    """

    def __init__(self, root: Path = Path()) -> None:
        self.root = root
        self._client: MlflowClient
        self._client, self._experiment = connect(root)

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
                return found

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
        local = self._local(run_id)
        with tempfile.TemporaryDirectory() as scratch:
            if local is not None:
                path = local / name
                if not path.exists():
                    raise TrackingError(
                        f"run {run_id} has no artifact '{name}'.",
                        file=path,
                        remedy=LOST,
                    )
            else:
                path = Path(
                    insist(
                        lambda: self._client.download_artifacts(run_id, name, scratch), f"download '{name}'"
                    )
                )
            if checksum is not None and sha256(path) != checksum:
                raise TrackingError(
                    f"artifact '{name}' of run {run_id} is not what was logged (its SHA-256 differs).",
                    file=path,
                    remedy=LOST,
                )
            yield path

    def record(self, job: StoredJob, name: str = RECORD) -> dict[str, Any]:
        """A record that a finished job left in the store.

        Raises:
            TrackingError: it is not there or is not JSON.
        """
        with self.artifact(job.run_id, name) as path:
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
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
        listed = insist(lambda: self._client.list_artifacts(job.run_id, folder), "list artifacts")
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
        if is_default(self.root):
            moved = store_dir(self.root) / "artifacts" / run_id / "artifacts"
            if moved.is_dir():
                return moved
        uri = insist(lambda: self._client.get_run(run_id), "look up the run").info.artifact_uri
        parts = urlparse(uri)
        if parts.scheme in ("", "file"):
            return Path(unquote(parts.path))
        return None


def _job(run: StoredRun) -> StoredJob:
    tags = run.data.tags
    return StoredJob(
        run_id=run.info.run_id,
        kind=tags.get("turnscale.kind", ""),
        key=tags.get("turnscale.key", ""),
        status=run.info.status,
        complete=tags.get("turnscale.complete") == "1",
        superseded="turnscale.superseded" in tags,
        attempt=int(tags.get("turnscale.attempt", "0")),
        ended=(run.info.end_time or 0) / 1000,
        tags={key.removeprefix("turnscale."): value for key, value in tags.items()},
    )
