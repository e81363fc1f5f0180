"""What the tracking store says when it refuses, and what helps."""

from __future__ import annotations

from collections.abc import Sequence

from turnscale.errors import TrackingError

LONGEST = 200
"""Characters of the store's own words that an error repeats."""

DAMAGED = (
    "put a backup of mlflow/mlflow.db in its place; without one, move mlflow/ away, 'make clean-results' for each "
    "scale and run the workflow again: trainings that were finished are only logged again, from checkpoints/."
)
FREE = "free space on the store's disk, then run the same command again: finished work is kept."
WRITABLE = "make the store writable for this user, then run the same command again: finished work is kept."
ALLOWED = (
    "correct user, password and database in the address, or have the database's administrator allow them."
)

PASSWORD = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to what the server knows."
PERMISSION = (
    "have the server's administrator allow this user to edit, see docs/how-to/share-the-tracking-store.md; then run "
    "the same command again: finished work is kept."
)
CERTIFICATE = (
    "set MLFLOW_TRACKING_SERVER_CERT_PATH to the file of the server's certificate, or correct the address."
)
FORBIDDEN = "access denied"
"""Reason of what the server does not let this user do."""
HOST = "start the server with this name among its --allowed-hosts."

Causes = Sequence[tuple[tuple[str, ...], str, str]]
"""Words of the store's errors, the reason they stand for, and what helps."""

CAUSES: Causes = (
    (("error code 401",), FORBIDDEN, PASSWORD),
    (("Invalid Host header",), FORBIDDEN, HOST),
    (("error code 403",), FORBIDDEN, PERMISSION),
    (("certificate verify failed",), "certificate", CERTIFICATE),
    (("malformed", "not a database", "disk image"), "tracking store damaged", DAMAGED),
    (("disk is full", "disk I/O error", "No space left", "File too large", "Disk quota"), "disk full", FREE),
    (("readonly database", "Read-only file system", "Permission denied"), "not writable", WRITABLE),
)
LOGIN = ("authentication failed", "no password supplied", "no pg_hba.conf", "does not exist")
DENIED: Causes = (
    ((*LOGIN, "Access denied", "Unknown database", "Login failed"), FORBIDDEN, ALLOWED),
    (("Could not parse", "Can't load plugin"), "address", "correct the address."),
)
"""What a database server, or the library in front of it, says for good: repeating does not change it."""


def cause_of(text: str, causes: Causes) -> tuple[str, str] | None:
    """Reason and remedy of an error's text, None if its cause is not known here."""
    return next((known[1:] for known in causes if any(mark in text for mark in known[0])), None)


def refused(what: str, error: Exception, remedy: str) -> TrackingError:
    """The store's error as one that says what could not be done and what helps.

    Args:
        what: such as "log metrics in the tracking store".
        error: MLflow's or the operating system's.
        remedy: what to do where the error names no cause that is known here.
    """
    text = str(error).strip() or type(error).__name__
    reason, help_ = cause_of(text, CAUSES) or (None, remedy)
    return TrackingError(f"could not {what} ({first_line(text)}).", remedy=help_, reason=reason)


def first_line(text: str) -> str:
    """The first line of the store's own words, shortened."""
    first = (text.strip().splitlines() or [""])[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 1]}…"
