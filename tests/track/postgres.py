"""A PostgreSQL server of one's own on loopback, for as long as a test needs one."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.servers import free_port


def programs() -> Path | None:
    """Folder of PostgreSQL's programs, Debian's versioned ones too; None where it is not installed."""
    found = shutil.which("initdb")
    if found is not None and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def missing() -> str:
    """What a test with PostgreSQL lacks here, "" if nothing."""
    if programs() is None:
        return "PostgreSQL is not installed ('make test-tracking' installs it, as root on Debian)"
    if find_spec("psycopg2") is None:
        return "psycopg2 is not installed: pip install -e '.[postgres]'"
    return ""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Address of an empty database; the server and its files are gone after the block."""
    place = programs()
    assert place is not None
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    password = secrets.token_hex(16)
    (folder / "password").write_text(password)
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PGPASSWORD": password}
    shutil.chown(folder / "password", user) if user else None

    def call(*command: str) -> None:
        done = subprocess.run(
            [str(place / command[0]), *command[1:]],
            user=user,
            cwd=folder,
            env=environment,
            stdout=(folder / "log.txt").open("ab"),
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.txt"))
            raise RuntimeError(f"{command[0]} failed:\n{logs}")

    data, log = folder / "data", folder / "server.txt"
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    try:
        call("initdb", "-D", str(data), "-U", "turnscale", "-A", "scram-sha-256", "--pwfile", "password")
        call("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-t", "120", "-o", options, "start")
        try:
            call("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "turnscale", "runs")
            yield f"postgresql://turnscale:{password}@127.0.0.1:{port}/runs"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "fast", "-w", "stop")
    finally:
        shutil.rmtree(folder)
