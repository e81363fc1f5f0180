"""The one error type a user meets: what is wrong, in which file, at which key, and what to do."""

from __future__ import annotations

from pathlib import Path

from turnscale.masking import masked

COMPLAINT = "turnscale: "
"""How a line begins that says what is wrong and what to do."""


def _sentence(text: str) -> str:
    """The text with a full stop, unless it ends with one or with a question mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


class TurnscaleError(Exception):
    """A problem in something the user supplied or can mend.

    The command line prints ``str(error)`` as one line and exits with code 2; a traceback is a bug. Passwords and
    tokens in any part are masked.

    Attributes:
        reason: a few words without numbers or names, under which a run that failed by this is counted.
    """

    kind = "error"
    """The reason where none is given."""

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        key: str | None = None,
        remedy: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.reason = reason or self.kind
        self.problem = problem = _sentence(masked(problem))
        self.file = None if file is None else masked(str(file))
        self.key = key = None if key is None else masked(key)
        self.remedy = remedy = None if remedy is None else _sentence(masked(remedy))
        where = ": ".join(part for part in (self.file, self.key) if part)
        text = f"{where}: {problem}" if where else problem
        if remedy:
            text = f"{text} Remedy: {remedy}"
        super().__init__(text)


class ConfigError(TurnscaleError):
    """A configuration file that cannot be used as written."""

    kind = "configuration"


class TaskError(TurnscaleError):
    """A task panel or benchmark file that cannot be used."""

    kind = "tasks"


class CheckpointError(TurnscaleError):
    """A model checkpoint, adapter or training checkpoint that cannot be loaded."""

    kind = "checkpoint"


class TrackingError(TurnscaleError):
    """The tracking store cannot be reached or its content does not match the records."""

    kind = "tracking store"


class DataError(TurnscaleError):
    """An outcomes, claims or results table that cannot be used."""

    kind = "data"


class NumericalError(TurnscaleError):
    """NaN or inf where a finite number is needed; the run stops rather than train on it."""

    kind = "numbers"


class StorageError(TurnscaleError):
    """A file that cannot be written: the disk is full, read-only or broken. What was there before still is."""

    kind = "disk error"


def complaint(error: TurnscaleError) -> str:
    """What a command prints before it exits with code 2: one line, without anything that would steer a terminal."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(str(error).split()))
    return f"{COMPLAINT}{text}"


def reason_of(error: BaseException) -> str:
    """A few words under which a run that ended by this error is counted."""
    return error.reason if isinstance(error, TurnscaleError) else type(error).__name__
