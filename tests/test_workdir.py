"""A killed workflow's lock is removed, a living one's is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnscale.errors import TurnscaleError
from turnscale.workdir import release_stale_lock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    locks = tmp_path / "project" / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    for name in ("0.input.lock", "0.output.lock"):
        (locks / name).write_text("results/x.json\n")
    return tmp_path / "project"


def process(table: Path, pid: int, cwd: Path, *words: str) -> None:
    entry = table / str(pid)
    entry.mkdir(parents=True)
    (entry / "cmdline").write_bytes(b"\0".join(word.encode() for word in words))
    (entry / "cwd").symlink_to(cwd)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    table = tmp_path / "proc"
    process(table, 1, tmp_path, "/sbin/init")
    (table / "self").symlink_to(table / "1")
    (table / "uptime").write_text("1 1")
    return table


def test_a_stale_lock_is_removed(folder: Path, table: Path, tmp_path: Path) -> None:
    process(table, 7, tmp_path, "/venv/bin/python", "/venv/bin/snakemake", "--cores", "2")  # elsewhere
    process(table, 8, folder, "vim", "Snakefile")  # here, but not Snakemake
    assert release_stale_lock(folder, table) == 2
    assert release_stale_lock(folder, table) == 0


@pytest.mark.parametrize(
    "words",
    [["/venv/bin/python3.11", "/venv/bin/snakemake", "all"], ["python", "-m", "snakemake"], ["snakemake"]],
)
def test_a_living_workflow_keeps_its_lock(folder: Path, table: Path, words: list[str]) -> None:
    process(table, 9, folder, *words)
    with pytest.raises(TurnscaleError, match="process 9"):
        release_stale_lock(folder, table)
    assert len(list((folder / ".snakemake/locks").iterdir())) == 2


def test_jobs_that_outlived_their_workflow_are_named(folder: Path, table: Path, tmp_path: Path) -> None:
    process(table, 11, folder, "/venv/bin/python", "/venv/bin/turnscale", "job", "train", "--spec", "x")
    process(table, 12, tmp_path, "/venv/bin/python", "/venv/bin/turnscale", "job", "train")  # elsewhere
    process(table, 13, folder, "/venv/bin/python", "/venv/bin/turnscale", "plan", "job")
    with pytest.raises(TurnscaleError, match="kill 11'"):
        release_stale_lock(folder, table)
    assert len(list((folder / ".snakemake/locks").iterdir())) == 2


def test_without_a_process_table_the_command_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TurnscaleError, match="snakemake --unlock"):
        release_stale_lock(folder, tmp_path / "absent")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every process")
def test_a_workflow_that_cannot_be_seen_keeps_its_lock(folder: Path, table: Path) -> None:
    process(table, 9, folder, "snakemake")
    (table / "9").chmod(0)
    try:
        with pytest.raises(TurnscaleError):
            release_stale_lock(folder, table)
    finally:
        (table / "9").chmod(0o700)


def test_an_unlocked_folder_is_left_alone(tmp_path: Path) -> None:
    assert release_stale_lock(tmp_path) == 0
