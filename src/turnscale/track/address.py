"""The address of a tracking store: which kinds there are, and whether anything answers there."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from turnscale.errors import TrackingError

PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
DRIVERS = {"postgresql": "psycopg2", "mysql": "mysqldb", "mssql": "pyodbc"}
"""The driver that SQLAlchemy takes where the address names none."""
MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql"}
"""Module of a driver, where it has another name."""
KINDS = "sqlite:///FILE, postgresql://..., mysql://..., mssql://..., http://... or https://..."
MAGIC = b"SQLite format 3\0"
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries: a server that is being started again is waited for, a wrong address soon reported."""
PATIENCE = 5.0
"""Seconds that one try may take."""


def check_address(uri: str, key: str = "MLFLOW_TRACKING_URI", pauses: Sequence[float] = PAUSES) -> None:
    """Refuse an address at which no tracking store can be; MLflow itself would try for minutes.

    Args:
        uri: the address.
        key: what the address is called in errors; the address itself may hold a password and is never named.
        pauses: seconds between tries to reach a server.

    Raises:
        TrackingError: an unknown kind, a missing driver, no host, or nothing that answers there.
    """
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise TrackingError("is not an address.", key=key, remedy=f"give {KINDS}.") from None
    kind, _, driver = parts.scheme.partition("+")
    if kind == "sqlite":
        _sqlite(Path(unquote(parts.path).removeprefix("/")), key)
        return
    if kind not in PORTS:
        if kind in ("", "file"):
            raise TrackingError(
                "names a folder, and MLflow no longer keeps runs in folders.",
                key=key,
                remedy=f"give {KINDS}; 'mlflow migrate-filestore' moves the runs of a folder into a database.",
            )
        raise TrackingError(f"is of the unknown kind '{kind}'.", key=key, remedy=f"give {KINDS}.")
    driver = driver or DRIVERS.get(kind, "")
    if driver and find_spec(MODULES.get(driver, driver)) is None:
        raise TrackingError(
            f"names a {kind} database, and the package '{driver}' is not installed.",
            key=key,
            remedy="install it in the project's environment, or use an 'mlflow server' in front of the database.",
        )
    if host:
        _reach(host, port or PORTS[kind], key, pauses)
    elif kind not in DRIVERS:  # a database may be reached by a local socket
        raise TrackingError("names no host.", key=key, remedy=f"give {KINDS}.")


def _sqlite(path: Path, key: str) -> None:
    """Refuse what cannot be a database file, at which MLflow would try for a minute."""
    try:
        with path.open("rb") as file:
            found = file.read(len(MAGIC))
    except FileNotFoundError:
        if path.parent.is_dir():
            return  # MLflow makes it
        raise TrackingError(
            "cannot be made: its folder does not exist.", file=path, key=key, remedy="make the folder first."
        ) from None
    except OSError as error:
        raise TrackingError(
            f"cannot be opened ({error.strerror}).", file=path, key=key, remedy="name a database file."
        ) from None
    if found and found != MAGIC:
        raise TrackingError("is not an SQLite database.", file=path, key=key, remedy="name a database file.")


def _reach(host: str, port: int, key: str, pauses: Sequence[float]) -> None:
    for pause in (*pauses, None):
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
            return
        except OSError as error:
            if pause is None or isinstance(error, socket.gaierror):
                raise TrackingError(
                    f"nothing answers at {host}, port {port} ({error.strerror or 'no answer in time'}).",
                    key=key,
                    remedy="start the server or correct the address; unset it to use the project's own store.",
                ) from None
            time.sleep(pause)
