"""A decoder whose step is one compiled function (:mod:`turnscale.agent.compiled_step`).

The machine code is made at the first step ever taken on a machine, which takes some seconds, and kept on disk.
"""

from __future__ import annotations

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from turnscale.agent import compiled_step, transformer
from turnscale.agent.adapter import merged_weights
from turnscale.agent.compiled_step import Array, Scratch, Weights
from turnscale.agent.decode import uncompiled
from turnscale.errors import CheckpointError

LANES = 16
"""Rows are rounded up to a multiple of this, the float32 numbers of the widest vector."""
MOST_COLUMNS = 512
"""Tokens of all rows that are done at once where a step has several per row."""


class CompiledDecoder:
    """Merged weights and a preallocated cache for dense models in float32 on a CPU.

    Attributes:
        max_len: tokens per row there is room for, from ``start`` on.
        length: tokens per row held so far.
    """

    def __init__(self, model: PreTrainedModel | PeftModel, adapter: str | None) -> None:
        reason = uncompiled(model)
        if reason is not None:
            raise CheckpointError(
                f"the compiled decoder does not take {reason}", remedy="use the decoder kind fused or hf"
            )
        self.device = model.device
        self._shape = transformer.shape_of(model.config)
        self._weights = merged_weights(model, adapter)
        self.length = self.max_len = self._batch = 0

    @torch.inference_mode()
    def start(self, batch: int, max_len: int) -> None:
        """Begin with an empty cache, see :class:`turnscale.agent.decode.Decoder`."""
        shape = self._shape
        self._arrays = arrange(transformer.build(shape, self._weights, max_len))
        self._scratch = scratch(shape, self._arrays, batch, max_len)
        dims = (shape.layers, shape.kv_heads, max_len, shape.head_dim, lanes(batch))
        self._keys, self._values = zeros(*dims), zeros(*dims)
        self.length, self.max_len, self._batch = 0, max_len, batch

    def step(self, tokens: Tensor) -> Tensor:
        """[B, n] -> [B, V], see :class:`turnscale.agent.decode.Decoder`."""
        rows, n = tokens.shape
        vocabulary = len(self._arrays.head)
        if rows > self._batch or self.length + n > self.max_len:
            raise ValueError(f"{rows} rows up to position {self.length + n} do not fit into the cache")
        ids = np.zeros((n, lanes(rows)), dtype=np.int64)
        ids[:, :rows] = tokens.numpy().T
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError(f"a token is outside the vocabulary of {vocabulary}")
        at_once = max(1, MOST_COLUMNS // ids.shape[1])
        for start in range(0, n, at_once):
            part = ids[start : start + at_once]
            compiled_step.forward(
                self._arrays, self._scratch, self._keys, self._values, self.length, part, self._shape.eps,
                self._shape.heads,
            )  # fmt: skip
            self.length += len(part)
        logits = self._scratch.logits[: vocabulary * ids.shape[1]].reshape(vocabulary, -1)
        return torch.from_numpy(np.ascontiguousarray(logits[:, :rows].T))

    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows``."""
        chosen = rows.numpy()
        if len(chosen) > self._batch or chosen.min() < 0 or chosen.max() >= self._batch:
            raise ValueError(f"rows {chosen} of a cache of {self._batch}")
        for held in (self._keys, self._values):
            compiled_step.gather(held, self.length, chosen, self._scratch.size)


def lanes(rows: int) -> int:
    """The number of columns that ``rows`` take."""
    return -(-rows // LANES) * LANES


def zeros(*shape: int) -> Array:
    """Zeros in memory that begins with a cache line."""
    made: Array = torch.zeros(shape).numpy()
    return made


def arrange(network: transformer.Network) -> Weights:
    """The weights of a network, those of all layers in one array each."""

    def every(name: str, *empty: int) -> Array:
        present = [t for t in (getattr(layer, name) for layer in network.layers) if t is not None]
        made: Array = torch.stack(present).numpy() if present else zeros(len(network.layers), *empty)
        return made

    shape = network.shape
    return Weights(
        embedding=network.embedding.contiguous().numpy(),
        qkv=every("qkv"),
        qkv_bias=every("qkv_bias", 0),
        qk_gain=every("qk_gain", shape.heads + shape.kv_heads, 0),
        out=every("out"),
        out_bias=every("out_bias", 0),
        gate_up=every("gate_up"),
        gate_up_bias=every("gate_up_bias", 0),
        down=every("down"),
        down_bias=every("down_bias", 0),
        final_gain=network.final_gain.contiguous().numpy(),
        head=network.head.contiguous().numpy(),
        cos=network.rotation.real.contiguous().numpy(),
        sin=network.rotation.imag.contiguous().numpy(),
    )


def scratch(shape: transformer.Shape, arrays: Weights, batch: int, max_len: int) -> Scratch:
    """Working memory for ``batch`` rows of ``max_len`` tokens."""
    rows = lanes(batch)
    columns = max(rows, MOST_COLUMNS)
    found = shape.heads * shape.head_dim
    wide = found + 2 * shape.kv_heads * shape.head_dim
    width, inner = arrays.embedding.shape[1], arrays.down.shape[2]
    return Scratch(
        stream=zeros(width * columns),
        inner=zeros(width * columns),
        wide=zeros(wide * columns),
        found=zeros(found * columns),
        one=zeros(wide * rows),
        own=zeros(found * rows),
        both=zeros(max(2 * inner, width) * columns),
        size=zeros(columns),
        scores=zeros(max_len, rows),
        logits=zeros(len(arrays.head) * rows),
    )
