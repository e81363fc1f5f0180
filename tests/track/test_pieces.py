"""A table of pieces: only what is new is opened, and the file is the one that a first writing makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from turnscale.errors import DataError
from turnscale.track.pieces import Piece, write_pieces

COLUMNS = ("cell", "seed", "step", "value")


class Source:
    """Runs' files, and which of them were opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[int] = []

    def piece(self, seed: int, version: str = "a", **columns: object) -> Piece:
        """The piece of a seed; another ``version`` is another file."""
        path = self.folder / f"{seed}-{version}.parquet"
        table = pd.DataFrame({"step": range(3), "value": [seed + 0.5, len(version), 1 / 3], **columns})
        table.to_parquet(path, index=False)

        @contextmanager
        def opened() -> Iterator[Path]:
            self.opened.append(seed)
            yield path

        return Piece(f"{seed}-{version}", {"cell": "mpo", "seed": seed}, opened, lambda table: None)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "store").mkdir()
    return Source(tmp_path / "store")


def test_only_new_pieces_are_opened_and_the_order_is_the_plans(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    assert write_pieces([source.piece(0), source.piece(2)], path, COLUMNS) == 2
    source.opened.clear()
    assert write_pieces([source.piece(n) for n in (0, 1, 2, 3)], path, COLUMNS) == 2
    assert source.opened == [1, 3]
    table = pd.read_parquet(path)
    assert list(table.columns) == list(COLUMNS)
    assert table["seed"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert table["value"].iloc[::3].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_bytes_are_those_of_a_first_writing(source: Source, tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown.parquet", tmp_path / "fresh.parquet"
    for upto in (1, 3, 4):
        write_pieces([source.piece(n) for n in range(upto)], grown, COLUMNS)
    write_pieces([source.piece(0), source.piece(2)], grown, COLUMNS)
    write_pieces([source.piece(0), source.piece(2)], fresh, COLUMNS)
    assert grown.read_bytes() == fresh.read_bytes()


def test_a_changed_file_is_opened_again(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_pieces([source.piece(0), source.piece(1)], path, COLUMNS)
    source.opened.clear()
    write_pieces([source.piece(0), source.piece(1, version="later")], path, COLUMNS)
    assert source.opened == [1]
    assert pd.read_parquet(path)["value"].tolist()[4] == len("later")


@pytest.mark.parametrize("where", ["page", "end", "whole"])
def test_a_damaged_table_is_made_from_the_store_again(source: Source, tmp_path: Path, where: str) -> None:
    path = tmp_path / "table.parquet"
    write_pieces([source.piece(0), source.piece(1)], path, COLUMNS)
    sound = path.read_bytes()
    damaged = bytearray(sound)
    if where == "page":
        damaged[sound.index(b"PAR1", 0) + 60] ^= 1
    damaged = damaged[:-20] if where == "end" else damaged
    path.write_bytes(b"nothing" if where == "whole" else bytes(damaged))
    source.opened.clear()
    write_pieces([source.piece(0), source.piece(1)], path, COLUMNS)
    assert source.opened == [0, 1]
    assert path.read_bytes() == sound


def test_a_table_of_another_maker_is_not_taken_for_pieces(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pd.DataFrame({"cell": ["mpo"], "seed": [0], "step": [9], "value": [9.0]}).to_parquet(path)
    assert write_pieces([source.piece(0)], path, COLUMNS) == 1
    assert pd.read_parquet(path)["step"].tolist() == [0, 1, 2]


def test_columns_that_only_some_runs_have_are_empty_elsewhere(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_pieces([source.piece(0)], path, COLUMNS)
    write_pieces([source.piece(0), source.piece(1, extra=["x", "y", "z"])], path, COLUMNS)
    table = pd.read_parquet(path)
    assert table["extra"].isna().tolist() == [True] * 3 + [False] * 3
    assert write_pieces([source.piece(0), source.piece(1, extra=["x", "y", "z"])], path, COLUMNS) == 0


def test_no_piece_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    assert write_pieces([], path, COLUMNS) == 0
    table = pd.read_parquet(path)
    assert list(table.columns) == list(COLUMNS) and len(table) == 0


def test_a_piece_without_rows_does_not_shift_the_others(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    empty = source.piece(0)
    pd.DataFrame({"step": pd.Series(dtype="int64"), "value": pd.Series(dtype="float64")}).to_parquet(
        tmp_path / "store/0-a.parquet"
    )
    assert write_pieces([empty, source.piece(1), source.piece(2)], path, COLUMNS) == 3
    assert write_pieces([empty, source.piece(1), source.piece(2)], path, COLUMNS) == 1
    assert pd.read_parquet(path)["seed"].tolist() == [1] * 3 + [2] * 3


def test_a_refused_piece_leaves_the_table_as_it_was(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_pieces([source.piece(0)], path, COLUMNS)
    before = path.read_bytes()

    def refuse(table: pa.Table) -> None:
        raise DataError("is wrong.")

    good = source.piece(1)
    with pytest.raises(DataError, match="is wrong"):
        write_pieces([source.piece(0), Piece("b", good.identity, good.open, refuse)], path, COLUMNS)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
