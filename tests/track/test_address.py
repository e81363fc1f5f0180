"""Addresses at which no tracking store can be, and stores that come up late."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.chaos.server import Server
from tests.servers import free_port
from turnscale.errors import TrackingError
from turnscale.track import address, retry
from turnscale.track.address import check_address
from turnscale.track.read import Store
from turnscale.track.store import connect, init_tracking

from .postgres import missing, postgres_server

VARIABLE = "MLFLOW_TRACKING_URI"


def test_a_database_in_no_folder_is_refused_and_no_folder_made(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="folder does not exist"):
        check_address(f"sqlite:///{tmp_path}/no/such/x.db", make=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" * 40])
def test_a_file_that_is_no_database_is_told_at_once_and_kept(
    tmp_path: Path, content: bytes, make: bool
) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(TrackingError, match="is not an SQLite database") as caught:
        check_address(f"sqlite:///{path}", make=make)
    assert time.monotonic() - start < 5
    assert caught.value.file == str(path) and caught.value.key == VARIABLE and caught.value.remedy
    assert path.read_bytes() == content


WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('CREATE TABLE x (y)')"


def test_a_look_at_the_database_leaves_this_process_its_locks(tmp_path: Path) -> None:
    """Whoever opens and closes a database's file beside SQLite drops SQLite's locks: the kernel keeps one set."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as mine:
        mine.execute(f"CREATE TABLE {address.TABLE} (name TEXT)")
        mine.execute("BEGIN EXCLUSIVE")
        check_address(f"sqlite:///{path}")
        other = subprocess.run([sys.executable, "-c", WRITE, str(path)], capture_output=True, text=True)
        assert "database is locked" in other.stderr


def test_a_database_that_cannot_be_opened_ends_the_command_at_once() -> None:
    """A folder in which nobody, not even root, can make a file; MLflow alone tries for two minutes."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from turnscale.cli import main; main()", "job", "tracking"],
        env={**os.environ, VARIABLE: "sqlite:////proc/x.db"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert time.monotonic() - start < 60, "MLflow alone tries for two minutes"
    assert done.returncode == 2
    assert "/proc/x.db: MLFLOW_TRACKING_URI: cannot be opened (unable to open database file)" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_a_locked_database_is_waited_for(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    shutil.copy(empty_store / "mlflow.db", path)
    monkeypatch.setenv(VARIABLE, f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = DELETE")  # under which a writer keeps readers out, too
        other.execute("BEGIN EXCLUSIVE")
        release = threading.Timer(3.0, lambda: other.execute("ROLLBACK"))
        release.start()
        client, experiment = connect(tmp_path)
        release.join()
    assert client.get_experiment(experiment).name == "turnscale"


def test_reading_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent, empty, other = (tmp_path / f"{name}.db" for name in ("absent", "empty", "other"))
    empty.touch()
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE books (title TEXT)")
    before = other.read_bytes()
    for path in (absent, empty, other):
        monkeypatch.setenv(VARIABLE, f"sqlite:///{path}")
        with pytest.raises(TrackingError, match=r"no tracking store there.*turnscale job tracking") as caught:
            Store(tmp_path)
        assert caught.value.file == str(path)
    assert not absent.exists() and empty.read_bytes() == b"" and other.read_bytes() == before


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nonsense", "is not the address of a database or server"),
        ("tests", "names a folder"),
        ("file:///tmp", "names a folder"),
        ("sqlite://", "three slashes"),
        ("sqlite:///:memory:", "names no database file"),
        ("sqlite://x.db", "three slashes"),
        ("mysql://user@host/runs", "pip install mysqlclient"),
        ("mssql+nosuchdriver://user@host/runs", "pip install nosuchdriver"),
    ],
)
def test_what_is_no_address_says_what_to_give(uri: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    if "mysqlclient" in words:
        monkeypatch.setattr(address, "find_spec", lambda name: None)
    with pytest.raises(TrackingError, match=words) as caught:
        check_address(uri)
    assert caught.value.key == VARIABLE and caught.value.remedy


class OneExperiment(BaseHTTPRequestHandler):
    """As much of MLflow's interface as connecting needs."""

    code, text = 200, json.dumps({"experiment": {"experiment_id": "7", "name": "turnscale"}})

    def do_GET(self) -> None:
        body = self.text.encode()
        self.send_response(self.code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, "You are not authenticated.", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (403, "Permission denied", "allow this user to edit"),
        (403, "Invalid Host header - possible DNS rebinding attack detected", "--allowed-hosts"),
    ],
)
def test_a_server_that_asks_for_a_password_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: str, words: str
) -> None:
    class Refusing(OneExperiment):
        code, text = status, body

    port = free_port()
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}")
    for patient in (False, True):
        with coming_up(port, 0.0, Refusing):
            start = time.monotonic()
            with pytest.raises(TrackingError, match=words) as caught:
                connect(tmp_path, patient)
            assert time.monotonic() - start < 10
            assert caught.value.reason == "access denied"


