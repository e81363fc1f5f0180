"""Time of credit functions against loops, one thread, all in one run.

    python benchmarks/credit.py [--shapes 64x4096 64x32768] [--repeats 5] [--json PATH]

Three forms of each estimator are timed on the same batch and compared:
``package`` is turnscale's (including its layout and validation of the batch), ``columns`` a reversed Python loop
over the T columns, vectorised over rows (the usual form in training libraries), ``tokens`` a plain Python loop
over every action token, on Python floats. The last is timed on a few rows and scaled up, as it is proportional
to tokens. Times are CPU times of the process, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import Row, write
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.multiscale import multiscale
from turnscale.credit.token_gae import token_gae
from turnscale.credit.turn_gae import turn_gae

LAM_TOKEN, LAM_TURN, LAM_INTRA, BETA = 0.95, 0.8, 0.95, 1.0


def make_batch(rows: int, width: int, seed: int = 0) -> TurnBatch:
    """Rows of about ``width`` tokens: turns of 20 to 400 action tokens, observations of 10 to 200."""
    draw = torch.Generator().manual_seed(seed)
    turn = torch.full((rows, width), -1, dtype=torch.long)
    length = torch.zeros(rows, dtype=torch.long)
    for row in range(rows):
        stop = width - int(torch.randint(0, width // 4, (1,), generator=draw))
        at, index = 50, 0
        while at < stop:
            end = min(at + int(torch.randint(20, 400, (1,), generator=draw)), stop)
            turn[row, at:end] = index
            at, index = end + int(torch.randint(10, 200, (1,), generator=draw)), index + 1
        length[row] = stop
    mask = turn >= 0
    values = torch.where(mask, torch.rand(rows, width, generator=draw), 0.0)
    reward = (torch.rand(rows, generator=draw) < 0.5).float()
    zero = torch.zeros(rows, width)
    return TurnBatch(
        ids=zero.long(),
        action_mask=mask,
        turn=turn,
        logp_rollout=zero,
        length=length,
        reward=reward,
        success=reward > 0,
        truncated=reward < 0,
        task=torch.arange(rows) // 4,
        group=torch.arange(rows) // 4,
        values=values,
    )


def column_token_gae(batch: TurnBatch) -> Tensor:
    """Token GAE by a reversed loop over columns, rows in parallel, observations skipped by the mask."""
    mask, values = batch.action_mask.float(), batch.values
    assert values is not None
    rows, width = mask.shape
    carry, following, paid = torch.zeros(rows), torch.zeros(rows), batch.reward.clone()
    out = torch.zeros(rows, width)
    for column in range(width - 1, -1, -1):
        m, v = mask[:, column], values[:, column]
        advantage = paid + following - v + LAM_TOKEN * carry
        carry = m * advantage + (1 - m) * carry
        following = m * v + (1 - m) * following
        paid = (1 - m) * paid
        out[:, column] = m * advantage
    return out


def column_turn_gae(batch: TurnBatch) -> Tensor:
    """Turn GAE by a reversed loop over columns: a turn is closed at its first token, then broadcast."""
    mask, values = batch.action_mask, batch.values
    assert values is not None
    rows, width = mask.shape
    before = torch.cat([torch.full((rows, 1), -1), batch.turn[:, :-1]], dim=1)
    starts = mask & (batch.turn != before)
    carry, following, paid = torch.zeros(rows), torch.zeros(rows), batch.reward.clone()
    at_start = torch.zeros(rows, width)
    for column in range(width - 1, -1, -1):
        s, v = starts[:, column].float(), values[:, column]
        advantage = paid + following - v + LAM_TURN * carry
        carry = s * advantage + (1 - s) * carry
        following = s * v + (1 - s) * following
        paid = (1 - s) * paid
        at_start[:, column] = s * advantage
    out, held = torch.zeros(rows, width), torch.zeros(rows)
    for column in range(width):
        s, m = starts[:, column].float(), mask[:, column].float()
        held = s * at_start[:, column] + (1 - s) * held
        out[:, column] = m * held
    return out


def column_multiscale(batch: TurnBatch) -> Tensor:
    """Multiscale credit by reversed and forward loops over columns."""
    mask, values = batch.action_mask.float(), batch.values
    assert values is not None
    rows, width = mask.shape
    after = torch.cat([batch.turn[:, 1:], torch.full((rows, 1), -1)], dim=1)
    before = torch.cat([torch.full((rows, 1), -1), batch.turn[:, :-1]], dim=1)
    ends = (batch.action_mask & (batch.turn != after)).float()
    starts = (batch.action_mask & (batch.turn != before)).float()
    carry, following, paid = torch.zeros(rows), torch.zeros(rows), batch.reward.clone()
    trace = torch.zeros(rows, width)
    for column in range(width - 1, -1, -1):
        m, v, e = mask[:, column], values[:, column], ends[:, column]
        advantage = paid + following - v + LAM_INTRA * (1 - e) * carry
        carry = m * advantage + (1 - m) * carry
        following = m * v + (1 - m) * following
        paid = (1 - m) * paid
        trace[:, column] = m * advantage
    total, count, mean = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows, width)
    for column in range(width):
        s, m = starts[:, column], mask[:, column]
        total = (1 - s) * total + m * trace[:, column]
        count = (1 - s) * count + m
        mean[:, column] = total / count.clamp(min=1)
    held = torch.zeros(rows)
    for column in range(width - 1, -1, -1):
        e = ends[:, column]
        held = e * mean[:, column] + (1 - e) * held
        mean[:, column] = mask[:, column] * held
    return column_turn_gae(batch) + BETA * (trace - mean)


def token_loop(batch: TurnBatch, row: int, estimator: str) -> dict[int, float]:
    """One row of any of the three estimators by a loop over its tokens, in plain Python floats."""
    assert batch.values is not None
    turn, values = batch.turn[row].tolist(), batch.values[row].tolist()
    reward = float(batch.reward[row])
    turns: list[list[int]] = []
    for column, index in enumerate(turn):
        if index >= 0:
            if index == len(turns):
                turns.append([])
            turns[-1].append(column)
    out: dict[int, float] = {}
    carry, following, paid = 0.0, 0.0, reward
    if estimator == "token GAE":
        for columns in reversed(turns):
            for c in reversed(columns):
                carry = paid + following - values[c] + LAM_TOKEN * carry
                following, paid, out[c] = values[c], 0.0, carry
        return out
    nxt = 0.0
    for columns in reversed(turns):
        last_pay = paid
        carry = paid + following - values[columns[0]] + LAM_TURN * carry
        following, paid = values[columns[0]], 0.0
        if estimator == "turn GAE":
            for c in columns:
                out[c] = carry
            continue
        inner, ahead, pay = 0.0, nxt, last_pay
        for c in reversed(columns):
            inner = pay + ahead - values[c] + LAM_INTRA * inner
            ahead, pay, out[c] = values[c], 0.0, inner
        nxt = values[columns[0]]
        mean = sum(out[c] for c in columns) / len(columns)
        for c in columns:
            out[c] = carry + BETA * (out[c] - mean)
    return out


ESTIMATORS: dict[str, tuple[Callable[[TurnBatch], Tensor], Callable[[TurnBatch], Tensor]]] = {
    "token GAE": (lambda b: token_gae(b, lam=LAM_TOKEN, lam_critic=1.0).advantages, column_token_gae),
    "turn GAE": (
        lambda b: turn_gae(b, lam=LAM_TURN, read="first", lam_critic=1.0).advantages,
        column_turn_gae,
    ),
    "multiscale": (
        lambda b: multiscale(b, lam=LAM_TURN, lam_intra=LAM_INTRA, beta=BETA, lam_critic=1.0).advantages,
        column_multiscale,
    ),
}


def median_of(function: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of a call on one thread, after one untimed call."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(rows: int, width: int, repeats: int) -> list[dict[str, object]]:
    """Times and agreement of the three forms of each estimator at one shape."""
    batch = make_batch(rows, width)
    tokens = int(batch.action_mask.sum())
    results = []
    for name, (package, columns) in ESTIMATORS.items():
        want, got = columns(batch), package(batch)
        sample = range(min(4, rows))
        share = int(batch.action_mask[: len(sample)].sum()) / tokens
        looped = [token_loop(batch, row, name) for row in sample]
        worst = max(abs(float(got[row, c]) - a) for row in sample for c, a in looped[row].items())
        fast = median_of(lambda f=package: f(batch), repeats)
        slow = median_of(lambda f=columns: f(batch), repeats)
        naive = median_of(lambda n=name, s=sample: [token_loop(batch, row, n) for row in s], repeats) / share
        results.append(
            {
                "estimator": name,
                "shape": f"[{rows}, {width}]",
                "action_tokens": tokens,
                "package_ms": 1e3 * fast,
                "columns_ms": 1e3 * slow,
                "tokens_ms": 1e3 * naive,
                "times_columns": slow / fast,
                "times_tokens": naive / fast,
                "difference_columns": float((got - want).abs().max()),
                "difference_tokens": worst,
            }
        )
    return results


def main() -> None:
    """Print a table; write JSON when asked."""
    parser = argparse.ArgumentParser(description="Time credit functions against loops, one thread.")
    parser.add_argument("--shapes", nargs="+", default=["64x4096", "64x32768"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print(f"torch {torch.__version__}, {platform.machine()}, 1 thread, CPU time, median of {args.repeats}")
    print(
        f"{'estimator':11} {'shape':12} {'package':>9} {'columns':>10} {'tokens':>10} {'x cols':>7} {'x tok':>7}"
    )
    for shape in args.shapes:
        rows, width = (int(part) for part in shape.split("x"))
        for r in measure(rows, width, args.repeats):
            results.append(r)
            print(
                f"{r['estimator']:11} {r['shape']:12} {r['package_ms']:7.1f}ms {r['columns_ms']:8.0f}ms "
                f"{r['tokens_ms']:8.0f}ms {r['times_columns']:7.1f} {r['times_tokens']:7.1f}"
                f"   differs by {r['difference_columns']:.1e}, {r['difference_tokens']:.1e}"
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.rows:
        write(args.rows, [table_row(result) for result in results])


def table_row(result: dict[str, Any]) -> Row:
    """One estimator against the loop over columns."""
    name = f"{result['estimator']} at {result['shape']}, against a loop over columns"
    note = f"{result['times_tokens']:.0f} times a loop over tokens"
    return Row(name, "ms", result["package_ms"], result["columns_ms"], result["times_columns"], note=note)


if __name__ == "__main__":
    main()
