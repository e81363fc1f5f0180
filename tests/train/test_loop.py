"""What a step reads, logs and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.setting import Setting
from turnscale.errors import NumericalError
from turnscale.track.store import connect
from turnscale.train.describe import critic_rows
from turnscale.train.loop import train_run
from turnscale.train.trainer import Trainer
from turnscale.train.update import minibatches
from turnscale.train.warmup import shuffle_rewards


def test_micro_batches_do_not_change_the_update(setting: Setting) -> None:
    def adapter(micro_batch: int) -> list[torch.Tensor]:
        run = setting.run("mpo", steps=1, micro_batch=micro_batch)
        trainer = Trainer(run, setting.base, setting.panels, setting.critic())
        trainer.advance()
        return [tensor.detach().clone() for tensor in trainer._tensors().values()]

    whole, split = adapter(256), adapter(3)
    for left, right in zip(whole, split, strict=True):
        torch.testing.assert_close(left, right, rtol=2e-3, atol=2e-5)


def test_rollout_and_trainer_agree_before_the_update(setting: Setting) -> None:
    trainer = Trainer(setting.run("mpo", steps=3), setting.base, setting.panels, setting.critic())
    for _ in range(3):
        trainer.advance()
    gaps = [value for _, name, value in trainer.metrics if name == "rollout_gap"]
    assert len(gaps) == 3 and max(gaps) <= 3e-5
    moved = [value for _, name, value in trainer.metrics if name == "ratio_max"]
    assert max(moved) > 1.001, "several minibatches and epochs must move the ratio away from 1"


def test_nan_stops_the_run_keeps_the_batch_and_marks_it_failed(
    setting: Setting, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Trainer._valued

    def poisoned(self: Trainer, batch):  # type: ignore[no-untyped-def]
        valued = read(self, batch)
        if self.step == 1:
            valued.values[0, int(valued.action_mask[0].nonzero()[0])] = float("nan")
        return valued

    monkeypatch.setattr(Trainer, "_valued", poisoned)
    with pytest.raises(NumericalError):
        train_run(
            setting.run("mpo"), setting.base, setting.panels, setting.critic(), store / "work", root=store
        )
    assert list((store / "work").glob("failed-step-000001.safetensors"))
    client, experiment = connect(store)
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "FAILED"
    assert stored.data.tags["turnscale.failed_step"] == "1"


def test_base_cell_is_a_run_without_training(setting: Setting, store: Path) -> None:
    record = train_run(setting.run("base"), setting.base, setting.panels, None, store / "work", root=store)
    assert record["steps"] == 0 and record["adapter"] is None and record["status"] == "FINISHED"


def test_minibatches_cover_every_row_once_an_epoch() -> None:
    parts = list(minibatches(10, 2, 4, torch.Generator().manual_seed(0)))
    assert len(parts) == 8
    for epoch in (parts[:4], parts[4:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))


def test_critic_rows_count_tokens_and_observations(setting: Setting) -> None:
    trainer = Trainer(setting.run("mpo", steps=1), setting.base, setting.panels, setting.critic())
    batch = trainer._read(trainer.sample().batch)
    rows = critic_rows(5, "probe", batch, [task.hash for task in trainer.tasks])
    assert len(rows) == int(batch.action_mask.sum())
    for i in range(batch.size):
        mine = [row for row in rows if row[2] == i]
        for turn in range(int(batch.turns_per_row()[i])):
            tokens = [row[5] for row in mine if row[4] == turn]
            assert tokens == list(range(len(tokens))) and tokens
            position = int((batch.turn[i] == turn).nonzero()[0])
            previous = int((batch.turn[i] == turn - 1).nonzero()[-1]) if turn else -1
            assert mine[[row[4] for row in mine].index(turn)][7] == position - previous - 1


def test_prompts_follow_the_epochs_permutation(setting: Setting) -> None:
    trainer = Trainer(setting.run("grpo", steps=9), setting.base, setting.panels, None)
    seen = [trainer._task_at(i) for i in range(2 * len(trainer.tasks))]
    assert sorted(seen[: len(trainer.tasks)]) == list(range(len(trainer.tasks)))
    assert seen[: len(trainer.tasks)] != seen[len(trainer.tasks) :]


def test_rewards_are_shuffled_over_all_trajectories_and_read_once(setting: Setting) -> None:
    trainer = Trainer(setting.run("mpo", steps=1), setting.base, setting.panels, setting.critic())
    batches = [trainer.sample().batch.with_(reward=torch.arange(16.0) + 16 * i) for i in range(2)]
    shuffled = [batch.reward for batch in shuffle_rewards(batches, 0)]
    assert sorted(torch.cat(shuffled).tolist()) == list(range(32))
    assert not torch.equal(shuffled[0].sort().values, batches[0].reward)
    trainer.advance()
    control = [row for row in trainer.critic_rows if row[1] == "shuffled"]
    common = [row for row in trainer.critic_rows if row[1] == "common" and row[0] == 0]
    assert {row[0] for row in control} == {0}
    assert [row[2:6] for row in control] == [row[2:6] for row in common]
    assert [row[6] for row in control] != [row[6] for row in common]
