"""A killed workflow's lock is removed, a living one's is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from turnscale.errors import TurnscaleError
from turnscale.workdir import only_writer, release_stale_lock


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


def test_long_jobs_that_outlived_their_workflow_are_named_and_go_on(
    folder: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process(table, 11, folder, "/venv/bin/python", "/venv/bin/turnscale", "job", "train", "--spec", "x")
    process(table, 12, tmp_path, "/venv/bin/python", "/venv/bin/turnscale", "job", "train")  # elsewhere
    process(table, 13, folder, "/venv/bin/python", "/venv/bin/turnscale", "plan", "job")
    process(table, 14, folder, "/usr/bin/turnscale", "job", "evaluate", "--run", "x")
    assert release_stale_lock(folder, table) == 2
    assert "kill 11 14" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["/bin/bash", "-c", "turnscale job unlock; turnscale audit x"],
        ["timeout", "9", "turnscale", "job", "tables"],
        ["/venv/bin/python", "/venv/bin/turnscale", "job", "unlock"],
    ],
)
def test_what_only_waits_for_a_job_is_not_waited_for(folder: Path, table: Path, words: list[str]) -> None:
    """It may be what started this very command."""
    process(table, 11, folder, *words)
    assert release_stale_lock(folder, table) == 2


def test_short_jobs_that_outlived_their_workflow_are_waited_for(
    folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process(table, 11, folder, "/venv/bin/python", "/venv/bin/turnscale", "job", "tables", "--study", "x")
    process(table, 12, folder, "/venv/bin/python", "/venv/bin/turnscale", "audit", "x.yaml")
    waiting = threading.Thread(target=release_stale_lock, args=(folder, table))
    waiting.start()
    waiting.join(timeout=1.2)
    assert waiting.is_alive() and list((folder / ".snakemake/locks").iterdir())
    for pid in ("11", "12"):
        shutil.rmtree(table / pid)
    waiting.join(timeout=10)
    assert not waiting.is_alive() and not list((folder / ".snakemake/locks").iterdir())
    assert "processes 11, 12" in capsys.readouterr().err


HOLD = """
import sys, time
from pathlib import Path
from turnscale.workdir import only_writer
record = Path(sys.argv[1])
with only_writer(record):
    print("held", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "finish":
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
"""


@pytest.mark.parametrize("end", ["finish", "killed"])
def test_a_record_has_one_writer_and_what_it_made_is_kept(tmp_path: Path, end: str) -> None:
    record = tmp_path / "cell" / "seed-0" / "run.json"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(record), end], **pipes)
    try:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        made: list[bool] = []

        def wait() -> None:
            with only_writer(record) as finished:
                made.append(finished)

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(timeout=0.5)
        assert waiting.is_alive(), "the second writer waits"
        if end == "finish":
            holder.stdin.write(b"\n")
            holder.stdin.flush()
        else:
            holder.kill()
        waiting.join(timeout=10)
        assert made == [end == "finish"]
    finally:
        holder.kill()
        holder.communicate()


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
