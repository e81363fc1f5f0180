"""The starting checkpoint: a small model warmed up by supervision on imperfect demonstrations.

The demonstrations come from the train split, far beyond the frozen train panel where the family is unbounded, so
that no panel task is seen; a bounded family's come from its train panel, which holds no test task. The base must be
*honest*: weak when sampled and weak when decoded greedily, while pass@n shows that better behaviour is within its
support. Otherwise reinforcement learning would only sharpen its sampling.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from turnscale.agent import checkpoint as checkpoints
from turnscale.agent.chat import ChatFormat
from turnscale.agent.config import ModelConfig
from turnscale.agent.decode import make_decoder
from turnscale.config.schema import BaseTraining
from turnscale.envs.panels import Panels
from turnscale.envs.protocol import Demonstration, Family, Task
from turnscale.envs.registry import FamilyConfig, load_family
from turnscale.evaluate import Sampler, attempt
from turnscale.finite import require_finite
from turnscale.seeding import fix_threads, numpy_stream
from turnscale.train.update import clipped_step

DEMONSTRATION_OFFSET = 10_000_000
"""First index of the train stream used for demonstrations in unbounded families."""

IGNORED = -100


def make_base(spec: Mapping[str, Any], directory: Path, panels: Panels) -> dict[str, Any]:
    """Make (or, for given checkpoints, check) the starting checkpoint of one family and model.

    Args:
        spec: a ``base`` specification: family, model, training, threads.
        directory: receives ``checkpoint/`` for local models.
        panels: the family's frozen panels, whose train tasks are demonstrated where the family is bounded.

    Returns:
        The record: checkpoint folder or name, its hash, supervised loss and seconds.

    Raises:
        NumericalError: the supervised loss became NaN or infinite.
        CheckpointError: a given checkpoint cannot be loaded.
    """
    fix_threads(int(spec["threads"]))
    started = time.monotonic()
    config = ModelConfig.model_validate(spec["model"])
    family = load_family(FamilyConfig.model_validate(spec["family"]))
    if spec["training"] is None:
        loaded = checkpoints.load(config)
        return {
            "checkpoint": None,
            "hash": loaded.hash,
            "supervised_loss": None,
            "seconds": time.monotonic() - started,
        }
    training = BaseTraining.model_validate(spec["training"])
    model, tokenizer = checkpoints.make_local(config, family.vocabulary(), training.seed)
    chat = ChatFormat(tokenizer)
    loss = supervise(model, chat, family, training, panels.split("train"))
    target = directory / "checkpoint"
    checkpoints.save(model, tokenizer, config, target)
    loaded = checkpoints.load(target)
    return {
        "checkpoint": str(target),
        "hash": loaded.hash,
        "supervised_loss": loss,
        "report": honesty(loaded, family, training),
        "seconds": time.monotonic() - started,
    }


def honesty(loaded: checkpoints.Checkpoint, family: Family, training: BaseTraining) -> dict[str, Any]:
    """What the base can do before any reinforcement learning, on the first tasks of each test benchmark.

    Returns:
        ``sampled`` and ``greedy`` success rates, ``pass_at_n`` with n = ``attempts`` (is better behaviour within
        its support?), overall and by benchmark.
    """
    decoder = make_decoder(loaded.model, None)
    found: dict[str, Any] = {"attempts": training.report_attempts, "benchmarks": {}}
    for benchmark in family.benchmarks:
        size = family.size(benchmark)
        count = training.report_tasks if size is None else min(training.report_tasks, size)
        tasks = [family.task(benchmark, i) for i in range(count)]
        sampled, greedy = (
            attempt(
                Sampler(lambda: decoder, loaded.chat, family, temperature, 256),
                benchmark,
                tasks,
                attempts,
                training.seed,
                label=f"base report {benchmark}",
            ).groupby("task")["success"]
            for temperature, attempts in ((1.0, training.report_attempts), (0.0, 1))
        )
        found["benchmarks"][benchmark] = {
            "tasks": count,
            "sampled": float(sampled.mean().mean()),
            "greedy": float(greedy.mean().mean()),
            "pass_at_n": float(sampled.max().mean()),
        }
    rows = list(found["benchmarks"].values())
    for key in ("sampled", "greedy", "pass_at_n"):
        found[key] = sum(row[key] for row in rows) / len(rows)
    return found


def supervise(
    model: Any, chat: ChatFormat, family: Family, training: BaseTraining, tasks: Sequence[Task]
) -> float:
    """Train ``model`` in place on demonstrations, loss on assistant tokens only.

    Args:
        model: a causal language model.
        chat: its chat format.
        family: what is demonstrated.
        training: steps, batch and learning rate.
        tasks: the train panel; demonstrated where the family has no tasks beyond it.

    Returns:
        Mean loss per assistant token (nats) over the last tenth of the steps.

    Raises:
        NumericalError: a loss that is not finite.
    """
    rng = numpy_stream(training.seed, "demonstrations", family.name)
    optimiser = torch.optim.AdamW(model.parameters(), lr=training.lr, betas=(0.9, 0.95), weight_decay=0.01)
    balance = float(getattr(model.config, "router_aux_loss_coef", 0.0) or 0.0)
    model.train()
    losses: list[float] = []
    for step in tqdm(range(training.steps), desc=f"base {family.name}", mininterval=5):
        for group in optimiser.param_groups:
            group["lr"] = training.lr * _schedule(step, training.steps)
        demonstrations = [
            _demonstration(family, rng, tasks, step * training.batch + i) for i in range(training.batch)
        ]
        ids, labels = encode(chat, demonstrations)
        output = model(input_ids=ids, use_cache=False, **({"output_router_logits": True} if balance else {}))
        loss = torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        total = loss + balance * output.aux_loss if balance else loss
        require_finite("supervised loss of the starting checkpoint", total.detach())
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        clipped_step(list(model.parameters()), optimiser, 1.0, "starting checkpoint")
        losses.append(float(loss.detach()))
    model.eval()
    return float(np.mean(losses[-max(1, training.steps // 10) :]))


def encode(chat: ChatFormat, demonstrations: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Demonstrations as right-padded ids and labels.

    Returns:
        ids [B, T] and labels [B, T], both long; labels are -100 off assistant tokens (the end-of-turn token of
        each turn counts as an assistant token).
    """
    rows: list[list[int]] = []
    masks: list[list[bool]] = []
    for demonstration in demonstrations:
        ids = list(chat.prompt_ids(demonstration.prompt))
        mask = [False] * len(ids)
        for turn, observation in zip(demonstration.turns, demonstration.observations, strict=True):
            tokens = [*chat.encode(turn), chat.end_id]
            ids += tokens
            mask += [True] * len(tokens)
            if observation:
                context = chat.observation_ids(observation)
                ids += context
                mask += [False] * len(context)
        rows.append(ids)
        masks.append(mask)
    longest = max(map(len, rows))
    padded = torch.full((len(rows), longest), chat.tokenizer.pad_token_id, dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORED, dtype=torch.long)
    for i, (ids, mask) in enumerate(zip(rows, masks, strict=True)):
        row = torch.tensor(ids)
        padded[i, : len(ids)] = row
        labels[i, : len(ids)] = torch.where(torch.tensor(mask), row, IGNORED)
    return padded, labels


def _demonstration(
    family: Family, rng: np.random.Generator, tasks: Sequence[Task], index: int
) -> Demonstration:
    if family.size("train") is None:
        task = family.task("train", DEMONSTRATION_OFFSET + index)
    else:
        task = tasks[int(rng.integers(len(tasks)))]
    return family.demonstrate(task, rng, expert=bool(rng.random() < family.expert_share))


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up over the first 3 % of the steps, then linear decay to 10 %."""
    warm = max(1, round(0.03 * steps))
    if step < warm:
        return (step + 1) / warm
    return 1.0 - 0.9 * (step - warm) / max(1, steps - warm)
