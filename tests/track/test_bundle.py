"""A study's runs travel from store to store as one archive: all of them, unchanged, or none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turnscale.errors import ConfigError, DataError, TrackingError
from turnscale.study import Plan, resolve
from turnscale.track import bundle_import
from turnscale.track.bundle_check import OWN_TAGS, check
from turnscale.track.bundle_export import Exported, export
from turnscale.track.bundle_import import import_bundle
from turnscale.track.bundle_select import select
from turnscale.track.claim import IMPORTED, ORIGIN
from turnscale.track.collect import collect
from turnscale.track.read import Store
from turnscale.track.records import publish_evaluation, read_record, restore, verify
from turnscale.track.run import open_run
from turnscale.track.store import connect

from .made import place_store
from .test_records import files


@pytest.fixture(scope="module")
def source(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The made-up project with a failed run whose reason names a folder, and metrics that are not finite."""
    root = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(made, root)
    plan = resolve("mpo", "tiny", seeds=3, root=root)
    failed = next(run for run in plan.runs() if run.cell == "mpo" and run.seed == 2)
    with (
        pytest.raises(RuntimeError),
        open_run(failed, failed.spec.value, {"note": "ünï, 'quoted'"}, root) as log,
    ):
        for step in range(1200):
            log.metrics(step, {"loss": step / 7, "grad_norm": [np.nan, np.inf, -np.inf, 1e-300][step % 4]})
        raise RuntimeError(f"no file {root.resolve()}/x, nor {Path.home()}/y")
    return plan


