"""Off-policy twin critics of whole utterances with slowly following targets (ArCHer).

One backbone has four outputs: two of the state in which a turn begins (V, read before its first token) and two of
that state and the turn (Q, read after its last token). Trajectories of the last steps are replayed. Each twin learns
from its own target network, a Polyak average of the trained weights; the actor sees the lesser twin. V's target is
Q of the utterance that was replayed, where the paper draws a fresh one from the present policy: V is of the replayed
mixture of policies.

Source: ArCHer (Zhou et al. 2024, read through secondary sources).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from turnscale.agent.adapter import Agent, critic_parameters
from turnscale.agent.forward import critic_values
from turnscale.batch import Credit, TurnBatch
from turnscale.config.schema import Training
from turnscale.credit.segments import layout
from turnscale.methods import Method, Twins
from turnscale.objective.aggregate import denominators
from turnscale.objective.value import value_loss
from turnscale.train.update import average, clipped_step, credit_rows, minibatches
from turnscale.train.warmup import join

PAIRS = 2


def read_twins(agent: Agent, batch: TurnBatch) -> Tensor:
    """[4, B, T]: V of both twins, then Q of both, each constant over its turn's tokens and 0 elsewhere.

    Raises:
        ValueError: the agent has no critic.
    """
    if agent.head is None:
        raise ValueError("the agent has no critic")
    lay = layout(batch)
    rows, columns = batch.ids.shape
    wide = torch.cat([batch.ids, batch.ids[:, -1:]], dim=1)  # a column for what is read after the last token
    begins, ends = lay.flat[lay.first] % columns, lay.flat[lay.last] % columns + 1
    places = torch.zeros((rows, columns + 1), dtype=torch.bool, device=batch.ids.device)
    places[lay.turn_row, begins] = True
    places[lay.turn_row, ends] = True
    read_at = batch.with_(ids=wide, action_mask=places, length=batch.length + 1)
    read = critic_values(agent.model, agent.head, read_at)
    per_turn = torch.cat([read[:PAIRS, lay.turn_row, begins], read[PAIRS:, lay.turn_row, ends]])
    return torch.stack([lay.put(values[lay.segment]) for values in per_turn])


class TwinCritics:
    """The target network and the replayed trajectories beside an agent's critic.

    Attributes:
        targets: Polyak averages of the critic's parameters.
        replay: trajectories of the last steps, oldest first.
    """

    def __init__(self, agent: Agent, choice: Twins) -> None:
        self.agent = agent
        self.choice = choice
        self.targets = [parameter.detach().clone() for parameter in critic_parameters(agent)]
        self.replay: list[TurnBatch] = []

    @torch.no_grad()
    def valued(self, batch: TurnBatch, micro_batch: int) -> TurnBatch:
        """The batch with the lesser V in ``values`` and the lesser Q in ``values_turn``."""
        parts = [
            read_twins(self.agent, batch.rows(rows, trim=False))
            for rows in torch.arange(batch.size).split(micro_batch)
        ]
        states, actions = torch.cat(parts, dim=1).split(PAIRS)
        return batch.with_(values=states.amin(0), values_turn=actions.amin(0))

    def update(
        self,
        method: Method,
        batch: TurnBatch,
        optimiser: torch.optim.Optimizer,
        settings: Training,
        generator: torch.Generator,
    ) -> dict[str, float]:
        """Add a step's trajectories to the replay and take all optimiser steps of the critics.

        Each epoch sees as many trajectories as the step brought, drawn from the whole replay without repetition.

        Returns:
            Means over the optimiser steps: ``value_loss`` (V), ``value_loss_turn`` (Q), ``critic_grad_norm``, and
            ``replayed``, the number of trajectories kept.

        Raises:
            NumericalError: loss or gradient is not finite.
        """
        fresh = batch.with_(values=None, values_turn=None, logp_ref=None, logp_teacher=None)
        self.replay = [*self.replay, fresh][-self.choice.replay :]
        pool = join(self.replay)
        steps: list[dict[str, float]] = []
        for _ in range(settings.critic_epochs * method.critic.updates_per_policy_update):
            drawn = torch.randperm(pool.size, generator=generator)[: batch.size]
            for part in minibatches(len(drawn), 1, settings.critic_minibatches, generator):
                steps.append(self._step(method, pool.rows(drawn[part]), optimiser, settings))
        return {**average(steps), "replayed": float(pool.size)}

    def _step(
        self, method: Method, batch: TurnBatch, optimiser: torch.optim.Optimizer, settings: Training
    ) -> dict[str, float]:
        """One optimiser step on one minibatch, after which the targets follow."""
        parameters = critic_parameters(self.agent)
        counts = denominators(batch)
        credits = self._targets(method, batch, settings.micro_batch)
        optimiser.zero_grad(set_to_none=True)
        parts: list[dict[str, float]] = []
        for rows in torch.arange(batch.size).split(settings.micro_batch):
            micro = batch.rows(rows)
            states, actions = read_twins(self.agent, micro).split(PAIRS)
            losses: list[Tensor] = []
            for credit, state, action in zip(credits, states, actions, strict=True):
                targets = credit_rows(credit, rows, micro.ids.shape[1])
                loss, metrics = value_loss(method, state, micro, targets, counts, action)
                losses.append(loss / PAIRS)
                parts.append({name: value / PAIRS for name, value in metrics.items()})
            torch.stack(losses).sum().backward()
        norm = clipped_step(parameters, optimiser, settings.grad_clip, "critic")
        with torch.no_grad():
            for target, parameter in zip(self.targets, parameters, strict=True):
                target.lerp_(parameter, self.choice.polyak)
        summed = {name: sum(part[name] for part in parts) for name in parts[0]}
        return {**summed, "critic_grad_norm": norm}

    @torch.no_grad()
    def _targets(self, method: Method, batch: TurnBatch, micro_batch: int) -> list[Credit]:
        """For each twin, the credit whose returns are its targets under the target network."""
        with self._target_weights():
            parts = [
                read_twins(self.agent, batch.rows(rows, trim=False))
                for rows in torch.arange(batch.size).split(micro_batch)
            ]
        states, actions = torch.cat(parts, dim=1).split(PAIRS)
        return [
            method.credit(batch.with_(values=state, values_turn=action))
            for state, action in zip(states, actions, strict=True)
        ]

    @contextmanager
    def _target_weights(self) -> Iterator[None]:
        """The critic's parameters hold the targets meanwhile."""
        parameters = critic_parameters(self.agent)
        trained = [parameter.detach().clone() for parameter in parameters]
        for parameter, target in zip(parameters, self.targets, strict=True):
            parameter.detach().copy_(target)
        try:
            yield
        finally:
            for parameter, value in zip(parameters, trained, strict=True):
                parameter.detach().copy_(value)

    def pack(self) -> dict[str, Tensor]:
        """Targets and replay as named tensors."""
        packed = {f"twin_target.{i}": target for i, target in enumerate(self.targets)}
        for age, batch in enumerate(self.replay):
            for name in TurnBatch.__dataclass_fields__:
                value = getattr(batch, name)
                if value is not None:
                    packed[f"twin_replay.{age}.{name}"] = value
        return packed

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`pack` packed."""
        for i, target in enumerate(self.targets):
            target.copy_(tensors[f"twin_target.{i}"])
        kept: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("twin_replay."):
                _, age, field = name.split(".")
                kept.setdefault(int(age), {})[field] = value
        self.replay = [TurnBatch(**kept[age]) for age in sorted(kept)]
