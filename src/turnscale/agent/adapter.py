"""LoRA on a frozen base: a policy adapter, a critic adapter on the same base, and the critic's value head.

For decoding the adapter is merged into *fresh* tensors W + s B A. Merging in place and subtracting again would let
the base drift by rounding.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnscale.agent.chat import ChatFormat
from turnscale.agent.checkpoint import Checkpoint
from turnscale.agent.config import LoraSpec
from turnscale.errors import CheckpointError
from turnscale.files import replacing_folder, write_tensors

POLICY = "policy"
CRITIC = "critic"
EXPERT_PARAMETERS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """Linear read-out of the critic's hidden states; zero at the start, so every value begins at 0.

    Args:
        hidden: width of the hidden states.
        outputs: 1, or 2 for critics with a token head and a turn head on one backbone.
    """

    def __init__(self, hidden: int, outputs: int = 1) -> None:
        super().__init__()
        self.outputs = outputs
        self.linear = nn.Linear(hidden, outputs, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] of any dtype -> [..., outputs] float32."""
        return self.linear(hidden.float())


@dataclass(frozen=True)
class Agent:
    """A base with its adapters. ``head`` is None for critic-free methods; ``base_hash`` is the checkpoint's."""

    model: PeftModel
    head: ValueHead | None
    chat: ChatFormat
    base_hash: str


def attach(checkpoint: Checkpoint, seed: int, value_heads: int = 1) -> Agent:
    """Put a policy adapter, and with ``value_heads`` > 0 a critic adapter and head, on the checkpoint's model.

    The model is wrapped in place and its own weights are frozen. B starts at 0, so both adapters begin as the
    base; A is drawn from ``seed`` without touching the global generator.
    """
    spec = checkpoint.config.lora
    configs = [lora_config(checkpoint.model, spec) for _ in range(2)]  # both from the unwrapped model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = get_peft_model(checkpoint.model, configs[0], adapter_name=POLICY)
        except ValueError as error:
            raise CheckpointError(
                f"the adapter fits no weights of {checkpoint.config.name} ({error})",
                key="lora.targets",
                remedy="name projections of this architecture",
            ) from error
        if value_heads:
            model.add_adapter(CRITIC, configs[1])
    head = None
    if value_heads:
        head = ValueHead(int(model.config.hidden_size), value_heads).to(checkpoint.config.device)
    model.eval()
    _all_trainable(model)  # peft freezes an adapter that is added but not active
    return Agent(model, head, checkpoint.chat, checkpoint.hash)


def lora_config(model: PreTrainedModel, spec: LoraSpec) -> LoraConfig:
    """The peft configuration of ``spec``; on fused experts the feed-forward targets become parameters."""
    fused = any("experts.gate_up_proj" in name for name, _ in model.named_parameters())
    feed_forward = [name for name in spec.targets if name in FEED_FORWARD]
    if fused and feed_forward and len(feed_forward) != len(FEED_FORWARD):
        raise CheckpointError(
            f"fused experts are adapted together, not by {feed_forward} alone",
            key="lora.targets",
            remedy="name all of gate_proj, up_proj and down_proj or none of them",
        )
    modules = [name for name in spec.targets if not (fused and name in FEED_FORWARD)]
    return LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        bias="none",
        target_modules=modules,
        target_parameters=list(EXPERT_PARAMETERS) if fused and feed_forward else None,
        task_type="CAUSAL_LM",
    )


def activate(model: PeftModel, adapter: str) -> None:
    """Route the forward pass through ``adapter``; unlike peft's switch, leave every adapter trainable."""
    if model.active_adapter == adapter:
        return
    if adapter not in model.peft_config:
        raise CheckpointError(f"the model has no adapter {adapter}", remedy="attach it first")
    model.set_adapter(adapter)
    _all_trainable(model)


@contextmanager
def base_only(model: PeftModel) -> Iterator[None]:
    """Run the frozen base without adapters. Peft's switch would leave all but one adapter frozen afterwards."""
    try:
        with model.disable_adapter():
            yield
    finally:
        _all_trainable(model)


def _all_trainable(model: PeftModel) -> None:
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.requires_grad_(True)


def adapter_parameters(model: PeftModel, adapter: str) -> list[nn.Parameter]:
    """The LoRA matrices of one adapter, in a fixed order."""
    if adapter not in model.peft_config:
        raise CheckpointError(f"the model has no adapter {adapter}", remedy="attach it first")
    return [p for name, p in model.named_parameters() if ".lora_" in name and f".{adapter}." in name]


def policy_parameters(agent: Agent) -> list[nn.Parameter]:
    """What the policy's optimiser updates."""
    return adapter_parameters(agent.model, POLICY)


def critic_parameters(agent: Agent) -> list[nn.Parameter]:
    """What the critic's optimiser updates: its adapter and the value head."""
    if agent.head is None:
        raise CheckpointError("this agent has no critic", remedy="attach it with value_heads >= 1")
    return [*adapter_parameters(agent.model, CRITIC), *agent.head.parameters()]


