"""Many processes start and log at once: nothing is lost and none dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnscale.track.store import connect, init_tracking

START = """
import sys
from pathlib import Path
from turnscale.track.store import init_tracking
print(init_tracking(Path(sys.argv[1]))["experiment_id"])
"""
LOG = """
import sys
from pathlib import Path
from turnscale.study import Run, Spec
from turnscale.track.run import open_run
root, seed = Path(sys.argv[1]), int(sys.argv[2])
run = Run("mpo", "smoke", "search", "tiny", "grpo", "grpo", seed, Spec("train", {"lr": 0.1}))
with open_run(run, run.spec.value, {}, root) as log:
    for step in range(300):
        log.metrics(step, {f"metric_{i}": step * i for i in range(10)})
        if step % 20 == 19:
            log.flush()
    log.finish()
"""


def together(program: str, arguments: list[list[str]]) -> list[subprocess.CompletedProcess[str]]:
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for words in arguments
    ]
    ended = []
    for process in started:
        out, err = process.communicate(timeout=900)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


@pytest.mark.slow
def test_eight_processes_initialise_one_store(tmp_path: Path) -> None:
    ended = together(START, [[str(tmp_path)]] * 8)
    assert [done.returncode for done in ended] == [0] * 8, [done.stderr[-500:] for done in ended]
    assert len({done.stdout for done in ended}) == 1


@pytest.mark.slow
def test_eight_processes_log_every_row_to_sqlite(tmp_path: Path) -> None:
    init_tracking(tmp_path)
    ended = together(LOG, [[str(tmp_path), str(seed)] for seed in range(8)])
    assert [done.returncode for done in ended] == [0] * 8, [done.stderr[-500:] for done in ended]
    client, experiment = connect(tmp_path)
    runs = client.search_runs([experiment])
    assert len(runs) == 8
    for run in runs:
        assert run.info.status == "FINISHED"
        for i in range(10):
            rows = client.get_metric_history(run.info.run_id, f"metric_{i}")
            assert sorted((row.step, row.value) for row in rows) == [(step, step * i) for step in range(300)]
