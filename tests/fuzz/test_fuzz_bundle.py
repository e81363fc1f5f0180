"""Spoilt archives of runs: bytes, the tar inside, and sound archives around a wrong description."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.harness import fuzz
from turnscale.errors import DataError
from turnscale.track.bundle_check import check
from turnscale.track.bundle_format import Member, canonical, make_manifest, write_archive

RUN = "0" * 31 + "1"
KEY = "tiny/mpo/search/qwen3-tiny/mpo-0123abcd/seed-0"
RECORD = canonical({"run_id": RUN, "key": KEY, "artifacts": {}})
DESCRIPTION = {
    "id": RUN, "key": KEY, "name": "mpo seed 0", "status": "FINISHED", "start_time": 1, "end_time": 2,
    "params": {"threads": "1"},
    "tags": {"turnscale.key": KEY, "turnscale.scale": "tiny", "turnscale.complete": "1", "turnscale.kind": "train"},
}  # fmt: skip
METRICS = {"loss": [[0, 1, 0.5], [1, 2, "nan"]]}


def build(path: Path, **changed: bytes) -> None:
    """A sound archive around the given contents."""
    parts = {
        "artifacts/record.json": RECORD,
        "metrics.json": canonical(METRICS),
        "run.json": canonical(DESCRIPTION),
        **{name.replace("__", "/").replace("_json", ".json"): data for name, data in changed.items()},
    }
    members = [Member.of(f"runs/{RUN}/{name}", data) for name, data in parts.items()]
    members.append(Member.of("configs/studies/mpo.yaml", b"study: mpo\n"))
    members.sort(key=lambda member: member.name)
    with path.open("wb") as file:
        write_archive(file, make_manifest("mpo", "tiny", members), members, lambda size: None)


def read(path: Path) -> None:
    with path.open("rb") as file:
        check(file, path)


def test_bytes_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "mpo.tar.gz"
    build(path)
    fuzz(path, path.read_bytes(), "text", read)


def test_the_tar_inside_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "mpo.tar"
    build(path)
    packed = tmp_path / "mpo.tar.gz"

    def repacked(file: Path) -> None:
        stream = io.BytesIO()
        with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, filename="") as out:
            out.write(file.read_bytes())
        packed.write_bytes(stream.getvalue())
        read(packed)

    fuzz(path, gzip.decompress(path.read_bytes()), "text", repacked)


@pytest.mark.parametrize(
    ("name", "good"), [("run_json", canonical(DESCRIPTION)), ("metrics_json", canonical(METRICS)),
                       ("artifacts__record_json", RECORD)]
)  # fmt: skip
def test_wrong_descriptions_in_sound_archives(tmp_path: Path, name: str, good: bytes) -> None:
    archive = tmp_path / "mpo.tar.gz"

    def read_around(file: Path) -> None:
        build(archive, **{name: file.read_bytes()})
        read(archive)

    fuzz(tmp_path / "part.json", good, "json", read_around)


Change = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    "member",
    ["../outside", "/etc/passwd", "runs/../../x", f"runs/{RUN}/artifacts/../../../x", "configs/studies/../../x.yaml",
     f"runs/{RUN}/artifacts//x", f"runs/{RUN}/artifacts/a\\b", f"runs/{RUN}/artifacts/.", "configs/studies/a b.yaml",
     "Makefile", "src/turnscale/cli.py", "configs/studies/$(id).yaml", f"runs/{RUN}/artifacts/\x1b[31m"],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, member: str) -> None:
    path = tmp_path / "mpo.tar.gz"
    build(path)
    members = [Member.of(member, b"x")]
    with pytest.raises(DataError):
        with path.open("wb") as file:
            write_archive(file, make_manifest("mpo", "tiny", members), members, lambda size: None)
        read(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mpo.tar.gz"]


def test_a_sound_archive_has_one_form(tmp_path: Path) -> None:
    digests = set()
    for name in ("a.tar.gz", "b.tar.gz"):
        build(tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1
    assert json.loads(RECORD)["key"] == KEY
