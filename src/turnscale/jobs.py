"""The jobs of the workflow, one command each. Thin: read the inputs, call the stage, write the record last."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnscale.config.hashing import digest
from turnscale.errors import ConfigError, DataError, TurnscaleError
from turnscale.files import read_json, write_parquet
from turnscale.study import Run, Spec, load_scale, load_study, resolve
from turnscale.track.records import (
    base_key,
    critic_key,
    evaluating,
    noting_failure,
    panels_key,
    publish,
    publish_evaluation,
    read_record,
    write_record,
)
from turnscale.track.share import fetch, obtain, read_shared
from turnscale.workdir import only_writer

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(no_args_is_help=True, help="Jobs that the workflow runs; each can be run by hand.")

Out = Annotated[Path, typer.Option(help="Record to write.")]
OutDir = Annotated[Path, typer.Option(help="Folder to write into.")]
SpecFile = Annotated[Path, typer.Option(help="Specification under results/<scale>/specs.")]
BaseFile = Annotated[Path, typer.Option(help="Record of the starting checkpoint.")]
PanelsFile = Annotated[Path, typer.Option(help="Frozen task panels.")]
Study = Annotated[str, typer.Option(help="Study.")]
Scale = Annotated[str, typer.Option(help="Scale.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the run.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds per cell, over the scale's.")]
ROOT = Path()


@app.command()
def tracking(
    out: Annotated[Path | None, typer.Option(help="Record to write; none if left out.")] = None,
) -> None:
    """Create the tracking store, once, before anything writes to it."""
    from turnscale.track.store import init_tracking

    made = init_tracking(ROOT, patient=True)
    if out is None:
        print(f"The tracking store has the experiment '{made['experiment']}' ({made['backend']}).")
    else:
        write_record(out, made)


@app.command()
def panels(spec: SpecFile, scale: Scale, out: Out) -> None:
    """Freeze the task panels of a family and check that they are disjoint, or take them from the store."""
    from turnscale.envs.panels import load_panels, make_panels, split_sizes
    from turnscale.envs.registry import load_family

    found = read_spec(spec, "panels")
    key = panels_key(scale, found.value, found.hash)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "panels.json"
        if fetch(key, Path(scratch), ROOT) is None:
            family = load_family(found.value["family"], file=spec)
            frozen = make_panels(family, split_sizes(found.value["panels"], family.benchmarks))
            frozen.save(file)
            publish("panels", key, scale, found.value, {"hash": frozen.hash}, file, ROOT)
        load_panels(file).save(out)


@app.command()
def base(spec: SpecFile, panels: PanelsFile, scale: Scale, out: Out) -> None:
    """Make or check a starting checkpoint, or take it from the store."""
    from turnscale.envs.panels import load_panels
    from turnscale.train.base import make_base

    found = read_spec(spec, "base")
    with only_writer(out) as made:
        if made:
            return
        key = base_key(scale, found.value, found.hash)
        if obtain(key, out, ROOT):
            return
        _empty(out.parent)
        frozen = load_panels(panels)
        with noting_failure("base", key, scale, found.value, ROOT):
            record = make_base(found.value, out.parent, frozen)
        if not obtain(key, out, ROOT):  # one machine's is everyone's: the first to finish
            write_record(out, publish("base", key, scale, found.value, record, out.parent, ROOT))


@app.command()
def critic(
    spec: SpecFile,
    base: BaseFile,
    panels: PanelsFile,
    scale: Scale,
    seed: Seed,
    out: Out,
) -> None:
    """Warm a critic up on rollouts of the starting checkpoint, or take it from the store."""
    from turnscale.envs.panels import load_panels
    from turnscale.train.warmup import warm_critic

    found = read_spec(spec, "critic")
    with only_writer(out) as made:
        if made:
            return
        key = critic_key(scale, found.value, found.hash, seed)
        if obtain(key, out, ROOT):
            return
        _empty(out.parent)
        start, frozen = read_shared(base, ROOT), load_panels(panels)
        with noting_failure("critic", key, scale, found.value, ROOT):
            record = warm_critic(found.value, start, frozen, seed, out.parent)
        if not obtain(key, out, ROOT):
            write_record(out, publish("critic", key, scale, found.value, record, out.parent, ROOT))


@app.command()
def train(
    spec: SpecFile,
    study: Study,
    scale: Scale,
    family: Annotated[str, typer.Option(help="Task family.")],
    model: Annotated[str, typer.Option(help="Model.")],
    cell: Annotated[str, typer.Option(help="Cell of the study.")],
    seed: Seed,
    base: BaseFile,
    panels: PanelsFile,
    out: Out,
    critic: Annotated[Path | None, typer.Option(help="Record of the warmed-up critic.")] = None,
    pack: Annotated[
        Path | None, typer.Option(help="What a pack with this seed found; its record is taken if it has one.")
    ] = None,
) -> None:
    """Train one run, or go on from its newest checkpoint."""
    if pack is not None:
        packed = read_record(pack)["records"].get(str(seed))
        if packed is not None:
            write_record(out, packed)
            return
    from turnscale.envs.panels import load_panels
    from turnscale.train.loop import train_run

    found = read_spec(spec, "train")
    method = load_study(study, ROOT).cells[cell].method
    run = Run(study, scale, family, model, cell, method, seed, found)
    with only_writer(out) as made:
        if made:
            return
        record = train_run(
            run,
            read_shared(base, ROOT),
            load_panels(panels),
            None if critic is None else read_shared(critic, ROOT),
            ROOT / "checkpoints" / run.key,
            checkpoint_every=load_scale(scale, ROOT).runtime.checkpoint_every,
            root=ROOT,
        )
        write_record(out, record)


@app.command()
def train_pack(
    spec: SpecFile,
    study: Study,
    scale: Scale,
    family: Annotated[str, typer.Option(help="Task family.")],
    model: Annotated[str, typer.Option(help="Model.")],
    cell: Annotated[str, typer.Option(help="Cell of the study.")],
    seed: Annotated[list[int], typer.Option(min=0, help="Seed of a run; once for each.")],
    base: BaseFile,
    panels: PanelsFile,
    out: Out,
    critic: Annotated[
        list[Path] | None,
        typer.Option(help="Record of a warmed-up critic; once for each seed, in their order."),
    ] = None,
) -> None:
    """Train several seeds of one cell in one process, each with the result that it has alone.

    A seed that fails is reported in the record and costs the others nothing.
    """
    from turnscale.envs.panels import load_panels
    from turnscale.train.pack import Member, train_pack

    found = read_spec(spec, "train")
    method = load_study(study, ROOT).cells[cell].method
    runs = [Run(study, scale, family, model, cell, method, number, found) for number in seed]
    critics = [read_shared(path, ROOT) for path in critic] if critic else [None] * len(runs)
    if len(critics) != len(runs):
        raise ConfigError(
            f"got {len(runs)} seeds and {len(critics)} critics.",
            remedy="name a critic for each seed or none.",
        )
    runtime = load_scale(scale, ROOT).runtime
    with only_writer(out) as made:
        if made:
            return
        packed = train_pack(
            [
                Member(run, record, ROOT / "checkpoints" / run.key)
                for run, record in zip(runs, critics, strict=True)
            ],
            read_shared(base, ROOT),
            load_panels(panels),
            checkpoint_every=runtime.checkpoint_every,
            root=ROOT,
            stack=runtime.stack,
        )
        write_record(out, packed)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Option(help="Record of the training.")],
    spec: SpecFile,
    base: BaseFile,
    panels: PanelsFile,
    out: Out,
) -> None:
    """Evaluate a trained run on every test benchmark."""
    found = read_spec(spec, "evaluation")
    record = read_record(run)
    with only_writer(out) as made, tempfile.TemporaryDirectory() as scratch:
        if made:
            return
        with evaluating(record, found.hash, ROOT):
            outcomes, lost = evaluate_run(record, found, read_shared(base, ROOT), panels)
        summary = {
            f"test_{str(benchmark).replace('-', '_')}_pass_at_1": float(part["success"].mean())
            for benchmark, part in outcomes.groupby("benchmark")
        }
        table = Path(scratch) / "outcomes.parquet"
        write_parquet(outcomes, table)
        write_record(out, publish_evaluation(record, found.hash, table, summary, lost, ROOT))


def evaluate_run(
    record: dict[str, Any], evaluation: Spec, base_record: dict[str, Any], panels_file: Path
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Outcomes of a trained run, whose adapter is taken from the tracking store and checked.

    Args:
        record: the training's record.
        evaluation: an ``evaluation`` specification.
        base_record: record of the starting checkpoint.
        panels_file: the family's frozen panels.

    Returns:
        One row per benchmark, task and attempt, with the run's identity in each; and reason -> number of attempts
        that the environment broke, which count as unsolved.

    Raises:
        TrackingError: the run's artifacts are not there or differ from what was logged.
        CheckpointError: the base is not the one the run was trained on.
    """
    from turnscale.agent.adapter import attach, load_adapter
    from turnscale.agent.decode import make_decoder
    from turnscale.config.schema import Evaluation
    from turnscale.envs.panels import load_panels
    from turnscale.envs.registry import load_family
    from turnscale.evaluate import Sampler
    from turnscale.evaluate import evaluate as attempt_all
    from turnscale.seeding import fix_threads
    from turnscale.track.read import Store
    from turnscale.train.warmup import open_base

    store = Store(ROOT, patient=True)
    with store.artifact(record["run_id"], "config.json") as path:
        spec = json.loads(path.read_text(encoding="utf-8"))
    if digest(["train", spec]) != record["spec_hash"]:
        raise DataError(
            "the run's configuration in the store is not the one its record names.",
            key=record["key"],
            remedy="run the training again.",
        )
    fix_threads(int(spec["threads"]))
    settings = Evaluation.model_validate(evaluation.value)
    family = load_family(spec["base"]["family"])
    agent = attach(open_base(spec["base"], base_record, family), seed=0, value_heads=0)
    adapter = None
    if record["adapter"] is not None:
        adapter = "policy"
        names = {k: v for k, v in record["artifacts"].items() if k.startswith(f"{record['adapter']}/")}
        with tempfile.TemporaryDirectory() as scratch:
            store.copy_artifacts(record["run_id"], names, Path(scratch))
            load_adapter(agent, Path(scratch) / record["adapter"])
    sampler = Sampler(
        lambda: make_decoder(agent.model, adapter),
        agent.chat,
        family,
        settings.temperature,
        settings.batch,
        spec["method"]["sampling"]["evaluation_context"],
    )
    test = load_panels(panels_file, family).tasks
    label = f"{record['cell']} seed {record['seed']}"
    outcomes = attempt_all(sampler, test, settings.attempts, int(record["seed"]), label=label)
    identity = ("study", "scale", "family", "model", "cell", "method", "seed")
    for position, name in enumerate(identity):
        outcomes.insert(position, name, record[name])
    return outcomes.assign(run_id=record["run_id"]), dict(sampler.lost)


