"""The audit's commands: ``turnscale audit``, ``import``, ``grim``, ``power``, ``looks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnscale.errors import DataError

PANEL = "Audit a paper"

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the .md, .tex, .csv, .json, .png and .pdf files.")
]


def register(app: typer.Typer) -> None:
    """Add the audit's commands to the main application."""
    app.command(name="audit", rich_help_panel=PANEL)(audit)
    app.command(name="import", rich_help_panel=PANEL)(import_outcomes)
    app.command(name="grim", rich_help_panel=PANEL)(grim)
    app.command(name="power", rich_help_panel=PANEL)(power)
    app.command(name="looks", rich_help_panel=PANEL)(looks)


def audit(
    files: Annotated[
        list[Path], typer.Argument(help="One claims ledger (.yaml), or outcome tables (.csv, .parquet).")
    ],
    out: Out = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the .png and .pdf files, where it is another than --out.")
    ] = None,
    comparisons: Annotated[
        Path | None, typer.Option(help="Comparisons table of local re-runs, laid beside a ledger's claims.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="For tables: pass_at_1, pass_hat_3, …; repeat it.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="For tables: compare every arm with this one.")
    ] = None,
    untrained: Annotated[
        list[str] | None, typer.Option(help="For tables: a base checkpoint, held fixed.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="For tables: the checkpoint, chosen beforehand.")
    ] = None,
    intersect: Annotated[
        bool, typer.Option("--intersect", help="Keep the tasks all arms have; count the rest.")
    ] = False,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="Allow unequal numbers of attempts per task.")
    ] = False,
) -> None:
    """What published claims, or measured outcomes, can support: checkpoints, tasks, or the method itself.

    turnscale audit configs/claims/mpo.yaml --out audit/
    turnscale audit outcomes.parquet --reference PPO
    """
    from turnscale.audit import run

    plain = Console()
    console = plain if plain.is_terminal else Console(width=140)
    if run.is_ledger(files):
        run.refuse_options(
            "a claims ledger", "outcome tables", metric=metric, reference=reference, untrained=untrained,
            checkpoint=checkpoint, intersect=intersect, ragged=ragged,
        )  # fmt: skip
        written = run.audit_ledger_file(files[0], console, out, comparisons, figures)
    else:
        written = run.audit_tables(
            files, console, out, comparisons, metrics=metric or [], reference=reference,
            untrained=untrained or [], checkpoint=checkpoint, intersect=intersect, ragged=ragged,
            figures=figures,
        )  # fmt: skip
    for path in written:
        typer.echo(path)


def import_outcomes(
    source: Annotated[str, typer.Argument(help="inspect, lm-eval, verl, trl, mlflow or wandb.")],
    file: Annotated[str, typer.Argument(help="The log or dump; for mlflow, the tracking URI.")],
    out: Annotated[Path, typer.Option("--out", help="Table to write, .csv or .parquet.")],
    arm: Annotated[str | None, typer.Option(help="Name of the arm this file belongs to.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Training seed this file belongs to.")] = None,
    field: Annotated[
        str | None, typer.Option(help="Scorer, metric, reward or artifact that holds the outcome.")
    ] = None,
    filter_name: Annotated[str | None, typer.Option("--filter", help="lm-eval: the filter to use.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Call a graded score of at least this a success.")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="mlflow: name of the experiment.")] = None,
    arm_key: Annotated[
        str, typer.Option(help="mlflow, wandb: parameter or column that names the arm.")
    ] = "method",
    seed_key: Annotated[str, typer.Option(help="mlflow, wandb: parameter or column with the seed.")] = "seed",
    percent: Annotated[bool, typer.Option("--percent", help="wandb: scores are percentages.")] = False,
) -> None:
    """Turn another tool's log into an outcomes table that `turnscale audit` reads.

    turnscale import lm-eval samples_gsm8k_2026-01-01.jsonl --arm MPO --seed 0 --out mpo-0.csv
    """
    from turnscale.audit import run

    imported = run.import_file(
        source, file, arm=arm, seed=seed, field=field, filter_name=filter_name, threshold=threshold,
        experiment=experiment, arm_key=arm_key, seed_key=seed_key, percent=percent,
    )  # fmt: skip
    run.write_table(imported.table, out)
    for note in imported.notes:
        typer.echo(note)
    typer.echo(f"{len(imported.table)} rows in {out}")


def grim(
    value: Annotated[str, typer.Argument(help="A published percentage with all its digits: 69.90.")],
    n: Annotated[str, typer.Option("--n", help="Number of tasks, or a range to search: 20-205.")],
    rollouts: Annotated[int, typer.Option(min=1, max=10_000, help="Attempts per task.")] = 1,
    k: Annotated[int, typer.Option(min=1, help="k of pass@k or pass^k.")] = 1,
    hat: Annotated[bool, typer.Option("--hat", help="pass^k instead of pass@k.")] = False,
) -> None:
    """Can a published percentage be a whole number of successes?

    turnscale grim 69.90 --n 103
    """
    from turnscale.audit import run

    typer.echo(run.grim_words(value, n, rollouts, k, "pass_hat" if hat else "pass_at"))


def power(
    gap: Annotated[float, typer.Option(help="True difference, in points.")],
    sd: Annotated[float, typer.Option(help="Across-seed standard deviation, in points.")],
    seeds: Annotated[int | None, typer.Option(min=2, help="Seeds per arm you could afford.")] = None,
    power: Annotated[float, typer.Option("--power", help="Probability of finding it.")] = 0.8,
) -> None:
    """Seeds per arm for a gap, and what a given number of seeds can see (two-sided 5 % t test).

    turnscale power --sd 2 --gap 4.33
    """
    from turnscale.audit import run

    for line in run.power_words(gap, sd, seeds, power):
        typer.echo(line)


def looks(
    log: Annotated[Path, typer.Argument(help="The look log.")],
    head: Annotated[
        str | None, typer.Option(help="Hash that the last line must have, as noted elsewhere.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger whose declared plan the looks should follow.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Study whose declared plan the looks should follow.")
    ] = None,
) -> None:
    """Verify the log of looks at growing seeds, and say what it allows under the declared plan.

    turnscale looks looks/quick/mpo.jsonl --study mpo
    """
    from turnscale.audit.looks_report import looks_words

    if ledger is not None and study is not None:
        raise DataError("is given beside --ledger.", key="--study", remedy="name one plan.")
    for line in looks_words(log, head, ledger, study):
        typer.echo(line)
