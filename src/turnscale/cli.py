"""``turnscale``: plan a study, add seeds, look at runs, inspect methods, audit a paper."""

from __future__ import annotations

import io
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from turnscale import jobs
from turnscale.config.load import config_path
from turnscale.config.references import few_attempts
from turnscale.errors import TurnscaleError, complaint
from turnscale.files import STORAGE, storage_error
from turnscale.study import Plan, resolve
from turnscale.tabular import commands as tabular
from turnscale.tabular.plan import is_tabular, resolve_tabular
from turnscale.track import bundle_commands
from turnscale.track.bundle_commands import verify_archive

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Reproduce and audit reinforcement-learning results for multi-turn LLM agents.

A [bold]study[/bold] (configs/studies) says which methods and settings a paper reports.
A [bold]scale[/bold] (configs/scales) says how big to run, and with how many seeds.

[bold]First steps[/bold]

  turnscale plan mpo --scale quick     what runs, how long, what it can detect

  make reproduce                       train, evaluate, tables and figures

  make ui                              look at the runs

  turnscale audit configs/claims/mpo.yaml     what a paper's numbers support

Products: paper_tables/ and figures/; tidy data and records in results/.""",
)
seeds_app = typer.Typer(no_args_is_help=True, help="Seeds of a scale.")
runs_app = typer.Typer(no_args_is_help=True, help="Runs in the tracking store.")

ROOT = Path()
TRAINING = {"torch", "transformers", "peft", "safetensors", "bm25s", "mlflow", "sqlalchemy", "snakemake"}
"""Packages of the extra ``train``: plans and audits do without them."""
out = Console(markup=False, emoji=False)  # what is printed is the user's text

StudyArgument = Annotated[str, typer.Argument(help="Study: a file name in configs/studies.")]
StudyOption = Annotated[str, typer.Option(help="Study: a file name in configs/studies.")]
ScaleOption = Annotated[str, typer.Option(help="Scale: a file name in configs/scales.")]
SeedsOption = Annotated[int | None, typer.Option(help="Seeds per cell, over the scale's.")]


@app.command(rich_help_panel="Reproduce")
def plan(
    study: StudyArgument = "mpo",
    scale: ScaleOption = "quick",
    seeds: SeedsOption = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores for the estimate of time.")] = os.cpu_count() or 1,
    sd: Annotated[float, typer.Option(help="Across-seed sd of a score to assume, in points.")] = 3.0,
    gap: Annotated[float | None, typer.Option(help="True difference to find, in points.")] = None,
) -> None:
    """Show what a study at a scale consists of, what is done, how long the rest takes and what it can detect."""
    from turnscale.stats.power import check_points

    sd = check_points(sd, "--sd") / 100
    gap = None if gap is None else check_points(gap, "--gap") / 100
    if is_tabular(study, ROOT):
        tabular.show_plan(resolve_tabular(study, scale, seeds=seeds, root=ROOT), out)
        return
    from turnscale.workflow import unused

    resolved = resolve(study, scale, seeds=seeds, root=ROOT)
    _show_cells(resolved)
    for warning in (
        *few_attempts(resolved.study, resolved.scale),
        *unused(resolved, resolved.scale.runtime.pack),
    ):
        out.print(warning)
    _show_time(resolved, cores)
    _show_power(resolved, sd)
    _show_declared(resolved, sd, gap)


def _show_cells(resolved: Plan) -> None:
    from turnscale.planning import status

    title = f"{resolved.study.study} at scale {resolved.scale.scale}: {resolved.scale.description}"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("family", "model", "cell", "method"):
        table.add_column(name, overflow="fold")  # a narrow terminal gets more lines, never half a name
    table.add_column("hash", no_wrap=True)
    for name in ("seeds", "trained", "evaluated"):
        table.add_column(name, justify="right", no_wrap=True)
    progress = status(resolved)
    for row in progress:
        cell = row.cell
        table.add_row(
            cell.family,
            cell.model,
            cell.cell,
            cell.method_name,
            cell.train.hash,
            str(row.planned),
            str(row.trained),
            str(row.evaluated),
        )
    out.print(table)
    planned, done = sum(row.planned for row in progress), sum(row.evaluated for row in progress)
    out.print(f"{len(progress)} cells, {planned} runs: {done} done, {planned - done} missing.")


def _show_time(resolved: Plan, cores: int) -> None:
    from turnscale.planning import remaining_costs, wall_minutes

    costs = remaining_costs(resolved)
    if not costs:
        out.print("Nothing is left to train or evaluate.")
        return
    minutes = wall_minutes(resolved, costs, cores)
    core = sum(costs.values()) / 60
    out.print(
        f"{len(costs)} jobs are left: about {minutes:.0f} minutes on {cores} idle core{'s' * (cores > 1)} "
        f"({core:.0f} core-minutes by the scale's measured costs)."
    )


def _show_power(resolved: Plan, assumed: float) -> None:
    from turnscale.planning import comparisons, detectable

    pairs = comparisons(resolved)
    if not pairs:
        return
    sd, origin = _across_seed_sd(resolved, assumed)
    table = Table(
        *(
            Column(name, overflow="fold")
            for name in ("table", "comparison", "seeds", "smallest difference found")
        ),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"Across-seed sd {sd * 100:.1f} points ({origin})",
    )
    for name, cell, reference in pairs:
        a, b = (len(side.seeds) if side.trains else None for side in (cell, reference))
        least = detectable(a, b, sd)
        shown = "no test with one seed" if least is None else f"{least * 100:.1f} points"
        where = "" if len(resolved.scale.models) == 1 else f" ({cell.model})"
        table.add_row(name, f"{cell.cell} - {reference.cell}{where}", f"{a or '-'}, {b or '-'}", shown)
    out.print(table)
    out.print(
        "With 80 % power, two-sided 5 % t test over seeds, these tasks. A smaller true difference may well be missed."
    )


def _across_seed_sd(resolved: Plan, assumed: float) -> tuple[float, str]:
    from turnscale.planning import measured_sd

    measured = measured_sd(resolved)
    if measured is None:
        return assumed, "assumed; --sd"
    return measured[0], f"measured, {measured[1]} df"


def _show_declared(resolved: Plan, assumed: float, gap: float | None) -> None:
    from turnscale.declared_report import gap_words, outside, planned_looks

    declared = resolved.study.plan
    if declared is None:
        out.print("The study declares no plan of seeds and looks ('plan:'): fix the number of seeds now.")
    else:
        sign = "e needed" if declared.rule == "e_value" else "p needed"
        table = Table(
            "seeds per arm", sign, "core-hours until then", title=f"Declared plan: {declared.words}"
        )
        for look in planned_looks(resolved, declared):
            table.add_row(str(look.seeds), f"{look.needed:.2g}", f"{look.core_seconds / 3600:.1f}")
        out.print(table)
        out.print("It covers the first metric of each table against its reference.")
        out.print(f"Looks are put on record in {resolved.looks_path()}.")
        reason = outside(declared, len(resolved.seeds))
        if reason is not None:
            out.print(f"This scale: {reason}.")
    if gap is not None:
        for line in gap_words(declared, gap, _across_seed_sd(resolved, assumed)[0], len(resolved.seeds)):
            out.print(line, highlight=False)


@app.command(rich_help_panel="Reproduce")
def reproduce(
    study: StudyArgument = "mpo",
    scale: ScaleOption = "quick",
    seeds: SeedsOption = None,
    cores: Annotated[str, typer.Option(help="Cores to use, or 'all'.")] = "all",
    pack: Annotated[
        int | None,
        typer.Option(help="Seeds of a cell that share a process, over the scale's 'runtime.pack'."),
    ] = None,
) -> None:
    """Train, evaluate, estimate and render whatever of a study at a scale is not there yet ('make reproduce').

    Run it again after a kill, a failure, or with more seeds: finished work is kept.
    """
    from turnscale.workdir import alone, release_stale_lock
    from turnscale.workflow import check_options

    if find_spec("snakemake") is None:
        raise ModuleNotFoundError("reproduce runs Snakemake", name="snakemake")
    if cores != "all" and not (cores.isdecimal() and int(cores) > 0):
        raise TurnscaleError(f"is '{cores}'.", key="--cores", remedy="give a number of at least 1, or 'all'.")
    with alone(ROOT):
        if is_tabular(study, ROOT):
            if pack is not None:
                check_options({"pack": pack}, tabular=True)
            release_stale_lock(ROOT)
            raise typer.Exit(
                tabular.reproduce(resolve_tabular(study, scale, seeds=seeds, root=ROOT), cores, out)
            )
        _reproduce(resolve(study, scale, seeds=seeds, root=ROOT), cores, pack)


def _reproduce(resolved: Plan, cores: str, pack: int | None) -> None:
    from turnscale.progress import reproduce as run
    from turnscale.workdir import release_stale_lock
    from turnscale.workflow import pack_size, summary_after, summary_before, unused

    size = pack_size(resolved, pack)
    if release_stale_lock(ROOT):
        out.print("The lock of a killed workflow was removed; finished work is kept.")
    count = (os.cpu_count() or 1) if cores == "all" else int(cores)
    for warning in unused(resolved, size):
        out.print(warning)
    out.print(summary_before(resolved, count), highlight=False)
    # The jobs are this environment's programs, whether or not it is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    failed = run(resolved, cores, [], out, size)
    if failed:
        raise typer.Exit(failed)
    out.print(summary_after(resolved), highlight=False)


@seeds_app.command("add")
def seeds_add(
    study: StudyArgument,
    scale: ScaleOption = "quick",
    to: Annotated[int, typer.Option("--to", help="Seeds per cell afterwards.")] = ...,  # type: ignore[assignment]
) -> None:
    """Raise the number of seeds of a scale, in its file; finished runs stay and only new seeds will run."""
    from turnscale.planning import raise_seeds, remaining_costs

    path = config_path("scales", scale, ROOT)
    if is_tabular(study, ROOT):
        resolve_tabular(study, scale, seeds=to, root=ROOT)
        before = raise_seeds(path, to)
        plan = resolve_tabular(study, scale, root=ROOT)
        missing = sum(not (plan.root / run.path).exists() for run in plan.runs)
        command = f"make reproduce STUDY={study} SCALE={scale}"
        out.print(
            f"{path}: seeds {before} -> {to}. {missing} blocks of seeds are now missing; '{command}' trains them."
        )
        return
    resolve(study, scale, seeds=to, root=ROOT)
    before = raise_seeds(path, to)
    resolved = resolve(study, scale, root=ROOT)
    new = sum(name.name == "run.json" for name in remaining_costs(resolved))
    out.print(
        f"{path}: seeds {before} -> {to}. {new} runs are now missing; 'make reproduce SCALE={scale}' trains them."
    )


@runs_app.command("list")
def runs_list(scale: ScaleOption = "quick", study: StudyOption = "mpo") -> None:
    """List the runs of a study in the tracking store."""
    from turnscale.track.read import Store

    for folder, name in (("studies", study), ("scales", scale)):
        config_path(folder, name, ROOT)  # a name, though perhaps of a study that is only in the store
    table = Table("key", "status", "attempt", "run", "reason")
    for column in table.columns:
        column.overflow = "fold"  # keys and ids are to be copied, so never shortened
    for job in Store(ROOT).all_jobs(scale):
        if job.tags.get("study", study) == study:
            state = "superseded" if job.superseded else job.status
            table.add_row(job.key, state, str(job.attempt), job.run_id, job.tags.get("reason", ""))
    if table.row_count:
        out.print(table)
    else:
        out.print(f"The tracking store has no runs of {study} at scale {scale}.")


@runs_app.command("restore")
def runs_restore(study: StudyOption = "mpo", scale: ScaleOption = "quick", seeds: SeedsOption = None) -> None:
    """Rebuild lost records under results/ from the tracking store; then 'make tables' needs no training."""
    from turnscale.track.records import restore

    if is_tabular(study, ROOT):
        from turnscale.tabular.runs import restore as restore_blocks

        written, kept, absent = restore_blocks(resolve_tabular(study, scale, seeds=seeds, root=ROOT))
        out.print(f"{written} records rebuilt, {kept} were there, {absent} are not in the store.")
        return
    done = restore(resolve(study, scale, seeds=seeds, root=ROOT))
    out.print(f"{done.written} records rebuilt, {done.kept} were there, {done.absent} are not in the store.")


@runs_app.command("verify")
def runs_verify(
    archive: Annotated[
        Path | None,
        typer.Argument(help="An archive of 'turnscale runs export'; the tracking store without it."),
    ] = None,
    study: StudyOption = "mpo",
    scale: ScaleOption = "quick",
    seeds: SeedsOption = None,
    digest: Annotated[str | None, typer.Option(help="Digest published for the archive.")] = None,
) -> None:
    """Compare records with the tracking store, checksums too; exit code 1 if anything differs.

    With an archive: check every member of it against its manifest; nothing is written.
    """
    if archive is not None:
        verify_archive(archive, digest)
        return
    if digest is not None:
        raise TurnscaleError(
            "is of an archive, and none is named.",
            key="--digest",
            remedy="name it: turnscale runs verify ARCHIVE.",
        )
    if is_tabular(study, ROOT):
        from turnscale.tabular.runs import verify as verify_blocks

        problems = verify_blocks(resolve_tabular(study, scale, seeds=seeds, root=ROOT))
    else:
        from turnscale.track.records import verify

        problems = verify(resolve(study, scale, seeds=seeds, root=ROOT))
    for problem in problems:
        out.print(problem, markup=False)
    out.print(f"{len(problems)} differences." if problems else "Records and tracking store agree.")
    if problems:
        raise typer.Exit(1)


@app.command(rich_help_panel="Reproduce")
def ui(port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000) -> None:
    """Open the MLflow interface, on this machine only."""
    from turnscale.track.address import check_port
    from turnscale.track.store import connect, tracking_uri

    check_port(port)
    connect(ROOT)
    out.print(f"http://127.0.0.1:{port} (Ctrl-C stops it)")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    # The address goes through the environment: it may hold a password, and arguments can be seen by others.
    os.environ["MLFLOW_BACKEND_STORE_URI"] = tracking_uri(ROOT)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    os.execv(sys.executable, command)


def _register() -> None:
    from turnscale import method_commands
    from turnscale.audit import commands

    app.add_typer(seeds_app, name="seeds", rich_help_panel="Reproduce")
    bundle_commands.register(runs_app)
    app.add_typer(runs_app, name="runs", rich_help_panel="Reproduce")
    app.add_typer(jobs.app, name="job", hidden=True)
    tabular.register(app, jobs.app)
    method_commands.register(app)
    commands.register(app)


_register()


def main() -> Any:
    """Entry point: a problem of the user's is one line on stderr and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name need not be text that can be printed
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name not in TRAINING:
            raise
        print(
            f"turnscale: this needs the package '{error.name}', which is not installed. Remedy: in the project "
            "folder, 'make setup' or pip install -e '.[train]'.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except TurnscaleError as error:
        print(complaint(error), file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        told = storage_error(
            error, doing="read or written", wanted="it readable, and what is written writable,"
        )
        print(complaint(told), file=sys.stderr)
        raise SystemExit(2) from None
