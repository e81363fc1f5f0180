"""Records: small JSON files, written last, that say a job is done and where its numbers are.

A record in ``results/`` and the same record in the tracking store are equal, so either rebuilds the other.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnscale.errors import CheckpointError, DataError, TrackingError, reason_of
from turnscale.files import read_json, sealed, sha256, unsealed, write_json
from turnscale.study import Plan
from turnscale.track.environment import code_revision, gpus_in_use, source_hash
from turnscale.track.read import Store, StoredJob, stored_id
from turnscale.track.retry import insist
from turnscale.track.run import RECORD, open_log, upload, upload_json
from turnscale.track.store import connect, database_problems

RUN_KINDS = ("train", "tabular", "estimators")
"""Kinds of the runs that a plan lists; starting checkpoints, critics and panels serve several studies."""

RESTORE = "'turnscale runs restore' takes it from the tracking store"


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with a checksum of its content, whole or not at all. Raises StorageError."""
    write_json(sealed(record), path)


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, without the checksum that `write_record` added.

    Raises:
        DataError: missing, not a JSON object, or not what was written.
    """
    try:
        return unsealed(read_json(path, f"{RESTORE}, or remove it and run the workflow again."))
    except ValueError as error:
        raise DataError(
            f"is no record as it was written ({error}).",
            file=path,
            remedy=f"{RESTORE}, or remove it and run the workflow again.",
        ) from None


def read_with_files(path: Path) -> dict[str, Any]:
    """The record of a base or critic, whose files beside it were compared with its checksums.

    Raises:
        DataError: as `read_record`.
        CheckpointError: a file is missing or not what was recorded.
    """
    record = read_record(path)
    for name in _damaged(path.parent, record):
        raise CheckpointError(
            "is missing or not what its record says (its SHA-256 differs).",
            file=path.parent / name,
            remedy=f"{RESTORE}.",
        )
    return record


def _damaged(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Names of the record's files that are not in the folder as they were recorded."""
    return [
        name
        for name, checksum in record["artifacts"].items()
        if not (folder / name).is_file() or sha256(folder / name) != checksum
    ]


def panels_key(scale: str, spec: Mapping[str, Any], digest: str) -> str:
    """Key of frozen task panels in the store."""
    return f"{scale}/panels/{spec['family']['name']}-{digest}"


def base_key(scale: str, spec: Mapping[str, Any], digest: str) -> str:
    """Key of a starting checkpoint in the store."""
    return f"{scale}/base/{spec['family']['name']}/{spec['model']['name']}-{digest}"


def critic_key(scale: str, spec: Mapping[str, Any], digest: str, seed: int) -> str:
    """Key of a warmed-up critic in the store."""
    base = spec["base"]
    return f"{scale}/critic/{base['family']['name']}/{base['model']['name']}-{digest}/seed-{seed}"


def publish(
    kind: str,
    key: str,
    scale: str,
    spec: Mapping[str, Any],
    record: Mapping[str, Any],
    folder: Path,
    root: Path,
) -> dict[str, Any]:
    """Put finished panels, a base or a critic into the store: record, numbers as metrics, and files.

    Args:
        kind: ``panels``, ``base`` or ``critic``.
        key: its name in the store.
        scale: the scale.
        spec: its specification.
        record: what the job measured.
        folder: its files, all of which are uploaded under their relative names; or its one file.
        root: the project folder.

    Returns:
        The record with ``run_id`` and checksums, to be written into ``folder``.

    Raises:
        TrackingError: the store did not take it.
    """
    with open_log(_head(kind, key, scale, root), spec, key, {}, root) as log:
        log.metrics(0, dict(_numbers(record)))
        log.artifact(folder)
        return log.finish(record)


def _head(kind: str, key: str, scale: str, root: Path) -> dict[str, Any]:
    return {
        "kind": kind,
        "key": key,
        "scale": scale,
        "code_revision": code_revision(root),
        "source_hash": source_hash(),
    }


@contextmanager
def noting_failure(kind: str, key: str, scale: str, spec: Mapping[str, Any], root: Path) -> Iterator[None]:
    """Leave a base or critic whose making fails in the store as FAILED, with its reason.

    One that another machine finished meanwhile stays as it is. The first error is raised again in any case.
    """
    try:
        yield
    except Exception as error:
        try:
            if Store(root, patient=True).find(key) is None:
                with open_log(_head(kind, key, scale, root), spec, key, {}, root):
                    raise error
        except TrackingError as second:
            if second is not error:
                print(f"{second} The reason of the failure is not in the store.", file=sys.stderr)
        raise error