@app.command()
def gates(study: Study, scale: Scale, out: Out) -> None:
    """Check what must hold before any run trains: identities, live knobs, disjoint panels, a step at rate 0."""
    from dataclasses import asdict

    from turnscale.gates.study import study_gates

    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for result in study_gates(resolve(study, scale, root=ROOT), Path(scratch)):
            verdict = "ok  " if result.passed else "FAIL"
            print(f"{verdict} {result.name}: {result.difference:.3g} ({result.detail})", flush=True)
            results.append(result)
    failed = [result.name for result in results if not result.passed]
    if failed:
        raise DataError(
            f"{len(failed)} gates do not hold: {', '.join(failed)}.",
            file=ROOT / "configs" / "methods",
            remedy="correct the method, its estimator or the panels; training would waste the runs.",
        )
    write_record(out, {"study": study, "scale": scale, "gates": [asdict(result) for result in results]})


@app.command()
def collect(
    study: Study,
    scale: Scale,
    out_dir: OutDir,
    seeds: Seeds = None,
    partial: Annotated[bool, typer.Option(help="Use the finished runs and count the others.")] = False,
) -> None:
    """Gather the finished runs into tidy tables."""
    from turnscale.track.collect import collect as gather

    gather(resolve(study, scale, seeds=seeds, root=ROOT), out_dir, partial=partial)


