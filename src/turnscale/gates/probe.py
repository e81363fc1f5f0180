"""The probe with learning rate 0: one real training step after which nothing may have moved.

Sampler, trainer, adapter and optimiser are those of a training run. If the policy stands still, each importance
ratio must be 1, nothing may be clipped and no divergence may appear; if one does, two paths that should compute the
same number do not. Outcomes are drawn at random, so that advantages are not all 0 on a base that never succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from turnscale.agent.episode import Prefix
from turnscale.agent.rollout import Rollouts
from turnscale.batch import TurnBatch
from turnscale.envs.panels import Panels
from turnscale.gates.identities import GateResult
from turnscale.seeding import torch_stream
from turnscale.study import Run
from turnscale.train.trainer import Trainer

LOGP_TOLERANCE = 3e-5
"""Largest gap of a token's log-probability between sampler and trainer, in nats (float32)."""
RATIO_TOLERANCE = 1e-3
"""Largest distance of a ratio from 1. A turn's ratio is a product, whose tokens' gaps add up."""
KL_TOLERANCE = 1e-8
"""Largest mean of half the squared log-ratio."""

STIR = 0.05
"""Standard deviation of what is added to each trained weight before the step."""


class Probe(Trainer):
    """A trainer at learning rate 0 whose episodes end in random outcomes; it neither validates nor logs critics.

    Its adapters are moved away from the identity they begin as, so that merging them is probed too.
    """

    def __init__(self, run: Run, *shared: Any) -> None:
        super().__init__(run, *shared)
        still = {"lr": 0.0, "critic_lr": 0.0, "rollout_gap_limit": float("inf")}
        self.settings = self.settings.model_copy(update=still)
        stream = torch_stream(self.seed, "probe weights")
        with torch.no_grad():
            for tensor in self._tensors().values():
                noise = torch.randn(tensor.shape, generator=stream) * STIR
                tensor += noise.to(tensor.device, tensor.dtype)

    def _play(
        self,
        chosen: Sequence[int],
        groups: Sequence[int],
        draw: int = 0,
        prefixes: Sequence[Prefix] | None = None,
        keep_prefixes: bool = False,
    ) -> Rollouts:
        rollouts = super()._play(chosen, groups, draw, prefixes, keep_prefixes)
        stream = torch_stream(self.seed, "probe outcomes", self.step, draw)
        success = torch.rand(len(chosen), generator=stream) < 0.5
        return replace(rollouts, batch=rollouts.batch.with_(success=success, reward=success.float()))

    def _validate(self, step: int) -> None:
        """Nothing: the probe measures no performance."""

    def _read_probe(self, step: int, batch: TurnBatch | None) -> None:
        """Nothing: the critic's values are of no interest here."""


def lr_zero_probe(
    run: Run,
    base_record: Mapping[str, Any],
    panels: Panels,
    critic_record: Mapping[str, Any] | None = None,
) -> list[GateResult]:
    """Take one step of a run at learning rate 0 and measure what moved.

    Args:
        run: a run of a method that trains, with its ``train`` specification.
        base_record: record of the starting checkpoint.
        panels: the family's panels.
        critic_record: record of a critic, for methods with one.

    Returns:
        Five gates ``lr-0/<cell>/<what>``. Each says in its detail which two things should have agreed; its
        difference is how far apart they were.
    """
    probe = Probe(run, base_record, panels, critic_record)
    before = {name: tensor.detach().clone() for name, tensor in probe._tensors().items()}
    probe.advance()
    found = {name: value for _, name, value in probe.metrics}
    moved = max(
        float((tensor.detach() - before[name]).abs().max()) for name, tensor in probe._tensors().items()
    )
    ratio = max(abs(found["ratio_max"] - 1.0), abs(found["ratio_mean"] - 1.0))
    measured = (
        ("logp", found["rollout_gap"], LOGP_TOLERANCE, "sampler's and trainer's log-probability of a token"),
        ("ratio", ratio, RATIO_TOLERANCE, "the importance ratio and 1"),
        ("clip", found["clip_fraction"], 0.0, "the clipped and the plain objective, share of tokens"),
        ("kl", found["kl"], KL_TOLERANCE, "the policy before and in the update, divergence"),
        ("weights", moved, 0.0, "trained weights before and after the step"),
    )
    where = f"{run.method} on {run.family}, {run.model}"
    return [
        GateResult(f"lr-0/{run.cell}/{what}", distance <= allowed, distance, allowed, f"{pair} ({where})")
        for what, distance, allowed, pair in measured
    ]
