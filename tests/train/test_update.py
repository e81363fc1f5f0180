"""What an update reads: the sampler's log-probabilities, a reference without a copy, micro-batches by length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train.setting import Setting
from turnscale.agent import forward
from turnscale.agent.adapter import base_model, effective_weights
from turnscale.config.schema import Training
from turnscale.train import trainer as training
from turnscale.train import update
from turnscale.train.trainer import Trainer
from turnscale.train.update import microbatches


def test_microbatches_are_of_similar_lengths_and_take_every_row() -> None:
    length = torch.tensor([3, 9, 4, 9, 1, 7])
    rows = torch.tensor([5, 0, 3, 1, 4])
    pieces = microbatches(rows, length, 2)
    assert [piece.tolist() for piece in pieces] == [[3, 1], [5, 0], [4]]


@pytest.mark.parametrize("source", ["sampler", "trainer"])
def test_old_log_probabilities_cost_no_forward_pass_by_default(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    assert Training.model_fields["old_logp"].default == "sampler"
    calls: list[str] = []

    def counted(where: str) -> Any:
        def read(*args: Any) -> Any:
            calls.append(where)
            return forward.action_logprobs(*args)

        return read

    monkeypatch.setattr(training, "action_logprobs", counted("trainer"))
    monkeypatch.setattr(update, "action_logprobs", counted("update"))
    trainer = Trainer(setting.run("grpo", steps=1, old_logp=source), setting.base, setting.panels, None)
    trainer.advance()
    assert calls.count("trainer") == (source == "trainer")
    assert calls.count("update") == trainer.settings.epochs * trainer.settings.minibatches
    (gap,) = [value for _, name, value in trainer.metrics if name == "rollout_gap"]
    assert 0 < gap <= 3e-5, "they are used because they agree with the trainer's"


def test_the_reference_is_the_base_itself(setting: Setting) -> None:
    trainer = Trainer(setting.run("grpo", steps=2), setting.base, setting.panels, None)
    own = {p.data_ptr() for p in base_model(trainer.agent.model).parameters()}
    weights = effective_weights(trainer.agent.model, None)
    assert weights and all(weight.data_ptr() in own for weight in weights.values())
    batch = trainer.sample().batch
    with torch.no_grad():
        before = trainer._logp(batch, None)
    assert (before - batch.logp_rollout).abs().max() < 3e-5, "a fresh adapter changes nothing"
    trainer.advance()
    with torch.no_grad():
        after, policy = trainer._logp(batch, None), trainer._logp(batch, "policy")
    assert torch.equal(before, after)
    assert not torch.allclose(policy, after, atol=1e-3)