@app.command()
def estimates(study: Study, scale: Scale, seeds: Seeds = None) -> None:
    """Estimates and comparisons from the collected tables."""
    from turnscale.estimates import write_estimates

    plan = resolve(study, scale, seeds=seeds, root=ROOT)
    added = write_estimates(plan, ROOT / plan.results() / study / "tables", log=ROOT / plan.looks_path())
    for entry in added:
        print(f"look: {entry.look.comparison}, {entry.look.counts} seeds")
    if added:
        print(f"{len(added)} looks added to {plan.looks_path()}, head {added[-1].hash}; commit that file.")


@app.command()
def diagnose(
    study: Study,
    scale: Scale,
    workers: Annotated[int, typer.Option(min=1, help="Processes to use at most.")] = 1,
) -> None:
    """Critic statistics, controls and simulated critics from the collected critic values.

    Runs that were diagnosed before, from the same values by the same code, are not diagnosed again.
    """
    from turnscale.diagnose import write_diagnosis
    from turnscale.track.pieces import row_groups

    folder = ROOT / "results" / scale / study
    groups = row_groups(
        folder / "collected" / "critic_values.parquet", folder / "tables" / "critic_values.parquet"
    )
    paths = write_diagnosis(
        load_study(study, ROOT), scale, folder / "tables", ROOT, groups=groups, workers=workers
    )
    for path in paths:
        print(path)