@contextmanager
def coming_up(
    port: int, seconds: float, handler: type[BaseHTTPRequestHandler] = OneExperiment
) -> Iterator[None]:
    """A server on loopback that begins to listen after some seconds."""
    servers: list[HTTPServer] = []

    def serve() -> None:
        servers.append(HTTPServer(("127.0.0.1", port), handler))
        servers[0].serve_forever()

    timer = threading.Timer(seconds, serve)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        for server in servers:
            server.shutdown()
            server.server_close()
        timer.join()


def test_jobs_wait_for_a_server_that_comes_up_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}")
    monkeypatch.setattr(address, "PAUSES", (0.1,))
    monkeypatch.setattr(retry, "PAUSES", (0.5,) * 20)
    with coming_up(port, 2.0):
        with pytest.raises(TrackingError, match="nothing answers"):
            connect(tmp_path)
        assert connect(tmp_path, patient=True)[1] == "7"


class Even:
    """Pauses of just their mean."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@pytest.mark.slow
def test_jobs_wait_for_a_tracking_server_that_is_started_again_15_seconds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    server = Server(tmp_path / "server", environment)
    monkeypatch.setattr(retry, "_spread", Even())
    try:
        server.start()
        server.wait()
        monkeypatch.setenv(VARIABLE, server.uri)
        init_tracking(tmp_path)
        server.stop()
        start = time.monotonic()
        with pytest.raises(TrackingError, match="nothing answers"):
            connect(tmp_path)
        assert time.monotonic() - start < 15
        threading.Timer(15.0, server.start).start()
        Store(tmp_path, patient=True).jobs("smoke")
        assert time.monotonic() - start > 15
    finally:
        server.stop()


@pytest.mark.slow
def test_a_database_server_that_refuses_is_told_at_once_and_reading_makes_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing():
        pytest.skip(f"SKIPPED, NOT TESTED: {missing()}")
    from sqlalchemy import create_engine, inspect

    with postgres_server() as uri:
        head, _, place = uri.partition("@")
        user = head.rpartition(":")[0]
        wrong = (
            (f"{user}:no-such-password@{place}", "password authentication failed"),
            (f"{head}@{place.rpartition('/')[0]}/absent", "does not exist"),
        )
        for address_, words in wrong:
            start = time.monotonic()
            with pytest.raises(
                TrackingError, match=f"{words}.*correct user, password and database"
            ) as caught:
                check_address(address_, pauses=(60.0,))
            assert time.monotonic() - start < 20
            assert "no-such-password" not in str(caught.value) and caught.value.reason == "access denied"
        monkeypatch.setenv(VARIABLE, uri)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(TrackingError, match="no tracking store there"):
            Store(tmp_path)
        assert inspect(create_engine(uri)).get_table_names() == []
        init_tracking(tmp_path)
        assert Store(tmp_path).all_jobs("smoke") == []
