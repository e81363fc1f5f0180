"""An MLflow server over SQLite on loopback, for as long as a test needs one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 120


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, database: str | None = None, workers: int = 1) -> Iterator[str]:
    """Address of a server whose artifacts and, unless given, database are in ``folder``; stopped at the block's end.

    Raises:
        RuntimeError: it did not come up; the message holds the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(workers), "--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment["MLFLOW_DISABLE_TELEMETRY"] = "true"
    environment["MLFLOW_BACKEND_STORE_URI"] = database or f"sqlite:///{folder / 'mlflow.db'}"
    environment.pop("MLFLOW_TRACKING_URI", None)
    log = folder / "server.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(server, f"{address}/health", log)
        yield address
    finally:
        stop_session(server)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the MLflow server did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


def stop_session(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a process that leads a session of its own, and everything in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
