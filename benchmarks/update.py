"""One update of the policy against the plain path: time, padding, memory, and where the time goes.

    python benchmarks/update.py [--rollouts 64] [--repeats 7] [--rows rows.json]

Both do the optimiser steps of ``grpo`` (2 epochs of 2 minibatches) on the same ragged rollouts at learning rate 0, so
that every repeat does the same work. The plain path is the module path of transformers with the adapter attached,
rows padded to the longest of the minibatch, and the output matrix applied at every position. Repeats are interleaved;
times are CPU seconds of one thread, medians are printed. A row-token is a token of a row, padding not counted, once
per epoch. Peak memory is of tensors allocated during the update, by the profiler of torch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rollout import LIMITS, Chatter, make_agent
from rows import Row, write
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from turnscale.agent import forward
from turnscale.agent.adapter import Agent, activate, policy_parameters
from turnscale.agent.decode import make_decoder
from turnscale.agent.rollout import rollout
from turnscale.batch import TurnBatch
from turnscale.config.schema import Training
from turnscale.envs.protocol import Task
from turnscale.methods import load_method
from turnscale.train import update

METHODS = Path(__file__).resolve().parents[1] / "configs" / "methods"
PARTS = ("forward", "head", "backward", "optimiser", "rest")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=Path, help="rows of the table of benchmarks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    agent = make_agent(0)
    batch = rollouts(agent, args.rollouts)
    settings = Training(steps=1, prompts=1, group_size=args.rollouts, lr=1e-3, critic_lr=1e-3)
    contenders: dict[str, Callable[[], tuple[float, dict[str, float]]]] = {
        "ours": lambda: step(agent, batch, settings, forward.action_logprobs),
        "plain": lambda: step(agent, batch, settings, plain_logprobs),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    parts: dict[str, list[Counter[str]]] = {name: [] for name in contenders}
    found: dict[str, dict[str, float]] = {}
    for repeat in range(args.repeats + 1):
        for name, run in contenders.items():
            with clocked() as clock:
                seconds, found[name] = run()
            if repeat:  # the first round warms caches up
                clock["rest"] = seconds - sum(clock.values())
                times[name].append(seconds)
                parts[name].append(clock)
    for metric in ("loss", "grad_norm", "entropy"):
        gap = abs(found["ours"][metric] - found["plain"][metric])
        if not gap <= 1e-4 * max(1.0, abs(found["plain"][metric])):
            raise SystemExit(f"the two paths disagree: {metric} {found}")
    tokens = int(batch.length.sum()) * settings.epochs
    rates = {name: tokens / statistics.median(values) for name, values in times.items()}
    memory = {name: peak_memory(run) for name, run in contenders.items()}
    padded = {"ours": padding(agent, batch, settings, grouped=True)}
    padded["plain"] = padding(agent, batch, settings, grouped=False)
    for name in contenders:
        shares = {
            part: statistics.median(clock[part] / sum(clock.values()) for clock in parts[name])
            for part in PARTS
        }
        print(
            f"{name:6s} {rates[name]:8.0f} row-tokens/s  padding {padded[name]:4.0%}  peak {memory[name]:6.1f} MB  "
            + "  ".join(f"{part} {share:.0%}" for part, share in shares.items())
        )
    ratio = rates["ours"] / rates["plain"]
    print(
        f"{ratio:.2f} times the plain path, {memory['plain'] / memory['ours']:.2f} times less memory at the peak"
    )
    if args.rows:
        note = f"padding {padded['ours']:.0%} against {padded['plain']:.0%}"
        less = memory["plain"] / memory["ours"]
        speed = Row("policy update", "row-tokens/s", rates["ours"], rates["plain"], ratio, 1.0, note)
        write(
            args.rows,
            [speed, Row("policy update, peak memory", "MB", memory["ours"], memory["plain"], less, 1.0)],
        )


def rollouts(agent: Agent, size: int) -> TurnBatch:
    """Ragged rollouts, two groups of half the size each, with rewards that differ within them."""
    tasks = [Task("benchmark", "1", "train", index) for index in range(size)]
    made = rollout(
        make_decoder(agent.model), agent.chat, lambda: Chatter(True), tasks, range(size), LIMITS,
        torch.Generator().manual_seed(1), task_index=[index % 2 for index in range(size)],
    )  # fmt: skip
    return made.batch.with_(reward=(made.batch.ids.sum(1) % 3 == 0).float())


def step(
    agent: Agent, batch: TurnBatch, settings: Training, logprobs: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[float, dict[str, float]]:
    """CPU seconds and metrics of one update at learning rate 0 with the given log-probabilities."""
    method = load_method("grpo", directory=METHODS)
    advantages = method.normalise(method.credit(batch).advantages, batch)
    optimiser = torch.optim.AdamW(policy_parameters(agent), lr=0.0)
    generator = torch.Generator().manual_seed(3)
    with patch.object(update, "action_logprobs", logprobs):
        start = time.process_time()
        metrics = update.update_policy(
            agent, method, batch, advantages, batch.logp_rollout, optimiser, settings, generator
        )
        return time.process_time() - start, metrics


def plain_logprobs(
    model: Any, batch: TurnBatch, adapter: str | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """All rows padded to the longest through the modules, and every position through the output matrix."""
    activate(model, adapter)
    hidden = _plain_hidden(model.get_base_model().base_model, batch.ids)
    return _plain_head(model, hidden, batch, temperature)


def _plain_hidden(backbone: Any, ids: Tensor) -> Tensor:
    hidden: Tensor = backbone(ids, use_cache=False).last_hidden_state
    return hidden


def _plain_head(model: Any, hidden: Tensor, batch: TurnBatch, temperature: float) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(model.get_output_embeddings()(hidden).float() / temperature, -1)
    chosen = logp[:, :-1].gather(-1, batch.ids[:, 1:, None]).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1).detach()[:, :-1]
    pad = torch.zeros(batch.size, 1)
    mask = batch.action_mask
    return torch.cat([pad, chosen], 1) * mask, torch.cat([pad, entropy], 1) * mask


@contextmanager
def clocked() -> Iterator[Counter[str]]:
    """Count CPU seconds by part while the context lasts."""
    clock: Counter[str] = Counter()

    def timed(part: str, function: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                clock[part] += time.process_time() - start  # type: ignore[assignment]

        return run

    def head(*args: Any, **options: Any) -> Any:
        """The whole function's time less what its forward part took."""
        before, start = clock["forward"], time.process_time()
        try:
            return scores(*args, **options)
        finally:
            clock["head"] += time.process_time() - start - (clock["forward"] - before)  # type: ignore[assignment]

    scores = forward.action_logprobs
    with (
        patch.object(forward, "_action_hidden", timed("forward", forward._action_hidden)),
        patch(f"{__name__}._plain_hidden", timed("forward", _plain_hidden)),
        patch.object(forward, "action_logprobs", head),
        patch(f"{__name__}._plain_head", timed("head", _plain_head)),
        patch.object(torch.Tensor, "backward", timed("backward", torch.Tensor.backward)),
        patch.object(update, "clipped_step", timed("optimiser", update.clipped_step)),
    ):
        yield clock


def padding(agent: Agent, batch: TurnBatch, settings: Training, grouped: bool) -> float:
    """Share of the tokens fed to the model that were padding, in one update."""
    fed = 0
    name = f"{forward.__name__}._run_fused" if grouped else f"{__name__}._plain_hidden"
    run = forward._run_fused if grouped else _plain_hidden

    def counting(first: Any, ids: Tensor, *read: Tensor) -> Tensor:
        nonlocal fed
        fed += ids.numel()
        return run(first, ids, *read)

    with patch(name, counting):
        step(agent, batch, settings, forward.action_logprobs if grouped else plain_logprobs)
    # the last token of a row is scored and, in our path, never fed
    needed = int(batch.length.sum()) - (batch.size if grouped else 0)
    return 1.0 - needed * settings.epochs / fed


def peak_memory(run: Callable[[], Any]) -> float:
    """Most megabytes of tensors allocated at once during ``run``, over what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    results: Any = profiled.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


if __name__ == "__main__":
    main()