@contextmanager
def evaluating(run_record: Mapping[str, Any], digest: str, root: Path) -> Iterator[None]:
    """Note in the training's run why its evaluation failed, under which excluded runs are counted."""
    try:
        yield
    except Exception as error:
        name, reason = f"turnscale.{evaluation_tag(digest)}", reason_of(error)
        try:
            client, experiment = connect(root, patient=True)
            run_id = stored_id(client, experiment, str(run_record["run_id"]))
            insist(lambda: client.set_tag(run_id, name, reason), "set a tag")
        except TrackingError as second:  # the first error matters more
            print(f"{second} The reason of the failure is not in the store.", file=sys.stderr)
        raise


def evaluation_tag(digest: str) -> str:
    """Name of the tag that says why an evaluation failed."""
    return f"evaluation_{digest}"


def _numbers(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in record.items():
        name = prefix + re.sub(r"[^A-Za-z0-9_]", "_", str(key))
        if isinstance(value, Mapping):
            found += _numbers(value, f"{name}_")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((name, float(value)))
    return found


def publish_evaluation(
    run_record: Mapping[str, Any],
    digest: str,
    outcomes: Path,
    summary: Mapping[str, float],
    lost: Mapping[str, int],
    root: Path,
) -> dict[str, Any]:
    """Put an evaluation into the run of its training.

    Args:
        run_record: the training's record.
        digest: hash of the evaluation's specification.
        outcomes: the outcomes table.
        summary: metric name -> value, logged as metrics of the run.
        lost: reason -> attempts that the environment broke.
        root: the project folder.

    Returns:
        The evaluation's record.

    Raises:
        TrackingError: the store did not take it.
    """
    from mlflow.entities import Metric

    client, experiment = connect(root, patient=True)
    run_id = stored_id(client, experiment, str(run_record["run_id"]))
    folder = evaluation_folder(digest)
    hashes = upload(client, run_id, outcomes, folder)
    name = f"{folder}/{outcomes.name}"
    keys = ("key", "study", "scale", "family", "model", "cell", "method", "seed", "spec_hash", "run_id")
    record = {
        **{key: run_record[key] for key in keys},
        "kind": "evaluation",
        "evaluation_hash": digest,
        "outcomes": name,
        "sha256": hashes[name],
        "summary": dict(summary),
        "lost": dict(sorted(lost.items())),
        "code_revision": code_revision(root),
        "gpus": [str(gpu["uuid"]) for gpu in gpus_in_use()],
    }
    start = int(insist(lambda: client.get_run(run_id), "look up the run").info.start_time)
    rows = [Metric(key, float(value), start, 0) for key, value in summary.items()]
    insist(lambda: client.log_batch(run_id, metrics=rows), "log the evaluation")
    upload_json(client, run_id, record, f"{folder}/{RECORD}")
    return record


def evaluation_folder(digest: str) -> str:
    """Artifact folder of an evaluation."""
    return f"evaluation/{digest}"


@dataclass
class Restored:
    """Counts of what `restore` wrote, kept and could not find."""

    written: int = 0
    kept: int = 0
    absent: int = 0


def restore(plan: Plan) -> Restored:
    """Rebuild the plan's records, and the files of its bases and critics, from the tracking store alone.

    What is there already and sound is left as it is; damaged records and files are replaced.

    Raises:
        TrackingError: the store cannot be read, or an artifact differs from what was logged.
    """
    store = Store(plan.root)
    jobs = store.jobs(plan.scale.scale)
    done = Restored()
    for path, job in _stored(plan, jobs):
        _restore_one(plan.root / path, store, job, done, files=True)
    keys = {(run.family, run.model, run.cell, run.seed): run.key for run in plan.runs()}
    for cell in plan.cells:
        for seed in cell.seeds:
            job = jobs.get(keys[cell.family, cell.model, cell.cell, seed])
            _restore_one(plan.root / plan.run_path(cell, seed), store, job, done)
            name = f"{evaluation_folder(cell.evaluation.hash)}/{RECORD}"
            evaluated = job if job is not None and store.has(job, name) else None
            path = plan.root / plan.evaluation_path(cell, seed)
            _restore_one(path, store, evaluated, done, name=name)
    return done


def _stored(plan: Plan, jobs: Mapping[str, StoredJob]) -> list[tuple[Path, StoredJob | None]]:
    """Record paths of the plan's bases and critics with their jobs in the store, each once."""
    found: dict[Path, StoredJob | None] = {}
    for cell in plan.cells:
        found[plan.base_path(cell)] = jobs.get(base_key(plan.scale.scale, cell.base.value, cell.base.hash))
        if cell.critic is not None:
            for seed in cell.seeds:
                key = critic_key(plan.scale.scale, cell.critic.value, cell.critic.hash, seed)
                found[plan.critic_path(cell, seed)] = jobs.get(key)
    return list(found.items())


def _restore_one(
    path: Path,
    store: Store,
    job: StoredJob | None,
    done: Restored,
    *,
    name: str = RECORD,
    files: bool = False,
) -> None:
    if _sound(path, files):
        done.kept += 1
    elif job is None or not job.complete:
        done.absent += 1
    else:
        record = store.record(job, name)
        if files:
            store.copy_artifacts(job.run_id, record["artifacts"], path.parent)
        write_record(path, record)
        if name == RECORD:  # as old as the run: an evaluation made after it is still newer
            os.utime(path, (job.ended, job.ended))
        done.written += 1


def _sound(path: Path, files: bool) -> bool:
    """Whether a record is there as it was written, with the files beside it if it has ``files``."""
    if not path.exists():
        return False
    try:
        (read_with_files if files else read_record)(path)
    except (DataError, CheckpointError):
        return False
    return True


def verify(plan: Plan) -> list[str]:
    """What differs between the records of a plan and the store, one sentence each; empty if nothing.

    A damaged record, and damage in the store's own database, are differences.

    Raises:
        TrackingError: the store cannot be read.
    """

    def records(store: Store, jobs: Mapping[str, StoredJob]) -> Iterator[str]:
        for cell in plan.cells:
            for seed in cell.seeds:
                path = plan.root / plan.run_path(cell, seed)
                if path.exists():
                    yield from _verify_run(path, plan.root / plan.evaluation_path(cell, seed), store, jobs)

    known = {run.key for run in plan.runs()}
    return store_problems(plan.root, plan.scale.scale, plan.study.study, known, records)


def store_problems(
    root: Path,
    scale: str,
    study: str,
    known: Collection[str],
    records: Callable[[Store, Mapping[str, StoredJob]], Iterable[str]],
) -> list[str]:
    """Damage of the store's database, then what ``records`` finds, then what the store has besides a plan.

    Args:
        root: the project folder.
        scale, study: of the plan.
        known: keys of its runs.
        records: given the store and its jobs of the scale by run id, says where records differ, one sentence each.

    Raises:
        TrackingError: the store cannot be read.
    """
    store = Store(root)
    every = store.all_jobs(scale)
    found = records(store, {job.run_id: job for job in every})
    return [*database_problems(root), *found, *unlike_plan(every, study, known)]


def unlike_plan(every: Sequence[StoredJob], study: str, known: Collection[str]) -> list[str]:
    """What the store has besides one complete run for each key of a plan, one sentence each.

    Args:
        every: the jobs of a scale, superseded ones too.
        study: the plan's study.
        known: keys of its runs.
    """
    jobs = {job.key: job for job in every if not job.superseded}
    problems = []
    for job in every:
        mine = job.kind in RUN_KINDS and job.tags.get("study") == study
        if job.superseded:
            problems.append(f"{job.key}: run {job.run_id} is superseded by {job.tags['superseded']}.")
        elif mine and job.key not in known:
            problems.append(f"{job.key}: in the store, but not of the plan as it is configured now.")
        elif not job.complete:
            reason = job.tags.get("error") or job.tags.get("reason") or "no reason given"
            problems.append(f"{job.key}: {job.status} after attempt {job.attempt} ({reason}).")
        elif mine and jobs[job.key].run_id != job.run_id:
            problems.append(f"{job.key}: two runs, {jobs[job.key].run_id} and {job.run_id}.")
    return problems


def _verify_run(path: Path, evaluation: Path, store: Store, jobs: Mapping[str, StoredJob]) -> list[str]:
    checks, problems = {}, []
    if evaluation.exists():
        try:
            evaluated = read_record(evaluation)
            checks[str(evaluated["outcomes"])] = str(evaluated["sha256"])
        except DataError as error:
            problems.append(str(error))
    return verify_record(path, store, jobs, checks) + problems


def verify_record(
    path: Path, store: Store, jobs: Mapping[str, StoredJob], more: Mapping[str, str] | None = None
) -> list[str]:
    """What differs between a record and its run in the store, one sentence each.

    Args:
        path: the record.
        store: the store.
        jobs: its runs by id.
        more: artifacts with their checksums, besides those that the record names.
    """
    try:
        record = read_record(path)
    except DataError as error:
        return [str(error)]
    job = jobs.get(str(record.get("run_id")))
    if job is None:
        return [f"{path}: names run {record.get('run_id')}, which the store does not have."]
    problems = []
    for name, checksum in {**record.get("artifacts", {}), **(more or {})}.items():
        try:
            with store.artifact(job.run_id, name, checksum):
                pass
        except TrackingError as error:
            problems.append(str(error))
    return problems
