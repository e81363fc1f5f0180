"""Decoders: feed tokens column by column and get the next-token logits.

All rows start together and every row consumes the same number of tokens per step, so a cache slot is a position
and neither left padding, nor attention masks, nor position ids exist.
"""

from __future__ import annotations

import copy
import inspect
from typing import Protocol

import torch
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from turnscale.agent import transformer
from turnscale.agent.adapter import activate, base_model, base_only, merged_weights
from turnscale.errors import CheckpointError


class Decoder(Protocol):
    """What the rollout needs. ``device`` is where tokens are expected and logits returned."""

    device: torch.device

    def start(self, batch: int, max_len: int) -> None:
        """Begin at most ``batch`` rows of at most ``max_len`` tokens with an empty cache."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Consume [B, n] long and return the float32 logits [B, V] after the last one.

        The first step says how many rows there are, ``compact`` how many there are from then on.
        """
        ...

    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows`` ([n] long), in that order; one named more than once goes on as several."""
        ...


class HFDecoder:
    """The plain path: any causal language model with its own cache, adapter merged or not."""

    def __init__(self, model: PreTrainedModel | PeftModel, adapter: str | None, merged: bool) -> None:
        self._adapter = adapter
        self._peft = model if isinstance(model, PeftModel) and not merged else None
        base = base_model(model)
        self._base: PreTrainedModel = merged_model(model, adapter) if merged else base
        self.device = base.device
        self._cache_key = cache_argument(base)
        self._cache: DynamicCache | None = None

    def start(self, batch: int, max_len: int) -> None:
        """Begin with an empty cache; it grows by itself, so the sizes are not needed."""
        self._cache = DynamicCache(config=self._base.config)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """[B, n] -> [B, V], see :class:`Decoder`."""
        arguments = {self._cache_key: self._cache, "use_cache": True, "logits_to_keep": 1}
        if self._peft is None:
            return self._base(tokens, **arguments).logits[:, -1].float()
        if self._adapter is None:
            with base_only(self._peft):
                return self._base(tokens, **arguments).logits[:, -1].float()
        activate(self._peft, self._adapter)
        return self._base(tokens, **arguments).logits[:, -1].float()

    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows``."""
        if self._cache is not None:
            self._cache.batch_select_indices(rows)


def cache_argument(model: PreTrainedModel) -> str:
    """What this version of the library calls the argument that takes the cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class FusedDecoder:
    """Merged weights and a preallocated cache for the layout of :mod:`turnscale.agent.transformer`."""

    def __init__(self, model: PreTrainedModel | PeftModel, adapter: str | None) -> None:
        reason = transformer.unsupported(model.config)
        if reason is not None:
            raise CheckpointError(
                f"the fused decoder does not know {reason}", remedy="use the decoder kind hf"
            )
        self._shape = transformer.shape_of(model.config)
        self._weights = merged_weights(model, adapter)
        self._network: transformer.Network | None = None
        self._cache: transformer.Cache | None = None
        self.device = model.device

    @property
    def network(self) -> transformer.Network:
        """The merged weights; there are some after ``start``."""
        assert self._network is not None, "start comes first"
        return self._network

    @property
    def cache(self) -> transformer.Cache:
        """Keys and values; there are some after ``start``."""
        assert self._cache is not None, "start comes first"
        return self._cache

    @property
    def max_len(self) -> int:
        """Tokens per row there is room for."""
        return len(self.network.rotation)

    @property
    def length(self) -> int:
        """Tokens per row held so far."""
        return self.cache.length

    @torch.inference_mode()
    def start(self, batch: int, max_len: int) -> None:
        """Allocate the cache."""
        self._network = transformer.build(self._shape, self._weights, max_len)
        self._cache = transformer.Cache(self._network, batch, max_len)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """[B, n] -> [B, V], see :class:`Decoder`."""
        hidden = transformer.hidden_states(self.network, tokens, self.cache)
        return transformer.logits(self.network, hidden[:, -1])

    @torch.inference_mode()
    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows``."""
        self.cache.keep(rows)


def make_decoder(
    model: PreTrainedModel | PeftModel, adapter: str | None = "policy", kind: str = "auto"
) -> Decoder:
    """A decoder for the model as it is now; make a new one after each optimiser step.

    Args:
        model: the plain or adapted model.
        adapter: ``policy``, ``critic`` or None for the frozen base.
        kind: ``compiled``, ``fused``, ``hf`` (adapter unmerged), ``hf-merged``, or ``auto``: see :func:`best_kind`.
            Compiled and fused hold the weights twice more, which small models do not notice.
    """
    if kind == "auto":
        kind = best_kind(model)
    if kind == "compiled":
        from turnscale.agent.compiled import CompiledDecoder  # its imports are for those who decode with it

        return CompiledDecoder(model, adapter)
    if kind == "fused":
        return FusedDecoder(model, adapter)
    if kind in ("hf", "hf-merged"):
        return HFDecoder(model, adapter, merged=kind == "hf-merged")
    raise CheckpointError(
        f"no decoder is called {kind}", key="decoder", remedy="auto, compiled, fused, hf or hf-merged"
    )


def best_kind(model: PreTrainedModel | PeftModel) -> str:
    """The decoder of a model, by its configuration, dtype and device alone.

    Compiled for small dense models in float32 on a CPU, fused for other small ones of a known layout, else hf.
    """
    if not transformer.worthwhile(model.config):
        return "hf"
    return "fused" if uncompiled(model) else "compiled"


def uncompiled(model: PreTrainedModel | PeftModel) -> str | None:
    """Why the compiled decoder does not take a model, or None when it does."""
    reason = transformer.unsupported(model.config)
    if reason is not None:
        return reason
    if transformer.shape_of(model.config).experts_per_token:
        return "experts"
    if model.device.type != "cpu":
        return f"the device {model.device}"
    if base_model(model).dtype != torch.float32:
        return f"the type {base_model(model).dtype}"
    return None


def merged_model(model: PreTrainedModel | PeftModel, adapter: str | None) -> PreTrainedModel:
    """A plain model holding :func:`merged_weights`; unadapted weights are shared with the base, not copied."""
    base = base_model(model)
    with torch.device("meta"):
        fresh = type(base)(copy.deepcopy(base.config))  # a config of its own
    fresh.load_state_dict(merged_weights(model, adapter), strict=False, assign=True)
    fresh.tie_weights()
    buffers = dict(base.named_buffers())
    for name, _ in list(fresh.named_buffers()):
        owner, _, leaf = name.rpartition(".")
        fresh.get_submodule(owner).register_buffer(leaf, buffers[name], persistent=False)
    left = [name for name, value in [*fresh.named_parameters(), *fresh.named_buffers()] if value.is_meta]
    if left:
        raise CheckpointError(f"weights are missing for {left}", remedy="use the decoder kind hf")
    return fresh.eval()
