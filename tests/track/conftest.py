"""The made-up project, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnscale.study import Plan, resolve
from turnscale.track.store import init_tracking

from .made import make_project


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up project; not to be changed."""
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``mlflow`` with an empty store, since making one takes seconds; to be used with `place_store`."""
    root = tmp_path_factory.mktemp("empty")
    init_tracking(root)
    return root / "mlflow"


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Plan:
    """A copy of the made-up project, at another place: the store's artifacts are found there too."""
    shutil.copytree(made, tmp_path / "copy")
    return resolve("mpo", "tiny", root=tmp_path / "copy")
