"""A few processes log to the project's own store at once: no row lost, no run twice, no lock reaches the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from .load import Work, assert_whole, run_of, together
from .made import place_store


def no_trouble(done: list[object]) -> None:
    """No process ended by an error or met a store that refused for good."""
    assert [found.error for found in done] == [""] * len(done)  # type: ignore[attr-defined]
    assert [found.warnings for found in done] == [()] * len(done)  # type: ignore[attr-defined]


@pytest.fixture
def root(empty_store: Path, tmp_path: Path) -> Path:
    place_store(empty_store, tmp_path)
    return tmp_path


def test_writers_at_once_lose_nothing(root: Path) -> None:
    work = Work(root, "", steps=15)
    no_trouble(list(together(4, work)))
    assert_whole(work, {run_of(index, 0).key for index in range(4)}, 15)


def test_one_key_opened_by_several_at_once_is_one_run(root: Path) -> None:
    work = Work(root, "", steps=3, keys=3, shared=True)
    done = together(4, work)
    no_trouble(list(done))
    assert {found.run_ids for found in done} == {done[0].run_ids}, "all were given the same runs"
    assert_whole(work, {run_of(0, key).key for key in range(3)}, 3)
