"""Figures of the paper, one small module per kind; each reads tidy tables only and leaves its data beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure as Drawing

from turnscale.config.schema import Figure, Study
from turnscale.files import write_csv
from turnscale.render.data import Tables, entry_of
from turnscale.render.figures import ablation, critic, dynamics, gains, learning, passk
from turnscale.render.style import RC, save

KINDS: dict[str, Callable[[Tables, str, Figure], tuple[Drawing, pd.DataFrame]]] = {
    "learning": learning.draw,
    "dynamics": dynamics.draw,
    "passk": passk.draw,
    "ablation": ablation.draw,
    "gains": gains.draw,
    "critic": critic.draw,
}


def render_figure(study: Study, scale: str, name: str, tables_dir: Path, out_dir: Path) -> list[Path]:
    """Write one figure of a study as ``<name>.pdf``, ``.png`` and ``.csv``.

    Args:
        study: the study that declares the figure.
        scale: the scale at which it was run.
        name: a key of ``study.figures``.
        tables_dir: holds the tidy tables.
        out_dir: such as ``figures/<scale>``.

    Returns:
        The files written.

    Raises:
        ConfigError: the study has no such figure.
        DataError: a tidy table is missing, malformed or of another study or scale.
    """
    return write_figure(Tables(study, scale, tables_dir), name, out_dir)


def write_figure(tables: Tables, name: str, out_dir: Path) -> list[Path]:
    """As :func:`render_figure`, from tidy tables that several products are made from."""
    entry = entry_of(tables.study.figures, name, "figure", tables.study.study)
    with matplotlib.rc_context(RC):
        drawing, data = KINDS[entry.kind](tables, name, entry)
        paths = save(drawing, out_dir, name)
    write_csv(data, out_dir / f"{name}.csv")
    return [*paths, out_dir / f"{name}.csv"]
