"""Commands of tabular studies: the jobs of their workflow, their plan, and the audit of gradient estimators."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from turnscale.errors import ConfigError
from turnscale.tabular.plan import TabularPlan, credits_of, resolve_tabular

ROOT = Path()

estimators_app = typer.Typer(
    no_args_is_help=True, help="Policy-gradient estimators against the exact gradient."
)
jobs_app = typer.Typer(no_args_is_help=True, help="Jobs of a tabular study.")

Study = Annotated[str, typer.Option(help="Tabular study.")]
Scale = Annotated[str, typer.Option(help="Tabular scale.")]
Seeds = Annotated[int | None, typer.Option(min=2, help="Seeds per cell, over the scale's.")]
Out = Annotated[Path, typer.Option(help="Record to write.")]


def register(app: typer.Typer, jobs: typer.Typer) -> None:
    """Add the commands to the main application and to its jobs."""
    app.add_typer(estimators_app, name="estimators", rich_help_panel="Audit a paper")
    jobs.add_typer(jobs_app, name="tabular")


@jobs_app.command()
def block(study: Study, scale: Scale, out: Out) -> None:
    """Train and evaluate one block of seeds of one cell, named by the path of its record."""
    from turnscale.tabular.runs import train_block
    from turnscale.track.records import write_record
    from turnscale.workdir import only_writer

    plan = resolve_tabular(study, scale, seeds=TabularPlan.seeds_until(out), root=ROOT)
    with only_writer(out) as made:
        if not made:
            write_record(out, train_block(plan, plan.run_at(out)))


@jobs_app.command()
def estimators(study: Study, scale: Scale, out: Out) -> None:
    """Measure every gradient estimator of the study."""
    from turnscale.tabular.runs import audit_estimators
    from turnscale.track.records import write_record

    write_record(out, audit_estimators(resolve_tabular(study, scale, root=ROOT)))


@jobs_app.command()
def collect(
    study: Study,
    scale: Scale,
    seeds: Seeds = None,
    partial: Annotated[bool, typer.Option(help="Use the finished runs and count the others.")] = False,
) -> None:
    """Gather the finished runs into tidy tables."""
    from turnscale.tabular.runs import collect as gather

    gather(resolve_tabular(study, scale, seeds=seeds, root=ROOT), partial=partial)


@jobs_app.command()
def results(study: Study, scale: Scale, seeds: Seeds = None) -> None:
    """Estimates, comparisons and verdicts from the collected tables."""
    from turnscale.tabular.results import write_results

    write_results(resolve_tabular(study, scale, seeds=seeds, root=ROOT))


@jobs_app.command()
def table(name: Annotated[str, typer.Argument(help="Table.")], study: Study, scale: Scale) -> None:
    """Render one table as CSV, Markdown and LaTeX."""
    from turnscale.tabular.report import render_table

    for path in render_table(resolve_tabular(study, scale, root=ROOT), name, ROOT / "paper_tables" / scale):
        print(path)


@jobs_app.command()
def figure(name: Annotated[str, typer.Argument(help="Figure.")], study: Study, scale: Scale) -> None:
    """Render one figure as PDF and PNG, beside the table it shows."""
    from turnscale.tabular.figures import render_figure

    for path in render_figure(resolve_tabular(study, scale, root=ROOT), name, ROOT / "figures" / scale):
        print(path)


@estimators_app.command("audit")
def audit_command(
    study: Annotated[str, typer.Option(help="Tabular study whose estimators are audited.")] = "grouping",
    turns: Annotated[list[int] | None, typer.Option(min=1, max=6, help="Turns T; repeat it.")] = None,
    tokens: Annotated[int, typer.Option(min=1, max=2, help="Tokens per turn.")] = 1,
    group_size: Annotated[int, typer.Option(min=2, help="Rollouts per group, or per fork of a tree.")] = 16,
    batches: Annotated[int, typer.Option(min=40, help="Monte-Carlo batches per estimator.")] = 2000,
    kl: Annotated[
        float, typer.Option(min=1e-4, help="Nats off the policy where ratios are compared.")
    ] = 0.05,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
) -> None:
    """Bias, variance, signal to noise and direction of each credit and ratio, against the exact gradient.

    turnscale estimators audit --turns 3 --turns 5 --tokens 2
    """
    import pandas as pd

    from turnscale.files import write_csv
    from turnscale.seeding import fix_threads
    from turnscale.tabular.estimators import audit
    from turnscale.tabular.plan import load_tabular_study

    if out is not None and out.suffix != ".csv":
        raise ConfigError(f"is '{out}'.", key="--out", remedy="name a .csv file.")
    fix_threads(1)
    found_study = load_tabular_study(study, ROOT)
    wanted = found_study.estimators
    found = pd.DataFrame(
        audit(
            credits_of(found_study, ROOT),
            wanted.ratios,
            turns=turns or wanted.turns,
            tokens=[tokens],
            group_sizes=[group_size],
            off_policy_kl=kl,
            batches=batches,
        )
    )
    shown = ("cosine", "scale", "relative_bias", "relative_variance", "snr_per_100_calls", "dead_token_share")
    plain = Console()
    console = plain if plain.is_terminal else Console(width=170)
    for count, part in found.groupby("turns", sort=True):
        heading = f"T = {count}, {tokens} token(s) per turn, groups of {group_size}, {batches} batches"
        grid = Table("credit", "ratio", *(name.replace("_", " ") for name in shown), "calls", title=heading)
        for column in grid.columns[2:]:
            column.justify = "right"
        for (credit, ratio), rows in part.groupby(["credit", "ratio"], sort=False):
            by_metric = {row["metric"]: row for row in rows.to_dict("records")}
            cells = [interval_text(name, by_metric[name]) for name in shown]
            label = wanted.credits[str(credit)].label or str(credit)
            grid.add_row(label, str(ratio), *cells, str(rows["calls"].iloc[0]))
        console.print(grid)
    console.print(
        "Intervals: 95 % jackknife. cosine: mean estimate with the exact gradient; scale: its length "
        "along it (1 if unbiased); bias and variance relative to the gradient's length; no clip, no whitening, exact "
        "critics. Credits divided by a standard deviation, anchors and trees aim elsewhere: read the cosine.",
        highlight=False,
    )
    if out is not None:
        write_csv(found, out)
        console.print(str(out), highlight=False)


def interval_text(name: str, row: Mapping[Any, Any]) -> str:
    """A statistic with its interval; both ends where a bound may have cut it off."""
    if name in ("cosine", "relative_bias"):
        return f"{row['value']:.3f} [{row['lo']:.2f}, {row['hi']:.2f}]"
    return f"{row['value']:.3f} ± {(row['hi'] - row['lo']) / 2:.3f}"


def show_plan(plan: TabularPlan, console: Console) -> None:
    """What a tabular study at a scale consists of and what is done."""
    title = f"{plan.study.study} at scale {plan.scale.scale}: {plan.scale.description}"
    grid = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("cell", "method", "task", "hash", "seeds", "done"):
        grid.add_column(name, overflow="fold")
    for run in plan.runs:
        done = (plan.root / run.path).exists()
        grid.add_row(run.cell, run.method, run.benchmark, run.hash, run.block, "yes" if done else "no")
    done = (plan.root / plan.estimators_path).exists()
    grid.add_row("estimators", "", "", plan.estimators_hash, "", "yes" if done else "no")
    console.print(grid)
    console.print("Each job takes seconds of one core.")


def reproduce(plan: TabularPlan, cores: str, console: Console) -> int:
    """Run the workflow of a tabular study. Returns Snakemake's exit status; 130 and 143 if it was stopped."""
    from turnscale.progress import stoppable, tell_complaints

    settings = [f"study={plan.study.study}", f"scale={plan.scale.scale}", f"seeds={plan.seeds}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = ["snakemake", "--cores", cores, "--config", *settings]
    started = time.time()
    with stoppable(command, plan.root, console, env={**os.environ, "PATH": path}) as running:
        pass
    if running.stopped:
        return 128 + running.stopped
    if running.process.returncode:
        tell_complaints(plan.root / "logs" / plan.scale.scale, started, console)
    return running.process.returncode