@app.command()
def tables(
    study: Study,
    scale: Scale,
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables of the study; all, if none is named.")
    ] = None,
) -> None:
    """Render paper tables as CSV, Markdown and LaTeX; one that cannot be made leaves the others as they come."""
    from turnscale.render.data import Tables
    from turnscale.render.tables import write_table

    source = Tables(load_study(study, ROOT), scale, ROOT / "results" / scale / study / "tables")
    _render(
        "table", bind(write_table, source), names or list(source.study.tables), ROOT / "paper_tables" / scale
    )


@app.command()
def figures(
    study: Study,
    scale: Scale,
    names: Annotated[
        list[str] | None, typer.Argument(help="Figures of the study; all, if none is named.")
    ] = None,
) -> None:
    """Render figures as PDF and PNG, beside the tables they show; one that cannot be made leaves the others."""
    from turnscale.render.data import Tables
    from turnscale.render.figures import write_figure

    source = Tables(load_study(study, ROOT), scale, ROOT / "results" / scale / study / "tables")
    _render(
        "figure", bind(write_figure, source), names or list(source.study.figures), ROOT / "figures" / scale
    )


def _render(kind: str, write: Callable[[str, Path], list[Path]], names: Sequence[str], folder: Path) -> None:
    """Write each product.

    Raises:
        DataError: some could not be made; each with its reason on stderr, the others are written.
    """
    failed: list[str] = []
    for name in names:
        try:
            for path in write(name, folder):
                print(path, flush=True)
        except TurnscaleError as error:
            print(f"turnscale: {kind} {name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
        except Exception as error:
            error.add_note(f"This was {kind} {name}.")
            raise
    if failed:
        raise DataError(
            f"{len(failed)} of {len(names)} {kind}s could not be made: {', '.join(failed)}.",
            remedy="see the reason given for each.",
        )


@app.command()
def unlock() -> None:
    """Remove the lock of a Snakemake that was killed, if none is at work in this folder."""
    from turnscale.workdir import release_stale_lock

    removed = release_stale_lock(ROOT)
    if removed:
        print("The lock of a killed workflow was removed; finished work is kept.")


def _empty(folder: Path) -> None:
    """Make way for a job that fills a folder of its own: nothing of an earlier try may be taken for its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def read_spec(path: Path, kind: str) -> Spec:
    """A specification file, checked against the hash in its name.

    Raises:
        DataError: missing or not JSON.
        ConfigError: it was edited, or is of another kind.
    """
    spec = Spec(kind, read_json(path, "remove it and run the workflow again."))
    try:
        name = f"{kind}-{spec.hash}.json"
    except ValueError:  # a NaN, say, which no specification has
        name = "no specification"
    if path.name != name:
        raise ConfigError(
            f"its content is that of '{name}'.",
            file=path,
            remedy="change configs/ instead of this file, remove it and run the workflow again.",
        )
    return spec
