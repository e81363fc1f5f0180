"""Identity of a configuration: canonical JSON and its hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces; integral floats are written as floats so 1 and 1.0 agree.

    Raises:
        ValueError: a NaN, an infinity or an integer beyond all floats, which have no canonical form.
        TypeError: a value that is not plain JSON.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any, length: int = 8) -> str:
    """First ``length`` hex digits of the SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} has no canonical JSON form")
        try:
            return float(value)
        except OverflowError:
            raise ValueError("a number of this size has no canonical JSON form") from None
    raise TypeError(f"{type(value).__name__} is not plain JSON")
