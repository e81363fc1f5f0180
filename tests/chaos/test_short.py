"""A short campaign: stopped with grace, then killed at a few points, a study comes out as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.chaos.campaign import COMMAND, Log, Round, environment, make_folder, opened, undisturbed, verify
from tests.chaos.checks import Folder, differences
from tests.chaos.processes import Family, Seen, kind_of
from turnscale.progress import last_count

STEPS = 30


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark of its own; whatever still carries it afterwards is ended."""
    mark = uuid4().hex
    yield mark
    Family(mark).end()


def checkpoints(folder: Path) -> list[int]:
    return sorted(
        int(path.name[5:]) for path in (folder / "checkpoints").glob("*/*/*/*/grpo-*/seed-0/step-*")
    )


def heeds_ctrl_c() -> None:
    """A process that a shell started in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stopped(folder: Path, mark: str, stop: Callable[[subprocess.Popen[bytes]], None]) -> tuple[int, str]:
    """Start the command, stop it in the middle of its training, and wait for it: exit status and what it said."""
    log = folder / f"command-{uuid4().hex}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            COMMAND,
            cwd=folder,
            env=environment(mark),
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=heeds_ctrl_c,
        )
    while not (at_step := [seen for seen in Family(mark).living() if trains(seen)]):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    stop(process)
    process.wait(timeout=300)
    assert not [seen for seen in Family(mark).living() if seen.kind == "trainer"], (
        "it waited for the training"
    )
    assert at_step
    return process.returncode, log.read_text()


def trains(seen: Seen) -> bool:
    if seen.kind != "trainer":
        return False
    text, _ = last_count(Path(f"/proc/{seen.pid}/fd/1").readlink())
    return bool(text)


def test_stopped_and_killed_a_study_comes_out_the_same(tmp_path: Path, mark: str) -> None:
    calm: list[Folder] = []
    other = uuid4().hex
    reference = threading.Thread(
        target=lambda: calm.append(undisturbed(tmp_path / "calm", other, short=True))
    )
    reference.start()
    try:
        folder = make_folder(tmp_path / "disturbed", short=True)

        status, said = stopped(folder, mark, lambda process: process.send_signal(signal.SIGTERM))
        assert (status, "goes on from here" in said) == (143, True), said
        (first,) = checkpoints(folder)
        assert 0 < first < STEPS, "only the signal can have made this checkpoint"

        status, said = stopped(folder, mark, lambda process: os.killpg(process.pid, signal.SIGINT))
        assert (status, "goes on from here" in said) == (130, True), said
        assert first < checkpoints(folder)[-1] < STEPS

        log = Log(tmp_path / "log.jsonl")
        left = Counter(trainer=1, evaluator=1, snakemake=1)
        Round(folder, left, random.Random(0), log, mark, spare=0.0, late=0.4).run()
        assert not left.total(), f"kills left: {left}"
        assert Counter(event["event"] for event in log.events)["kill"] == 3
    finally:
        reference.join()
        Family(other).end()
    assert differences(opened(folder), calm[0]) == []
    assert verify(folder, None, mark) == []
    harm_is_found(folder, calm[0])


def harm_is_found(folder: Path, calm: Folder) -> None:
    """The checks above can fail: each kind of loss, made by hand, is reported."""
    table = folder / "paper_tables/chaos/chaos_main.md"
    table.write_text(table.read_text() + " ")
    assert differences(opened(folder), calm) == ["table chaos_main.md differs"]
    table.write_text(table.read_text()[:-1])
    database = folder / "mlflow/mlflow.db"
    run_id = next(iter(opened(folder).records.values()))["run_id"]
    for change, said in (
        ("UPDATE runs SET status = 'RUNNING' WHERE run_uuid = ?", "RUNNING"),
        (
            "INSERT INTO metrics SELECT key, value + 1, timestamp, run_uuid, step, is_nan FROM metrics"
            " WHERE run_uuid = ? AND key = 'reward' AND step = 2",
            "2 rows of reward at step 2",
        ),
        ("DELETE FROM metrics WHERE run_uuid = ? AND key = 'reward' AND step = 3", "('reward', 3)"),
    ):
        with sqlite3.connect(database) as connection:
            assert connection.execute(change, (run_id,)).rowcount == 1
        assert any(said in problem for problem in differences(opened(folder), calm)), said


def test_a_frozen_process_is_alive_and_a_stranger_is_never_found(mark: str) -> None:
    ours = subprocess.Popen(["sleep", "60"], env=environment(mark))
    stranger = subprocess.Popen(["sleep", "60"], env=environment("another mark"))
    try:
        family = Family(mark)
        (seen,) = family.living()
        assert seen.pid == ours.pid
        assert family.kill(seen)
        assert ours.wait() == -signal.SIGKILL
        assert not family.kill(seen), "a dead process counts for nothing"
        assert family.living() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("/v/python", "/v/turnscale", "job", "train", "--out", "x"), "trainer"),
        (("/v/python", "/v/turnscale", "job", "evaluate"), "evaluator"),
        (("/v/python", "/v/snakemake", "--cores", "2"), "snakemake"),
        (("/v/python", "/v/turnscale", "reproduce"), "reproduce"),
        (("/v/python", "-m", "mlflow", "server"), "server"),
        (("/bin/bash", "-c", "turnscale job train"), "other"),
        (("/v/python", "/v/turnscale", "job", "tables"), "other"),
    ],
)
def test_kinds_of_processes(words: tuple[str, ...], kind: str) -> None:
    assert kind_of(words) == kind
