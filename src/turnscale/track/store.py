"""Where runs are recorded: one MLflow store, created once, outside ``results/``.

The default is SQLite with write-ahead logging at ``mlflow/mlflow.db`` and artifacts under
``mlflow/artifacts``. ``MLFLOW_TRACKING_URI`` replaces it with any MLflow store (a server, PostgreSQL); jobs
on several machines need that, since SQLite must not be shared over a network file system.

MLflow creates its tables on first use and that is not safe in parallel, so `init_tracking` runs once, as
the first job of the workflow, and everything else connects with `connect`, which refuses a store that was
never initialised.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.errors import TrackingError
from turnscale.track.address import check_address

if TYPE_CHECKING:
    from mlflow import MlflowClient

LONGEST = 200
"""Characters of the store's own words that an error repeats."""
EXPERIMENT = "turnscale"
"""The one MLflow experiment; study, scale, cell and seed are tags, so runs of all scales compare side by
side."""

DAMAGED = (
    "put a backup of mlflow/mlflow.db in its place; without one, move mlflow/ away, 'make clean-results' for each "
    "scale and run the workflow again: trainings that were finished are only logged again, from checkpoints/."
)
FREE = "free space on the store's disk, then run the same command again: finished work is kept."
WRITABLE = "make the store writable for this user, then run the same command again: finished work is kept."

CAUSES = (
    (("malformed", "not a database", "disk image"), "tracking store damaged", DAMAGED),
    (("disk is full", "disk I/O error", "No space left", "File too large", "Disk quota"), "disk full", FREE),
    (("readonly database", "Read-only file system", "Permission denied"), "not writable", WRITABLE),
)
"""Words of the store's errors, the reason they stand for, and what helps."""


def store_dir(root: Path) -> Path:
    """Absolute folder of the default store."""
    return root.resolve() / "mlflow"


def tracking_uri(root: Path = Path()) -> str:
    """``MLFLOW_TRACKING_URI`` if set, else the project's SQLite file as an absolute URI."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    return given or f"sqlite:///{store_dir(root) / 'mlflow.db'}"


def is_default(root: Path = Path()) -> bool:
    """Whether runs go to the project's own SQLite store."""
    return tracking_uri(root) == f"sqlite:///{store_dir(root) / 'mlflow.db'}"


def init_tracking(root: Path = Path()) -> dict[str, Any]:
    """Create the store's tables and the experiment, if they are not there; safe to repeat and to race.

    Returns:
        ``{"experiment": name, "experiment_id": id, "backend": "sqlite"|"postgresql"|"http"|...}``. The
        address is left out: a database address can hold a password.

    Raises:
        TrackingError: the store cannot be reached, or was made by another version of MLflow.
    """
    folder = store_dir(root)
    if not is_default(root):
        return _create(root, artifacts=None)
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    with (folder / ".init.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = _create(root, artifacts=(folder / "artifacts").as_uri())
        connection = sqlite3.connect(folder / "mlflow.db", timeout=60)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    return record


def _create(root: Path, artifacts: str | None) -> dict[str, Any]:
    client = _client(root)
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            try:
                identity = client.create_experiment(EXPERIMENT, artifact_location=artifacts)
            except MlflowException:
                found = client.get_experiment_by_name(EXPERIMENT)  # another initialiser was faster
                if found is None:
                    raise
                identity = found.experiment_id
        else:
            identity = found.experiment_id
    except MlflowException as error:
        raise _unusable(error) from None
    return {
        "experiment": EXPERIMENT,
        "experiment_id": identity,
        "backend": tracking_uri(root).split(":", 1)[0].split("+", 1)[0],
    }


def connect(root: Path = Path()) -> tuple[MlflowClient, str]:
    """A client and the experiment's id.

    Raises:
        TrackingError: the store was never initialised, or cannot be reached.
    """
    if is_default(root) and not (store_dir(root) / "mlflow.db").exists():
        raise TrackingError(
            "the tracking store does not exist yet.",
            file=store_dir(root) / "mlflow.db",
            remedy="run 'make reproduce', or 'turnscale job tracking' alone.",
        )
    client = _client(root)
    from mlflow.exceptions import MlflowException

    try:
        experiment = client.get_experiment_by_name(EXPERIMENT)
    except MlflowException as error:
        raise _unusable(error) from None
    if experiment is None:
        raise TrackingError(
            f"the tracking store has no experiment '{EXPERIMENT}'.", remedy="run 'turnscale job tracking'."
        )
    return client, experiment.experiment_id


def _client(root: Path) -> MlflowClient:
    # Read by MLflow when it is imported; runs are nobody else's business.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # MLflow itself would repeat a request to a server that is away for minutes, and training would wait.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        check_address(tracking_uri(root))
    except TrackingError as error:
        if not is_default(root):
            raise
        damaged = "not an SQLite database" in error.problem
        raise TrackingError(
            error.problem,
            file=error.file,
            remedy=DAMAGED if damaged else WRITABLE,
            reason="tracking store damaged" if damaged else "not writable",
        ) from None
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return MlflowClient(tracking_uri=tracking_uri(root))
    except (MlflowException, OSError, ImportError) as error:
        raise _unusable(error) from None  # the cause's own text may hold the address with its password


def database_problems(root: Path) -> list[str]:
    """What SQLite finds wrong in the project's own store, a sentence each; nothing for a store of another kind.

    SQLite keeps no checksums: damage that leaves its structure whole is not found here. No table is made from the
    database, though; the numbers are in artifacts, which have checksums.
    """
    path = store_dir(root) / "mlflow.db"
    if not is_default(root) or not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=60)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    finally:
        connection.close()
    return [] if found == ["ok"] else [f"{path}: {line} Remedy: {DAMAGED}" for line in found]


def _unusable(error: Exception) -> TrackingError:
    if "out-of-date database schema" in str(error):
        return TrackingError(
            "the tracking store was made by another version of MLflow.",
            remedy="back it up, then run 'mlflow db upgrade' on it.",
        )
    return refused(
        "use the tracking store",
        error,
        "check MLFLOW_TRACKING_URI, or unset it to use the project's own store.",
    )


def refused(what: str, error: Exception, remedy: str) -> TrackingError:
    """The store's error as one that says what could not be done and what helps.

    Args:
        what: such as "log metrics in the tracking store".
        error: MLflow's or the operating system's.
        remedy: what to do where the error names no cause that is known here.
    """
    text = str(error).strip() or type(error).__name__
    reason = None
    for marks, cause, help_ in CAUSES:
        if any(mark in text for mark in marks):
            reason, remedy = cause, help_
            break
    return TrackingError(f"could not {what} ({_first(text)}).", remedy=remedy, reason=reason)


def _first(text: str) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 1]}…"
