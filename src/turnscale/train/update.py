"""One update of the policy and of the critic from one batch: epochs, minibatches, micro-batches.

A minibatch is one optimiser step. Micro-batches only bound memory: the denominators are counted over the minibatch,
so its loss and gradient do not depend on how it is split. They are of rows of similar lengths, which are padded
least.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from turnscale.agent.adapter import Agent, critic_parameters, policy_parameters
from turnscale.agent.forward import action_logprobs
from turnscale.batch import Credit, TurnBatch
from turnscale.config.schema import Training
from turnscale.errors import NumericalError
from turnscale.finite import require_finite
from turnscale.methods import Method
from turnscale.objective.aggregate import denominators
from turnscale.objective.policy import merge_metrics, policy_loss
from turnscale.objective.value import value_loss
from turnscale.train.critic import read_heads


def update_policy(
    agent: Agent,
    method: Method,
    batch: TurnBatch,
    advantages: Tensor,
    old_logp: Tensor,
    optimiser: torch.optim.Optimizer,
    settings: Training,
    generator: torch.Generator,
) -> dict[str, float]:
    """All optimiser steps of the policy on one batch.

    Args:
        agent: policy (trained in place).
        method: the row of choices.
        batch: B trajectories.
        advantages: [B, T], normalised and frozen.
        old_logp: [B, T] log-probabilities of the sampling policy.
        optimiser: over the policy's parameters.
        settings: epochs, minibatches, micro-batch, gradient clip, temperature.
        generator: draws the minibatches.

    Returns:
        Means over the optimiser steps (the largest for ``ratio_max``), and ``rollout_gap``: the largest difference
        between trainer and sampler log-probabilities before the first step.

    Raises:
        NumericalError: loss or gradient is not finite, or the rollout gap exceeds its limit.
    """
    parameters = policy_parameters(agent)
    steps: list[dict[str, float]] = []
    gap = 0.0
    for rows in minibatches(batch.size, settings.epochs, settings.minibatches, generator):
        mini = batch.rows(rows)
        counts = denominators(mini)
        optimiser.zero_grad(set_to_none=True)
        parts: list[dict[str, float]] = []
        entropy = 0.0
        for chosen in microbatches(rows, batch.length, settings.micro_batch):
            micro = batch.rows(chosen)
            width = micro.ids.shape[1]
            logp, spread = action_logprobs(agent.model, micro, "policy", settings.temperature)
            require_finite("trainer log-probabilities", logp.detach())
            if not steps:
                difference = (logp.detach() - micro.logp_rollout).masked_fill(~micro.action_mask, 0.0)
                gap = max(gap, float(difference.abs().max()))
            loss, metrics = policy_loss(
                method, logp, micro, advantages[chosen, :width], old_logp[chosen, :width], counts
            )
            loss.backward()
            entropy += float(spread.detach()[micro.action_mask].double().sum()) / max(counts.tokens, 1)
            parts.append(metrics)
        if not steps and not gap <= settings.rollout_gap_limit:
            raise NumericalError(
                f"trainer and sampler log-probabilities differ by up to {gap:.2e} before any update.",
                key="training.rollout_gap_limit",
                remedy="sampler and trainer disagree: check dtype, adapter merging and attention kernels.",
                reason="sampler and trainer disagree",
            )
        norm = clipped_step(parameters, optimiser, settings.grad_clip, "policy")
        steps.append({**merge_metrics(parts), "entropy": entropy, "grad_norm": norm})
    return {**average(steps), "rollout_gap": gap}


def update_critic(
    agent: Agent,
    method: Method,
    batch: TurnBatch,
    credit: Credit,
    optimiser: torch.optim.Optimizer,
    settings: Training,
    generator: torch.Generator,
) -> dict[str, float]:
    """All optimiser steps of the critic on one batch, towards the targets in ``credit``.

    Returns:
        Means over the optimiser steps: ``value_loss``, ``critic_grad_norm``.

    Raises:
        NumericalError: loss or gradient is not finite.
    """
    parameters = critic_parameters(agent)
    epochs = settings.critic_epochs * method.critic.updates_per_policy_update
    steps: list[dict[str, float]] = []
    for rows in minibatches(batch.size, epochs, settings.critic_minibatches, generator):
        counts = denominators(batch.rows(rows))
        optimiser.zero_grad(set_to_none=True)
        parts: list[dict[str, float]] = []
        for chosen in microbatches(rows, batch.length, settings.micro_batch):
            micro = batch.rows(chosen)
            heads = read_heads(agent, micro)
            targets = credit_rows(credit, chosen, micro.ids.shape[1])
            turn_head = heads[1] if len(heads) > 1 else None
            loss, metrics = value_loss(method, heads[0], micro, targets, counts, turn_head)
            loss.backward()
            parts.append(metrics)
        norm = clipped_step(parameters, optimiser, settings.grad_clip, "critic")
        summed = {name: sum(part[name] for part in parts) for name in parts[0]}
        steps.append({**summed, "critic_grad_norm": norm})
    return average(steps)


def minibatches(size: int, epochs: int, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row indices of each minibatch: every epoch is a fresh permutation cut into ``count`` even pieces."""
    for _ in range(epochs):
        order = torch.randperm(size, generator=generator)
        yield from order.tensor_split(min(count, size))


def microbatches(rows: Tensor, length: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows of a minibatch, longest first, in pieces of ``size``; ``length`` [B] is of the whole batch."""
    return rows[length[rows].argsort(descending=True, stable=True)].split(size)


def credit_rows(credit: Credit, rows: Tensor, width: int) -> Credit:
    """A credit restricted to some trajectories and to the first ``width`` positions."""

    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[rows, :width]

    return Credit(credit.advantages[rows, :width], cut(credit.returns), cut(credit.returns_turn), {})


def average(steps: list[dict[str, float]]) -> dict[str, float]:
    """Mean of each metric over the steps that report it; the largest for ``ratio_max``."""
    names = {name for step in steps for name in step}
    out: dict[str, float] = {}
    for name in sorted(names):
        values = [step[name] for step in steps if name in step]
        out[name] = max(values) if name == "ratio_max" else sum(values) / len(values)
    return out


def clipped_step(parameters: list[Any], optimiser: torch.optim.Optimizer, limit: float, whose: str) -> float:
    """One optimiser step with the gradient clipped to ``limit``; returns the norm before clipping.

    Raises:
        NumericalError: the norm is not finite.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
    require_finite(
        f"gradient of the {whose}", norm, "lower the learning rate, or look at ratio_max of the steps before."
    )
    optimiser.step()
    return norm
