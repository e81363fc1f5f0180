"""Invented runs of a study, to test and time what comes after training. No number here is a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from turnscale.config.schema import Study
from turnscale.methods import load_method
from turnscale.study import Plan, ResolvedCell, Spec, load_scale, load_study
from turnscale.track.collect import IDENTITY
from turnscale.track.columns import CRITIC

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = {"search-2hop": 1.6, "search-3hop": 0.3, "search-4hop": -1.2}
DYNAMICS = {
    "explained_variance": (-0.2, 0.3, 0.05),
    "entropy": (0.9, 0.25, 0.03),
    "clip_fraction": (0.02, 0.06, 0.01),
    "clip_fraction_len_1_6": (0.015, 0.04, 0.01),
    "clip_fraction_len_7_9": (0.02, 0.07, 0.01),
    "clip_fraction_len_10_up": (0.03, 0.09, 0.015),
    "kl": (0.0, 0.12, 0.01),
    "grad_norm": (1.6, 0.7, 0.15),
    "turns": (3.2, 4.6, 0.1),
    "action_tokens": (31.0, 43.0, 1.0),
}
"""metric -> value at the first step, at the last, and noise per step."""


def make_plan(
    scale: str = "quick",
    *,
    seeds: int = 3,
    models: Sequence[str] = ("qwen3-tiny",),
    cells: Sequence[str] | None = None,
    study: Study | None = None,
) -> Plan:
    """A plan of the MPO study (or another) with dummy job specifications."""
    study = load_study("mpo", ROOT) if study is None else study
    loaded = load_scale(scale, ROOT)
    wanted = list(study.cells) if cells is None else list(cells)
    resolved = [
        _cell(study, family, model, name, seeds)
        for family in study.families
        for model in models
        for name in wanted
    ]
    return Plan(study=study, scale=loaded, cells=tuple(resolved), seeds=tuple(range(seeds)), root=ROOT)


def make_tables(
    plan: Plan,
    out: Path,
    *,
    tasks: int = 100,
    attempts: int = 16,
    steps: int = 60,
    failed: Mapping[str, int] | None = None,
    absent: Sequence[str] = (),
    random_seed: int = 0,
) -> None:
    """Write outcomes.parquet, metrics.parquet, critic_values.parquet and survivorship.csv of a plan.

    Args:
        failed: cell -> number of its runs that failed (its last seeds).
        absent: cells none of whose runs finished.
    """
    rng = np.random.default_rng(random_seed)
    difficulty = {
        family: {name: rng.normal(level, 1.3, tasks) for name, level in benchmarks_of(family).items()}
        for family in dict.fromkeys(cell.family for cell in plan.cells)
    }
    outcomes, metrics, survivors = [], [], []
    for number, cell in enumerate(plan.cells):
        lost = len(cell.seeds) if cell.cell in absent else (failed or {}).get(cell.cell, 0)
        kept = cell.seeds[: len(cell.seeds) - lost]
        skill = -2.2 if not cell.trains else 0.12 * (number % 7)
        for seed in kept:
            effect = rng.normal(0, 0.25)
            run = {
                "study": plan.study.study,
                "scale": plan.scale.scale,
                "family": cell.family,
                "model": cell.model,
                "cell": cell.cell,
                "method": plan.study.cells[cell.cell].method,
                "seed": seed,
                "run_id": f"{cell.family}.{cell.model}.{cell.cell}.{seed}",
            }
            outcomes += [
                _outcomes(run, name, skill + effect + level, attempts, rng)
                for name, level in difficulty[cell.family].items()
            ]
            if cell.trains:
                metrics.append(_metrics(run, skill + effect, steps, rng))
        survivors.append(
            {
                "family": cell.family,
                "model": cell.model,
                "cell": cell.cell,
                "planned": len(cell.seeds),
                "finished": len(kept),
                "failed": lost,
                "excluded": 0,
                "failed_reasons": json.dumps({"NaN in loss": lost} if lost else {}),
                "excluded_reasons": "{}",
                "lost": "{}",
            }
        )
    out.mkdir(parents=True, exist_ok=True)
    pd.concat(outcomes, ignore_index=True).to_parquet(out / "outcomes.parquet", index=False)
    _concat(metrics).to_parquet(out / "metrics.parquet", index=False)
    pd.DataFrame(columns=[*IDENTITY, *CRITIC]).to_parquet(out / "critic_values.parquet", index=False)
    pd.DataFrame(survivors).to_csv(out / "survivorship.csv", index=False, lineterminator="\n")


def benchmarks_of(family: str) -> Mapping[str, float]:
    """Benchmark -> mean log-odds of success."""
    return BENCHMARKS if family == "search" else {f"{family}-easy": 1.0, f"{family}-hard": -0.5}


def _cell(study: Study, family: str, model: str, name: str, seeds: int) -> ResolvedCell:
    cell = study.cells[name]
    method = load_method(cell.method, cell.set, directory=ROOT / "configs" / "methods")
    spec = Spec("train", {"cell": name, "model": model})
    return ResolvedCell(
        family=family,
        model=model,
        cell=name,
        label=cell.label or method.title,
        method_name=method.name,
        method=method.resolved(),
        trains=method.train,
        needs_critic=method.needs_critic,
        panels=spec,
        base=spec,
        critic=None,
        train=spec,
        evaluation=spec,
        seeds=tuple(range(seeds)) if method.train else (0,),
    )


def _outcomes(
    run: Mapping[str, object], benchmark: str, logits: np.ndarray, attempts: int, rng: np.random.Generator
) -> pd.DataFrame:
    tasks = logits.size
    success = rng.random((tasks, attempts)) < 1 / (1 + np.exp(-logits))[:, None]
    return pd.DataFrame(
        {
            **{
                key: pd.Categorical.from_codes(np.zeros(success.size, dtype=int), [value]).astype(object)
                if isinstance(value, str)
                else value
                for key, value in run.items()
            },
            "benchmark": benchmark,
            "task": np.repeat([f"{benchmark}-{index:05d}" for index in range(tasks)], attempts),
            "difficulty": benchmark[-4:],
            "attempt": np.tile(np.arange(attempts), tasks),
            "success": success.ravel(),
            "turns": rng.integers(3, 8, success.size),
            "action_tokens": rng.integers(25, 60, success.size),
            "truncated": False,
        }
    )


def _metrics(run: Mapping[str, object], skill: float, steps: int, rng: np.random.Generator) -> pd.DataFrame:
    step = np.arange(1, steps + 1)
    progress = 1 - np.exp(-3 * step / steps)
    level = 1 / (1 + np.exp(-(skill + 0.4)))
    frames = [_series(step, "reward", 0.12 + (level - 0.12) * progress + rng.normal(0, 0.03, steps))]
    at = np.unique(np.concatenate([[0], step[9::10], [steps]]))
    curve = 0.12 + (level - 0.12) * (1 - np.exp(-3 * at / steps)) + rng.normal(0, 0.015, at.size)
    frames.append(_series(at, "val_pass_at_1", curve))
    for name, (first, last, noise) in DYNAMICS.items():
        frames.append(_series(step, name, first + (last - first) * progress + rng.normal(0, noise, steps)))
    return pd.concat(frames, ignore_index=True).assign(**run)


def _series(step: np.ndarray, metric: str, value: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"step": step, "metric": metric, "value": value})


def _concat(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    if frames:
        return pd.concat(frames, ignore_index=True)
    columns = [
        "step",
        "metric",
        "value",
        "study",
        "scale",
        "family",
        "model",
        "cell",
        "method",
        "seed",
        "run_id",
    ]
    return pd.DataFrame({column: pd.Series(dtype="object") for column in columns})
