"""The one check for NaN and infinities, which stops a run with a reason that can be counted."""

from __future__ import annotations

import torch
from torch import Tensor

from turnscale.errors import NumericalError


def require_finite(name: str, value: Tensor | float | None, remedy: str | None = None) -> None:
    """Let a finite number or tensor pass; None is one that a method does not have.

    Args:
        name: what it is, in words, such as "loss"; the error and its reason read "NaN in loss".
        value: any shape.
        remedy: what to do.

    Raises:
        NumericalError: there is a NaN, or else an infinity, in it.
    """
    if value is None:
        return
    tensor = torch.as_tensor(value)
    if bool(torch.isfinite(tensor).all()):
        return
    found = f"{'NaN' if bool(torch.isnan(tensor).any()) else 'infinity'} in {name}"
    raise NumericalError(f"{found}.", key=name, remedy=remedy, reason=found)
