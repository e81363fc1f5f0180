"""``turnscale runs export`` and ``import``: a study's runs as one archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

ROOT = Path()
out = Console()

Archive = Annotated[Path, typer.Argument(help="The archive, e.g. mpo-quick.tar.gz.")]
Digest = Annotated[str | None, typer.Option(help="Digest published for the archive; another one is refused.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export_runs)
    app.command("import")(import_runs)


def export_runs(
    archive: Archive,
    study: Annotated[str, typer.Option(help="Study: a file name in configs/studies.")] = "mpo",
    scale: Annotated[str, typer.Option(help="Scale: a file name in configs/scales.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Seeds per cell, over the scale's.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Only this cell; may be repeated.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take the runs that have ended and count the others.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an archive that is there.")] = False,
) -> None:
    """Write a study's runs, and the files its tables are rebuilt from, into one checksummed archive."""
    from turnscale.track.bundle_export import export
    from turnscale.track.bundle_select import select

    selection = select(study, scale, seeds=seeds, cells=cell or (), root=ROOT)
    with bars("reading runs", "writing and verifying") as (on_run, on_bytes):
        done = export(
            selection, archive, ROOT, partial=partial, force=force, on_run=on_run, on_bytes=on_bytes
        )
    size = archive.stat().st_size
    out.print(
        f"{archive}: {done.runs} runs, {len(done.manifest.members)} files, {size} bytes.", highlight=False
    )
    if done.absent:
        out.print(f"It is partial: {len(done.absent)} jobs have not ended or are not in the store, e.g.:")
        out.print(f"  {done.absent[0]}", markup=False, highlight=False)
    out.print("Publish this digest with it; it vouches for every byte:")
    out.print(done.manifest.digest, highlight=False)


def import_runs(
    archive: Archive,
    digest: Digest = None,
    runs_only: Annotated[
        bool,
        typer.Option("--runs-only", help="Leave configuration files alone, even those that are missing."),
    ] = False,
) -> None:
    """Put an archive's runs into the tracking store, after verifying all of it; then 'make tables' needs no training.

    Run it again after an interruption: what is there is kept.
    """
    from turnscale.track.bundle_import import import_bundle

    with bars("verifying and importing") as (on_bytes,):
        done = import_bundle(archive, ROOT, digest=digest, runs_only=runs_only, on_bytes=on_bytes)
    out.print(
        f"{done.written} runs imported, {done.completed} completed, {done.kept} were there already; "
        f"{done.files} configuration files written.",
        highlight=False,
    )


def verify_archive(archive: Path, digest: str | None) -> None:
    """Check an archive and say what it holds."""
    from turnscale.track.bundle_import import opened, verified

    with bars("verifying") as (on_bytes,), opened(archive) as file:
        content, _ = verified(file, archive, digest, on_bytes)
    manifest = content.manifest
    out.print(
        f"{archive} is sound: {len(content.runs)} runs of {manifest.study} at scale {manifest.scale}, "
        f"{len(manifest.members)} files, digest {manifest.digest}.",
        highlight=False,
        soft_wrap=True,
    )


@contextmanager
def bars(*texts: str) -> Iterator[list[Callable[[int, int], None]]]:
    """Progress bars on a terminal, nothing elsewhere; each gives a function to be told done and total."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=out, disable=not out.is_terminal) as progress:
        tasks = [progress.add_task(text, total=None) for text in texts]
        yield [partial(_tell, progress, task) for task in tasks]


def _tell(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)
