"""Decoding several small policies over one base together, to the bits that each gets alone.

Norms, rotations, activations and residuals act on each row by itself, so the rows of all policies go through them as
one batch. A matrix product or an attention may give other last bits for another number of rows, and a last bit can
turn a sampled token, after which the trajectories differ. Those are therefore done block by block, one policy's rows
at a time, in the shapes that the policy has alone; and policies go together only where they are at one position and
have as many tokens to consume. Compiled steps have no overhead to share and are taken one policy at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import PeftModel
from torch import Tensor

from turnscale.agent import transformer
from turnscale.agent.decode import FusedDecoder, make_decoder
from turnscale.agent.kernels import linear, swiglu
from turnscale.agent.lockstep import Strand
from turnscale.agent.transformer import Cache, Layer, Network, Shape, added

if TYPE_CHECKING:
    from turnscale.agent.compiled import CompiledDecoder


@dataclass(frozen=True)
class StackedLayer:
    """One decoder layer of several policies; ``rows`` are the rows of each one's block."""

    parts: tuple[Layer, ...]
    rows: list[int]

    @property
    def qk_gain(self) -> Tensor | None:
        """Gains come from the base, so they are the same for all."""
        return self.parts[0].qk_gain

    def project(self, inner: Tensor) -> Tensor:
        """See :meth:`turnscale.agent.transformer.Layer.project`."""
        blocks = zip(self.parts, inner.split(self.rows), strict=True)
        return torch.cat([part.project(block) for part, block in blocks])

    def merge(self, x: Tensor, attended: Tensor) -> Tensor:
        """See :meth:`turnscale.agent.transformer.Layer.merge`."""
        blocks = zip(self.parts, x.split(self.rows), attended.split(self.rows), strict=True)
        return torch.cat([part.merge(block, found) for part, block, found in blocks])

    def feed(self, x: Tensor, inner: Tensor, shape: Shape) -> Tensor:
        """See :meth:`turnscale.agent.transformer.Layer.feed`; experts are chosen and applied block by block."""
        streams, inners = x.split(self.rows), inner.split(self.rows)
        if self.parts[0].router is not None:
            blocks = zip(self.parts, streams, inners, strict=True)
            return torch.cat([part.feed(block, one, shape) for part, block, one in blocks])
        wide = [linear(one, p.gate_up, p.gate_up_bias) for p, one in zip(self.parts, inners, strict=True)]
        held = swiglu(torch.cat(wide)).split(self.rows)
        blocks = zip(self.parts, streams, held, strict=True)
        return torch.cat([added(block, one, part.down, part.down_bias) for part, block, one in blocks])


class StackedCache:
    """The caches of several policies at one position; each keeps its own rows."""

    def __init__(self, caches: Sequence[Cache], rows: Sequence[int]) -> None:
        self.caches = caches
        self.rows = list(rows)
        self.length = caches[0].length

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :meth:`turnscale.agent.transformer.Cache.attend`."""
        parts = (tensor.split(self.rows) for tensor in (query, key, value))
        blocks = zip(self.caches, *parts, strict=True)
        return torch.cat([cache.attend(layer, q, k, v) for cache, q, k, v in blocks])

    def advance(self, n: int) -> None:
        """See :meth:`turnscale.agent.transformer.Cache.advance`."""
        for cache in self.caches:
            cache.advance(n)


class StackedDecoder:
    """A fused or compiled decoder that takes its steps together with those of the other strands.

    Attributes:
        inner: the decoder that the policy has alone.
    """

    def __init__(self, strand: Strand, model: PeftModel, adapter: str | None, kind: str = "auto") -> None:
        self._strand = strand
        self.inner = cast("FusedDecoder | CompiledDecoder", make_decoder(model, adapter, kind))
        self.device = self.inner.device

    def start(self, batch: int, max_len: int) -> None:
        """Begin anew, see :class:`turnscale.agent.decode.Decoder`."""
        self.inner.start(batch, max_len)

    def step(self, tokens: Tensor) -> Tensor:
        """[B, n] -> [B, V], see :class:`turnscale.agent.decode.Decoder`."""
        return cast(Tensor, self._strand.ask((self, tokens)))

    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows``."""
        self.inner.compact(rows)


@torch.inference_mode()
def step_together(asked: list[Any]) -> dict[int, Tensor]:
    """Answers the steps (:class:`StackedDecoder`, tokens) that are furthest behind and of one shape.

    The others wait until these have caught up with them. Compiled decoders take theirs in turn: there is no overhead
    in them to share.
    """
    position = min(decoder.inner.length for decoder, _ in asked)
    kinds = [(d.inner.length, tokens.shape[1], d.inner.max_len) for d, tokens in asked]
    first = next(kind for kind in kinds if kind[0] == position)
    chosen = [index for index, kind in enumerate(kinds) if kind == first]
    decoders = [asked[index][0].inner for index in chosen]
    tokens = [asked[index][1] for index in chosen]
    if len(chosen) == 1 or not all(isinstance(decoder, FusedDecoder) for decoder in decoders):
        steps = zip(chosen, decoders, tokens, strict=True)
        return {index: decoder.step(part) for index, decoder, part in steps}
    rows = [len(part) for part in tokens]
    network = stacked([decoder.network for decoder in decoders], [n * first[1] for n in rows])
    cache = StackedCache([decoder.cache for decoder in decoders], rows)
    last = transformer.hidden_states(network, torch.cat(tokens), cache)[:, -1].split(rows)
    return {
        index: transformer.logits(decoder.network, part)
        for index, decoder, part in zip(chosen, decoders, last, strict=True)
    }


def stacked(networks: Sequence[Network], rows: list[int]) -> Network:
    """One network whose i-th block of rows goes through the i-th network's matrices.

    Args:
        networks: of one base, with rotations of one length.
        rows: rows of each block, a row being one token.
    """
    first = networks[0]
    layers = tuple(
        StackedLayer(parts, rows) for parts in zip(*(network.layers for network in networks), strict=True)
    )
    return Network(first.shape, first.embedding, layers, first.final_gain, first.head, first.rotation)
