"""Writing files so that they are there whole or not at all, and knowing a damaged one when it is read.

Every product goes to a temporary name beside its own, is forced to disk and then takes its name's place in one step.
A disk that fills up, a limit that is hit or a process that dies leaves what was there before, and no rubbish unless
the process was killed outright. Records carry a checksum of their own content.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from turnscale.errors import DataError, StorageError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

AGAIN = "then run the same command again: what was finished is kept."
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
STORAGE = FULL | FORBIDDEN | {errno.EIO, errno.ESTALE}
"""Error numbers that speak of a disk and not of the program."""

WRITABLE = 0o222
"""Permission bits by which anybody may write a file."""

CHECKSUM = "checksum"
"""Key under which a sealed JSON object holds the SHA-256 of the rest of it."""


def storage_error(
    error: OSError,
    path: str | Path | None = None,
    doing: str = "written",
    wanted: str = "the folder writable",
) -> StorageError:
    """The error of the operating system as one that says which file, why and what to do.

    Args:
        error: the operating system's.
        path: the file, where the error names none.
        doing: what could not be done to it.
        wanted: what to make it for this user, where that was forbidden.
    """
    place = path if path is not None else error.filename
    words = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EFBIG:
        remedy = "raise the limit on the size of files (ulimit -f), "
    elif error.errno in FULL:
        remedy = "free space on that disk, "
    elif error.errno in FORBIDDEN:
        remedy = f"make {wanted} for this user, "
    else:
        remedy = "check that disk, "
    reason = (
        "disk full" if error.errno in FULL else "not writable" if error.errno in FORBIDDEN else "disk error"
    )
    return StorageError(f"cannot be {doing} ({words}).", file=place, remedy=remedy + AGAIN, reason=reason)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place, on disk, when the block ends without an error.

    A file that is replaced keeps its permissions. One that nobody may write is not replaced, though its folder would
    allow it.

    Raises:
        StorageError: it cannot be written; whatever was at ``path`` is still there.
    """
    there = path.exists()
    if there and not path.is_file():
        raise StorageError(
            "is there already and is no ordinary file.",
            file=path,
            remedy="name another file.",
            reason="disk error",
        )
    if there and not path.stat().st_mode & WRITABLE:
        raise StorageError(
            "is there already and read-only.",
            file=path,
            remedy="name another file, or make it writable (chmod u+w).",
            reason="not writable",
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if there:
            shutil.copymode(path, temporary)
        _force(temporary)
        temporary.replace(path)
        _force(path.parent)
    except Exception as error:
        _raise_storage(error, path)
    finally:
        _discard(temporary)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """As `replacing` for a folder with all its files; the temporary one exists and is empty.

    Where ``path`` is there already, it is renamed out of the way first and removed last.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    before = path.with_name(f".{path.name}.{os.getpid()}.before")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for inner in temporary.rglob("*"):
            _force(inner)
        _force(temporary)
        if path.exists():
            path.replace(before)
        temporary.replace(path)
        _force(path.parent)
    except Exception as error:
        if before.exists() and not path.exists():
            before.replace(path)
        _raise_storage(error, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file whole or not at all. Raises StorageError."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text with its line ends as they are. Raises StorageError."""
    write_bytes(text.encode("utf-8"), path)


def write_json(value: Any, path: Path) -> None:
    """Write JSON with sorted keys, one a line. Raises StorageError."""
    write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", path)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table: twelve significant digits, LF line ends, UTF-8. Raises StorageError."""
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.12g", lineterminator="\n", encoding="utf-8")


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table as parquet with a checksum in every page. Raises StorageError."""
    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False, write_page_checksum=True)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write named tensors as safetensors, from wherever they are. Raises StorageError."""
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary)


def read_json(path: Path, remedy: str) -> Any:
    """The JSON value in a file.

    Raises:
        DataError: the file cannot be read or is not JSON; ``remedy`` says what to do.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).", file=path, remedy=remedy) from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(f"is not JSON ({reason}).", file=path, remedy=remedy) from None


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with the checksum of its content, by which `unsealed` knows damage."""
    return {**value, CHECKSUM: _content_hash(value)}


def unsealed(value: Any) -> dict[str, Any]:
    """The object without its checksum.

    Raises:
        ValueError: it is no object, has no checksum or does not match it.
    """
    if not isinstance(value, dict) or CHECKSUM not in value:
        raise ValueError("it has no checksum")
    content = {key: item for key, item in value.items() if key != CHECKSUM}
    if _content_hash(content) != value[CHECKSUM]:
        raise ValueError("its content does not match its checksum")
    return content


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, whatever ends it.

    Raises:
        BlockingIOError: another process holds it; its id is the error's text, "unknown" if it wrote none.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
    except OSError as error:
        _raise_storage(error, path)
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            raise BlockingIOError(handle.read().strip() or "unknown") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _content_hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot be written holds no temporary file of ours


def _raise_storage(error: Exception, path: Path) -> NoReturn:
    """Raise the error as a StorageError about ``path`` where the operating system is behind it, else as it is."""
    if isinstance(error, StorageError):  # of a file inside a temporary folder, whose name says nothing
        raise StorageError(error.problem, file=path, remedy=error.remedy, reason=error.reason) from error
    number = re.search(r"os error (\d+)", str(error)) if type(error).__name__ == "SafetensorError" else None
    if number is not None:  # the safetensors library has an error of its own for everything
        code = int(number[1])
        raise storage_error(OSError(code, os.strerror(code)), path) from error
    if isinstance(error, OSError):
        raise storage_error(error, path) from error
    raise error
