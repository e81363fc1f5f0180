"""A long table made of one piece per run, written so that the next time only new pieces are read from the store.

Each piece is a row group of a parquet file; a list beside it says which piece each is, and the file's checksum.
Memory holds one piece at a time, whatever the number of runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from turnscale.config.hashing import digest
from turnscale.errors import DataError
from turnscale.files import read_json, replacing, sealed, sha256, unsealed, write_json


@dataclass(frozen=True)
class Piece:
    """One run's part of a table.

    Attributes:
        source: checksum of the file that holds it.
        identity: columns to put first, the same value in every row; one of them may be in the file already.
        open: opens the file; called only if the piece is not known already.
        check: raises if the table is not what it must be.
    """

    source: str
    identity: dict[str, str | int]
    open: Callable[[], AbstractContextManager[Path]]
    check: Callable[[pa.Table], None]

    @property
    def key(self) -> str:
        """What the piece's rows follow from: the bytes of its file and its identity."""
        return digest([self.source, self.identity], length=32)


def write_pieces(pieces: Sequence[Piece], path: Path, columns: Sequence[str]) -> int:
    """Write the pieces as one table, in their order; those that ``path`` holds already are not opened.

    Args:
        pieces: of one table; their columns may differ, and then the others' rows are empty there.
        path: the table, of an earlier call or absent. One that is damaged or of another kind counts as absent.
        columns: of an empty table, where there is no piece.

    Returns:
        Number of pieces that were opened.

    Raises:
        StorageError: it cannot be written; ``path`` is as it was.
        Exception: whatever opening or checking a piece raises.
    """
    known = _known(path)
    opened = 0
    written: list[str] = []
    with replacing(path) as temporary:
        spool = temporary.with_name(f"{temporary.name}.new")
        try:
            spool.mkdir()
            fresh: dict[str, Path] = {}
            for piece in pieces:
                if piece.key not in known:
                    fresh[piece.key] = spool / f"{len(fresh)}.parquet"
                    with piece.open() as file:
                        shutil.copyfile(file, fresh[piece.key])
                    opened += 1
            schema = _schema(path if len(fresh) < len(pieces) else None, pieces, fresh, columns)
            with pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer:
                for piece, table in _tables(pieces, known, fresh, path):
                    if len(table):  # one without rows is no row group, so it is opened each time
                        writer.write_table(_fit(table, schema), row_group_size=len(table))
                        written.append(piece.key)
        finally:
            shutil.rmtree(spool, ignore_errors=True)
    write_json(sealed({"sha256": sha256(path), "pieces": written}), _list(path))
    return opened


def row_groups(path: Path, published: Path) -> dict[str, int] | None:
    """Key of each piece -> its row group in ``published``, a copy of the table that :func:`write_pieces` wrote.

    Returns:
        None where ``published`` is not that table, byte for byte.
    """
    return _groups(path, published) if published.exists() else None


def _known(path: Path) -> dict[str, int]:
    """Piece -> row group of a table written earlier; empty if there is none, or it is not as it was written."""
    return _groups(path, path) or {}


def _groups(path: Path, copy: Path) -> dict[str, int] | None:
    """Piece -> row group as listed beside ``path``; None if ``copy`` is not the table of that list."""
    try:
        listed = unsealed(read_json(_list(path), "remove it."))
        if listed["sha256"] != sha256(copy):
            return None
        return {str(key): group for group, key in enumerate(listed["pieces"])}
    except (DataError, OSError, ValueError, KeyError):
        return None


def _list(path: Path) -> Path:
    """The file that says which pieces a table's row groups are, and what the table's checksum is."""
    return path.with_suffix(".pieces.json")


def _read(piece: Piece, path: Path) -> pa.Table:
    """The piece's table with its identity, checked."""
    table = pq.read_table(path).replace_schema_metadata(None)
    for position, name in _lacking(piece, table.schema):
        value = pa.scalar(piece.identity[name], _type(piece.identity[name]))
        table = table.add_column(position, name, pa.repeat(value, len(table)))
    piece.check(table)
    return table


def _lacking(piece: Piece, schema: pa.Schema) -> list[tuple[int, str]]:
    """Columns of identity that the piece's file has not, each with its place."""
    return [(place, name) for place, name in enumerate(piece.identity) if name not in schema.names]


def _type(value: str | int) -> pa.DataType:
    return pa.int64() if isinstance(value, int) else pa.string()


def _schema(
    path: Path | None, pieces: Sequence[Piece], fresh: dict[str, Path], columns: Sequence[str]
) -> pa.Schema:
    """One schema for the known pieces, which ``path`` has, and the fresh ones, from their files' heads alone."""
    found = [] if path is None else [pq.read_schema(path).remove_metadata()]
    for piece in pieces:
        if piece.key in fresh:
            schema = pq.read_schema(fresh[piece.key]).remove_metadata()
            for place, name in _lacking(piece, schema):
                schema = schema.insert(place, pa.field(name, _type(piece.identity[name])))
            found.append(schema)
    if not found:
        return pa.schema([(name, pa.null()) for name in columns])
    return pa.unify_schemas([_plain(schema) for schema in found], promote_options="permissive")


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema with one type for text, however it was written."""
    return pa.schema([(one.name, pa.string() if _is_text(one.type) else one.type) for one in schema])


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_large_string(kind)
        or pa.types.is_string(kind)
        or (pa.types.is_dictionary(kind) and _is_text(kind.value_type))
    )


def _tables(
    pieces: Sequence[Piece], known: dict[str, int], fresh: dict[str, Path], path: Path
) -> Iterator[tuple[Piece, pa.Table]]:
    old = pq.ParquetFile(path) if any(piece.key in known for piece in pieces) else None
    try:
        for piece in pieces:
            if old is not None and piece.key in known:
                yield piece, old.read_row_group(known[piece.key])
            else:
                yield piece, _read(piece, fresh[piece.key])
    finally:
        if old is not None:
            old.close()


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of the schema; absent ones are empty."""
    here = set(table.column_names)
    columns = [
        table.column(one.name).cast(one.type) if one.name in here else pa.nulls(len(table), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)
