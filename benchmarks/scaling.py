"""Time and memory of a training step, rollout and update apart, against what it is made of; exponents and a figure.

    python benchmarks/scaling.py [--repeats 5] [--factor rows turns] [--rows rows.json]

One factor at a time is varied around a step of 32 rows (8 prompts, groups of 4) with 4 turns of 10 tokens on the
local model of width 64. Each point runs in a process of its own; times are medians of CPU seconds on one thread,
memory is the rise of the resident set. The exponent is the slope of log time (or memory) over the log of the factor,
with its 95 % interval over the points. Beside it stands the exponent of the arithmetic: products of weights with
tokens, and attention, which is quadratic in a row's length. What grows faster than its arithmetic is a defect.

Writes scaling.csv, scaling.pdf and scaling.png beside this file, unless --factor asks for some factors only.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rows import Row, write
from scipy.stats import t
from step_ours import Ours, model_config
from step_setting import WORDS, Setting

from turnscale.render.style import BLUE, GREY, RC, VERMILION, faults, grid, save

HERE = Path(__file__).parent
CENTRE = Setting(turns=4, turn_tokens=10, prompts=8)
SPARE = 0.25
"""How far a measured exponent may exceed the arithmetic's: 5 % noise in two points moves a doubling by 0.14."""
SPECIAL_TOKENS = 6


