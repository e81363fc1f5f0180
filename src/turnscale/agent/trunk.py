"""Decoding several adapters of one wide base as one batch, so that its weights are read once a token for all.

A large model's decoding is bound by reading its weights, and each policy alone would read them again. Here every
projection of the base is one product over the rows of all policies; the low-rank parts are two more, of all adapters
side by side, with each row's other adapters masked out. Values differ from those of a policy alone by rounding only,
but a product of another number of rows rounds differently, and a sample within that distance of a threshold becomes
another token, after which the two trajectories differ. Both are draws of the same policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn
from transformers import DynamicCache

from turnscale.agent.adapter import POLICY, lora_layers
from turnscale.agent.checkpoint import Checkpoint
from turnscale.agent.decode import cache_argument, merged_model
from turnscale.agent.lockstep import Strand

COMPACTION = 0.8
"""Rows of no use are dropped when the share of the others falls below this."""


def share(checkpoint: Checkpoint) -> Checkpoint:
    """Another model over the same weights in memory, to carry an adapter of its own."""
    return replace(checkpoint, model=merged_model(checkpoint.model, None))


class TrunkDecoder:
    """One policy's part in the common decoding.

    Attributes:
        places: [B] rows of the trunk that are this policy's; None before its first step.
        chosen: whether they were chosen among since the last step, so that one may be there twice.
    """

    def __init__(self, strand: Strand, trunk: Trunk, model: PeftModel) -> None:
        self._strand = strand
        self.trunk = trunk
        self.model = model
        self.device = model.device
        self.places: Tensor | None = None
        self.chosen = False

    def start(self, batch: int, max_len: int) -> None:
        """Begin anew with the next common batch; sizes follow from the first step."""
        self.places = None

    def step(self, tokens: Tensor) -> Tensor:
        """[B, n] -> [B, V], see :class:`turnscale.agent.decode.Decoder`."""
        return cast(Tensor, self._strand.ask(Step(self, tokens)))

    def compact(self, rows: Tensor) -> None:
        """Go on with ``rows``."""
        assert self.places is not None, "step comes first"
        self.places, self.chosen = self.places[rows], True


@dataclass
class Step:
    """Tokens [B, n] that a policy wants consumed, of which the first ``done`` are."""

    decoder: TrunkDecoder
    tokens: Tensor
    done: int = 0


class Projection(nn.Module):
    """A frozen projection with the low-rank parts of several adapters side by side."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.plain = plain
        self.down = self.up = self.mask = torch.empty(0)

    def load(self, layers: Sequence[LoraLayer]) -> None:
        """Copy the policies' matrices: ``down`` [S r, in] and ``up`` [out, S r], which holds the scalings."""
        downs = [cast(Tensor, layer.lora_A[POLICY].weight) for layer in layers]
        ups = [cast(Tensor, layer.lora_B[POLICY].weight) * layer.scaling[POLICY] for layer in layers]
        self.down, self.up = torch.cat(downs), torch.cat(ups, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, in] -> [B, n, out]."""
        plain: Tensor = self.plain(x)
        low = F.linear(x.to(self.down.dtype), self.down) * self.mask
        return (plain + F.linear(low, self.up)).to(plain.dtype)


class Trunk:
    """A model over a base's weights whose projections apply several adapters at once.

    A common batch holds the rows of every policy that began a rollout when the last batch had ended. All its rows
    are at one position, as in a rollout alone; where one policy has fewer tokens to consume than another, it takes
    its next step while the other's is going on.
    """

    def __init__(self, base: Checkpoint) -> None:
        self._base = merged_model(base.model, None)
        self._cache_key = cache_argument(self._base)
        self._projections: dict[str, Projection] = {}
        self._cache = DynamicCache()
        self._members: list[TrunkDecoder] = []
        self._rows = 0

    @torch.inference_mode()
    def answer(self, asked: list[Any]) -> dict[int, Tensor]:
        """Consume as many tokens as every policy at work has; answers those whose step is then complete."""
        steps = cast(list[Step], asked)
        if all(step.decoder.places is None for step in steps):
            self._begin(steps)
        at_work = {index: step for index, step in enumerate(steps) if step.decoder.places is not None}
        self._drop(list(at_work.values()))
        count = min(step.tokens.shape[1] - step.done for step in at_work.values())
        ids = torch.zeros(self._rows, count, dtype=torch.long, device=self._base.device)
        for step in at_work.values():
            ids[step.decoder.places] = step.tokens[:, step.done : step.done + count]
            step.done += count
        arguments = {self._cache_key: self._cache, "use_cache": True, "logits_to_keep": 1}
        scores = self._base(ids, **arguments).logits[:, -1]
        return {
            index: scores[step.decoder.places].float()
            for index, step in at_work.items()
            if step.done == step.tokens.shape[1]
        }

    def _begin(self, steps: list[Step]) -> None:
        """A new common batch of all who ask, with their adapters as they are now."""
        sizes = [len(step.tokens) for step in steps]
        self._rows = sum(sizes)
        for step, places in zip(
            steps, torch.arange(self._rows, device=self._base.device).split(sizes), strict=True
        ):
            step.decoder.places = places
        self._members = [step.decoder for step in steps]
        self._cache = DynamicCache(config=self._base.config)
        for found in zip(*(lora_layers(member.model) for member in self._members), strict=True):
            self._projection(found[0][0].removesuffix(".weight")).load([layer for _, layer in found])
        self._mask()

    def _projection(self, name: str) -> Projection:
        if name not in self._projections:
            owner, _, leaf = name.rpartition(".")
            made = Projection(cast(nn.Linear, self._base.get_submodule(name)))
            setattr(self._base.get_submodule(owner), leaf, made)
            self._projections[name] = made
        return self._projections[name]

    def _drop(self, steps: list[Step]) -> None:
        """Drop rows that no policy holds any more, and give one that is held more than once as many."""
        held = torch.cat([cast(Tensor, step.decoder.places) for step in steps])
        repeated = any(step.decoder.chosen for step in steps) and len(held.unique()) < len(held)
        for step in steps:
            step.decoder.chosen = False
        if not repeated and len(held) >= COMPACTION * self._rows:
            return
        self._cache.batch_select_indices(held)
        self._rows = len(held)
        sizes = [len(step.tokens) for step in steps]
        for step, places in zip(
            steps, torch.arange(self._rows, device=held.device).split(sizes), strict=True
        ):
            step.decoder.places = places
        self._mask([step.decoder for step in steps])

    def _mask(self, present: Sequence[TrunkDecoder] | None = None) -> None:
        """Each row's own adapter: 1 in its columns of the low-rank parts, 0 in the others'."""
        down = next(iter(self._projections.values())).down
        width = len(down) // len(self._members)
        mask = torch.zeros(self._rows, 1, len(down), dtype=down.dtype, device=down.device)
        for index, member in enumerate(self._members):
            if present is None or member in present:
                mask[member.places, :, index * width : (index + 1) * width] = 1.0
        for projection in self._projections.values():
            projection.mask = mask
