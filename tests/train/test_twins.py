"""Twin critics: where they are read, what they learn from, how their targets follow, and that they resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.setting import Setting
from tests.train.test_sampling import TIMES, Tags
from turnscale.agent.adapter import activate, critic_parameters
from turnscale.errors import ConfigError
from turnscale.methods import load_method
from turnscale.train import state
from turnscale.train.trainer import Trainer
from turnscale.train.twins import read_twins


def make(setting: Setting, **training: Any) -> Trainer:
    run = setting.run("archer", validate_every=9, **training)
    return Trainer(run, setting.base, setting.panels, setting.critic(2))


def stir(trainer: Trainer, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in critic_parameters(trainer.agent):
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def test_states_are_read_before_a_turn_and_actions_after_it(setting: Setting) -> None:
    trainer = make(setting)
    stir(trainer)
    batch = trainer.sample().batch
    with torch.no_grad():
        found = read_twins(trainer.agent, batch)
    activate(trainer.agent.model, "critic")
    backbone = trainer.agent.model.get_base_model().model
    for row in range(batch.size):
        with torch.no_grad():
            hidden = backbone(batch.ids[row : row + 1]).last_hidden_state[0]
            naive = trainer.agent.head(hidden)  # type: ignore[misc]
        for turn in range(int(batch.turns_per_row()[row])):
            at = (batch.turn[row] == turn).nonzero().squeeze(1)
            expected = torch.cat([naive[at[0] - 1, :2], naive[at[-1], 2:]])
            torch.testing.assert_close(
                found[:, row, at], expected[:, None].expand(4, len(at)), rtol=0, atol=3e-5
            )
    assert not found[:, ~batch.action_mask].any()
    lesser = trainer._valued(batch)
    assert lesser.values is not None and lesser.values_turn is not None
    assert torch.equal(lesser.values, found[:2].amin(0)) and torch.equal(
        lesser.values_turn, found[2:].amin(0)
    )
    advantage = trainer.method.credit(lesser).advantages
    assert torch.equal(advantage, lesser.values_turn - lesser.values)


def test_targets_are_one_discounted_step_of_the_target_network(setting: Setting) -> None:
    trainer = make(setting)
    twins = trainer.twins
    assert twins is not None
    batch = trainer.sample().batch
    with torch.no_grad():
        frozen = read_twins(trainer.agent, batch)
    stir(trainer)
    for twin, credit in enumerate(twins._targets(trainer.method, batch, 5)):
        state_value, action_value = frozen[twin], frozen[2 + twin]
        assert credit.returns is not None and credit.returns_turn is not None
        torch.testing.assert_close(credit.returns, action_value, rtol=0, atol=1e-6)
        for row in range(batch.size):
            last = int(batch.turn[row].max())
            for turn in range(last + 1):
                at = int((batch.turn[row] == turn).nonzero()[0])
                following = (batch.turn[row] == turn + 1).nonzero()
                ahead = 0.9 * state_value[row, following[0]] if turn < last else batch.reward[row]
                assert float(credit.returns_turn[row, at]) == pytest.approx(float(ahead), abs=1e-6)


def test_targets_follow_by_the_polyak_share_and_the_replay_is_bounded(setting: Setting) -> None:
    trainer = make(setting, critic_minibatches=1)
    assert trainer.twins is not None
    trainer.twins.choice = trainer.twins.choice.model_copy(update={"replay": 2})
    trainer.method = trainer.method.model_copy(
        update={"critic": trainer.method.critic.model_copy(update={"updates_per_policy_update": 1})}
    )
    for kept in (16, 32, 32):
        before = [target.clone() for target in trainer.twins.targets]
        trainer.advance()
        for old, new, trained in zip(
            before, trainer.twins.targets, critic_parameters(trainer.agent), strict=True
        ):
            torch.testing.assert_close(new, 0.9 * old + 0.1 * trained.detach())
        assert [value for _, name, value in trainer.metrics if name == "replayed"][-1] == kept
    assert trainer.twins.replay[-1].values is None


def test_micro_batches_do_not_change_the_critics_step(setting: Setting) -> None:
    def trained(micro_batch: int) -> list[torch.Tensor]:
        trainer = make(setting, steps=1, micro_batch=micro_batch)
        trainer.advance()
        return [parameter.detach().clone() for parameter in critic_parameters(trainer.agent)]

    for whole, split in zip(trained(256), trained(3), strict=True):
        torch.testing.assert_close(whole, split, rtol=2e-3, atol=2e-5)


def test_targets_and_replay_are_resumed(setting: Setting, tmp_path: Path) -> None:
    whole = make(setting, steps=3)
    whole.advance()
    state.save(tmp_path, whole.snapshot())
    whole.advance()
    whole.advance()
    resumed = make(setting, steps=3)
    resumed.resume(tmp_path, Tags())  # type: ignore[arg-type]
    resumed.advance()
    resumed.advance()
    left, right = whole.snapshot().tensors, resumed.snapshot().tensors
    assert left.keys() == right.keys() and any(name.startswith("twin_replay.2.") for name in left)
    for name in left:
        assert torch.equal(left[name], right[name]), name
    rows = [[row for row in one.metrics if row[1] not in TIMES] for one in (whole, resumed)]
    assert rows[0] == rows[1]


def test_twins_belong_to_utterance_credit_and_begin_cold() -> None:
    with pytest.raises(ConfigError, match="need each other"):
        load_method("vetta", {"critic.twins": {"polyak": 0.1, "replay": 2}})
    with pytest.raises(ConfigError, match="begin cold"):
        load_method("archer", {"critic.warmup": True})
    with pytest.raises(ConfigError, match=r"critic\.twins\.polyak"):
        load_method("archer", {"critic.twins.polyak": 0.0})
    assert "twins" not in load_method("mpo").resolved()["critic"]
    assert load_method("archer", {"critic.twins.polyak": 0.5}).resolved()["critic"]["twins"]["polyak"] == 0.5
