"""The archive that carries a study's runs: one form only, so that anything else is refused.

A bundle is a gzip-compressed tar of plain files. ``manifest.json`` comes first and lists every other member
with its SHA-256 and size; the members follow in sorted order. Every header is the one this module writes (mode
0644, no owner, no time), so equal content has equal bytes, and a link, a device, a hidden extension or a member
out of place is not the expected header. Nothing is read further than the manifest declares.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import posixpath
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from turnscale.config.load import Strict
from turnscale.errors import DataError

FORMAT = "turnscale-runs"
VERSION = 1
MANIFEST = "manifest.json"
LARGEST_TEXT = 256 << 20
"""Most bytes of a member that is read into memory: the manifest, a run's description, metrics or record."""
CHUNK = 1 << 20
BLOCK = tarfile.BLOCKSIZE
ZEROS = bytes(BLOCK)
KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.DIRTYPE: "a folder",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
AGAIN = "get the archive again from where it was published."

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Model = TypeVar("Model", bound=Strict)


class Entry(Strict):
    """A member of the archive."""

    sha256: Sha256
    size: int = Field(ge=0)


class Manifest(Strict):
    """What the archive holds.

    Attributes:
        digest: SHA-256 of the manifest without this key; whoever publishes it vouches for the content.
    """

    format: Literal["turnscale-runs"]
    version: Literal[1]
    study: str
    scale: str
    members: dict[str, Entry]
    digest: Sha256


@dataclass(frozen=True)
class Member:
    """A file to be put into an archive: its name, and its bytes or where they are."""

    name: str
    sha256: str
    size: int
    source: bytes | Path

    @classmethod
    def of(cls, name: str, source: bytes | Path) -> Member:
        """A member with the checksum and size of its present content."""
        if isinstance(source, bytes):
            return cls(name, hashlib.sha256(source).hexdigest(), len(source), source)
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(name, digest, file.tell(), source)

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, piece by piece."""
        with io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece


def canonical(value: Any) -> bytes:
    """JSON as this project writes it: sorted keys, one space, a newline at the end."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def content_digest(checksums: Mapping[str, Any]) -> str:
    """Hex SHA-256 of plain JSON in its canonical form."""
    return hashlib.sha256(canonical(checksums)).hexdigest()


def problem_with(name: str) -> str | None:
    """Why a member's name is refused, or None if it is a plain relative path."""
    if not name or len(name) > 250:
        return "is empty or longer than 250 characters"
    if any(unicodedata.category(letter)[0] in "CZ" and letter != " " for letter in name):
        return "has control or formatting characters"
    if "\\" in name or name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "is an absolute path or has a backslash"
    if posixpath.normpath(name) != name or {".", ".."} & set(name.split("/")):
        return "leaves its folder or is not in its simplest form"
    if name != unicodedata.normalize("NFC", name):
        return "is not in Unicode's composed form"
    return None


def header(name: str, size: int) -> bytes:
    """The one header of a member.

    Raises:
        DataError: the name or size does not fit a tar header.
    """
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except (ValueError, UnicodeEncodeError):
        raise DataError(
            "is too long a name, or more than 8 GiB, for the archive.", key=printable(name)
        ) from None


def make_manifest(study: str, scale: str, members: Iterable[Member]) -> Manifest:
    """The manifest of the members."""
    listed = {member.name: {"sha256": member.sha256, "size": member.size} for member in members}
    head = {"format": FORMAT, "version": VERSION, "study": study, "scale": scale, "members": listed}
    return Manifest.model_validate({**head, "digest": content_digest(head)})


def write_archive(
    target: BinaryIO, manifest: Manifest, members: Iterable[Member], advance: Callable[[int], object]
) -> None:
    """Write an archive; equal content gives equal bytes with the same version of zlib.

    Args:
        target: an open file.
        manifest: of exactly these members.
        members: in any order.
        advance: told the number of bytes after each piece.

    Raises:
        DataError: a file has changed since the manifest was made.
    """
    first = Member.of(MANIFEST, canonical(manifest.model_dump()))
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0, compresslevel=6) as packed:
        for member in (first, *sorted(members, key=lambda member: member.name)):
            packed.write(header(member.name, member.size))
            total = hashlib.sha256()
            written = 0
            for piece in member.chunks():
                packed.write(piece)
                total.update(piece)
                written += len(piece)
                advance(len(piece))
            if (written, total.hexdigest()) != (member.size, member.sha256):
                raise DataError(
                    "changed while it was being exported.", key=member.name, remedy="export again."
                )
            packed.write(bytes(-member.size % BLOCK))
        packed.write(bytes(2 * BLOCK))


