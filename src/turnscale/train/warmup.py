"""Warm-up of the critic: regression on Monte-Carlo returns of rollouts from the fixed base policy.

One warm-up per (family, model, heads, seed), shared by every method with that critic: two methods at the same seed
start from the same critic, and seeds vary it, as they should.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tqdm import tqdm

from turnscale.agent.adapter import Agent, attach, critic_parameters, save_adapter
from turnscale.agent.chat import ChatFormat
from turnscale.agent.checkpoint import Checkpoint, load
from turnscale.agent.config import ModelConfig
from turnscale.agent.decode import make_decoder
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.batch import TurnBatch
from turnscale.config.schema import CriticTraining
from turnscale.credit.segments import layout
from turnscale.envs.panels import Panels
from turnscale.envs.protocol import Family
from turnscale.envs.registry import FamilyConfig, load_family
from turnscale.errors import CheckpointError
from turnscale.files import write_tensors
from turnscale.finite import require_finite
from turnscale.objective.aggregate import denominators
from turnscale.objective.value import explained_variance, squared_error
from turnscale.seeding import fix_threads, numpy_stream, stream_seed, torch_stream
from turnscale.train.critic import read_heads, with_values
from turnscale.train.measure import oracle_values
from turnscale.train.update import clipped_step

SHUFFLED = "shuffled_values"
"""Name of the extra tensor in a probe's file."""


def open_base(spec: Mapping[str, Any], record: Mapping[str, Any], family: Family) -> Checkpoint:
    """The starting checkpoint that a base record speaks of, speaking to the family's tasks.

    A given chat model is told how to act by the family's instructions, unless its configuration names a system
    prompt; a local model has learned it.

    Args:
        spec: a ``base`` specification.
        record: what :func:`turnscale.train.base.make_base` returned for it.
        family: the task family.

    Raises:
        CheckpointError: it cannot be loaded or its weights are not the recorded ones.
    """
    config = ModelConfig.model_validate(spec["model"])
    checkpoint = load(record["checkpoint"] or config)
    if checkpoint.hash != record["hash"]:
        raise CheckpointError(
            f"its weights hash to {checkpoint.hash}, but the record says {record['hash']}.",
            file=str(record["checkpoint"]),
            remedy="remove the checkpoint's record and run the workflow again.",
        )
    if config.kind == "local" or config.system is not None or not family.instructions:
        return checkpoint
    chat = ChatFormat(checkpoint.tokenizer, family.instructions, config.observation_role)
    return replace(checkpoint, chat=chat)


