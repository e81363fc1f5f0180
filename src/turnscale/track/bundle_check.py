"""What a bundle says, checked as a whole before anything is done with it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field, StringConstraints

from turnscale.config.load import NAME, Strict
from turnscale.errors import DataError
from turnscale.track.bundle_format import (
    AGAIN,
    LARGEST_TEXT,
    Manifest,
    Reader,
    content_digest,
    load_json,
    printable,
    validated,
)
from turnscale.track.claim import CLAIMANT, IMPORTED, ORIGIN, SUPERSEDED, TICKET

RECORD = "record.json"
OWN_TAGS = (ORIGIN, IMPORTED, TICKET, CLAIMANT, SUPERSEDED)
"""Tags that say how a run came into its store; they do not travel."""

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=/-]{0,499}")
RUN = re.compile(r"runs/([0-9a-f]{32})/(run\.json|metrics\.json|artifacts/.+)")
_PLAIN = NAME.pattern
CONFIG = re.compile(
    rf"configs/(?:studies|scales|methods|models|families|claims|published)/{_PLAIN}|looks/{_PLAIN}/{_PLAIN}"
)

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Time = Annotated[int, Field(ge=0, lt=2**53)]
StoreName = Annotated[str, StringConstraints(pattern=r"^[\w.\- :/]+$", max_length=250)]
Metric = tuple[Whole, Time, float | Literal["nan", "inf", "-inf"]]


class BundledRun(Strict):
    """A run as it travels; its metrics and artifacts are members beside it. Times in ms since the epoch."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    key: str
    name: Annotated[str, StringConstraints(max_length=250)]
    status: Literal["FINISHED", "FAILED", "KILLED"]
    start_time: Time
    end_time: Time
    params: dict[StoreName, Annotated[str, StringConstraints(max_length=6000)]]
    tags: dict[StoreName, Annotated[str, StringConstraints(max_length=8000)]]


class BundledMetrics(Strict):
    """Metric name -> rows of (step, time in ms, value); values that JSON lacks stand as words."""

    metrics: dict[StoreName, list[Metric]]


@dataclass
class Content:
    """A bundle that was found sound.

    Attributes:
        runs: id -> run.
        digests: id -> digest of everything of that run.
        files: names of configuration files and logs of looks.
    """

    manifest: Manifest
    runs: dict[str, BundledRun] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def check(
    file: BinaryIO,
    path: Path,
    digest: str | None = None,
    advance: Callable[[int], object] = lambda size: None,
) -> Content:
    """Read an archive from start to end, writing nothing.

    Args:
        file: the archive, at its start.
        path: its name in messages.
        digest: the digest that was published for it; any if None.
        advance: told the number of unpacked bytes after each piece.

    Raises:
        DataError: anything in it is not as `turnscale runs export` writes it, or the digest is another.
    """
    reader = Reader(file, path)
    manifest = reader.manifest
    if digest is not None and digest.strip().lower() != manifest.digest:
        raise DataError(f"has the digest {manifest.digest}, not the one you gave.", file=path, remedy=AGAIN)
    content = Content(manifest)
    members = by_run(manifest)
    texts: dict[str, dict[str, Any]] = {}
    for name, entry, pieces in reader.members():
        run = RUN.fullmatch(name)
        if run is None and not CONFIG.fullmatch(name):
            raise DataError(
                f"has a member '{name}', which has no place in a bundle.", file=path, remedy=AGAIN
            )
        told = _told(pieces, advance)
        if run is None:
            content.files.append(name)
            for _ in told:
                pass
            continue
        inner = run[2]
        described = texts.setdefault(run[1], {})
        if inner in ("run.json", "metrics.json") or posixpath.basename(inner) == RECORD:
            if entry.size > LARGEST_TEXT:
                raise DataError(f"member '{name}' has {entry.size} bytes, too many.", file=path, remedy=AGAIN)
            described[inner] = load_json(b"".join(told), path, name)
        else:
            for _ in told:
                pass
        if inner == "run.json":  # the last member of a run, as names are sorted
            _add(content, run[1], described, members[run[1]], path)
            texts[run[1]] = {}
    incomplete = sorted(set(texts) - set(content.runs))
    if incomplete:
        raise DataError(f"has no description of run {incomplete[0]}.", file=path, remedy=AGAIN)
    _unique(content, path)
    return content


