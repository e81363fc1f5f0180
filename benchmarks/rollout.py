"""Row-tokens per CPU-second of the batched rollout against ``generate`` and the module path, in one process.

    python benchmarks/rollout.py [--batch 64 128] [--repeats 7] [--experts 0] [--json out.json]

A row-token is one token of one unfinished row, prompts and observations included. Two workloads: ``even``, where all
rows have the same turns, against one ``generate`` call of the same length (which could not play the turns); and
``ragged`` episodes, against ``generate`` called once per turn on left-padded histories, the usual way to play many
turns with it. Everything samples from the full softmax. Times are CPU seconds of the one thread, and repeats are
interleaved, so that a busy machine disturbs little and every contender alike; medians are printed with the range.
The roofline share is the arithmetic of the matrix products divided by what one large product attains on the thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnscale.agent.adapter import Agent, attach, policy_parameters
from turnscale.agent.checkpoint import load, make_local, save
from turnscale.agent.config import Architecture, ModelConfig
from turnscale.agent.decode import make_decoder, merged_model
from turnscale.agent.forward import action_logprobs
from turnscale.agent.rollout import rollout
from turnscale.envs.protocol import Limits, Step, Task

WORDS = [f"w{i}" for i in range(74)]
LIMITS = Limits(max_turns=7, max_turn_tokens=10, max_tokens=110)


class Chatter:
    """Observations of 3 to 5 random words for a number of turns that is fixed (even) or drawn from 3 to 6."""

    def __init__(self, ragged: bool) -> None:
        self._ragged = ragged

    def reset(self, task: Task, seed: int) -> str:
        self._rng = random.Random(f"{task.hash} {seed}")
        self._left = self._rng.randint(3, 6) if self._ragged else 5
        return self._words(self._rng.randint(4, 7) if self._ragged else 6)

    def step(self, turn: str, complete: bool = True) -> Step:
        self._left -= 1
        if self._left == 0:
            return Step("", done=True)
        return Step(self._words(self._rng.randint(3, 5) if self._ragged else 4), valid=complete)

    def clone(self) -> Chatter:
        return copy.deepcopy(self)

    def anchor(self) -> str:
        return str(self._left)

    def close(self) -> None:
        return None

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    agent = make_agent(args.experts)
    peak = matmul_rate()
    print(f"one thread, one matrix product: {peak / 1e9:.1f} GFLOP/s")
    report: dict[str, object] = {"matmul_flops": peak, "experts": args.experts}
    for ragged in (False, True):
        workload = "ragged" if ragged else "even"
        for batch in args.batch:
            rates = measure(agent, batch, args.repeats, ragged)
            report[f"{workload} {batch}"] = rates
            base = statistics.median(next(iter(rates.values())))
            for name, values in rates.items():
                middle = statistics.median(values)
                print(
                    f"{workload:6s} batch {batch:4d}  {name:22s} {middle:8.0f} row-tokens/s "
                    f"({min(values):.0f}-{max(values):.0f})  {middle / base:5.2f} x"
                )
            share = statistics.median(rates["rollout fused"]) * 2 * matmul_parameters(agent) / peak
            print(f"{workload:6s} batch {batch:4d}  roofline share of the fused rollout: {share:.0%}")
    report["update"] = update_rate(agent, args.repeats)
    print(f"update (forward and backward, 32 rows): {report['update']:.0f} tokens/s")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def make_agent(experts: int) -> Agent:
    """The default local model with a policy adapter that does something."""
    config = ModelConfig(name="benchmark", kind="local", architecture=Architecture(experts=experts))
    with tempfile.TemporaryDirectory() as directory:
        save(*make_local(config, WORDS, seed=0), config, directory)
        agent = attach(load(directory), seed=0, value_heads=0)
    generator = torch.Generator().manual_seed(0)
    for parameter in policy_parameters(agent):
        parameter.data.normal_(0.0, 0.02, generator=generator)
    return agent


def measure(agent: Agent, batch: int, repeats: int, ragged: bool) -> dict[str, list[float]]:
    """Row-tokens per second of every contender, one value per repeat; the first contender is the reference."""
    tasks = [Task("benchmark", "1", "train", index) for index in range(batch)]
    merged = merged_model(agent.model, "policy")

    def play(kind: str) -> int:
        decoder = make_decoder(agent.model, "policy", kind)
        generator = torch.Generator().manual_seed(1)
        return rollout(
            decoder, agent.chat, lambda: Chatter(ragged), tasks, range(batch), LIMITS, generator
        ).row_tokens

    length = play("fused") // batch
    prompt = torch.randint(6, 80, (batch, 8), generator=torch.Generator().manual_seed(2))

    def reference(model: torch.nn.Module) -> int:
        if ragged:
            return turn_by_turn(agent, model, tasks)
        return generate(model, prompt, torch.ones_like(prompt), length - prompt.shape[1], end=None).numel()

    contenders: dict[str, Callable[[], int]] = {
        "generate": lambda: reference(merged),
        "generate, adapter": lambda: reference(agent.model),
        "rollout hf, adapter": lambda: play("hf"),
        "rollout hf-merged": lambda: play("hf-merged"),
        "rollout fused": lambda: play("fused"),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start = time.process_time()
            tokens = run()
            if repeat:  # the first round warms caches up
                rates[name].append(tokens / (time.process_time() - start))
    return rates


@torch.inference_mode()
def generate(model: Any, ids: Tensor, mask: Tensor, new: int, end: int | None) -> Tensor:
    """Exactly ``new`` sampled tokens per row, or up to the end token."""
    out: Tensor = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new,
        min_new_tokens=new if end is None else None,
        eos_token_id=end,
        pad_token_id=0,
    )
    return out


def turn_by_turn(agent: Agent, model: Any, tasks: list[Task]) -> int:
    """The ragged episodes with one ``generate`` call per turn; returns the number of tokens in all rows."""
    envs = [Chatter(ragged=True) for _ in tasks]
    rows = [
        list(agent.chat.prompt_ids(env.reset(task, seed)))
        for seed, (env, task) in enumerate(zip(envs, tasks, strict=True))
    ]
    alive = list(range(len(tasks)))
    while alive:
        longest = max(len(rows[i]) for i in alive)
        ids = torch.zeros(len(alive), longest, dtype=torch.long)
        for line, i in enumerate(alive):
            ids[line, longest - len(rows[i]) :] = torch.tensor(rows[i])
        mask = (torch.arange(longest) >= torch.tensor([[longest - len(rows[i])] for i in alive])).long()
        out = generate(model, ids, mask, LIMITS.max_turn_tokens, agent.chat.end_id)[:, longest:]
        still = []
        for line, i in enumerate(alive):
            turn = out[line].tolist()
            complete = agent.chat.end_id in turn
            spoken = turn[: turn.index(agent.chat.end_id)] if complete else turn
            rows[i] += [*spoken, agent.chat.end_id]
            step = envs[i].step(agent.chat.decode_turn(spoken), complete)
            if not step.done:
                rows[i] += agent.chat.observation_ids(step.observation)
                still.append(i)
        alive = still
    return sum(map(len, rows))


def matmul_parameters(agent: Agent) -> int:
    """Weights each token is multiplied with: projections, active experts and the output matrix."""
    config = agent.model.config
    total = config.vocab_size * config.hidden_size
    for name, parameter in agent.model.get_base_model().named_parameters():
        if ".lora_" in name or parameter.ndim < 2 or "embed_tokens" in name:
            continue
        share = config.num_experts_per_tok / config.num_experts if parameter.ndim == 3 else 1.0
        total += int(parameter.numel() * share)
    return total


def matmul_rate(size: int = 768, repeats: int = 15) -> float:
    """Best observed FLOP/s of a square float32 product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        torch.mm(a, b)
        best = min(best, time.process_time() - start)
    return 2 * size**3 / best


def update_rate(agent: Agent, repeats: int) -> float:
    """Tokens per second of the policy's forward and backward at 32 rows, padding not counted."""
    tasks = [Task("benchmark", "1", "train", index) for index in range(32)]
    batch = rollout(
        make_decoder(agent.model),
        agent.chat,
        lambda: Chatter(True),
        tasks,
        range(32),
        LIMITS,
        torch.Generator().manual_seed(1),
    ).batch
    times = []
    for _ in range(repeats + 1):
        start = time.process_time()
        action_logprobs(agent.model, batch)[0].sum().backward()
        times.append(time.process_time() - start)
    return int(batch.length.sum()) / statistics.median(times[1:])


if __name__ == "__main__":
    main()