def warm_critic(
    spec: Mapping[str, Any], base_record: Mapping[str, Any], panels: Panels, seed: int, directory: Path
) -> dict[str, Any]:
    """Warm a critic up and measure it on fresh rollouts.

    Args:
        spec: a ``critic`` specification.
        base_record: record of the starting checkpoint.
        panels: the family's frozen panels; rollouts are on train tasks.
        seed: the run seed.
        directory: receives ``adapter/`` (critic adapter and value head) and ``probe.safetensors`` (rollouts of
            the base policy on which every method's critic is later read, with the values there of a critic
            warmed up alike on rewards shuffled over trajectories: what structure comes without any signal).

    Returns:
        The record: folder, explained variances of critic and oracle on fresh rollouts, seconds.

    Raises:
        NumericalError: the value loss became NaN or infinite.
    """
    fix_threads(int(spec["threads"]))
    started = time.monotonic()
    settings = CriticTraining.model_validate(spec["critic"])
    family = load_family(FamilyConfig.model_validate(spec["base"]["family"]))
    checkpoint = open_base(spec["base"], base_record, family)
    agent = attach(checkpoint, stream_seed(seed, "adapter"), value_heads=int(spec["heads"]))
    collect = _Collector(agent, family, panels, seed, float(spec["temperature"]), settings.rollouts)
    batches = [
        collect("warm-up", number).batch
        for number in tqdm(range(settings.batches), desc="critic rollouts", mininterval=5)
    ]
    loss = fit(agent, batches, settings, seed)
    fresh = [collect("fresh", number) for number in range(-(-settings.fresh_rollouts // settings.rollouts))]
    measured, oracle = _measure(agent, family, panels, fresh)
    save_adapter(agent, directory / "adapter", which="critic")
    probe = fresh[0].batch
    blind = attach(open_base(spec["base"], base_record, family), stream_seed(seed, "adapter"), value_heads=1)
    fit(blind, shuffle_rewards(batches, seed), settings, seed)
    with torch.inference_mode():
        shuffled = read_heads(blind, probe)[0]
    _save_probe(directory / "probe.safetensors", probe, shuffled)
    return {
        "adapter": str(directory / "adapter"),
        "probe": str(directory / "probe.safetensors"),
        "value_loss": loss,
        "critic": measured,
        "oracle": oracle,
        "fresh_rollouts": len(fresh) * settings.rollouts,
        "seconds": time.monotonic() - started,
    }


def fit(agent: Agent, batches: list[TurnBatch], settings: CriticTraining, seed: int) -> float:
    """Regress the reward at every action token; learning rate decays linearly to 10 %.

    Returns:
        Mean loss of the last epoch.

    Raises:
        NumericalError: a loss that is not finite.
    """
    parameters = critic_parameters(agent)
    optimiser = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.99), weight_decay=0.0)
    order = numpy_stream(seed, "critic minibatches")
    pieces = [
        (i, rows) for i, batch in enumerate(batches) for rows in _pieces(batch.size, settings.minibatch)
    ]
    total = settings.epochs * len(pieces)
    done = 0
    losses: list[float] = []
    for _ in tqdm(range(settings.epochs), desc="critic epochs", mininterval=5):
        losses = []
        for choice in order.permutation(len(pieces)):
            index, rows = pieces[int(choice)]
            part = batches[index].rows(rows)
            for group in optimiser.param_groups:
                group["lr"] = settings.lr * (1.0 - 0.9 * done / total)
            targets = part.reward[:, None].expand_as(part.logp_rollout)
            loss = torch.stack(
                [
                    squared_error(values, targets, layout(part), "tokens", denominators(part))
                    for values in read_heads(agent, part)
                ]
            ).mean()
            require_finite("loss of the critic's warm-up", loss.detach())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            clipped_step(parameters, optimiser, 1.0, "critic")
            losses.append(float(loss.detach()))
            done += 1
    return sum(losses) / len(losses)


class _Collector:
    """Rollouts of the frozen base on random train tasks."""

    def __init__(
        self, agent: Agent, family: Family, panels: Panels, seed: int, temperature: float, size: int
    ) -> None:
        self.decoder = make_decoder(agent.model, None)
        self.agent = agent
        self.family = family
        self.tasks = panels.split("train")
        self.seed = seed
        self.temperature = temperature
        self.size = size

    def __call__(self, name: str, number: int) -> Rollouts:
        chosen = numpy_stream(self.seed, name, "tasks", number).integers(len(self.tasks), size=self.size)
        tasks = [self.tasks[int(i)] for i in chosen]
        seeds = [stream_seed(self.seed, name, "environment", number, row) for row in range(self.size)]
        with torch.inference_mode():
            return rollout(
                self.decoder,
                self.agent.chat,
                self.family.make,
                tasks,
                seeds,
                self.family.limits,
                torch_stream(self.seed, name, "sampler", number),
                temperature=self.temperature,
                task_index=[int(i) for i in chosen],
            )


def _measure(
    agent: Agent, family: Family, panels: Panels, fresh: list[Rollouts]
) -> tuple[dict[str, float], dict[str, float]]:
    tasks = panels.split("train")
    valued: list[TurnBatch] = []
    features: list[list[str]] = []
    for rollouts in fresh:
        with torch.inference_mode():
            valued.append(with_values(rollouts.batch, read_heads(agent, rollouts.batch)))
        for row, index in enumerate(rollouts.batch.task.tolist()):
            features.append(
                family.oracle_features(tasks[index], rollouts.turns[row], rollouts.observations[row])
            )
    pooled = join(valued)
    if pooled.values is None:
        raise ValueError("no values were read")
    oracle = torch.from_numpy(oracle_values(pooled, features))
    return explained_variance(pooled.values, pooled), explained_variance(oracle, pooled)


def join(batches: list[TurnBatch]) -> TurnBatch:
    """Batches stacked into one, padded on the right to the longest row; None fields stay None."""
    width = max(batch.ids.shape[1] for batch in batches)

    def stack(name: str) -> torch.Tensor | None:
        parts = [getattr(batch, name) for batch in batches]
        if any(part is None for part in parts):
            return None
        fill = -1 if name in ("turn", "anchor") else 0
        return torch.cat(
            [
                part
                if part.ndim == 1
                else torch.nn.functional.pad(part, (0, width - part.shape[1]), value=fill)
                for part in parts
            ]
        )

    return TurnBatch(**{name: stack(name) for name in TurnBatch.__dataclass_fields__})  # type: ignore[arg-type]


def _pieces(size: int, minibatch: int) -> list[torch.Tensor]:
    return list(torch.arange(size).split(minibatch))


def shuffle_rewards(batches: list[TurnBatch], seed: int) -> list[TurnBatch]:
    """The batches with their rewards permuted over all trajectories, so that values can predict nothing."""
    rewards = torch.cat([batch.reward for batch in batches])
    order = torch.from_numpy(numpy_stream(seed, "shuffled rewards").permutation(len(rewards)))
    parts = rewards[order].split([batch.size for batch in batches])
    return [batch.with_(reward=part) for batch, part in zip(batches, parts, strict=True)]


def _save_probe(path: Path, batch: TurnBatch, shuffled: torch.Tensor) -> None:
    fields = {name: getattr(batch, name) for name in TurnBatch.__dataclass_fields__}
    tensors = {name: value for name, value in fields.items() if value is not None}
    write_tensors({k: v.clone() for k, v in {**tensors, SHUFFLED: shuffled}.items()}, path)


def load_probe(path: Path) -> tuple[TurnBatch, TurnBatch]:
    """The probe's rollouts as they are, and with the values of the critic of shuffled rewards.

    Raises:
        CheckpointError: the file is missing or is no probe.
    """
    try:
        tensors = load_file(path)
        shuffled = tensors.pop(SHUFFLED)
        probe = TurnBatch(**tensors)
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"is no probe of a warmed-up critic ({error}).",
            file=path,
            remedy="remove the critic's record and run the workflow again.",
        ) from None
    return probe, probe.with_(values=shuffled)
