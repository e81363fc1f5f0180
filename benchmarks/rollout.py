"""Row-tokens per CPU-second of the batched rollout against ``generate`` and the module path, in one process.

    python benchmarks/rollout.py [--batch 64 128] [--repeats 7] [--experts 0] [--json out.json] [--rows rows.json]

A row-token is one token of one unfinished row, prompts and observations included. Two workloads: ``even``, where all
rows have the same turns, against one ``generate`` call of the same length (which could not play the turns); and
``ragged`` episodes, against ``generate`` called once per turn on left-padded histories, the usual way to play many
turns with it. Rows of the table are of the decoder that ``auto`` takes. Everything samples from the full softmax.
Times are CPU seconds of the one thread, and repeats are interleaved, so that a busy machine disturbs little and every
contender alike; medians are printed with the range.

The bound is the time of a decode step's matrix products alone (queries, keys and values, heads' output, gate and up,
down, in every layer, and the output matrix) at the same batch, one after the other, in the faster of torch's two
libraries (torch.mm into preallocated tensors, or oneDNN, which uses wider instructions on some processors); its
share is that time over the rollout's time per step's worth of tokens, environments and bookkeeping included. The
second share counts attention's two products over the mean length held as well. Then two gains, each paired: rows of
one prompt, and branches of one prefix, fed once until they differ, against every row fed alone.
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
from rows import Row, write
from torch import Tensor

from turnscale.agent import transformer
from turnscale.agent.adapter import Agent, attach, merged_weights, policy_parameters
from turnscale.agent.checkpoint import load, make_local, save
from turnscale.agent.config import Architecture, ModelConfig
from turnscale.agent.decode import best_kind, make_decoder, merged_model
from turnscale.agent.episode import Prefix
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.envs.protocol import Limits, Step, Task

WORDS = [f"w{i}" for i in range(74)]
LIMITS = Limits(max_turns=7, max_turn_tokens=10, max_tokens=110)


class Chatter:
    """Observations of 3 to 5 random words for a number of turns that is fixed (even) or drawn from 3 to 6."""

    def __init__(self, ragged: bool, prompt: int = 0) -> None:
        self._ragged, self._prompt = ragged, prompt

    def reset(self, task: Task, seed: int) -> str:
        self._rng = random.Random(f"{task.hash} {seed}")
        self._left = self._rng.randint(3, 6) if self._ragged else 5
        return self._words(self._prompt or (self._rng.randint(4, 7) if self._ragged else 6))

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
    parser.add_argument("--json", type=Path, help="every repeat's figures")
    parser.add_argument("--rows", type=Path, help="rows of the table of benchmarks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    agent = make_agent(args.experts)
    own = f"rollout {best_kind(agent.model)}"
    report: dict[str, object] = {"experts": args.experts}
    rows: list[Row] = []
    for ragged in (False, True):
        workload = "ragged" if ragged else "even"
        for batch in args.batch:
            rates = measure(agent, batch, args.repeats, ragged)
            report[f"{workload} {batch}"] = rates
            middle = {name: statistics.median(values) for name, values in rates.items()}
            for name, values in rates.items():
                against = [middle[name] / middle[f"generate, {peer}"] for peer in ("merged", "adapter")]
                print(
                    f"{workload:6s} batch {batch:4d}  {name:20s} {middle[name]:8.0f} row-tokens/s "
                    f"({min(values):.0f}-{max(values):.0f})  {against[0]:5.2f} x merged {against[1]:5.2f} x adapter"
                )
            ours = middle[own]
            for peer in ("generate, adapter", "generate, merged"):
                turns = "multi-turn" if ragged else "single-turn"
                name = f"rollout, {turns}, batch {batch}, against {peer}"
                rows.append(Row(name, "row-tokens/s", ours, middle[peer], ours / middle[peer], 3.0))
            if not args.experts and not ragged:
                rows += shares(agent, batch, rates[own], report)
    rows += shared(agent, args.repeats)
    for row in rows:
        print(
            f"{row.name}: {row.ours:.0f} {row.unit}, ratio {row.ratio:.2f}, target {row.target} {row.verdict}"
        )
    report["rows"] = [row.name for row in rows]
    if args.rows:
        write(args.rows, rows)
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
    """Row-tokens per second of every contender, one value per repeat."""
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
        "generate, merged": lambda: reference(merged),
        "generate, adapter": lambda: reference(agent.model),
        "rollout hf, adapter": lambda: play("hf"),
        "rollout hf-merged": lambda: play("hf-merged"),
        "rollout fused": lambda: play("fused"),
    }
    if best_kind(agent.model) == "compiled":
        contenders["rollout compiled"] = lambda: play("compiled")
    return paired(contenders, repeats)


def paired(contenders: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """What each contender returns, per CPU-second, in interleaved repeats after one that warms caches up."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start = time.process_time()
            tokens = run()
            if repeat:
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