def run_digest(members: Mapping[str, str]) -> str:
    """Digest of a run from the SHA-256 of each of its members, by name within the run."""
    return content_digest(dict(members))


def by_run(manifest: Manifest) -> dict[str, dict[str, str]]:
    """Run id -> member -> SHA-256, by name within the run."""
    found: dict[str, dict[str, str]] = {}
    for name, entry in manifest.members.items():
        run = RUN.fullmatch(name)
        if run is not None:
            found.setdefault(run[1], {})[run[2]] = entry.sha256
    return found


def _add(
    content: Content, run_id: str, texts: Mapping[str, Any], members: Mapping[str, str], path: Path
) -> None:
    place = f"runs/{run_id}"
    run = validated(BundledRun, texts["run.json"], path, f"{place}/run.json")
    if "metrics.json" not in texts:
        raise DataError(f"has no metrics of run {run_id}.", file=path, remedy=AGAIN)
    metrics = validated(BundledMetrics, {"metrics": texts["metrics.json"]}, path, f"{place}/metrics.json")
    for problem in _problems(content.manifest, run_id, run, metrics, texts, members):
        raise DataError(f"run {run_id} {problem}.", file=path, remedy=AGAIN)
    content.runs[run_id] = run
    content.digests[run_id] = run_digest(members)


def _problems(
    manifest: Manifest,
    run_id: str,
    run: BundledRun,
    metrics: BundledMetrics,
    texts: Mapping[str, Any],
    members: Mapping[str, str],
) -> Iterator[str]:
    if run.id != run_id:
        yield "is described as another run"
    if not KEY.fullmatch(run.key) or ".." in run.key or run.tags.get("turnscale.key") != run.key:
        yield "has no proper key, or another one among its tags"
    if run.tags.get("turnscale.scale") != manifest.scale:
        yield f"is not of the scale {manifest.scale}"
    for name in (*run.params, *run.tags, *metrics.metrics):
        if posixpath.normpath(name) != name or name.startswith(("/", "..")):
            yield f"has a param, tag or metric '{name}', which no store takes"
    for tag in run.tags:
        if tag in OWN_TAGS or tag.startswith("mlflow."):
            yield f"has the tag {tag}, which does not travel"
    if run.tags.get("turnscale.complete") == "1" and f"artifacts/{RECORD}" not in texts:
        yield "is complete and has no record"
    for name, record in texts.items():
        if posixpath.basename(name) == RECORD:
            yield from _record_problems(name, record, run, members)


def _record_problems(name: str, record: Any, run: BundledRun, members: Mapping[str, str]) -> Iterator[str]:
    shown = printable(name)
    if not isinstance(record, dict) or (record.get("run_id"), record.get("key")) != (run.id, run.key):
        yield f"has a record '{shown}' of another run"
        return
    listed = record.get("artifacts", {})
    if not isinstance(listed, dict) or not isinstance(record.get("outcomes", ""), str):
        yield f"has a record '{shown}' that lists no artifacts"
        return
    wanted = dict(listed)
    if "outcomes" in record:
        wanted[record["outcomes"]] = record.get("sha256")
    for artifact, checksum in wanted.items():
        if checksum is None or members.get(f"artifacts/{artifact}") != checksum:
            yield f"has an artifact '{printable(artifact)}' that is not what its record says"


def _unique(content: Content, path: Path) -> None:
    seen: dict[str, str] = {}
    for run_id, run in content.runs.items():
        other = seen.setdefault(run.key, run_id)
        if other != run_id:
            raise DataError(f"has two runs {run.key}.", file=path, remedy=AGAIN)


def _told(pieces: Iterator[bytes], advance: Callable[[int], object]) -> Iterator[bytes]:
    for piece in pieces:
        advance(len(piece))
        yield piece
