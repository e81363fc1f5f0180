"""Token GAE against verl's own function on the same batch, one thread, CPU time, ratio in one run.

Needs the environment of benchmarks/README.md ("Other implementations"):

    OMP_NUM_THREADS=1 PYTHONPATH=src /path/to/peers/bin/python benchmarks/credit_verl.py

verl's function also whitens its advantages, so what is compared is its returns minus the values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import Row, write

from turnscale.axes import CREDIT
from turnscale.batch import TurnBatch

ROWS, TOKENS, TURN, ACTIONS = 64, 4096, 64, 40
REPEATS = 21


def make_batch() -> tuple[TurnBatch, torch.Tensor]:
    """[64, 4096]: turns of 40 action tokens between observations of 24, and verl's per-token rewards."""
    generator = torch.Generator().manual_seed(0)
    column = torch.arange(TOKENS).expand(ROWS, TOKENS)
    mask = column % TURN < ACTIONS
    zeros = torch.zeros(ROWS, dtype=torch.long)
    reward = torch.rand(ROWS, generator=generator)
    batch = TurnBatch(
        ids=torch.zeros(ROWS, TOKENS, dtype=torch.long),
        action_mask=mask,
        turn=(column // TURN).masked_fill(~mask, -1),
        logp_rollout=torch.zeros(ROWS, TOKENS),
        length=torch.full((ROWS,), TOKENS),
        reward=reward,
        success=reward > 0.5,
        truncated=reward < 0,
        task=zeros,
        group=zeros,
        values=torch.randn(ROWS, TOKENS, generator=generator) * mask,
    )
    paid = torch.zeros(ROWS, TOKENS)
    paid[torch.arange(ROWS), mask.long().cumsum(1).argmax(1)] = reward
    return batch, paid


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Median CPU seconds of a call, and its last result."""
    seconds, result = [], None
    for _ in range(REPEATS):
        started = time.process_time()
        result = function()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds), result


def main() -> None:
    """Print both times, their ratio and the largest difference."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    parser = argparse.ArgumentParser(description="Token GAE against verl's.")
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    batch, paid = make_batch()
    mask = batch.action_mask.float()
    ours, credit = timed(lambda: CREDIT["token_gae"].load()(batch, lam=0.95, lam_critic=1.0))
    theirs, (_, returns) = timed(
        lambda: compute_gae_advantage_return(paid, batch.values, mask, gamma=1.0, lam=0.95)
    )
    gap = ((returns - batch.values) - credit.advantages).masked_fill(~batch.action_mask, 0.0).abs().max()
    print(
        f"turnscale {ours * 1e3:.1f} ms, verl {theirs * 1e3:.1f} ms, ratio {theirs / ours:.1f}, gap {gap:.1e}"
    )
    if args.rows:
        name = f"token GAE at [{ROWS}, {TOKENS}], against verl 0.9"
        note = f"advantages agree to {gap:.0e}"
        write(args.rows, [Row(name, "ms", ours * 1e3, theirs * 1e3, theirs / ours, note=note)])


if __name__ == "__main__":
    main()
