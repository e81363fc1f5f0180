"""An archive has one form, and every other is refused before anything is done with it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnscale.errors import DataError
from turnscale.track.bundle_check import check
from turnscale.track.bundle_format import (
    MANIFEST,
    Manifest,
    Member,
    canonical,
    content_digest,
    make_manifest,
    write_archive,
)

RUN_ID = "0123456789abcdef0123456789abcdef"
PLACE = f"runs/{RUN_ID}"
RUN = {
    "id": RUN_ID,
    "key": "tiny/mpo/search/m/grpo-01234567/seed-0",
    "name": "grpo seed 0",
    "status": "FINISHED",
    "start_time": 1,
    "end_time": 2,
    "params": {"training.lr": "0.1"},
    "tags": {
        "turnscale.key": "tiny/mpo/search/m/grpo-01234567/seed-0",
        "turnscale.scale": "tiny",
        "turnscale.complete": "1",
    },
}
TABLE = b"a table\n" * 1000


def contents(**changes: Any) -> dict[str, bytes]:
    """The members of a sound bundle of one run; ``run`` and ``record`` change its description and record."""
    table = Member.of("metrics.parquet", TABLE)
    record = {
        "run_id": RUN_ID,
        "key": RUN["key"],
        "artifacts": {"metrics.parquet": table.sha256},
        **changes.get("record", {}),
    }
    return {
        "configs/studies/mpo.yaml": b"study: mpo\n",
        f"{PLACE}/run.json": canonical({**RUN, **changes.get("run", {})}),
        f"{PLACE}/metrics.json": canonical(changes.get("metrics", {"loss": [[0, 1, 0.5], [1, 2, "nan"]]})),
        f"{PLACE}/artifacts/metrics.parquet": TABLE,
        f"{PLACE}/artifacts/record.json": canonical(record),
    }


def packed(members: dict[str, bytes], **changes: Any) -> bytes:
    """An archive of the members; ``manifest`` changes the manifest, whose digest is made to fit."""
    listed = [Member.of(name, text) for name, text in members.items()]
    target = io.BytesIO()
    manifest = make_manifest("mpo", "tiny", listed)
    if changes:
        content = {**manifest.model_dump(), **changes}
        del content["digest"]
        manifest = Manifest.model_construct(**content, digest=content_digest(content))
    write_archive(target, manifest, listed, lambda size: None)
    return target.getvalue()


def raw(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """An archive of exactly these entries, each header as it is, after the manifest of `contents`."""
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", mtime=0) as file:
        for info, text in entries:
            file.write(info.tobuf(tarfile.USTAR_FORMAT) + text + bytes(-len(text) % 512))
        file.write(bytes(1024))
    return target.getvalue()


def entries(archive: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """What an archive holds."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def refuse(archive: bytes, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        check(io.BytesIO(archive), Path("x.tar.gz"))
    assert str(caught.value).isprintable()


def test_a_sound_archive_is_told_as_it_is_and_tar_reads_it() -> None:
    archive = packed(contents())
    content = check(io.BytesIO(archive), Path("x.tar.gz"))
    assert content.runs[RUN_ID].model_dump() == RUN
    assert content.files == ["configs/studies/mpo.yaml"]
    assert {info.name: text for info, text in entries(archive)[1:]} == contents()
    assert all((info.mtime, info.uid, info.gid, info.uname) == (0, 0, 0, "") for info, _ in entries(archive))


def test_equal_content_has_equal_bytes_whatever_the_order() -> None:
    assert packed(contents()) == packed(dict(reversed(contents().items())))
    assert raw(entries(packed(contents()))) != b""


def test_a_digest_that_was_published_must_fit() -> None:
    archive = packed(contents())
    manifest = json.loads(entries(archive)[0][1])
    check(io.BytesIO(archive), Path("x.tar.gz"), manifest["digest"].upper())
    with pytest.raises(DataError, match="not the one you gave"):
        check(io.BytesIO(packed(contents(run={"name": "other"}))), Path("x"), manifest["digest"])


@pytest.mark.parametrize("name", sorted(contents()))
def test_a_changed_member_is_refused(name: str) -> None:
    found = entries(packed(contents()))
    changed = [
        (info, text.replace(text[-3:-1], b"??") if info.name == name else text) for info, text in found
    ]
    refuse(raw(changed), "SHA-256 differs|not JSON")


def test_members_that_are_missing_extra_double_or_out_of_order_are_refused() -> None:
    found = entries(packed(contents()))
    for index in range(1, len(found)):
        refuse(raw(found[:index] + found[index + 1 :]), "missing|twice or out of order")
        refuse(raw([*found[: index + 1], *found[index:]]), "twice or out of order")
    refuse(raw([found[0], *reversed(found[1:])]), "out of order")
    for name in ("extra", f"{PLACE}/artifacts/extra", "zzz"):
        for index in (1, 3, len(found)):
            refuse(raw([*found[:index], (tarfile.TarInfo(name), b""), *found[index:]]), "does not list")
    refuse(raw(found[1:]), "does not begin with manifest.json")
    refuse(raw([*found, found[0]]), "does not list")