def shares(agent: Agent, batch: int, rates: list[float], report: dict[str, object]) -> list[Row]:
    """Shares of the bounds that the rollout attains at its median rate."""
    ours = statistics.median(rates)
    rows = []
    for name, attention, target in (("products", False, 0.4), ("products and attention", True, None)):
        bound = batch / step_bound(agent, batch, attention)
        report[f"bound {name} {batch}"] = bound
        note = "ratio is the share of what the matrix products alone would allow"
        text = f"rollout, batch {batch}, of the bound by {name}"
        rows.append(Row(text, "row-tokens/s", ours, bound, ours / bound, target, note))
    return rows


@torch.inference_mode()
def step_bound(agent: Agent, batch: int, attention: bool, repeats: int = 400) -> float:
    """Least CPU seconds of one decode step's matrix products at ``batch`` rows, of the two libraries at hand."""
    shape = transformer.shape_of(agent.model.config)
    weights = merged_weights(agent.model, "policy")
    network = transformer.build(shape, weights, LIMITS.max_tokens)
    held = LIMITS.max_tokens // 2
    group = shape.heads // shape.kv_heads
    keys = torch.randn(shape.layers, batch * shape.kv_heads, shape.head_dim, LIMITS.max_tokens)
    values = torch.randn(shape.layers, batch * shape.kv_heads, LIMITS.max_tokens, shape.head_dim)
    query = torch.randn(batch * shape.kv_heads, group, shape.head_dim)
    scores = torch.randn(batch * shape.kv_heads, group, held)
    matrices = [m for layer in network.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    products = [
        (torch.randn(batch, m.shape[1]), m, torch.empty(batch, m.shape[0])) for m in (*matrices, network.head)
    ]
    libraries: tuple[Callable[[Tensor, Tensor, Tensor], object], ...] = (
        lambda left, right, out: torch.mm(left, right.t(), out=out),
        lambda left, right, out: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], ""),
    )
    best = float("inf")
    for repeat in range(repeats):
        multiply = libraries[repeat % 2]
        start = time.process_time()
        for left, right, out in products:
            multiply(left, right, out)
        for layer in range(shape.layers if attention else 0):
            torch.bmm(query, keys[layer, :, :, :held], out=scores)
            torch.bmm(scores, values[layer, :, :held], out=query)
        best = min(best, time.process_time() - start)
    return best


def shared(agent: Agent, repeats: int, prompts: int = 16, members: int = 8) -> list[Row]:
    """What feeding rows once saves that agree so far: the rollouts of a prompt, the branches of a prefix."""
    tasks = [Task("benchmark", "1", "train", index // members) for index in range(prompts * members)]
    seeds = [index // members for index in range(len(tasks))]
    limits = Limits(max_turns=7, max_turn_tokens=10, max_tokens=150)

    def play(share: bool, words: int, prefixes: list[Prefix] | None = None, keep: bool = False) -> Rollouts:
        decoder = make_decoder(agent.model, "policy")
        generator = torch.Generator().manual_seed(1)
        return rollout(
            decoder, agent.chat, lambda: Chatter(True, words), tasks, seeds, limits, generator,
            prefixes=prefixes, keep_prefixes=keep, share=share,
        )  # fmt: skip

    stems = play(True, 6, keep=True)
    forks = [stems.prefixes[index - index % members][2] for index in range(len(tasks))]
    rows = []
    for name, words, prefixes in (
        ("prompts of 9 tokens", 6, None),
        ("prompts of 43 tokens", 40, None),
        ("prefixes of two turns", 6, forks),
    ):
        contenders = {
            str(share): lambda share=share, words=words, prefixes=prefixes: (
                play(share, words, prefixes).row_tokens
            )
            for share in (True, False)
        }
        rates = paired(contenders, repeats)
        alone = play(False, words, prefixes).fed_tokens
        ours, plain = (statistics.median(rates[str(share)]) for share in (True, False))
        note = f"{play(True, words, prefixes).fed_tokens / alone:.0%} of the tokens are computed"
        text = f"shared {name}, {prompts} times {members} rows, against every row alone"
        rows.append(Row(text, "row-tokens/s", ours, plain, ours / plain, 1.0, note))
    return rows


if __name__ == "__main__":
    main()
