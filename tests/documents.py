"""Configuration files, changed for a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Edit = Callable[[dict[str, Any]], object]


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a YAML file with its keys in their order."""
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")


def change(path: Path, edit: Edit) -> None:
    """Read a YAML file, edit it in place and write it again."""
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(value)
    write(path, value)