@pytest.fixture(scope="module")
def archive(source: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    path = tmp_path_factory.mktemp("archive") / "mpo.tar.gz"
    done = export(select("mpo", "tiny", seeds=3, root=source.root), path, source.root, partial=True)
    return path, done


@pytest.fixture
def fresh(source: Plan, tmp_path: Path) -> Plan:
    """A project with the same configuration and no store."""
    shutil.copytree(source.root / "configs", tmp_path / "clone" / "configs")
    return resolve("mpo", "tiny", seeds=3, root=tmp_path / "clone")


@pytest.fixture
def clone(fresh: Plan, empty_store: Path) -> Plan:
    """The same with an empty store."""
    place_store(empty_store, fresh.root)
    return fresh


def tables(plan: Plan, name: str) -> dict[str, bytes]:
    """What is collected after the records were rebuilt from the store."""
    restore(plan)
    collect(plan, plan.root / name, partial=True)
    return files(plan.root / name)


def histories(root: Path) -> dict[str, object]:
    """Key -> everything the store tells of the run, but where it is and how it came there."""
    store = Store(root)
    own = [name.removeprefix("turnscale.") for name in OWN_TAGS]
    found: dict[str, object] = {}
    for job in store.all_jobs("tiny"):
        run = store.details(job)
        tags = {name: value for name, value in job.tags.items() if name not in own}
        tags["error"] = ""  # its folders are shortened
        metrics = {name: repr(store.history(job, name)) for name in run.data.metrics}
        head = (job.run_id, job.status, run.info.start_time, run.info.end_time, run.info.run_name)
        found[job.key] = (head, run.data.params, tags, metrics)
    return found


def test_every_run_arrives_as_it_was_and_tables_are_equal_to_the_byte(
    source: Plan, archive: tuple[Path, Exported], fresh: Plan
) -> None:
    path, exported = archive
    assert exported.runs == 9
    assert len(exported.absent) == 2, "the critic and the run of grpo's third seed were never made"
    done = import_bundle(path, fresh.root)
    assert (done.written, done.completed, done.kept, done.files) == (9, 0, 0, 0)
    assert histories(fresh.root) == histories(source.root)
    assert tables(fresh, "tables") == tables(source, "tables")
    assert {problem.split(": ")[0] for problem in verify(fresh)} == {
        problem.split(": ")[0] for problem in verify(source)
    }
    for cell in fresh.cells[:1]:
        assert files(fresh.root / fresh.base_path(cell).parent / "checkpoint") == files(
            source.root / source.base_path(cell).parent / "checkpoint"
        )


def test_a_second_import_changes_nothing(archive: tuple[Path, Exported], clone: Plan) -> None:
    path, _ = archive
    import_bundle(path, clone.root)
    before = histories(clone.root)
    done = import_bundle(path, clone.root)
    assert (done.written, done.completed, done.kept) == (0, 0, 9)
    assert histories(clone.root) == before


def test_import_where_it_was_made_changes_nothing(source: Plan, archive: tuple[Path, Exported]) -> None:
    done = import_bundle(archive[0], source.root)
    assert (done.written, done.completed, done.kept) == (0, 0, 9)


def test_equal_runs_give_equal_archives_in_whatever_store_they_are(
    source: Plan, archive: tuple[Path, Exported], clone: Plan, tmp_path: Path
) -> None:
    path, _ = archive
    import_bundle(path, clone.root)
    for name, root in (("again", source.root), ("theirs", clone.root)):
        export(select("mpo", "tiny", seeds=3, root=root), tmp_path / name, root, partial=True)
        assert (tmp_path / name).read_bytes() == path.read_bytes()


def test_files_that_are_missing_are_written_and_differing_ones_refuse_everything(
    archive: tuple[Path, Exported], clone: Plan
) -> None:
    path, _ = archive
    gone = clone.root / "configs/methods/mpo.yaml"
    text = gone.read_bytes()
    gone.write_bytes(text + b"# mine\n")
    with pytest.raises(DataError, match=r"configs/methods/mpo\.yaml"):
        import_bundle(path, clone.root)
    assert Store(clone.root).all_jobs("tiny") == []
    assert import_bundle(path, clone.root, runs_only=True).written == 9
    assert gone.read_bytes() == text + b"# mine\n"
    gone.unlink()
    assert import_bundle(path, clone.root).files == 1
    assert gone.read_bytes() == text


def test_another_run_under_the_key_refuses_everything(archive: tuple[Path, Exported], clone: Plan) -> None:
    run = clone.runs()[-1]
    with open_run(run, run.spec.value, {}, clone.root) as log:
        log.finish()
    with pytest.raises(DataError, match="already holds another run") as caught:
        import_bundle(archive[0], clone.root)
    assert log.run_id in str(caught.value)
    assert "nothing was imported" in str(caught.value)
    assert [job.run_id for job in Store(clone.root).all_jobs("tiny")] == [log.run_id]


def test_changed_content_under_the_same_id_is_refused(
    source: Plan, archive: tuple[Path, Exported], tmp_path: Path
) -> None:
    shutil.copytree(source.root, tmp_path / "changed")
    client, _ = connect(tmp_path / "changed")
    job = next(job for job in Store(tmp_path / "changed").all_jobs("tiny") if job.complete)
    client.set_tag(job.run_id, "turnscale.note", "changed")
    with pytest.raises(DataError, match="with another content"):
        import_bundle(archive[0], tmp_path / "changed")


def test_a_run_made_anew_is_no_longer_the_imported_one(archive: tuple[Path, Exported], clone: Plan) -> None:
    import_bundle(archive[0], clone.root)
    run = next(run for run in clone.runs() if run.cell == "mpo" and run.seed == 2)
    with open_run(run, run.spec.value, {"note": "ünï, 'quoted'"}, clone.root) as log:
        log.finish()
    job = Store(clone.root).jobs("tiny")[run.key]
    assert job.run_id == job.stored_id == log.run_id
    assert "origin" not in job.tags
    with pytest.raises(DataError, match="already holds another run"):
        import_bundle(archive[0], clone.root)


def test_an_imported_run_can_be_evaluated_further(
    source: Plan, archive: tuple[Path, Exported], clone: Plan, tmp_path: Path
) -> None:
    import_bundle(archive[0], clone.root)
    restore(clone)
    cell = next(cell for cell in clone.cells if cell.cell == "mpo")
    record = read_record(clone.root / clone.run_path(cell, 0))
    assert record["run_id"] == read_record(source.root / source.run_path(cell, 0))["run_id"]
    (tmp_path / "outcomes.parquet").write_bytes(b"a table")
    evaluation = publish_evaluation(
        record, "abcdabcd", tmp_path / "outcomes.parquet", {"x": 1.0}, {}, clone.root
    )
    with Store(clone.root).artifact(record["run_id"], evaluation["outcomes"], evaluation["sha256"]) as path:
        assert path.read_bytes() == b"a table"


KILLED = """
import os, signal, sys
from pathlib import Path
from turnscale.track import bundle_import, retry
left = int(sys.argv[3])
def insist(action, what, pauses=None):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return retry.insist(action, what, pauses)
bundle_import.insist = insist
bundle_import.import_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize(
    "requests", [pytest.param(0, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 23]
)
def test_an_import_that_was_killed_is_completed(
    source: Plan, archive: tuple[Path, Exported], clone: Plan, requests: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(archive[0]), str(clone.root), str(requests)]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    partly = Store(clone.root).all_jobs("tiny")
    whole = [job for job in partly if job.imported]
    assert len(partly) == len(whole) + 1
    assert all(not job.complete for job in partly if job not in whole)
    counts = import_bundle(archive[0], clone.root)
    assert (counts.kept, counts.completed, counts.written) == (len(whole), 1, 9 - len(partly))
    assert histories(clone.root) == histories(source.root)
    assert tables(clone, "tables") == tables(source, "tables")


def test_a_damaged_archive_leaves_no_trace(
    archive: tuple[Path, Exported], fresh: Plan, tmp_path: Path
) -> None:
    before = files(fresh.root)
    text = archive[0].read_bytes()
    for number, damaged in enumerate((text[:-1], text[: len(text) // 2], text + b"x", b"", b"hello")):
        path = tmp_path / f"{number}.tar.gz"
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            import_bundle(path, fresh.root)
    with pytest.raises(DataError, match="no such file"):
        import_bundle(tmp_path / "absent", fresh.root)
    with pytest.raises(DataError, match="not the one you gave"):
        import_bundle(archive[0], fresh.root, digest="0" * 64)
    assert files(fresh.root) == before


def test_too_little_space_is_told_before_anything(
    archive: tuple[Path, Exported], fresh: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr(bundle_import.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(DataError, match="make room"):
        import_bundle(archive[0], fresh.root)
    assert not (fresh.root / "mlflow").exists()


def test_nothing_of_this_machine_travels(archive: tuple[Path, Exported], source: Plan) -> None:
    with archive[0].open("rb") as file:
        content = check(file, archive[0])
    (failed,) = (run for run in content.runs.values() if run.status == "FAILED")
    assert failed.tags["turnscale.error"] == "RuntimeError: no file x, nor ~/y"
    for run in content.runs.values():
        assert not any(tag.startswith("mlflow.") or tag in (ORIGIN, IMPORTED) for tag in run.tags)


@pytest.mark.parametrize("leak", ["secret", "folder"])
def test_secrets_and_folders_in_artifacts_are_refused(
    source: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: str
) -> None:
    root = tmp_path / "leaking"
    shutil.copytree(source.root, root)
    monkeypatch.setenv("SOME_TOKEN", "swordfish-is-the-password")
    job = next(job for job in Store(root).all_jobs("tiny") if job.kind == "base")
    text = f"see {root.resolve()}/data" if leak == "folder" else "swordfish-is-the-password"
    note = root / "mlflow/artifacts" / job.run_id / "artifacts/note.txt"
    note.write_bytes(bytes((1 << 20) - 9) + text.encode())  # across the pieces in which it is read
    target = tmp_path / "x.tar.gz"
    with pytest.raises(DataError, match=r"note\.txt: holds the (path|value)") as caught:
        export(select("mpo", "tiny", root=root), target, root)
    assert "swordfish" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [root]


def test_damaged_artifacts_are_not_published(source: Plan, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(source.root, root)
    record = read_record(root / source.run_path(source.cells[1], 0))
    (root / "mlflow/artifacts" / record["run_id"] / "artifacts/metrics.parquet").write_bytes(b"damaged")
    with pytest.raises(DataError, match="not what its record says"):
        export(select("mpo", "tiny", root=root), tmp_path / "x.tar.gz", root)
    assert sorted(tmp_path.iterdir()) == [root]


def test_cells_and_seeds_select(source: Plan, tmp_path: Path) -> None:
    selection = select("mpo", "tiny", seeds=1, cells=["grpo"], root=source.root)
    done = export(selection, tmp_path / "x.tar.gz", source.root)
    assert (done.runs, done.absent) == (2, ())
    assert "configs/methods/grpo.yaml" in selection.files
    assert "configs/claims/mpo.yaml" in selection.files
    with pytest.raises(ConfigError, match="no cell of the study"):
        select("mpo", "tiny", cells=["grop"], root=source.root)


def test_runs_that_have_not_ended_are_left_out_only_when_asked(source: Plan, tmp_path: Path) -> None:
    selection, path = select("mpo", "tiny", seeds=3, root=source.root), tmp_path / "x.tar.gz"
    with pytest.raises(DataError, match=r"^2 of the study's 11 jobs .*tiny/.*Remedy: .*--partial"):
        export(selection, path, source.root)
    assert list(tmp_path.iterdir()) == []
    assert len(export(selection, path, source.root, partial=True).absent) == 2


def test_an_archive_that_is_there_is_replaced_only_when_asked(source: Plan, tmp_path: Path) -> None:
    selection, path = select("mpo", "tiny", seeds=1, cells=["grpo"], root=source.root), tmp_path / "x.tar.gz"
    path.write_text("the only copy", encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.tar\.gz: is there already.*--force"):
        export(selection, path, source.root)
    assert path.read_text(encoding="utf-8") == "the only copy"
    with pytest.raises(DataError, match="is a folder"):
        export(selection, tmp_path, source.root, force=True)
    assert export(selection, path, source.root, force=True).runs == 2


def test_an_archive_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "x.tar.gz", "there is no such file"), (tmp_path, "is not a file")):
        with pytest.raises(DataError, match=f"{words}.*Remedy: give the path of an archive"):
            import_bundle(path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_export_and_nowhere_to_write_are_told(
    fresh: Plan, empty_store: Path, source: Plan, tmp_path: Path
) -> None:
    selection = select("mpo", "tiny", root=fresh.root)
    with pytest.raises(TrackingError, match="does not exist yet"):
        export(selection, tmp_path / "x.tar.gz", fresh.root)
    place_store(empty_store, fresh.root)
    with pytest.raises(DataError, match="no finished run"):
        export(selection, tmp_path / "x.tar.gz", fresh.root)
    with pytest.raises(DataError, match="is no folder"):
        export(selection, tmp_path / "absent" / "x.tar.gz", source.root)