def edited(change: Callable[[dict[str, Any]], None], *, fit: bool = True) -> bytes:
    """A sound archive with an edited manifest, whose digest fits again if asked."""
    found = entries(packed(contents()))
    manifest = json.loads(found[0][1])
    change(manifest)
    if fit:
        del manifest["digest"]
        manifest["digest"] = content_digest(manifest)
    text = canonical(manifest)
    head = tarfile.TarInfo(MANIFEST)
    head.size = len(text)
    return raw([(head, text), *found[1:]])


def test_a_changed_manifest_is_refused() -> None:
    assert edited(lambda manifest: None) == raw(entries(packed(contents())))
    refuse(edited(lambda manifest: manifest.update(scale="quick"), fit=False), "digest differs")
    refuse(edited(lambda manifest: manifest.update(extra=1)), "not as it should be")
    refuse(edited(lambda manifest: manifest.update(members=[])), "not as it should be")
    refuse(edited(lambda manifest: manifest.update(scale="quick")), "not of the scale")
    refuse(edited(lambda manifest: manifest.update(format="zip")), "not a bundle")
    table = f"{PLACE}/artifacts/metrics.parquet"
    refuse(edited(lambda manifest: manifest["members"][table].update(size=1)), "not as long")
    refuse(edited(lambda manifest: manifest["members"][table].update(size=-1)), "not as it should be")
    refuse(edited(lambda manifest: manifest["members"][table].update(size=1.0)), "not as it should be")
    refuse(edited(lambda manifest: manifest["members"][table].update(sha256="0" * 64)), "SHA-256")
    refuse(edited(lambda manifest: manifest["members"].pop(table)), "does not list")
    found = entries(packed(contents()))
    text = found[0][1].replace(b'"study": "mpo"', b'"study":"mpo" ')
    refuse(raw([(found[0][0], text), *found[1:]]), "was edited")
    twice = found[0][1].replace(b'"study": "mpo"', b'"study": "x", "study": "mpo"')
    info = tarfile.TarInfo(MANIFEST)
    info.size = len(twice)
    refuse(raw([(info, twice), *found[1:]]), "was edited")


@pytest.mark.parametrize("version", [0, 2, "1", None, [], 10**30])
def test_unknown_versions_are_refused(version: Any) -> None:
    refuse(edited(lambda manifest: manifest.update(version=version)), "format version")


def test_every_truncation_is_refused() -> None:
    archive = packed(contents())
    for end in range(len(archive)):
        refuse(archive[:end], "truncated|not gzip")


def test_bytes_after_the_end_are_refused() -> None:
    archive = packed(contents())
    for tail in (b"x", b"\0", bytes(512), archive, gzip.compress(b""), gzip.compress(bytes(512))):
        refuse(archive + tail, "goes on after its end")
    longer = gzip.compress(gzip.decompress(archive) + bytes(512))
    refuse(longer, "goes on after its end")


def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    archive = packed(contents())
    sound = [text for _, text in entries(archive)]
    harmless = 0
    for position in range(len(archive)):
        flipped = bytearray(archive)
        flipped[position] ^= 1 << position % 8
        try:
            check(io.BytesIO(flipped), Path("x"))
        except DataError:
            continue
        harmless += 1
        assert [text for _, text in entries(bytes(flipped))] == sound
    assert harmless <= 12, "gzip's own time and system, and other codings of the same content"


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc/passwd",
        f"{PLACE}/artifacts/../../../outside",
        f"{PLACE}/artifacts/./x",
        f"{PLACE}/artifacts//x",
        f"{PLACE}/artifacts/a\\b",
        f"{PLACE}/artifacts/a\nb",
        f"{PLACE}/artifacts/a\x1b[31m",
        f"{PLACE}/artifacts/\u202egnp",
        f"{PLACE}/artifacts/e\u0301",
        f"{PLACE}/artifacts/",
        "C:/x",
        "..",
        ".",
    ],
)
def test_names_that_lead_astray_are_refused_in_header_and_manifest(name: str) -> None:
    found = entries(packed(contents()))
    info = tarfile.TarInfo(name)
    header = "the name|owner, a time|not a tar" if name else "not a tar"
    refuse(raw([found[0], (info, b""), *found[1:]]), header)
    listed = {"sha256": Member.of("x", b"").sha256, "size": 0}
    refuse(edited(lambda manifest: manifest["members"].update({name: listed})), "the name")