class Reader:
    """An archive read from start to end, each step checked.

    Args:
        file: opened for reading bytes, at its start.
        path: its name in messages.

    Raises:
        DataError: no bundle, damaged, or of a format this version does not read.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path = path
        self._file = file
        self._inflate = zlib.decompressobj(wbits=31)
        name, size = self._header()
        if name != MANIFEST:
            raise self._error(
                f"does not begin with {MANIFEST}.", "name an archive of 'turnscale runs export'."
            )
        self.manifest = self._manifest(b"".join(self._content(self._in_memory(name, size))))

    def members(self) -> Iterator[tuple[str, Entry, Iterator[bytes]]]:
        """Name, entry and content of every member in order; each content must be used up.

        A content that differs from its entry raises at its end: until then its bytes are not to be trusted.

        Raises:
            DataError: a member is missing, too many, twice, out of order or not what the manifest says, or the
                archive is truncated or goes on after its end.
        """
        expected = sorted(self.manifest.members.items())
        for wanted, entry in expected:
            name, size = self._header()
            if name != wanted:
                raise self._error(self._misplaced(name, wanted))
            if size != entry.size:
                raise self._error(f"member '{printable(name)}' is not as long as the manifest says.")
            yield name, entry, self._checked(name, entry)
        name, _ = self._header(last=True)
        if name is not None:
            raise self._error(self._misplaced(name, None))
        if self._read(BLOCK) != ZEROS:
            raise self._error("does not end as an archive does.")
        self._end()

    def _misplaced(self, name: str | None, wanted: str | None) -> str:
        if name is None:
            return f"member '{wanted}' of the manifest is missing."
        if name not in self.manifest.members:
            return f"has a member '{printable(name)}' that the manifest does not list."
        return f"member '{printable(name)}' is there twice or out of order."

    def _checked(self, name: str, entry: Entry) -> Iterator[bytes]:
        total = hashlib.sha256()
        for piece in self._content(entry.size):
            total.update(piece)
            yield piece
        if total.hexdigest() != entry.sha256:
            raise self._error(f"member '{name}' is not what the manifest says (its SHA-256 differs).")

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._read(min(left, CHUNK))
            left -= len(piece)
            yield piece
        if any(self._read(-size % BLOCK)):
            raise self._error("has data hidden behind a member.")

    def _in_memory(self, name: str, size: int) -> int:
        if size > LARGEST_TEXT:
            raise self._error(f"member '{printable(name)}' has {size} bytes, too many for what it is.")
        return size

    def _header(self, *, last: bool = False) -> tuple[Any, int]:
        """Name and size of the next member, (None, 0) at the end of all.

        Args:
            last: whether no member is expected any more.
        """
        block = self._read(BLOCK)
        if block == ZEROS:
            return None, 0
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError, ValueError):
            raise self._error("is not a tar archive, or is damaged.") from None
        shown = printable(info.name)
        if info.type != tarfile.REGTYPE:
            kind = KINDS.get(info.type, "no plain file")
            raise self._error(f"member '{shown}' is {kind}; only plain files are taken.")
        problem = problem_with(info.name)
        if problem is not None:
            raise self._error(f"the name '{shown}' {problem}.")
        if info.size < 0 or block != header(info.name, info.size):
            raise self._error(f"member '{shown}' has an owner, a time, a mode or an extension.")
        return info.name, info.size

    def _manifest(self, text: bytes) -> Manifest:
        value = load_json(text, self.path, MANIFEST)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise self._error("is not a bundle of runs.", "name an archive of 'turnscale runs export'.")
        if value.get("version") != VERSION:
            raise self._error(
                f"has format version {printable(str(value.get('version')))[:40]}; this version reads {VERSION}.",
                "use the version of turnscale that wrote it.",
            )
        manifest = validated(Manifest, value, self.path, MANIFEST)
        content = manifest.model_dump()
        if canonical(content) != text:
            raise self._error("its manifest was edited (it is not in the form in which it was written).")
        del content["digest"]
        if content_digest(content) != manifest.digest:
            raise self._error("its manifest was changed (its digest differs).")
        for name in manifest.members:
            problem = problem_with(name)
            if problem is not None or name == MANIFEST:
                raise self._error(f"the name '{printable(name)}' {problem or 'is listed in itself'}.")
            inside = next((str(p) for p in PurePosixPath(name).parents if str(p) in manifest.members), None)
            if inside is not None:
                raise self._error(f"'{printable(inside)}' is both a file and a folder.")
        return manifest

    def _read(self, count: int) -> bytes:
        """Exactly ``count`` bytes of the unpacked archive."""
        found = bytearray()
        while len(found) < count:
            packed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
            try:
                piece = self._inflate.decompress(packed, count - len(found))
            except zlib.error:
                raise self._error("is not gzip, or is damaged.") from None
            if not piece and (self._inflate.eof or not packed):
                raise self._error("is truncated.")
            found += piece
        return bytes(found)

    def _end(self) -> None:
        """Nothing but gzip's own checksum may be left."""
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
            try:
                piece = self._inflate.decompress(packed, 1)
            except zlib.error:
                raise self._error("is damaged (gzip's checksum differs).") from None
            if piece:
                raise self._error("goes on after its end.")
            if not packed and not self._inflate.eof:
                raise self._error("is truncated.")
        if self._inflate.unused_data or self._file.read(1):
            raise self._error("goes on after its end.")

    def _error(self, problem: str, remedy: str = AGAIN) -> DataError:
        return DataError(problem, file=self.path, remedy=remedy)


def load_json(text: bytes, path: Path, name: str) -> Any:
    """Plain JSON of a member.

    Raises:
        DataError: it is not UTF-8 or not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise DataError(f"member '{printable(name)}' is not JSON.", file=path, remedy=AGAIN) from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def validated(model: type[Model], value: Any, path: Path, name: str) -> Model:
    """A member's content as a model.

    Raises:
        DataError: it does not fit, naming the first key that does not.
    """
    try:
        return model.model_validate_json(json.dumps(value), strict=True)  # JSON's arrays may be tuples
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable(".".join(str(part) for part in first["loc"]))[:200]
        raise DataError(
            f"member '{printable(name)}' is not as it should be ({where}: {first['msg']}).",
            file=path,
            remedy=AGAIN,
        ) from None


def printable(text: str) -> str:
    """Text without control characters, for messages."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
