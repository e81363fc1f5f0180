"""What machines share through the tracking store by content hash: task panels, starting checkpoints and critics.

Each is named in the store by the hash of all that can change it, so a machine that finds it finished there takes it
rather than make it again, every byte checked against the checksums that were logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnscale.errors import TrackingError
from turnscale.track.read import Store
from turnscale.track.records import read_record, read_with_files, write_record

logger = logging.getLogger(__name__)

PLACES = ("checkpoint", "adapter", "probe")
"""Keys of a base's or critic's record whose value is the path of a file or folder beside the record."""


def fetch(key: str, folder: Path, root: Path) -> dict[str, Any] | None:
    """The record of a finished job, taken from the store with its files.

    Args:
        key: the job's name in the store, which holds the hash of its specification.
        folder: receives the job's artifacts under their names.
        root: the project folder.

    Returns:
        The record, with paths in ``folder``; None if the store has no finished job of that key, or what it has is
        damaged (a warning says so), so that it must be made.

    Raises:
        TrackingError: the store cannot be reached.
    """
    store = Store(root, patient=True)
    job = store.find(key)
    if job is None:
        return None
    try:
        record = store.record(job)
        store.copy_artifacts(job.run_id, record["artifacts"], folder)
    except TrackingError as error:
        logger.warning("%s It is made anew.", error)
        return None
    print(f"taken from the tracking store: {key} (run {job.run_id})", flush=True)
    return _placed(record, folder)


def obtain(key: str, path: Path, root: Path) -> bool:
    """Write a base's or critic's record, and its files beside it, if the store has them.

    Returns:
        Whether it had.

    Raises:
        TrackingError: the store cannot be reached.
    """
    record = fetch(key, path.parent, root)
    if record is None:
        return False
    write_record(path, record)
    return True


def read_shared(path: Path, root: Path) -> dict[str, Any]:
    """A base's or critic's record with the paths of its files here; files that are not here come from the store.

    So the record alone, on a machine that shares nothing but the store, is enough.

    Raises:
        DataError: the record cannot be read.
        CheckpointError: a file is not what was recorded.
        TrackingError: a file is missing here, and the store does not have it as it was logged.
    """
    record = read_record(path)
    missing = {
        name: checksum for name, checksum in record["artifacts"].items() if not (path.parent / name).is_file()
    }
    if missing:
        Store(root, patient=True).copy_artifacts(record["run_id"], missing, path.parent)
    return _placed(read_with_files(path), path.parent)


def _placed(record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        key: str(folder / Path(value).name) if key in PLACES and value else value
        for key, value in record.items()
    }
