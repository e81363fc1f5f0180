"""An MLflow server on loopback, started, killed and started again by a campaign."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path


class Server:
    """A tracking server with a SQLite file and an artifact folder behind it.

    Args:
        folder: receives ``server.db``, ``artifacts/`` and ``server.log``.
        environment: of the server's processes.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = folder / "server.db"
        self._environment = {
            **environment,
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{self.database}",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """What ``MLFLOW_TRACKING_URI`` is to be."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it answers some seconds later."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def answers(self) -> bool:
        """Whether it answers now."""
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, seconds: float = 300) -> None:
        """Wait until it answers.

        Raises:
            TimeoutError: it never does.
        """
        deadline = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server does not answer; see {self.folder / 'server.log'}")
            time.sleep(0.2)

    def stop(self) -> None:
        """SIGKILL the server's process group, which is its own."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
