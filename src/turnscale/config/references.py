"""What configuration files name in each other, and what a scale must have for a study's tables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.config.load import read_yaml
from turnscale.config.schema import Scale, Study
from turnscale.errors import ConfigError

if TYPE_CHECKING:
    from turnscale.methods import Method


def method_of_cell(
    name: str, overrides: Mapping[str, Any], cell: str, root: Path, study_path: Path, section: str = "cells"
) -> Method:
    """The method of a study's cell.

    Args:
        name: a row of configs/methods.
        overrides: the cell's ``set:``.
        cell: the cell's name.
        root: the project folder.
        study_path: the study's file, named in errors.
        section: the key of the study under which the cell stands.

    Raises:
        ConfigError: an unknown method or a wrong override, naming study and cell; or a wrong row, naming its file.
    """
    from turnscale.methods import list_methods, load_method

    directory = root / "configs" / "methods"
    try:
        return load_method(name, overrides, directory=directory)
    except ConfigError as error:
        known = list_methods(directory)
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known methods: {', '.join(known)}."
            raise ConfigError(
                f"names the method '{name}', and there is no {directory / name}.yaml.",
                file=study_path,
                key=f"{section}.{cell}.method",
                remedy=hint,
            ) from None
        if not overrides:
            raise
        load_method(name, directory=directory)  # if the row itself is wrong, this names its file
        raise ConfigError(
            f"method {name}: {error.problem}",
            file=study_path,
            key=".".join(part for part in (section, cell, "set", error.key) if part),
            remedy=error.remedy,
        ) from None


def scales_of(kind: str | None, root: Path) -> list[str]:
    """Names of the scales that a user may choose instead of one of the other kind.

    Args:
        kind: "tabular", or None for those that train models.
        root: the project folder.

    Returns:
        Scales that can be read. A broken one is no choice, and the error at hand is about another file; whoever uses
        the broken one is told what is wrong with it.
    """
    found = []
    for path in sorted((root / "configs" / "scales").glob("*.yaml")):
        try:
            if read_yaml(path).get("kind") == kind:
                found.append(path.stem)
        except ConfigError:
            continue
    return found


def check_file(name: str, root: Path, study_path: Path, key: str) -> None:
    """Raise ConfigError unless a file that a study names is there."""
    try:
        there = (root / name).is_file()
    except OSError:  # the name is too long, or a folder on the way may not be read
        there = False
    if not there:
        raise ConfigError(
            f"names '{name}', and there is no such file.",
            file=study_path,
            key=key,
            remedy="correct the path; it is relative to the project folder.",
        )


def check_products(study: Study, scale: Scale, root: Path, study_path: Path) -> None:
    """Raise ConfigError for a table or figure that could not be made however the runs end."""
    if study.claims is not None:
        check_file(study.claims, root, study_path, "claims")
    for kind, entries in (("tables", study.tables), ("figures", study.figures)):
        for name, entry in entries.items():
            if entry.published is not None:
                check_file(entry.published.file, root, study_path, f"{kind}.{name}.published.file")
    for name, table in study.tables.items():
        for metric, k in table.ks.items():
            if k > scale.eval.attempts:
                raise ConfigError(
                    f"{metric} needs {k} attempts per task, and scale {scale.scale} has {scale.eval.attempts}.",
                    file=study_path,
                    key=f"tables.{name}.metrics",
                    remedy=f"lower k, or raise eval.attempts of configs/scales/{scale.scale}.yaml to {2 * k}.",
                )


def few_attempts(study: Study, scale: Scale) -> list[str]:
    """Warnings, one sentence each: metrics whose k is above half the attempts."""
    attempts = scale.eval.attempts
    return [
        f"Table {name}: {metric} rests on {attempts} attempts per task; above half of them its estimate is coarse."
        for name, table in study.tables.items()
        for metric, k in table.ks.items()
        if k > scale.eval.largest_k
    ]