@pytest.mark.parametrize(
    "name", ["configs/x.yaml", "src/turnscale/cli.py", "Makefile", "looks/x", "runs/x/y"]
)
def test_members_with_no_place_in_a_bundle_are_refused(name: str) -> None:
    refuse(packed({**contents(), name: b"x"}), "no place in a bundle")


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.DIRTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.AREGTYPE,
        b"Z",
    ],
)
def test_anything_but_a_plain_file_is_refused(kind: bytes) -> None:
    found = entries(packed(contents()))
    for index in range(len(found)):
        info = tarfile.TarInfo(found[index][0].name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", found[index][0].size
        refuse(raw([*found[:index], (info, found[index][1]), *found[index + 1 :]]), "only plain files")


@pytest.mark.parametrize("change", [{"mode": 0o4755}, {"uid": 7}, {"mtime": 7}, {"uname": "root"}])
def test_headers_that_say_more_than_they_need_are_refused(change: dict[str, Any]) -> None:
    found = entries(packed(contents()))
    for name, value in change.items():
        setattr(found[2][0], name, value)
    refuse(raw(found), "owner, a time, a mode|SHA-256")


def test_a_bomb_is_not_unpacked() -> None:
    """A gigabyte of zeros, declared small, is refused at its header; declared honestly, it is never held whole."""
    bomb = bytes(64 << 20)
    found = entries(packed(contents()))
    info = tarfile.TarInfo(f"{PLACE}/artifacts/metrics.parquet")
    info.size = len(bomb)
    position = [entry.name for entry, _ in found].index(info.name)
    archive = raw([*found[:position], (info, bomb), *found[position + 1 :]])
    hidden = packed({**contents(), f"{PLACE}/artifacts/zeros": bomb})
    tracemalloc.start()
    refuse(archive, "not as long as the manifest says")
    refuse(gzip.compress(bomb), "does not begin")
    check(io.BytesIO(hidden), Path("x"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 << 20


def test_text_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnscale.track.bundle_check.LARGEST_TEXT", 100)
    refuse(packed(contents()), "too many")
    monkeypatch.setattr("turnscale.track.bundle_format.LARGEST_TEXT", 100)
    refuse(packed(contents()), "too many for what it is")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"run": {"id": "f" * 32}}, "another run"),
        ({"run": {"key": "other"}}, "proper key"),
        ({"run": {"key": "a' or '1'='1"}}, "proper key"),
        ({"run": {"tags": {**RUN["tags"], "turnscale.origin": "f" * 32}}}, "does not travel"),
        ({"run": {"tags": {**RUN["tags"], "mlflow.user": "me"}}}, "does not travel"),
        ({"run": {"params": {"../x": "1"}}}, "no store takes"),
        ({"run": {"params": {"x": "y" * 6001}}}, "not as it should be"),
        ({"run": {"params": {"a\nb": "1"}}}, "not as it should be"),
        ({"run": {"status": "RUNNING"}}, "not as it should be"),
        ({"run": {"end_time": None}}, "not as it should be"),
        ({"run": {"end_time": 2**53}}, "not as it should be"),
        ({"run": {"start_time": "1"}}, "not as it should be"),
        ({"metrics": {"loss": [[0, 1]]}}, "not as it should be"),
        ({"metrics": {"loss": [[0, 1, "x"]]}}, "not as it should be"),
        ({"metrics": {"loss": [[2**63, 1, 0.5]]}}, "not as it should be"),
        ({"metrics": {"a;b": []}}, "not as it should be"),
        ({"metrics": []}, "not as it should be"),
        ({"record": {"run_id": "f" * 32}}, "another run"),
        ({"record": {"artifacts": {"metrics.parquet": "0" * 64}}}, "not what its record says"),
        ({"record": {"artifacts": {"../x": None}}}, "not what its record says"),
        ({"record": {"artifacts": []}}, "lists no artifacts"),
        ({"record": {"outcomes": "gone.parquet", "sha256": "0" * 64}}, "not what its record says"),
    ],
)
def test_content_that_contradicts_itself_or_fits_no_store_is_refused(
    changes: dict[str, Any], match: str
) -> None:
    refuse(packed(contents(**changes)), match)


def test_incomplete_runs_and_broken_json_are_refused() -> None:
    for name in ("run.json", "metrics.json", "artifacts/record.json"):
        members = contents()
        del members[f"{PLACE}/{name}"]
        refuse(packed(members), "no description|no metrics|no record")
    for text in (b"{", b"\xff", b"[" * 100_000, b"1" * 10_000, b"nan"):
        refuse(packed({**contents(), f"{PLACE}/run.json": text}), "not JSON|not as it should be")
    refuse(packed({**contents(), f"{PLACE}/artifacts/metrics.parquet/x": b""}), "both a file and a folder")