def at(factor: str, value: int) -> Setting:
    """The step with one factor changed. Groups are varied at 32 rows of longer prompts, which they share."""
    if factor == "rows":
        return replace(CENTRE, prompts=value // CENTRE.group)
    if factor == "group size":
        return replace(CENTRE, prompts=32 // value, group=value, prompt_words=64)
    name = {"turns": "turns", "tokens per turn": "turn_tokens", "width": "hidden"}[factor]
    return replace(CENTRE, **{name: value})


FACTORS: dict[str, tuple[int, ...]] = {
    "rows": (16, 32, 64, 128, 256),
    "turns": (2, 4, 8, 16, 32),
    "tokens per turn": (5, 10, 20, 40, 80),
    "width": (64, 128, 192, 256),
    "group size": (2, 4, 8, 16, 32),
}
MEASURED = ("rollout s", "update s", "rollout MiB", "update MiB")


def main() -> None:
    """Measure all points, fit, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--factor", nargs="+", choices=list(FACTORS), default=list(FACTORS))
    parser.add_argument("--rows", type=Path, help="rows for benchmarks/run.py")
    args = parser.parse_args()
    points = []
    for factor in args.factor:
        for value in FACTORS[factor]:
            setting = at(factor, value)
            point = {"factor": factor, "value": value, **in_process(setting, args.repeats)}
            point["arithmetic"] = arithmetic(setting)
            points.append(point)
            shown = ", ".join(f"{name} {point[name]:.3g}" for name in MEASURED)
            print(f"{factor} {value}: {shown}", flush=True)
    table = pd.DataFrame(points)
    fits = pd.DataFrame([fit(table, factor, name) for factor in args.factor for name in MEASURED])
    print(fits.round(2).to_string(index=False))
    if args.factor == list(FACTORS):
        table.round(6).to_csv(HERE / "scaling.csv", index=False, lineterminator="\n")
        draw(table, fits)
    if args.rows:
        write(args.rows, table_rows(fits))


def in_process(setting: Setting, repeats: int) -> dict[str, float]:
    """:func:`measure` in a forked process: this one has imported everything and trained nothing."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=lambda: send.send(measure(setting, repeats)))
    process.start()
    send.close()
    try:
        found: dict[str, float] = receive.recv()
    except EOFError:
        raise SystemExit(f"the process that measured {setting} died") from None
    process.join()
    return found


def measure(setting: Setting, repeats: int) -> dict[str, float]:
    """Median CPU seconds of rollout and update, and the memory each adds in the first step, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        side = Ours(Path(folder), setting, "grpo")
        first = side.step(peaks=True)
        steps: list[dict[str, Any]] = [side.step() for _ in range(repeats)]
    return {
        "rollout s": statistics.median(step["rollout_cpu"] for step in steps),
        "update s": statistics.median(step["cpu"] - step["rollout_cpu"] for step in steps),
        "rollout MiB": first["rollout_peak"],
        "update MiB": first["update_peak"],
    }


def arithmetic(setting: Setting) -> float:
    """Multiplications of one forward pass over the step's tokens: weights and attention."""
    shape = model_config(setting).architecture
    assert shape is not None
    projections = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    weights = shape.layers * (projections + 3 * shape.hidden * shape.feed_forward)
    head = shape.hidden * (len(WORDS) + SPECIAL_TOKENS)
    length = setting.row_tokens
    attention = shape.layers * shape.heads * shape.head_dim * length  # scores and values, half of the square
    return float(setting.rows * length * (weights + head + attention))


def fit(table: pd.DataFrame, factor: str, name: str) -> dict[str, Any]:
    """Slope of log ``name`` over the log of the factor with its 95 % interval, and that of the arithmetic."""
    part = table[table["factor"] == factor]
    slope, lo, hi = log_slope(part["value"].tolist(), part[name].tolist())
    expected, _, _ = log_slope(part["value"].tolist(), part["arithmetic"].tolist())
    steepest = last_slope(part["value"].tolist(), part[name].tolist())
    expected_last = last_slope(part["value"].tolist(), part["arithmetic"].tolist())
    return {
        "factor": factor,
        "measured": name,
        "exponent": slope,
        "lo": lo,
        "hi": hi,
        "arithmetic": expected,
        "last step": steepest,
        "arithmetic, last step": expected_last,
    }


def log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Least-squares slope in logarithms and its 95 % interval by the t distribution."""
    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.maximum(np.asarray(y, dtype=float), 1e-9))
    centred = u - u.mean()
    slope = float((centred * v).sum() / (centred**2).sum())
    residual = v - v.mean() - slope * centred
    freedom = len(u) - 2
    half = float(t.isf(0.025, freedom)) * math.sqrt((residual**2).sum() / freedom / (centred**2).sum())
    return slope, slope - half, slope + half


def last_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope in logarithms between the two largest points, where fixed costs matter least."""
    return math.log(max(y[-1], 1e-9) / max(y[-2], 1e-9)) / math.log(x[-1] / x[-2])


def table_rows(fits: pd.DataFrame) -> list[Row]:
    """One row per factor for the times, and the largest excess over the arithmetic."""
    rows = []
    excess: dict[str, float] = {}
    for _, found in fits.iterrows():
        name = f"{found['measured'].split()[0]} {'time' if found['measured'].endswith(' s') else 'memory'}"
        excess[f"{name} over {found['factor']}"] = found["last step"] - found["arithmetic, last step"]
        if found["measured"].endswith(" s"):
            note = f"95 % interval {found['lo']:.2f} to {found['hi']:.2f}; the peer is the arithmetic"
            label = f"exponent of {name} over {found['factor']}"
            rows.append(Row(label, "", found["exponent"], found["arithmetic"], note=note))
    worst = max(excess, key=lambda key: excess[key])
    rows.append(
        Row(
            "largest excess of an exponent over its arithmetic, at the largest points",
            "",
            excess[worst],
            SPARE,
            SPARE / max(excess[worst], 1e-3),
            1.0,
            note=worst,
        )
    )
    return rows


def draw(table: pd.DataFrame, fits: pd.DataFrame) -> None:
    """Two rows of panels, time and memory, one column per factor; exponents above each."""
    import matplotlib
    from matplotlib.ticker import FuncFormatter, NullLocator

    with matplotlib.rc_context(RC):
        figure, axes = grid(2, len(FACTORS), height=3.6, share_y="row")
        for column, factor in enumerate(FACTORS):
            part = table[table["factor"] == factor]
            for row, unit in enumerate(("s", "MiB")):
                panel, shown = axes[row, column], []
                for stage, color, marker in (("rollout", BLUE, "o"), ("update", VERMILION, "s")):
                    name = f"{stage} {unit}"
                    chosen = (fits["factor"] == factor) & (fits["measured"] == name)
                    shown.append(f"{round(fits[chosen]['exponent'].iloc[0], 2) + 0.0:.2f}")
                    panel.plot(part["value"], part[name], color=color, marker=marker, label=stage)
                top = float(part[f"update {unit}"].iloc[-1] / part["arithmetic"].iloc[-1])
                panel.plot(
                    part["value"],
                    part["arithmetic"] * top,
                    color=GREY,
                    linestyle=":",
                    label="as its arithmetic",
                )
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
                panel.set_xticks(part["value"], [str(value) for value in part["value"]])
                panel.xaxis.set_minor_locator(NullLocator())
                panel.yaxis.set_minor_locator(NullLocator())
                panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                exponents = f"exponents {shown[0]}, {shown[1]}"
                panel.set_title(f"{factor}\n{exponents}" if row == 0 else exponents)
        axes[0, 0].set_ylabel("CPU seconds a step")
        axes[1, 0].set_ylabel("MiB above the start")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        for fault in faults(figure):
            print(f"scaling.png: {fault}")
        save(figure, HERE, "scaling")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
