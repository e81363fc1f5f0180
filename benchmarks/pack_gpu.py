"""Five seeds of one cell side by side on a GPU against five runs alone: seconds per step and peak memory.

    python benchmarks/pack_gpu.py [--seeds 5] [--steps 2] [--json out.json]
    python benchmarks/pack_gpu.py --tiny      # the same path at a small size on the CPU; its times mean nothing

Random weights in the shapes of Qwen3-4B in bfloat16, rank-16 adapters on every projection, multi-turn rollouts of the
search family whose turns run to their limit (an untrained policy never ends one). One run is trained alone, which
five runs would repeat; then five are trained side by side over one base. The first step of each is not counted.
Without a GPU the script says so and ends well. It takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from turnscale.agent.chat import ChatFormat
from turnscale.agent.checkpoint import Checkpoint, word_tokenizer
from turnscale.agent.config import Architecture, LoraSpec, ModelConfig
from turnscale.agent.lockstep import Strand, run_together
from turnscale.agent.trunk import Trunk, TrunkDecoder, share
from turnscale.envs.panels import Panels, make_panels
from turnscale.envs.registry import load_family
from turnscale.methods import load_method
from turnscale.seeding import fix_threads
from turnscale.study import Run, Spec
from turnscale.train.trainer import Around, Trainer

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
QWEN3_4B: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
}
TINY = {**QWEN3_4B, "hidden_size": 576, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 400}
LIMITS = {"max_turns": 3, "max_turn_tokens": 64, "max_tokens": 384}


def checkpoint(shape: dict[str, Any], device: str, family: Any) -> Checkpoint:
    """Random weights of a shape under a word tokenizer; no file is written."""
    lora = LoraSpec(r=16, alpha=32)
    config = ModelConfig(
        name="random", kind="local", architecture=Architecture(), dtype="bfloat16", device=device, lora=lora
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True, dtype=torch.bfloat16))
    model = model.to(torch.bfloat16).eval()
    tokenizer = word_tokenizer(family.vocabulary())
    return Checkpoint(model, tokenizer, ChatFormat(tokenizer), "0" * 64, config)


def make_run(seed: int, settings: dict[str, Any], base: Checkpoint, tiny: bool) -> Run:
    """A GRPO run over the given base."""
    method = load_method("grpo", {}, directory=CONFIGS / "methods")
    rows = {"prompts": 2, "group_size": 2} if tiny else {"prompts": 4, "group_size": 8}
    training = {"steps": 100, "lr": 1e-4, "critic_lr": 1e-4, "minibatches": 2, "epochs": 1, "micro_batch": 8}
    # bfloat16 rounds log-probabilities to a few hundredths; the gap is reported.
    training |= {"validate_every": 100, "validation_attempts": 1, "rollout_gap_limit": 1.0, **rows}
    model = base.config.model_dump(mode="json")
    value = {
        "threads": torch.get_num_threads(),
        "base": {"family": settings, "model": model},
        "method": method.resolved(),
        "training": training,
    }
    return Run("bench", "bench", "search", "random", "grpo", "grpo", seed, Spec("train", value))


def steps(trainer: Trainer, count: int, sync: Callable[[], None]) -> list[float]:
    """Seconds of each step after the first."""
    trainer._validate = lambda step: None  # type: ignore[method-assign]
    seconds = []
    for _ in range(count + 1):
        sync()
        started = time.perf_counter()
        trainer.advance()
        sync()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def measure(args: argparse.Namespace, device: str) -> dict[str, Any]:
    """The run alone and the runs side by side."""
    settings = yaml.safe_load((CONFIGS / "families" / "search.yaml").read_text())
    settings["limits"] = LIMITS if not args.tiny else {**LIMITS, "max_turn_tokens": 8}
    family = load_family(settings)
    panels = make_panels(family, {"train": 32, "validation": 1, **dict.fromkeys(family.benchmarks, 1)})
    cuda = device != "cpu"
    sync = torch.cuda.synchronize if cuda else (lambda: None)

    def peak() -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if cuda else float("nan")

    started = time.perf_counter()
    base = checkpoint(TINY if args.tiny else QWEN3_4B, device, family)
    sync()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name() if cuda else "cpu", "seeds": args.seeds}
    found["base_gib"] = peak()
    print(f"base ready after {time.perf_counter() - started:.0f} s", flush=True)

    record = {"hash": base.hash, "checkpoint": None}
    trainer = partial(_trainer, settings=settings, base=base, record=record, panels=panels, tiny=args.tiny)
    alone = trainer(0, Around(checkpoint=share(base)))
    found["alone_s"] = statistics.median(steps(alone, args.steps, sync))
    found["alone_gib"] = peak()
    found["rollout_gap_alone"] = _last(alone, "rollout_gap")
    print(f"alone: {found['alone_s']:.2f} s a step, peak {found['alone_gib']:.1f} GiB", flush=True)
    del alone
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    trunk = Trunk(base)

    def work(seed: int, strand: Strand) -> tuple[list[float], float]:
        around = Around(share(base), lambda model, adapter: TrunkDecoder(strand, trunk, model))
        one = trainer(seed, around)
        finished = steps(one, args.steps, sync)
        return finished, _last(one, "rollout_gap")

    marks: list[float] = []

    def answer(asked: list[Any]) -> dict[int, Any]:
        if all(step.decoder.places is None for step in asked):  # a new common rollout: all seeds begin a step
            sync()
            marks.append(time.perf_counter())
        return trunk.answer(asked)

    outcomes = run_together([partial(work, seed) for seed in range(args.seeds)], answer)
    sync()
    marks.append(time.perf_counter())
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    together = [later - earlier for earlier, later in pairwise(marks)]
    found["together_s"] = statistics.median(together[1:])
    found["together_gib"] = peak()
    found["rollout_gap_together"] = max(outcome.result[1] for outcome in outcomes)
    found["ratio"] = args.seeds * found["alone_s"] / found["together_s"]
    return found


def _trainer(
    seed: int,
    around: Around,
    *,
    settings: dict[str, Any],
    base: Checkpoint,
    record: dict[str, Any],
    panels: Panels,
    tiny: bool,
) -> Trainer:
    return Trainer(make_run(seed, settings, base, tiny), record, panels, None, around)


def _last(trainer: Trainer, name: str) -> float:
    return [value for _, metric, value in trainer.metrics if metric == name][-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="counted steps; one more comes first")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to try the script")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        print("no GPU is visible to torch: nothing is measured (--tiny tries the script on the CPU).")
        return
    fix_threads(1)
    found = measure(args, "cpu" if args.tiny else "cuda")
    print(f"\n{found['device']}, base {found['base_gib']:.1f} GiB\n")
    print(f"| {args.seeds} seeds | seconds per step of all | peak memory, GiB | rollout gap |")
    print("|---|---:|---:|---:|")
    n = args.seeds
    alone, together = found["alone_s"], found["together_s"]
    gib = found["alone_gib"]
    print(f"| alone, one after another | {n * alone:.2f} | {gib:.1f} | {found['rollout_gap_alone']:.1e} |")
    print(f"| alone, all at once (sum of memory) | | {n * gib:.1f} | |")
    print(
        f"| side by side | {together:.2f} | {found['together_gib']:.1f} | "
        f"{found['rollout_gap_together']:.1e} |"
    )
    print(f"\nside by side is {found['ratio']:.2f} times as fast.")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
