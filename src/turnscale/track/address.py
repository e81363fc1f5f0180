"""The address of a tracking store: which kinds there are, what answers there, and whether it is a store."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote, unquote, urlsplit

from turnscale.errors import TrackingError
from turnscale.track.refusal import CAUSES, DENIED, cause_of, first_line
from turnscale.track.retry import again

PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
DRIVERS = {"postgresql": "psycopg2", "mysql": "mysqldb", "mssql": "pyodbc"}
"""The driver that SQLAlchemy takes where the address names none."""
MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql"}
"""Module of a driver, where it has another name."""
PACKAGES = {
    "psycopg2": "psycopg2-binary",
    "mysqldb": "mysqlclient",
    "mysqlconnector": "mysql-connector-python",
}
"""What to install for a driver, where that has another name."""
KINDS = "sqlite:///FILE, postgresql://..., mysql://..., mssql://..., http://... or https://..."
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries: a server that is being started again is waited for, a wrong address soon reported."""
PATIENCE = 5.0
"""Seconds that one try may take."""
TABLE = "experiments"
"""A table that every store of MLflow's has."""
DAMAGED, UNUSABLE, ABSENT = "tracking store damaged", "not writable", "no tracking store"
"""Reasons of what is refused here, told apart by those who know more about the store."""


def check_address(
    uri: str, key: str = "MLFLOW_TRACKING_URI", pauses: Sequence[float] = PAUSES, make: bool = False
) -> None:
    """Refuse an address at which no tracking store is; MLflow itself would try for minutes, or make one.

    Args:
        uri: the address.
        key: what the address is called in errors; the address itself may hold a password and is never named.
        pauses: seconds between tries to reach a server.
        make: whether a store may be made there; reading must not make one.

    Raises:
        TrackingError: an unknown kind, a missing driver, no host, nothing that answers there, a database that
            cannot be opened, or, unless ``make``, one without a store.
    """
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise TrackingError("is not an address.", key=key, remedy=f"give {KINDS}.") from None
    kind, _, driver = parts.scheme.partition("+")
    if kind == "sqlite":
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or path in ("", ":memory:"):
            raise TrackingError(
                "names no database file.",
                key=key,
                remedy="write sqlite:///FILE, with three slashes before the path.",
            )
        _sqlite(Path(path), key, make)
        return
    if kind not in PORTS:
        raise _unknown(uri, kind, key)
    driver = driver or DRIVERS.get(kind, "")
    if driver and find_spec(MODULES.get(driver, driver)) is None:
        raise TrackingError(
            f"names a {kind} database, and its driver '{driver}' is not installed.",
            key=key,
            remedy=f"pip install {PACKAGES.get(driver, driver)} in the project's environment, or use an "
            "'mlflow server' in front of the database.",
        )
    if host:
        _reach(host, port or PORTS[kind], key, pauses)
    elif kind not in DRIVERS:  # a database may be reached by a local socket
        raise TrackingError("names no host.", key=key, remedy=f"give {KINDS}.")
    if kind in DRIVERS:
        _database(uri, key, pauses, make)


def _unknown(uri: str, kind: str, key: str) -> TrackingError:
    if kind == "file" or (kind == "" and Path(uri).is_dir()):
        return TrackingError(
            "names a folder, and MLflow no longer keeps runs in folders.",
            key=key,
            remedy=f"give {KINDS}; 'mlflow migrate-filestore' moves the runs of a folder into a database.",
        )
    if kind == "":
        return TrackingError("is not the address of a database or server.", key=key, remedy=f"give {KINDS}.")
    return TrackingError(f"is of the unknown kind '{kind}'.", key=key, remedy=f"give {KINDS}.")


def _sqlite(path: Path, key: str, make: bool) -> None:
    """Refuse what is no database file that can be opened, or holds no store where none may be made.

    Only SQLite opens the file: if this process closed it by other means, the locks that SQLite holds in it would be
    gone, and another process could then damage the database.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
        if not path.parent.is_dir():
            raise TrackingError(
                "cannot be made: its folder does not exist.",
                file=path,
                key=key,
                remedy="make the folder first.",
            ) from None
    except OSError as error:
        raise _unopened(path, key, error.strerror or "unreadable") from None
    if status is not None and not S_ISREG(status.st_mode):
        raise _unopened(path, key, "not a file")
    blank = status is None or status.st_size == 0
    if blank and not make:
        raise _no_store(key, path)
    try:
        mode = "rwc" if blank else "rw"
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", timeout=1, uri=True)
        ) as database:
            if blank:
                database.execute("BEGIN IMMEDIATE")  # opens the file, which reading an absent one would not
            tables = {
                str(row[0]) for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return  # it is there, and somebody writes to it; whoever comes next waits
        raise _unopened(path, key, str(error)) from None
    if TABLE not in tables and not make:
        raise _no_store(key, path)


def _unopened(path: Path, key: str, why: str) -> TrackingError:
    if "not a database" in why:
        return TrackingError(
            "is not an SQLite database.", file=path, key=key, remedy="name a database file.", reason=DAMAGED
        )
    cause = cause_of(why, CAUSES)
    return TrackingError(
        f"cannot be opened ({why}).",
        file=path,
        key=key,
        remedy="name a database file in a folder where this user may write.",
        reason=UNUSABLE if cause is None else cause[0],
    )


def _no_store(key: str, path: Path | None = None) -> TrackingError:
    return TrackingError(
        "there is no tracking store there.",
        file=path,
        key=key,
        remedy="correct the address.",
        reason=ABSENT,
    )


def _reach(host: str, port: int, key: str, pauses: Sequence[float]) -> None:
    def connect() -> None:
        socket.create_connection((host, port), timeout=PATIENCE).close()

    try:
        again(connect, (OSError,), pauses, lambda error: isinstance(error, socket.gaierror))
    except OSError as error:
        raise TrackingError(
            f"nothing answers at {host}, port {port} ({error.strerror or 'no answer in time'}).",
            key=key,
            remedy="start the server or correct the address.",
        ) from None


def _database(uri: str, key: str, pauses: Sequence[float], make: bool) -> None:
    """Open a database server's database once: MLflow would try ten times, whatever the server says."""
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    def look() -> bool:
        return bool(inspect(create_engine(uri, poolclass=NullPool)).has_table(TABLE))

    try:
        there = again(
            look, (SQLAlchemyError,), pauses, lambda error: cause_of(str(error), DENIED) is not None
        )
    except SQLAlchemyError as error:
        cause = cause_of(str(error), DENIED)
        raise TrackingError(
            f"the database cannot be opened ({first_line(str(error))}).",
            key=key,
            remedy="check the server and the address." if cause is None else cause[1],
            reason=None if cause is None else cause[0],
        ) from None  # the cause's own text may hold the address with its password
    if not there and not make:
        raise _no_store(key)


def check_port(port: int, key: str = "--port") -> None:
    """Refuse a port on this machine's loopback address on which no server can be started.

    Raises:
        TrackingError: no such port, one that is taken, or one that this user may not use.
    """
    if not 1 <= port <= 65535:
        raise TrackingError(f"is {port}.", key=key, remedy="give a number from 1 to 65535, 5000 for one.")
    try:
        with socket.create_server(("127.0.0.1", port)):  # as servers do, over one that was just closed
            pass
    except OSError as error:
        raise TrackingError(
            f"port {port} cannot be used ({os.strerror(error.errno or 0)}).",
            key=key,
            remedy=f"stop what uses it, or choose another, e.g. {port + 1 if 1024 <= port < 65535 else 5000}.",
        ) from None
