"""The numbers that say whether a study's runs can be trusted, from its records and tables.

    python benchmarks/study_numbers.py --study mpo --scale quick > docs/quick-scale-numbers.md

Prints Markdown: how honest the base is, what training gained over it, how good the critics are against the ceiling of
an oracle, what a run cost, and how far sampler and trainer disagree.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.study import Plan, resolve


def read(path: Path) -> dict[str, Any] | None:
    """A record, or None when it is not there."""
    return json.loads(path.read_text()) if path.exists() else None


def base_report(plan: Plan) -> list[str]:
    """Sampled, greedy and pass@n of each starting checkpoint."""
    lines = [
        "## Base checkpoints",
        "",
        "| model | benchmark | sampled | greedy | pass@n | n | tasks |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted({plan.base_path(cell) for cell in plan.cells}):
        record = read(path)
        if record is None or "report" not in record:
            continue
        report = record["report"]
        rows = {
            "all": {**report, "tasks": sum(b["tasks"] for b in report["benchmarks"].values())},
            **report["benchmarks"],
        }
        for name, row in rows.items():
            rates = " | ".join(f"{row[key]:.3f}" for key in ("sampled", "greedy", "pass_at_n"))
            lines.append(f"| {path.parent.name} | {name} | {rates} | {report['attempts']} | {row['tasks']} |")
    return lines


def gains(plan: Plan) -> list[str]:
    """Mean pass@1 over benchmarks of each cell, with its interval, beside the base's."""
    table = pd.read_csv(plan.results() / plan.study.study / "tables" / "estimates.csv")
    table = table[(table["metric"] == "pass_at_1") & (table["benchmark"] == "all")]
    lines = [
        "",
        "## pass@1, mean over test benchmarks",
        "",
        "| cell | value | interval | question | seeds |",
        "|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        interval = "none" if pd.isna(row.lo) else f"[{row.lo:.3f}, {row.hi:.3f}]"
        lines.append(f"| {row.cell} | {row.value:.3f} | {interval} | {row.question} | {row.n_seeds} |")
    return lines


def critics(plan: Plan) -> list[str]:
    """Explained variance of each warmed-up critic against the oracle's on the same fresh rollouts."""
    names = {
        "explained_variance_centred": "all tokens",
        "explained_variance_first": "first token",
        "explained_variance_last": "last token",
    }
    lines = ["", "## Warmed-up critics on fresh rollouts (centred explained variance)", ""]
    lines += ["| critic | tokens | critic | oracle | share | rollouts |", "|---|---|---|---|---|---|"]
    paths = {plan.critic_path(cell, seed) for cell in plan.cells if cell.critic for seed in cell.seeds}
    records = [(path, read(path)) for path in sorted(paths)]
    found = [(path, record) for path, record in records if record is not None]
    for path, record in found:
        for key, label in names.items():
            critic, oracle = record["critic"][key], record["oracle"][key]
            lines.append(
                f"| {path.parent.parent.name} {path.parent.name} | {label} | {critic:.3f} | {oracle:.3f} "
                f"| {critic / oracle:.2f} | {record['fresh_rollouts']} |"
            )
    for key, label in names.items():
        if found:
            critic = sum(record["critic"][key] for _, record in found) / len(found)
            oracle = sum(record["oracle"][key] for _, record in found) / len(found)
            lines.append(
                f"| mean of {len(found)} | {label} | {critic:.3f} | {oracle:.3f} | {critic / oracle:.2f} | |"
            )
    return lines


def costs(plan: Plan) -> list[str]:
    """CPU seconds and peak memory of each cell's runs, and the largest gap between sampler and trainer."""
    metrics = pd.read_parquet(plan.results() / plan.study.study / "tables" / "metrics.parquet")
    gap = metrics[metrics["metric"] == "rollout_gap"].groupby("cell")["value"].max()
    lines = ["", "## Cost of a run, and agreement of sampler and trainer", ""]
    lines += [
        "| cell | runs | CPU seconds (largest) | peak memory MB (largest) | rollout gap (largest) |",
        "|---|---|---|---|---|",
    ]
    for cell in plan.cells:
        records = [read(plan.run_path(cell, seed)) for seed in cell.seeds]
        costs = [record for record in records if record is not None and "cpu_seconds" in record]
        if costs:
            lines.append(
                f"| {cell.cell} | {len(costs)} | {max(r['cpu_seconds'] for r in costs):.0f} "
                f"| {max(r['peak_memory_mb'] for r in costs):.0f} | {gap.get(cell.cell, float('nan')):.1e} |"
            )
    return lines


def main() -> None:
    """Print every section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="mpo")
    parser.add_argument("--scale", default="quick")
    arguments = parser.parse_args()
    plan = resolve(arguments.study, arguments.scale)
    print("\n".join([*base_report(plan), *gains(plan), *critics(plan), *costs(plan)]))


if __name__ == "__main__":
    main()
