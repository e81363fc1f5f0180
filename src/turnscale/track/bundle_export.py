"""A study's runs out of the tracking store into one archive."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlparse

from turnscale.errors import DataError
from turnscale.files import read_json, replacing
from turnscale.track.bundle_check import OWN_TAGS, RECORD, Content, check, run_digest
from turnscale.track.bundle_format import (
    Manifest,
    Member,
    canonical,
    make_manifest,
    problem_with,
    write_archive,
)
from turnscale.track.bundle_select import Selection
from turnscale.track.read import Store, StoredJob
from turnscale.track.store import tracking_uri

ENDED = ("FINISHED", "FAILED", "KILLED")
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)
"""Environment variables whose values must not be found in a bundle."""

HOME = "the path of the home folder"
PROJECT = "the path of the project's folder"


@dataclass(frozen=True)
class Exported:
    """What was written: the manifest, the number of runs, and the keys that the store lacks or that still run."""

    manifest: Manifest
    runs: int
    absent: tuple[str, ...]


def export(
    selection: Selection,
    target: Path,
    root: Path = Path(),
    *,
    partial: bool = False,
    force: bool = False,
    on_run: Callable[[int, int], object] = lambda done, total: None,
    on_bytes: Callable[[int, int], object] = lambda done, total: None,
) -> Exported:
    """Write a bundle, by a temporary file that is verified and then renamed.

    Finished, failed and killed runs are taken; a run at work is not, nor one that another supersedes.

    Args:
        selection: which runs and files.
        target: the archive to write.
        root: the project folder.
        partial: take the runs that have ended and count the others, rather than refuse.
        force: replace an archive that is there, rather than refuse.
        on_run: told after each run that was read: how many, of how many.
        on_bytes: told while writing and then while verifying: bytes so far, of how many.

    Raises:
        DataError: the store has none of the runs, or not all (unless ``partial``), the target is there (unless
            ``force``), a folder of this machine or a secret stands in one of them, a
            name does not fit, or the target's folder is not there.
        StorageError: the target cannot be written.
        TrackingError: the store cannot be read, or an artifact is not what was logged.
    """
    _check_target(target, force)
    store = Store(root)
    jobs = store.jobs(selection.scale)
    known = [jobs[key] for key in (*selection.optional, *selection.keys) if key in jobs]
    found = [job for job in known if job.status in ENDED and job.ended]
    if not found:
        raise DataError(
            f"the tracking store has no finished run of {selection.study} at scale {selection.scale}.",
            remedy="run 'make reproduce' first, or name another study or scale.",
        )
    taken = {job.key for job in found}
    absent = tuple(key for key in selection.keys if key not in taken)
    if absent and not partial:
        raise DataError(
            f"{len(absent)} of the study's {len(selection.keys)} jobs have not ended or are not in the tracking "
            f"store, {absent[0]} for one.",
            remedy="finish them with 'make reproduce', or publish those that have ended with --partial.",
        )
    words = private_words(root)
    with ExitStack() as stack:
        members = [Member.of(name, root / name) for name in selection.files]
        for count, job in enumerate(found, start=1):
            members += describe(store, job, words, stack)
            on_run(count, len(found))
        manifest = make_manifest(selection.study, selection.scale, members)
        _write(target, manifest, members, words, on_bytes)
    return Exported(manifest, len(found), absent)


def _check_target(target: Path, force: bool) -> None:
    if target.is_dir():
        raise DataError(
            "is a folder.", file=target, remedy="name the archive itself, e.g. mpo-quick.tar.gz in it."
        )
    if target.exists() and not force:
        raise DataError(
            "is there already.", file=target, remedy="choose another name, or replace it with --force."
        )
    if not target.parent.is_dir():
        raise DataError("is no folder.", file=target.parent, remedy="make it, or choose another place.")


def describe(store: Store, job: StoredJob, words: Mapping[bytes, str], stack: ExitStack) -> list[Member]:
    """The members of a run. Equal for a run and its import, whatever store they are in.

    Args:
        store: where it is.
        job: the run.
        words: what must not be told of this machine, from `private_words`.
        stack: keeps downloaded artifacts until it is closed.

    Raises:
        TrackingError: the store cannot be read.
        DataError: an artifact's name does not fit.
    """
    stored = store.details(job)
    place = f"runs/{job.run_id}"
    tags = {
        name: value
        for name, value in stored.data.tags.items()
        if name not in OWN_TAGS and not name.startswith("mlflow.")
    }
    run = {
        "id": job.run_id,
        "key": job.key,
        "name": stored.info.run_name or job.key,
        "status": stored.info.status,
        "start_time": int(stored.info.start_time),
        "end_time": int(stored.info.end_time),
        "params": {name: _discreet(value, words) for name, value in stored.data.params.items()},
        "tags": {name: _discreet(value, words) for name, value in tags.items()},
    }
    metrics = {
        name: [[step, when, _plain(value)] for step, when, value in store.history(job, name)]
        for name in stored.data.metrics
    }
    members = [
        Member.of(f"{place}/run.json", canonical(run)),
        Member.of(f"{place}/metrics.json", canonical(metrics)),
    ]
    folder = stack.enter_context(store.artifact(job.run_id, ""))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise DataError(
                "is a link; artifacts are plain files.", file=path, remedy="replace it by a file."
            )
        if not path.is_file():
            continue
        inner = path.relative_to(folder).as_posix()
        problem = problem_with(f"{place}/artifacts/{inner}")
        if problem is not None:
            raise DataError(
                f"run {job.run_id} has an artifact whose name {problem}.", file=path, remedy="rename it."
            )
        source: bytes | Path = _portable_record(path) if path.name == RECORD else path
        members.append(Member.of(f"{place}/artifacts/{inner}", source))
    return members


def describe_digest(store: Store, job: StoredJob, words: Mapping[bytes, str]) -> str:
    """Digest of a run as it would be exported; see `turnscale.track.bundle_check.run_digest`."""
    start = f"runs/{job.run_id}/"
    with ExitStack() as stack:
        members = describe(store, job, words, stack)
        return run_digest({member.name.removeprefix(start): member.sha256 for member in members})


def private_words(root: Path) -> dict[bytes, str]:
    """What of this machine must not stand in a bundle -> what it is."""
    words: dict[bytes, str] = {}
    if len(Path.home().parts) > 1:
        words[f"{Path.home()}/".encode()] = HOME
    if len(root.resolve().parts) > 2:
        words[str(root.resolve()).encode()] = PROJECT
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= 8:
            words[value.encode(errors="surrogateescape")] = f"the value of the environment variable {name}"
    password = urlparse(tracking_uri(root)).password
    if password is not None and len(unquote(password)) >= 4:
        words[unquote(password).encode()] = "the tracking store's password"
    return words


def _discreet(text: str, words: Mapping[bytes, str]) -> str:
    """Text with this machine's folders shortened; anything else is left to `_scan`."""
    for word, meaning in words.items():
        folder = word.decode(errors="surrogateescape")
        if meaning == PROJECT:
            text = text.replace(f"{folder}/", "").replace(folder, ".")
    for word, meaning in words.items():
        if meaning == HOME:
            text = text.replace(word.decode(errors="surrogateescape"), "~/")
    return text


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _portable_record(path: Path) -> bytes:
    """A record without the address of its artifacts, which is of one store only."""
    record = read_json(path, "run the job again.")
    if isinstance(record, dict):
        record.pop("artifact_uri", None)
    return canonical(record)


def _write(
    target: Path,
    manifest: Manifest,
    members: list[Member],
    words: Mapping[bytes, str],
    on_bytes: Callable[[int, int], object],
) -> None:
    for member in members:
        _scan(member, words)
    total = 2 * sum(member.size for member in members)
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_bytes(min(done, total), total)

    with replacing(target) as temporary:
        with temporary.open("xb") as file:
            write_archive(file, manifest, members, advance)
        with temporary.open("rb") as written:
            _whole(check(written, target, advance=advance), manifest)


def _whole(content: Content, manifest: Manifest) -> None:
    if content.manifest != manifest:
        raise AssertionError("the archive that was written is not the one that was read back")


def _scan(member: Member, words: Mapping[bytes, str]) -> None:
    longest = max(map(len, words), default=0)
    for before, piece in pairwise(_pieces(member)):
        window = before[-longest:] + piece if longest else piece
        for word, meaning in words.items():
            if word in window:
                raise DataError(
                    f"holds {meaning}, which is nobody else's business.",
                    key=member.name,
                    remedy="name files by paths relative to the project, and keep secrets out of configurations.",
                )


def _pieces(member: Member) -> Iterator[bytes]:
    yield b""
    yield from member.chunks()
