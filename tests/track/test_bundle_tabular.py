"""Bundles of a study of tabular policies, and of any study into a server and into PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.servers import mlflow_server
from turnscale.tabular import runs
from turnscale.tabular.plan import TabularPlan, resolve_tabular
from turnscale.tabular.results import write_results
from turnscale.track.bundle_export import export
from turnscale.track.bundle_import import import_bundle
from turnscale.track.bundle_select import select
from turnscale.track.read import Store
from turnscale.track.records import write_record

from .made import PROJECT, place_store
from .postgres import missing, postgres_server
from .test_records import files

VARIABLE = "MLFLOW_TRACKING_URI"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> TabularPlan:
    """Every run of the smallest tabular study, in the project's own store."""
    root = tmp_path_factory.mktemp("tabular")
    shutil.copytree(PROJECT / "configs", root / "configs")
    path = root / "configs/studies/grouping.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["turns"] = [2]
    study["training"]["iterations"] = 3
    study["estimators"] |= {"turns": [2], "tokens": [2], "group_sizes": [4]}
    study["estimators"]["credits"] = {k: study["estimators"]["credits"][k] for k in ("rloo", "tree")}
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    path = root / "configs/scales/grouping5.yaml"
    scale = yaml.safe_load(path.read_text(encoding="utf-8")) | {"block": 3, "estimator_batches": 40}
    path.write_text(yaml.safe_dump(scale), encoding="utf-8")
    place_store(empty_store, root)
    plan = resolve_tabular("grouping", "grouping5", root=root)
    for run in plan.runs:
        write_record(root / run.path, runs.train_block(plan, run))
    write_record(root / plan.estimators_path, runs.audit_estimators(plan))
    return plan


@pytest.fixture(scope="module")
def archive(source: TabularPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "grouping.tar.gz"
    done = export(select("grouping", "grouping5", root=source.root), path, source.root)
    assert done.absent == () and done.runs == len(source.runs) + 1
    return path


def tables(plan: TabularPlan) -> dict[str, bytes]:
    """What is collected after the records were rebuilt from the store."""
    runs.restore(plan)
    runs.collect(plan)
    write_results(plan)
    return files(plan.root / plan.tables_dir)


@pytest.fixture(scope="module")
def made_tables(source: TabularPlan) -> dict[str, bytes]:
    return tables(source)


def arrives(archive: Path, root: Path, count: int) -> TabularPlan:
    """Import twice into a folder without any file; the second time changes nothing."""
    first, second = import_bundle(archive, root), import_bundle(archive, root)
    assert (first.written, first.completed, first.kept) == (count, 0, 0)
    assert first.files > 5, "the study comes with its configuration"
    assert (second.written, second.completed, second.kept, second.files) == (0, 0, count, 0)
    plan = resolve_tabular("grouping", "grouping5", root=root)
    assert runs.restore(plan) == (count, 0, 0)
    assert runs.verify(plan) == []
    return plan


def test_a_tabular_study_travels_and_its_tables_are_equal_to_the_byte(
    source: TabularPlan,
    archive: Path,
    made_tables: dict[str, bytes],
    empty_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    place_store(empty_store, tmp_path)
    theirs = arrives(archive, tmp_path, len(source.runs) + 1)
    assert tables(theirs) == made_tables


def test_records_of_a_tabular_study_that_differ_from_the_store_are_told(
    source: TabularPlan, tmp_path: Path
) -> None:
    assert runs.verify(source) == []
    root = tmp_path / "copy"
    shutil.copytree(source.root, root)
    plan = resolve_tabular("grouping", "grouping5", root=root)
    job = Store(root).jobs("grouping5")[plan.runs[0].key]
    damaged = root / "mlflow" / "artifacts" / job.run_id / "artifacts" / runs.SEEDS
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (root / plan.runs[1].path).write_text("{", encoding="utf-8")
    first, second = runs.verify(plan)
    assert "SHA-256 differs" in first and str(plan.runs[1].path) in second


@pytest.fixture(params=["server", "postgresql", "server on postgresql"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An empty folder whose runs go to a store of another kind, on loopback."""
    monkeypatch.delenv(VARIABLE, raising=False)
    root = tmp_path / "project"
    root.mkdir()
    if request.param == "server":
        with mlflow_server(tmp_path / "server") as address:
            monkeypatch.setenv(VARIABLE, address)
            yield root
        return
    if missing():
        pytest.skip(f"SKIPPED, NOT TESTED: {missing()}")
    monkeypatch.chdir(root)
    with postgres_server() as database:
        if request.param == "postgresql":
            monkeypatch.setenv(VARIABLE, database)
            yield root
            return
        with mlflow_server(tmp_path / "server", database) as address:
            monkeypatch.setenv(VARIABLE, address)
            yield root


@pytest.mark.slow
def test_a_study_travels_into_a_store_of_another_kind_and_back(
    source: TabularPlan, archive: Path, made_tables: dict[str, bytes], elsewhere: Path, tmp_path: Path
) -> None:
    theirs = arrives(archive, elsewhere, len(source.runs) + 1)
    assert tables(theirs) == made_tables
    export(select("grouping", "grouping5", root=elsewhere), tmp_path / "back.tar.gz", elsewhere)
    assert (tmp_path / "back.tar.gz").read_bytes() == archive.read_bytes()
