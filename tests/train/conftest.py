from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.setting import Setting, make_setting
from turnscale.track.store import init_tracking


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A base and panels shared by all training tests."""
    return make_setting(tmp_path_factory.mktemp("setting"))


@pytest.fixture(scope="session")
def search(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """The search family with the base of the smoke scale."""
    return make_setting(tmp_path_factory.mktemp("search"), "search")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder of its own with an initialised tracking store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    init_tracking(tmp_path)
    return tmp_path
