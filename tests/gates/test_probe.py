"""The probe passes on sound paths and names the pair that parted on broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.setting import Setting, make_setting
from turnscale.gates.identities import GateResult
from turnscale.gates.probe import Probe, lr_zero_probe
from turnscale.train import update


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return make_setting(tmp_path_factory.mktemp("probe"))


def probe(setting: Setting, method: str, heads: int = 0) -> dict[str, GateResult]:
    critic = setting.critic(heads) if heads else None
    results = lr_zero_probe(setting.run(method), setting.base, setting.panels, critic)
    return {result.name.split("/")[-1]: result for result in results}


@pytest.mark.parametrize(
    ("method", "heads"),
    [
        ("grpo", 0),
        ("mpo", 1),
        ("sao", 1),
        ("gspo", 0),
        ("archer", 2),
        ("dapo", 0),
        ("arpo", 0),
        ("grouping-tree", 0),
        ("grpo-skill", 0),
        ("agentopsd", 0),
    ],
)
def test_a_step_at_rate_0_moves_nothing(setting: Setting, method: str, heads: int) -> None:
    found = probe(setting, method, heads)
    assert set(found) == {"logp", "ratio", "clip", "kl", "weights"}
    assert all(result.passed for result in found.values()), found
    assert found["ratio"].name == f"lr-0/{method}/ratio" and method in found["ratio"].detail


def test_the_probe_steps_with_credit_and_moved_adapters(setting: Setting) -> None:
    trainer = Probe(setting.run("grpo"), setting.base, setting.panels, None)
    assert all(bool(tensor.abs().sum() > 0) for tensor in trainer._tensors().values())
    trainer.advance()
    found = {name: value for _, name, value in trainer.metrics}
    assert found["grad_norm"] > 0 and found["dead_gradient_share"] < 1 and "val_pass_at_1" not in found


def test_a_sampler_that_differs_is_named(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    score = update.action_logprobs

    def warmer(model: Any, batch: Any, adapter: Any, temperature: float) -> Any:
        return score(model, batch, adapter, temperature * 1.3)

    monkeypatch.setattr(update, "action_logprobs", warmer)
    found = probe(setting, "mpo", 1)
    assert {name for name, result in found.items() if not result.passed} >= {"logp", "ratio", "kl"}
    assert found["logp"].difference > 1e-2 and "sampler's and trainer's" in found["logp"].detail
    assert found["weights"].passed


def test_weights_that_move_are_named(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    step = update.clipped_step

    def nudged(parameters: list[Any], *rest: Any) -> float:
        norm = step(parameters, *rest)
        with torch.no_grad():
            parameters[0].add_(1e-6)
        return norm

    monkeypatch.setattr(update, "clipped_step", nudged)
    found = probe(setting, "grpo")
    assert not found["weights"].passed and found["weights"].difference > 0


def test_probe_leaves_no_files(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    probe(setting, "grpo")
    assert list(tmp_path.iterdir()) == []
