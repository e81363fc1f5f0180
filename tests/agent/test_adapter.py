from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from tests.agent.conftest import stir
from turnscale.agent.adapter import (
    Agent,
    activate,
    adapter_parameters,
    attach,
    base_weights_hash,
    critic_parameters,
    load_adapter,
    merged_weights,
    policy_parameters,
    save_adapter,
)
from turnscale.agent.checkpoint import Checkpoint, load
from turnscale.agent.config import LoraSpec
from turnscale.agent.decode import merged_model
from turnscale.errors import CheckpointError

Make = Callable[[str], Agent]
KINDS = ["dense", "moe"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_adapters_and_a_head_are_trainable_and_nothing_else(agent: Make, kind: str) -> None:
    made = agent(kind)
    policy, critic = policy_parameters(made), critic_parameters(made)
    assert len(critic) == len(policy) + 2
    assert not {id(p) for p in policy} & {id(p) for p in critic}
    assert all(p.requires_grad and p.dtype == torch.float32 for p in [*policy, *critic])
    others = {id(p) for p in [*policy, *critic]}
    assert not any(p.requires_grad for p in made.model.parameters() if id(p) not in others)
    layers = made.model.config.num_hidden_layers
    assert len(policy) == layers * 2 * (7 if kind == "dense" else 6)


@pytest.mark.parametrize("kind", KINDS)
def test_attaching_is_the_identity_at_first_and_follows_the_seed(
    checkpoint: Callable[[str], Checkpoint], kind: str
) -> None:
    plain = checkpoint(kind)
    before = {name: p.clone() for name, p in plain.model.named_parameters()}
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = attach(plain, seed=0)
    assert torch.equal(torch.rand(2), expected), "the global generator was used"
    merged = merged_weights(first.model, "policy")
    assert all(torch.equal(before[name], merged[name]) for name in before)
    again, other = attach(checkpoint(kind), seed=0), attach(checkpoint(kind), seed=1)
    same = [
        torch.equal(a, b) for a, b in zip(policy_parameters(first), policy_parameters(again), strict=True)
    ]
    differs = [
        torch.equal(a, b) for a, b in zip(policy_parameters(first), policy_parameters(other), strict=True)
    ]
    assert all(same) and not all(differs)


@pytest.mark.parametrize("kind", KINDS)
def test_merging_gives_the_module_path_and_never_touches_the_base(agent: Make, kind: str) -> None:
    made = agent(kind)
    base = base_weights_hash(made.model)
    ids = torch.randint(6, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    for adapter in ("policy", "critic"):
        activate(made.model, adapter)
        with torch.no_grad():
            direct = made.model(input_ids=ids).logits
        fresh = merged_weights(made.model, adapter)
        for name, weight in fresh.items():
            if "proj" in name:
                weight.add_(1.0)  # writing to merged weights must not reach the base
        assert base_weights_hash(made.model) == base
        with torch.no_grad():
            merged = merged_model(made.model, adapter)(input_ids=ids).logits
        assert torch.allclose(direct, merged, atol=1e-5)
    assert base_weights_hash(made.model) == base


def test_switching_adapters_keeps_both_trainable(agent: Make) -> None:
    made = agent("moe")
    for adapter in ("critic", "policy", "critic"):
        activate(made.model, adapter)
        for name in ("policy", "critic"):
            assert all(p.requires_grad for p in adapter_parameters(made.model, name))
    with pytest.raises(CheckpointError, match="no adapter teacher"):
        activate(made.model, "teacher")


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_come_back_bit_for_bit_and_peft_reads_them(
    agent: Make, checkpoint: Callable[[str], Checkpoint], tmp_path: Path, kind: str
) -> None:
    made = agent(kind)
    save_adapter(made, tmp_path / "p")
    save_adapter(made, tmp_path / "c", "critic")
    other = stir(attach(checkpoint(kind), seed=9), seed=8)
    load_adapter(other, tmp_path / "p")
    load_adapter(other, tmp_path / "c", "critic")
    for a, b in zip(
        policy_parameters(made) + critic_parameters(made),
        policy_parameters(other) + critic_parameters(other),
        strict=True,
    ):
        assert torch.equal(a, b)
    outside = PeftModel.from_pretrained(checkpoint(kind).model, tmp_path / "p")
    ids = torch.arange(6, 16)[None]
    activate(made.model, "policy")
    with torch.no_grad():
        assert torch.allclose(outside(input_ids=ids).logits, made.model(input_ids=ids).logits, atol=1e-6)


def test_saved_adapters_are_byte_stable(agent: Make, tmp_path: Path) -> None:
    made = agent("moe")
    for name in ("a", "b"):
        save_adapter(made, tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    assert config["target_parameters"] == sorted(config["target_parameters"])


@pytest.mark.parametrize("damage", ["missing", "truncated", "other rank", "no head"])
def test_wrong_adapters_are_refused(
    agent: Make, checkpoint_dir: Callable[[str], Path], tmp_path: Path, damage: str
) -> None:
    made = agent("dense")
    save_adapter(made, tmp_path / "c", "critic")
    weights = tmp_path / "c" / "adapter_model.safetensors"
    if damage == "missing":
        shutil.rmtree(tmp_path / "c")
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:500])
    elif damage == "no head":
        (tmp_path / "c" / "value_head.safetensors").unlink()
    else:
        plain = load(checkpoint_dir("dense"))
        config = plain.config.model_copy(update={"lora": LoraSpec(r=4)})
        made = attach(Checkpoint(plain.model, plain.tokenizer, plain.chat, plain.hash, config), seed=0)
    with pytest.raises(CheckpointError) as caught:
        load_adapter(made, tmp_path / "c", "critic")
    assert str(tmp_path / "c") in str(caught.value) and caught.value.remedy


def test_an_agent_without_a_critic_says_so(checkpoint: Callable[[str], Checkpoint]) -> None:
    made = attach(checkpoint("dense"), seed=0, value_heads=0)
    assert made.head is None and len(policy_parameters(made)) == 42
    with pytest.raises(CheckpointError, match="no critic"):
        critic_parameters(made)


def test_targets_that_fit_nothing_or_half_an_expert_are_refused(
    checkpoint_dir: Callable[[str], Path],
) -> None:
    for kind, targets in (("dense", ("c_attn",)), ("moe", ("q_proj", "up_proj"))):
        plain = load(checkpoint_dir(kind))
        config = plain.config.model_copy(update={"lora": LoraSpec(targets=targets)})
        with pytest.raises(CheckpointError, match=r"lora\.targets"):
            attach(Checkpoint(plain.model, plain.tokenizer, plain.chat, plain.hash, config), seed=0)