def save_adapter(agent: Agent, directory: str | Path, which: str = POLICY) -> None:
    """Write one adapter in peft's format (its config and safetensors), the critic's with the value head.

    The folder is there whole or not at all. Raises StorageError.
    """
    if which == CRITIC and agent.head is None:
        raise CheckpointError("this agent has no critic", remedy="attach it with value_heads >= 1")
    config = copy.deepcopy(agent.model.peft_config[which])
    for name in (
        "target_modules",
        "target_parameters",
    ):  # sets, whose order would differ from process to process
        names = getattr(config, name)
        setattr(config, name, None if names is None else sorted(names))
    state = get_peft_model_state_dict(agent.model, adapter_name=which)
    with replacing_folder(Path(directory)) as folder:
        config.save_pretrained(str(folder))
        write_tensors(state, folder / "adapter_model.safetensors")
        if which == CRITIC and agent.head is not None:
            write_tensors(agent.head.state_dict(), folder / HEAD_FILE)


def load_adapter(agent: Agent, directory: str | Path, which: str = POLICY) -> None:
    """Read an adapter written by :func:`save_adapter` into the attached one, in place."""
    directory = Path(directory)
    state = _read(directory / "adapter_model.safetensors")
    own = get_peft_model_state_dict(agent.model, adapter_name=which)
    shapes = {k: tuple(v.shape) for k, v in own.items()}
    if shapes != {k: tuple(v.shape) for k, v in state.items()}:
        raise CheckpointError(
            "holds an adapter of other projections or another rank",
            file=directory,
            remedy="load it onto the base and LoRA settings it was trained with",
        )
    set_peft_model_state_dict(agent.model, state, adapter_name=which)
    if which == CRITIC:
        if agent.head is None:
            raise CheckpointError("this agent has no critic", remedy="attach it with value_heads >= 1")
        head = _read(directory / HEAD_FILE)
        if {k: v.shape for k, v in head.items()} != {k: v.shape for k, v in agent.head.state_dict().items()}:
            raise CheckpointError(
                "holds a value head of another shape",
                file=directory / HEAD_FILE,
                remedy="use equal value_heads",
            )
        agent.head.load_state_dict(head)


def base_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The transformers model under the adapters (its projections are LoRA layers when there are any)."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model


def lora_layers(model: PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    """(state-dict key of the adapted weight in the plain base, LoRA layer), in a fixed order."""
    for name, module in base_model(model).named_modules():
        if isinstance(module, LoraLayer):
            leaf = module.parameter_name if isinstance(module, ParamWrapper) else "weight"
            yield f"{name.replace('.base_layer', '')}.{leaf}", module


def effective_weights(model: PreTrainedModel | PeftModel, adapter: str | None) -> dict[str, Tensor]:
    """Weights by their names in the plain base, W + s B A where adapted: fresh tensors, differentiable in A and B.

    Unadapted weights are the base's own tensors. ``adapter`` None gives the base as it is.
    """
    if not isinstance(model, PeftModel):
        if adapter is not None:
            raise CheckpointError(f"the model has no adapter {adapter}", remedy="attach it first")
        return dict(model.named_parameters())
    weights: dict[str, Tensor] = {
        name.replace(".base_layer", ""): parameter
        for name, parameter in base_model(model).named_parameters()
        if ".lora_" not in name
    }
    if adapter is None:
        return weights
    if adapter not in model.peft_config:
        raise CheckpointError(f"the model has no adapter {adapter}", remedy="attach it first")
    for name, layer in lora_layers(model):
        base = weights[name]
        if isinstance(layer, ParamWrapper):
            weights[name] = base + layer.get_delta_weight(adapter)
        else:
            down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            assert isinstance(down, Tensor) and isinstance(up, Tensor)
            merged = torch.addmm(base.float(), up.float(), down.float(), alpha=layer.scaling[adapter])
            weights[name] = merged.to(base.dtype)
    return weights


@torch.no_grad()
def merged_weights(model: PreTrainedModel | PeftModel, adapter: str | None) -> dict[str, Tensor]:
    """:func:`effective_weights` detached, for decoding."""
    return {name: weight.detach() for name, weight in effective_weights(model, adapter).items()}


def base_weights_hash(model: PreTrainedModel | PeftModel) -> str:
    """SHA-256 over the frozen base's tensors in memory, to show that training and decoding left them alone."""
    digest = hashlib.sha256()
    for name, weight in sorted(merged_weights(model, None).items()):
        digest.update(name.encode() + b"\0")
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # missing and damaged files alike are the user's to mend
        raise CheckpointError(
            f"cannot be read ({error.__class__.__name__})",
            file=path,
            remedy="train or copy the adapter again",
        ) from error
