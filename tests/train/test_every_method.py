"""Every row of configs/methods trains, from rollouts to updated adapters."""

from __future__ import annotations

import math

import pytest
import torch

from tests.train.setting import PROJECT, Setting
from turnscale.methods import list_methods, load_method
from turnscale.train.trainer import Trainer

METHODS = PROJECT / "configs" / "methods"
TRAINED = [name for name in list_methods(METHODS) if load_method(name, directory=METHODS).train]


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_trains_end_to_end(setting: Setting, name: str) -> None:
    method = load_method(name, directory=METHODS)
    run = setting.run(name, steps=2, validate_every=2, prompts=4, group_size=4)
    critic = setting.critic(method.critic.heads) if method.needs_critic else None
    trainer = Trainer(run, setting.base, setting.panels, critic)
    before = {key: value.detach().clone() for key, value in trainer._tensors().items()}
    trainer.advance()
    trainer.advance()
    moved = {key for key, value in trainer._tensors().items() if not torch.equal(value, before[key])}
    assert any(key.startswith("policy.") for key in moved), "the policy did not learn"
    assert any(key.startswith("critic.") for key in moved) == method.needs_critic

    metrics = {(step, key): value for step, key, value in trainer.metrics}
    assert all(math.isfinite(value) for value in metrics.values())
    assert (2, "val_pass_at_1") in metrics
    for step in (1, 2):
        assert metrics[step, "rollout_gap"] < 3e-5
        kept, dropped = metrics[step, "rollouts_kept"], metrics[step, "rollouts_dropped"]
        assert kept == 16 and kept + dropped == metrics[step, "rollouts_consumed"]
        assert (dropped > 0) <= (method.sampling.scheme != "independent")
        assert metrics[step, "env_calls"] > 0 and metrics[step, "sampled_tokens"] > 0
    assert trainer.last_batch is not None
    for tensor in method.needs:
        assert getattr(trainer.last_batch, tensor) is not None


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_trains_on_the_search_family(search: Setting, name: str) -> None:
    method = load_method(name, directory=METHODS)
    critic = search.critic(method.critic.heads) if method.needs_critic else None
    run = search.run(name, steps=1, validate_every=1)
    trainer = Trainer(run, search.base, search.panels, critic)
    before = {key: value.detach().clone() for key, value in trainer._tensors().items()}
    trainer.advance()
    moved = {key for key, value in trainer._tensors().items() if not torch.equal(value, before[key])}
    metrics = {key: value for _, key, value in trainer.metrics}
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["rollout_gap"] < 3e-5 and "val_pass_at_1" in metrics
    # Without a success in any group, a group method has nothing to learn from and must not move; a cold critic
    # that says 0 is then right already.
    assert any(key.startswith("critic.") for key in moved) == (metrics.get("critic_grad_norm", 0.0) > 0)
    learns = metrics["grad_norm"] > 0
    assert any(key.startswith("policy.") for key in moved) == learns
    assert learns or metrics["dead_gradient_share"] == 1.0


def test_rows_without_training_are_the_two_known_ones() -> None:
    assert set(list_methods(METHODS)) - set(TRAINED) == {"base", "skill-prompt"}
