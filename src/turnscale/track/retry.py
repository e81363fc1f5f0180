"""Requests to the tracking store, repeated while it is busy or away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from turnscale.track.refusal import refused

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Mean seconds between tries; SQLite itself waits 20 s for its lock within each."""
USELESS = (
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
)
"""Answers that repeating does not change."""

Result = TypeVar("Result")
_spread = random.Random()  # its own state: pauses must not move anybody's random stream


def again(
    action: Callable[[], Result],
    refusals: tuple[type[Exception], ...],
    pauses: Sequence[float],
    useless: Callable[[Exception], bool],
) -> Result:
    """``action()``, tried again after each pause; its last refusal is raised as it is.

    Pauses are drawn between half and one and a half of their mean, so that processes that were refused
    together do not come back together.

    Args:
        action: what to do.
        refusals: errors after which another try may succeed.
        pauses: mean seconds between tries.
        useless: whether an error says that repeating does not change it.
    """
    for pause in pauses:
        try:
            return action()
        except refusals as error:
            if useless(error):
                raise
            time.sleep(pause * _spread.uniform(0.5, 1.5))
    return action()


def insist(action: Callable[[], Result], what: str, pauses: Sequence[float] | None = None) -> Result:
    """``action()``, tried again when the store or the network refuses.

    Raises:
        TrackingError: it failed every time, or the store said that repeating is useless.
    """
    from mlflow.exceptions import MlflowException

    try:
        return again(
            action,
            (MlflowException, OSError),
            PAUSES if pauses is None else pauses,
            lambda error: getattr(error, "error_code", "") in USELESS,
        )
    except (MlflowException, OSError) as error:
        raise refused(
            f"{what} in the tracking store",
            error,
            "check the store, then run the same command again: finished work is kept.",
        ) from error
