"""Reading text a person wrote: UTF-8 with or without a byte-order mark, and clear words for everything else."""

from __future__ import annotations

from pathlib import Path

from turnscale.errors import DataError, TurnscaleError

MAX_BYTES = 200_000_000
"""Largest text file read into memory; a ledger is a few kilobytes, a rollout dump tens of megabytes."""


def read_text(path: str | Path, error: type[TurnscaleError] = DataError) -> str:
    """The text of ``path``; a byte-order mark is dropped. Raises ``error`` when unreadable, empty or not UTF-8."""
    path = Path(path)
    if not path.exists():
        raise error("no such file.", file=path, remedy="check the path.")
    if not path.is_file():
        raise error("is not a file.", file=path, remedy="give the path of one file.")
    if path.stat().st_size > MAX_BYTES:
        raise error(
            f"is larger than {MAX_BYTES // 1_000_000} MB.", file=path, remedy="convert it to parquet first."
        )
    try:
        raw = path.read_bytes()
    except OSError as problem:
        raise error(
            f"cannot be read ({problem.strerror}).", file=path, remedy="make it readable for this user."
        ) from None
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error(
            "is UTF-16, not UTF-8.", file=path, remedy="save it as UTF-8 (CSV UTF-8 in a spreadsheet)."
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise error(
            f"is not UTF-8: byte 0x{raw[problem.start]:02x} on line {line}.",
            file=path,
            key=f"line {line}",
            remedy="save it as UTF-8.",
        ) from None
    if not text.strip():
        raise error("is empty.", file=path, remedy="write its content, or give another file.")
    if "\x00" in text:
        raise error("contains NUL bytes and is not a text file.", file=path, remedy="save it as UTF-8 text.")
    return text
