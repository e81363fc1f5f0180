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
from turnscale.track import address, retry
from turnscale.track.refusal import DAMAGED, FREE, WRITABLE, refused

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

EXPERIMENT = "turnscale"
"""The one MLflow experiment; study, scale, cell and seed are tags, so runs of all scales compare side by
side."""

MAKE = "correct MLFLOW_TRACKING_URI or unset it; 'turnscale job tracking' or 'make reproduce' makes a store."
OWN_REMEDIES = {
    address.DAMAGED: DAMAGED,
    address.UNUSABLE: WRITABLE,
    "disk full": FREE,
    address.ABSENT: "'turnscale job tracking' or 'make reproduce' makes it.",
}
"""Reason why the project's own store cannot be used, and what helps, since its place is known."""


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


def init_tracking(root: Path = Path(), patient: bool = False) -> dict[str, Any]:
    """Create the store's tables and the experiment, if they are not there; safe to repeat and to race.

    Args:
        root: the project folder.
        patient: as of `connect`.

    Returns:
        ``{"experiment": name, "experiment_id": id, "backend": "sqlite"|"postgresql"|"http"|...}``. The
        address is left out: a database address can hold a password.

    Raises:
        TrackingError: the store cannot be reached, or was made by another version of MLflow.
    """
    folder = store_dir(root)
    if not is_default(root):
        return _create(root, None, patient)
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    with (folder / ".init.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = _create(root, (folder / "artifacts").as_uri(), patient)
        connection = sqlite3.connect(folder / "mlflow.db", timeout=60)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    return record


def _create(root: Path, artifacts: str | None, patient: bool) -> dict[str, Any]:
    client = _client(root, patient, make=True)
    from mlflow.exceptions import MlflowException

    try:
        found = _experiment(client, patient)
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


def connect(root: Path = Path(), patient: bool = False) -> tuple[MlflowClient, str]:
    """A client and the experiment's id. Nothing is made where no store is.

    Args:
        root: the project folder.
        patient: whether to wait for a store that is away as long as for any other request (`retry.PAUSES`). Jobs
            are: an hour's work is not lost to a server that starts again. People are not: a wrong address is told
            within seconds.

    Raises:
        TrackingError: the store was never initialised, or cannot be reached.
    """
    if is_default(root) and not (store_dir(root) / "mlflow.db").exists():
        raise TrackingError(
            "the tracking store does not exist yet.",
            file=store_dir(root) / "mlflow.db",
            remedy="run 'make reproduce', or 'turnscale job tracking' alone.",
        )
    experiment = _experiment(client := _client(root, patient), patient)
    if experiment is None:
        raise TrackingError(
            f"the tracking store has no experiment '{EXPERIMENT}'.", remedy="run 'turnscale job tracking'."
        )
    return client, experiment.experiment_id


def _experiment(client: MlflowClient, patient: bool) -> Experiment | None:
    """The experiment, None if the store has none; raises TrackingError."""
    from mlflow.exceptions import MlflowException

    def look() -> Experiment | None:
        return client.get_experiment_by_name(EXPERIMENT)

    if patient:
        return retry.insist(look, "find the experiment")
    try:
        return look()
    except MlflowException as error:
        raise _unusable(error) from None


def _client(root: Path, patient: bool, make: bool = False) -> MlflowClient:
    # Read by MLflow when it is imported; runs are nobody else's business.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # MLflow itself would repeat a request to a server that is away for minutes, and training would wait.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        pauses = retry.PAUSES if patient else address.PAUSES
        address.check_address(tracking_uri(root), pauses=pauses, make=make)
    except TrackingError as error:
        own = is_default(root)
        remedy = (OWN_REMEDIES if own else {address.ABSENT: MAKE}).get(error.reason, error.remedy)
        key = None if own else error.key
        raise TrackingError(
            error.problem, file=error.file, key=key, remedy=remedy, reason=error.reason
        ) from None
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError  # MLflow lets those of opening a database through

    try:
        return MlflowClient(tracking_uri=tracking_uri(root))
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
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
