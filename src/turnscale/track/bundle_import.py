"""Runs out of an archive into any tracking store: all of them or none, and what was interrupted is completed.

A store gives every run an id of its own choosing. The id under which records and tables know the run is kept as the
tag ``turnscale.origin``, by which `turnscale.track.read.Store` finds it, so tables come out byte for byte.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from turnscale.errors import DataError
from turnscale.files import write_bytes
from turnscale.track.bundle_check import RUN, BundledRun, Content, check
from turnscale.track.bundle_export import describe_digest, private_words
from turnscale.track.bundle_format import Entry, Reader
from turnscale.track.claim import IMPORTED, ORIGIN, claim
from turnscale.track.read import Store
from turnscale.track.retry import insist
from turnscale.track.run import BATCH, PARAMS, upload
from turnscale.track.store import connect, init_tracking, is_default

if TYPE_CHECKING:
    from mlflow import MlflowClient

COMPLETE = "turnscale.complete"
CONFLICT = (
    "import into a store of its own: in a fresh clone, or with MLFLOW_TRACKING_URI set to a new one; "
    "nothing was imported."
)


@dataclass
class Imported:
    """Counts of runs: written now, completed after an interruption, there already; and files written."""

    written: int = 0
    completed: int = 0
    kept: int = 0
    files: int = 0


def import_bundle(
    path: Path,
    root: Path = Path(),
    *,
    digest: str | None = None,
    runs_only: bool = False,
    on_bytes: Callable[[int, int], object] = lambda done, total: None,
) -> Imported:
    """Verify an archive as a whole, then put its runs into the tracking store and its files where they belong.

    Args:
        path: the archive.
        root: the project folder.
        digest: the digest that was published for it; any if None.
        runs_only: leave configuration files and logs of looks alone.
        on_bytes: told while verifying and then while importing: unpacked bytes so far, of how many.

    Raises:
        DataError: the archive is not sound, a run or file differs from one that is there, or space is short; then
            nothing was imported.
        TrackingError: the store refused; importing again completes it.
    """
    with opened(path) as file:
        content, advance = verified(file, path, digest, on_bytes, passes=2)
        _enough_space(content, path, root)
        files = {} if runs_only else _missing_files(file, content, path, root)
        init_tracking(root)
        wanted, done = _wanted(content, path, root)
        for name, text in files.items():
            write_bytes(text, root / name)
            done.files += 1
        file.seek(0)
        _copy(Reader(file, path), content, wanted, root, advance)
    return done


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """An archive opened for reading; whatever the file system refuses meanwhile is told, not raised bare.

    Raises:
        DataError: it cannot be opened, or a file cannot be read or written.
    """
    if not path.is_file():
        problem = "is not a file" if path.exists() else "there is no such file"
        raise DataError(f"{problem}.", file=path, remedy="give the path of an archive.")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        place = path if error.filename is None else error.filename
        raise DataError(
            f"cannot be used ({error.strerror or type(error).__name__}).",
            file=place,
            remedy="mend that, then run the same command again.",
        ) from error


def verified(
    file: BinaryIO,
    path: Path,
    digest: str | None,
    on_bytes: Callable[[int, int], object] = lambda done, total: None,
    passes: int = 1,
) -> tuple[Content, Callable[[int], None]]:
    """What an archive says, found sound, and the counter of bytes to go on with.

    Args:
        file: the archive, at its start; afterwards at its end.
        path: its name in messages.
        digest: the digest that was published for it; any if None.
        on_bytes: told bytes so far, of how many.
        passes: how often the archive will be read in all.

    Raises:
        DataError: see `turnscale.track.bundle_check.check`.
    """
    total = passes * sum(entry.size for entry in Reader(file, path).manifest.members.values())
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_bytes(done, total)

    file.seek(0)
    return check(file, path, digest, advance), advance


def _enough_space(content: Content, path: Path, root: Path) -> None:
    sizes: dict[str, int] = {}
    for name, entry in content.manifest.members.items():
        run = RUN.fullmatch(name)
        sizes[run[1] if run else ""] = sizes.get(run[1] if run else "", 0) + entry.size
    needs = {Path(tempfile.gettempdir()): max(sizes.values(), default=0)}
    if is_default(root):
        needs[root.resolve()] = sum(sizes.values())
    for place, need in needs.items():
        free = shutil.disk_usage(place).free
        if need > free:
            raise DataError(
                f"needs {need} bytes, and {free} are free.", file=path, key=str(place), remedy="make room."
            )


def _missing_files(file: BinaryIO, content: Content, path: Path, root: Path) -> dict[str, bytes]:
    """Content of every file of the archive that is not in the project, or is a log that the archive goes on with.

    Raises:
        DataError: a file is there with another content.
    """
    if not content.files:
        return {}
    file.seek(0)
    missing: dict[str, bytes] = {}
    differing: list[str] = []
    for name, _, pieces in Reader(file, path).members():
        if name not in content.files:
            break  # files come before runs
        text = b"".join(pieces)
        target = root / name
        own = target.read_bytes() if target.exists() else None
        if own is None or (name.startswith("looks/") and text.startswith(own) and text != own):
            missing[name] = text
        elif own != text and not (name.startswith("looks/") and own.startswith(text)):
            differing.append(name)
    if differing:
        raise DataError(
            f"was made with another {', '.join(differing)} than this project has.",
            file=path,
            remedy="import into a clean clone, or give --runs-only to leave your files alone; nothing was imported.",
        )
    return missing


def _wanted(content: Content, path: Path, root: Path) -> tuple[set[str], Imported]:
    """Ids of the runs that are to be written, and the counts.

    Raises:
        DataError: the store holds another run under one of the keys.
    """
    store = Store(root)
    jobs = store.jobs(content.manifest.scale)
    words = private_words(root)
    wanted: set[str] = set()
    done = Imported()
    for run_id, run in content.runs.items():
        job = jobs.get(run.key)
        if job is None:
            wanted.add(run_id)
            done.written += 1
        elif job.run_id != run_id:
            raise DataError(
                f"the tracking store already holds another run {run.key} ({job.run_id}, not {run_id}).",
                file=path,
                remedy=CONFLICT,
            )
        elif job.stored_id != run_id and not job.imported:
            wanted.add(run_id)
            done.completed += 1
        else:
            present = job.imported or describe_digest(store, job, words)
            if present != content.digests[run_id]:
                raise DataError(
                    f"the tracking store holds run {run_id} ({run.key}) with another content.",
                    file=path,
                    remedy=CONFLICT,
                )
            done.kept += 1
    return wanted, done


def _copy(
    reader: Reader, content: Content, wanted: set[str], root: Path, advance: Callable[[int], object]
) -> None:
    client, experiment = connect(root)
    for run_id, members in groupby(reader.members(), key=_run_of):
        if run_id not in wanted:
            for _, entry, pieces in members:
                for _ in pieces:
                    pass
                advance(entry.size)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for name, entry, pieces in members:
                _unpack(name.removeprefix(f"runs/{run_id}/"), entry, pieces, folder)
                advance(entry.size)
            _put(client, experiment, content.runs[run_id], content.digests[run_id], folder)


def _run_of(member: tuple[str, Entry, Iterator[bytes]]) -> str:
    run = RUN.fullmatch(member[0])
    return "" if run is None else run[1]


def _unpack(name: str, entry: Entry, pieces: Iterator[bytes], folder: Path) -> None:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        for piece in pieces:
            file.write(piece)


def _put(client: MlflowClient, experiment: str, run: BundledRun, digest: str, folder: Path) -> None:
    """Write one run; it counts as complete and as imported only when everything of it is there."""
    from mlflow.entities import Metric, Param, RunTag

    head = {ORIGIN: run.id, "turnscale.scale": run.tags["turnscale.scale"]}
    stored, _ = claim(client, experiment, run.key, run.name, run.start_time, head)
    run_id = stored.info.run_id
    if stored.data.tags.get(ORIGIN) != run.id:
        raise DataError(f"another process made run {run.key} meanwhile.", remedy="import again.")
    params = [Param(name, value) for name, value in run.params.items()]
    tags = [RunTag(name, value) for name, value in run.tags.items() if name != COMPLETE]
    for start in range(0, max(len(params), len(tags)), PARAMS):
        window = slice(start, start + PARAMS)
        insist(
            lambda: client.log_batch(run_id, params=params[window], tags=tags[window]),  # noqa: B023
            "import params and tags",
        )
    metrics: dict[str, list[list[Any]]] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    rows = [
        Metric(name, float(value), when, step)
        for name, series in metrics.items()
        for step, when, value in series
    ]
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        insist(lambda: client.log_batch(run_id, metrics=batch), "import metrics")  # noqa: B023
    if (folder / "artifacts").exists():
        upload(client, run_id, folder / "artifacts")
    insist(lambda: client.set_terminated(run_id, run.status, end_time=run.end_time), "close the run")
    last = {COMPLETE: run.tags[COMPLETE], IMPORTED: digest} if COMPLETE in run.tags else {IMPORTED: digest}
    marks = [RunTag(name, value) for name, value in last.items()]
    insist(lambda: client.log_batch(run_id, tags=marks), "mark the run as imported")
