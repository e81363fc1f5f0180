"""Sixteen processes at once, on SQLite, on PostgreSQL and on a server before it; `make test-tracking` runs these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import mlflow_server
from turnscale.track.store import init_tracking

from .load import Work, assert_whole, run_of, together
from .postgres import missing, postgres_server
from .test_load import no_trouble

WRITERS = 16
STEPS = 60
pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql", "server"])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """A store of each kind, on loopback."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if request.param == "sqlite":
        init_tracking(tmp_path)
        yield Work(tmp_path, "", steps=STEPS)
        return
    if missing():
        pytest.skip(f"SKIPPED, NOT TESTED: {missing()}")
    with postgres_server() as database:
        if request.param == "postgresql":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
            monkeypatch.chdir(tmp_path)
            init_tracking(tmp_path)
            yield Work(tmp_path, database, steps=STEPS)
            return
        with mlflow_server(tmp_path / "server", database, workers=2) as address:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
            init_tracking(tmp_path)
            yield Work(tmp_path, address, steps=STEPS)


def test_sixteen_writers_lose_nothing(work: Work) -> None:
    done = together(WRITERS, work)
    print(f"slowest step {max(found.slowest for found in done):.1f} s")
    no_trouble(list(done))
    assert_whole(work, {run_of(index, 0).key for index in range(WRITERS)}, STEPS)


def test_one_key_opened_by_eight_at_once_is_one_run(work: Work) -> None:
    shared = Work(work.root, work.uri, steps=3, keys=10, shared=True)
    done = together(8, shared)
    no_trouble(list(done))
    assert {found.run_ids for found in done} == {done[0].run_ids}
    assert_whole(shared, {run_of(0, key).key for key in range(10)}, 3)
