"""A run that is killed goes on bit for bit, and equal seeds give equal runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.train.setting import PROJECT, Setting
from turnscale.errors import CheckpointError
from turnscale.files import sha256
from turnscale.track.store import connect, init_tracking
from turnscale.train import state
from turnscale.train.loop import train_run
from turnscale.train.trainer import Trainer

SCRIPT = """
import sys, time
from pathlib import Path
from tests.train.setting import Setting
from turnscale.train import loop
setting, work, root, pause = Setting(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
advance = loop.Trainer.advance
def slowly(self):
    print("begin", self.step + 1, flush=True)
    advance(self)
    time.sleep(pause)
loop.Trainer.advance = slowly
loop.train_run(setting.run("mpo", steps=6), setting.base, setting.panels, setting.critic(), work,
               checkpoint_every=int(sys.argv[5]), root=root)
"""

TIMES = {"row_tokens_per_second", "step_seconds"}


def _start(setting: Setting, work: Path, root: Path, pause: float, every: int = 1) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(setting.root), str(work), str(root), str(pause), str(every)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _metrics(work: Path) -> pd.DataFrame:
    table = pd.read_parquet(work / "final" / "metrics.parquet")
    return table[~table["metric"].isin(TIMES)].reset_index(drop=True)


def _same(one: Path, other: Path) -> None:
    for name in ("adapter/adapter_model.safetensors", "critic/adapter_model.safetensors"):
        assert sha256(one / "final" / name) == sha256(other / "final" / name)
    pd.testing.assert_frame_equal(_metrics(one), _metrics(other), check_exact=True)
    left = pd.read_parquet(one / "final" / "critic_values.parquet")
    pd.testing.assert_frame_equal(left, pd.read_parquet(other / "final" / "critic_values.parquet"))


def test_killed_run_resumes_to_the_same_bytes(setting: Setting, store: Path) -> None:
    setting.critic()
    whole = store / "whole"
    train_run(setting.run("mpo", steps=6), setting.base, setting.panels, setting.critic(), whole, root=store)

    root = store / "elsewhere"
    work = root / "killed"
    init_tracking(root)
    process = _start(setting, work, root, pause=1.0)
    deadline = time.monotonic() + 120
    while not list(work.glob("step-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (work / "final").exists()
    record = train_run(
        setting.run("mpo", steps=6), setting.base, setting.panels, setting.critic(), work, root=root
    )
    _same(whole, work)
    assert record["attempt"] == 2
    client, experiment = connect(root)
    assert len(client.search_runs([experiment])) == 1
    history = client.get_metric_history(record["run_id"], "reward")
    assert sorted(point.step for point in history) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_writes_a_checkpoint_of_the_step_at_work_and_the_run_goes_on_from_it(
    setting: Setting, store: Path, number: signal.Signals
) -> None:
    setting.critic()
    root = store / number.name
    init_tracking(root)
    work = root / "stopped"
    process = _start(setting, work, root, pause=0.5, every=100)
    assert process.stdout is not None
    while process.stdout.readline() != b"begin 3\n":
        assert process.poll() is None
    assert not list(work.glob("step-*")), "only the signal makes a checkpoint"
    process.send_signal(number)
    assert process.wait(timeout=120) != 0
    assert [path.name for path in work.glob("step-*")] == ["step-000003"]
    assert not (work / "final").exists()
    client, experiment = connect(root)
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "KILLED"
    assert {row.step for row in client.get_metric_history(stored.info.run_id, "reward")} == {1, 2, 3}
    run = setting.run("mpo", steps=6)
    record = train_run(run, setting.base, setting.panels, setting.critic(), work, root=root)
    (stored,) = client.search_runs([experiment])
    assert (stored.info.run_id, stored.data.tags["turnscale.resumed_at"]) == (record["run_id"], "3")
    for metric in ("reward", "step_seconds", "val_pass_at_1"):
        steps = [row.step for row in client.get_metric_history(record["run_id"], metric)]
        assert len(steps) == len(set(steps)), f"{metric} has one row a step"


def test_steps_repeated_after_a_kill_have_one_row_each(setting: Setting, store: Path) -> None:
    """A repeated step takes another time, which the store would keep as a second row."""
    setting.critic()
    root = store / "repeated"
    init_tracking(root)
    work = root / "work"
    process = _start(setting, work, root, pause=0.0, every=2)
    assert process.stdout is not None
    while process.stdout.readline() != b"begin 4\n":
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert max(path.name for path in work.glob("step-*")) == "step-000002"
    run = setting.run("mpo", steps=6)
    record = train_run(run, setting.base, setting.panels, setting.critic(), work, root=root)
    client, _ = connect(root)
    for metric in ("step_seconds", "row_tokens_per_second", "reward"):
        steps = [row.step for row in client.get_metric_history(record["run_id"], metric)]
        assert sorted(steps) == [1, 2, 3, 4, 5, 6]


def test_same_seed_twice_is_the_same_run_and_another_seed_is_not(setting: Setting, store: Path) -> None:
    def trained(name: str, seed: int) -> Path:
        work = store / name
        run = setting.run("mpo", seed=seed, steps=2)
        train_run(run, setting.base, setting.panels, setting.critic(), work, root=store)
        return work

    first = trained("first", 0)
    trainer = Trainer(setting.run("mpo", steps=2), setting.base, setting.panels, setting.critic())
    trainer.advance()
    trainer.advance()
    again = [row for row in trainer.metrics if row[1] not in TIMES]
    assert again == _metrics(first).to_numpy().tolist()
    other = trained("other", 1)
    adapter = "final/adapter/adapter_model.safetensors"
    assert sha256(first / adapter) != sha256(other / adapter)


def test_validating_more_often_does_not_change_what_is_learned(setting: Setting) -> None:
    def rewards(every: int) -> list[list[object]]:
        run = setting.run("grpo", steps=3, validate_every=every)
        trainer = Trainer(run, setting.base, setting.panels, None)
        for _ in range(3):
            trainer.advance()
        kept = {"reward", "turns", "action_tokens", "entropy", "loss"}
        return [row for row in trainer.metrics if row[1] in kept]

    assert rewards(1) == rewards(3)


def test_second_writer_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom turnscale.train import state\n"
        "with state.exclusive(Path(sys.argv[1])):\n print('held', flush=True)\n time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="another process is training"), state.exclusive(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    with state.exclusive(tmp_path):
        pass


def _snapshot(step: int) -> state.Snapshot:
    import torch

    return state.Snapshot(
        step, "spec", {"weight": torch.full((3,), float(step))}, {"metrics": [[step, "loss", 0.1]]}, {}
    )


def test_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        state.save(tmp_path, _snapshot(step))
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-000002", "step-000003"]
    target = tmp_path / "step-000003" / "tensors.safetensors"
    content = bytearray(target.read_bytes())
    content[-1] ^= 1
    target.write_bytes(bytes(content))
    found = state.load_newest(tmp_path, "spec")
    assert found is not None and found.step == 2
    assert found.rows == {"metrics": [[2, "loss", 0.1]]}
    assert "damaged" in capsys.readouterr().err


def test_checkpoint_of_another_configuration_is_not_used(tmp_path: Path) -> None:
    state.save(tmp_path, _snapshot(1))
    assert state.load_newest(tmp_path, "another spec") is None
