"""One training step (rollout and update) of GRPO and GSPO against TRL's GRPOTrainer, single-turn and multi-turn.

    TURNSCALE_PEERS=/path/to/peers/bin/python python benchmarks/step_trl.py [--repeats 5] [--rows out.json]

Both sides train the same adapter on the same small Qwen3 in float32 on one thread, each in its own process, taking
turns step by step: the same prompts, rows, groups, rewards, turn lengths and observations, so that both read the same
number of row-tokens, which is checked. TRL plays several turns by its own loop (``environment_factory``); its
gradient checkpointing, on by default, is switched off, which makes it faster. Before the first step both score one
batch of ids: log-probabilities, loss and gradient must agree.

A ratio is turnscale's row-tokens per CPU-second over TRL's in the same pair of steps; the median is reported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rows import Row, write
from safetensors.torch import load_file
from step_setting import SETTINGS, setting_of
from workers import PEERS, Worker, peers

METHODS = ("grpo", "gspo")
TARGET = {"single-turn": 3.0, "multi-turn": 4.0}
TOLERANCE = {"logp": 1e-4, "loss": 1e-5, "gradient": 1e-4}
"""Largest difference of log-probabilities (nats) and loss, and of the gradient over its norm."""
WARM_UP = 2


def main() -> None:
    """Measure every workload and method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of steps counted")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model, a multiple of 64")
    parser.add_argument("--workload", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    python = peers()
    if python is None:
        sys.exit(f"no interpreter with TRL is named in {PEERS}: see benchmarks/README.md")
    found: list[Row] = []
    for workload in args.workload:
        for method in args.method:
            with tempfile.TemporaryDirectory() as folder:
                measured = compare(python, Path(folder), workload, args.hidden, method, args.repeats)
            found += report(workload, method, measured)
    if args.rows:
        write(args.rows, found)


def compare(
    python: Path, folder: Path, workload: str, hidden: int, method: str, repeats: int
) -> dict[str, Any]:
    """Agreement, step times in pairs, and peak memory of both sides."""
    arguments = (folder, workload, str(hidden), method)
    setting = setting_of(workload, hidden)
    with Worker(sys.executable, "step_ours.py", *arguments) as ours:
        ours.ask("batch")
        with Worker(python, "step_theirs.py", *arguments) as theirs:
            clipped = ours.ask("score")["clip_fraction"]
            theirs.ask("score")
            agreement = differences(folder)
            pairs = []
            for index in range(WARM_UP + repeats):
                pair = (ours.ask("step"), theirs.ask("step"))
                expected = setting.rows * setting.row_tokens
                for side, measured in zip(("turnscale", "TRL"), pair, strict=True):
                    if measured["row_tokens"] != expected:
                        sys.exit(f"{side} read {measured['row_tokens']} row-tokens instead of {expected}")
                if index >= WARM_UP:
                    pairs.append(pair)
            return {
                "agreement": {**agreement, "clip_fraction": clipped},
                "pairs": pairs,
                "memory": (ours.ask("memory"), theirs.ask("memory")),
            }


def differences(folder: Path) -> dict[str, float]:
    """Largest difference of the log-probabilities, of the loss, and of the gradient over its norm.

    Exits when one exceeds its tolerance: times of different computations cannot be compared.
    """
    a, b = load_file(folder / "ours.safetensors"), load_file(folder / "theirs.safetensors")
    if a.keys() != b.keys():
        sys.exit(f"the two sides have different parameters: {sorted(a.keys() ^ b.keys())[:4]}")
    slopes = [name for name in a if name.startswith("grad ")]
    norm = sum(float(b[name].square().sum()) for name in slopes) ** 0.5
    found = {name: float((a[name] - b[name]).abs().max()) for name in ("logp", "loss")}
    found["gradient"] = sum(float((a[name] - b[name]).square().sum()) for name in slopes) ** 0.5 / norm
    for name, value in found.items():
        if not value <= TOLERANCE[name]:
            sys.exit(f"the two sides' {name} differs by {value:.2e}, more than {TOLERANCE[name]:.0e}")
    return found


def report(workload: str, method: str, measured: dict[str, Any]) -> list[Row]:
    """Print one comparison and give its rows of the table."""
    pairs, (memory, their_memory) = measured["pairs"], measured["memory"]
    rates = [[step["row_tokens"] / step["cpu"] for step in side] for side in zip(*pairs, strict=True)]
    ours, theirs = (statistics.median(side) for side in rates)
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    wall = statistics.median(b["wall"] / a["wall"] for a, b in pairs)
    split = [
        statistics.median(s["rollout_cpu"] / s["cpu"] for s in side) for side in zip(*pairs, strict=True)
    ]
    agreement = measured["agreement"]
    print(
        f"{workload} {method}: {ours:.0f} against {theirs:.0f} row-tokens per CPU-second, "
        f"{statistics.median(ratios):.2f} times ({min(ratios):.2f}-{max(ratios):.2f}; by wall clock {wall:.2f})\n"
        f"  share of the rollout {split[0]:.0%} and {split[1]:.0%}; peak memory {memory['peak']:.0f} and "
        f"{their_memory['peak']:.0f} MiB, above imports and weights {memory['above']:.0f} and "
        f"{their_memory['above']:.0f}\n"
        f"  same batch: log-probabilities differ by {agreement['logp']:.1e}, loss by {agreement['loss']:.1e}, "
        f"gradient by {agreement['gradient']:.1e} of its norm; {agreement['clip_fraction']:.0%} of tokens clipped",
        flush=True,
    )
    same = f"log-probabilities agree to {agreement['logp']:.0e}, gradient to {agreement['gradient']:.0e} of its norm"
    name = f"step of {method}, {workload}, against TRL 1.16"
    return [
        Row(name, "row-tokens/CPU-s", ours, theirs, statistics.median(ratios), TARGET[workload], note=same),
        Row(
            f"{name}: peak memory above imports and weights",
            "MiB",
            memory["above"],
            their_memory["above"],
            their_memory["above"] / memory["above"],
            1.0,
            note=f"whole processes {memory['peak']:.0f} and {their_memory['peak']:.0f} MiB",
        ),
    ]


if __name__ == "__main__":
    main()
