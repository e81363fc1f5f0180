"""Drawing a forest plot, readable without the text around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.audit.forest import Forest, Row
from turnscale.errors import DataError
from turnscale.files import replacing
from turnscale.render.text import plot as plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

DARK, MIDDLE, PALE = "#08306b", "#4292c6", "#c6dbef"
ROW_INCHES, AXES_INCHES, TOP_INCHES, BOTTOM_INCHES = 0.37, 4.6, 0.85, 1.65
DPI = 160
REMARK_POINTS = 84  # from the axes to the remarks; the printed difference stands between
MAX_ROWS = 200
"""Beyond this nobody reads a plot."""


def draw(forest: Forest) -> Figure:
    """The figure. Raises DataError without rows, or with too many to read."""
    if not forest.rows:
        raise DataError(
            "nothing to plot: no difference has an interval.", key="forest", remedy="see the tables."
        )
    if len(forest.rows) > MAX_ROWS:
        raise DataError(
            f"{len(forest.rows)} rows do not fit a page.",
            key="forest",
            remedy="give --reference or a single --metric, or split the ledger.",
        )
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False}):  # a name with '$' is a name, not a formula
        return _figure(forest)


def _figure(forest: Forest) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    # No pyplot: no global state, no window system.
    places = _places(forest.rows)
    tall = ROW_INCHES * (0.6 - min(places) + 0.6)
    figure = NewFigure(figsize=(12.0, tall + TOP_INCHES + BOTTOM_INCHES), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.3, 0.2, 0.4, 0.6))
    for row, y in zip(forest.rows, places, strict=True):
        _draw_row(axes, row, y)
    _frame(axes, forest, places)
    left = 0.2 + max(_inches(figure, text) for text in _left_texts(axes, forest, places))
    right = 0.2 + max(_inches(figure, text) for text in _right_texts(axes, forest, places))
    width = max(left + AXES_INCHES + right, 9.0)
    height = figure.get_figheight()
    figure.set_figwidth(width)
    axes.set_position((left / width, BOTTOM_INCHES / height, (width - left - right) / width, tall / height))
    _title_and_legend(figure, forest)
    return figure


def _inches(figure: Figure, text: Annotation) -> float:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    return float(text.get_window_extent(renderer).width) / figure.dpi + abs(text.xyann[0]) / 72


def _places(rows: Sequence[Row]) -> list[float]:
    """Height of each row, from 0 down; a new section leaves room for its heading."""
    places: list[float] = []
    y, section = 0.0, ""
    for row in rows:
        y -= 0.8 if row.section != section else 0.0
        section = row.section
        places.append(y)
        y -= 1.0
    return places


def _draw_row(axes: Axes, row: Row, y: float) -> None:
    rollouts, tasks, seeds = row.intervals
    for interval, thickness, colour in ((seeds, 13, PALE), (tasks, 7.5, MIDDLE), (rollouts, 3, DARK)):
        if interval is not None:
            axes.plot(interval, (y, y), color=colour, linewidth=thickness, solid_capstyle="butt", zorder=2)
    if row.centre is not None:
        axes.plot(
            [row.centre], [y], marker="o", markersize=5.5, color="white", markeredgecolor="black", zorder=4
        )


def _frame(axes: Axes, forest: Forest, places: Sequence[float]) -> None:
    ends = [end for row in forest.rows for pair in row.intervals if pair is not None for end in pair]
    ends += [row.centre for row in forest.rows if row.centre is not None]
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = 0.04 * (high - low) or 1.0
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(min(places) - 0.6, 0.6)
    axes.axvline(0.0, color="black", linewidth=1.0, zorder=3)
    axes.grid(axis="x", color="0.9", zorder=0)
    axes.set_axisbelow(True)
    axes.set_yticks(list(places), [""] * len(places))
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(
        "difference in percentage points\n(right of the line: the first-named arm is better)", fontsize=9
    )


def _left_texts(axes: Axes, forest: Forest, places: Sequence[float]) -> Iterator[Annotation]:
    """Labels of the rows and headings of the sections, left of the axes."""
    section = ""
    for row, y in zip(forest.rows, places, strict=True):
        if row.section != section:
            section = row.section
            yield _beside(axes, section, (0, y + 0.8), (-8, 0), "center", fontsize=9.5, fontweight="bold")
        yield _beside(axes, row.label, (0, y), (-8, 0.5), "bottom", fontsize=9)
        yield _beside(axes, row.detail, (0, y), (-8, -0.5), "top", fontsize=7.5, color="0.35")


def _right_texts(axes: Axes, forest: Forest, places: Sequence[float]) -> Iterator[Annotation]:
    """Remarks right of the axes, with the printed difference before each."""
    small: dict[str, Any] = {"fontsize": 8.5, "color": "0.35"}
    _beside(axes, forest.gap_heading, (1, 0.7), (REMARK_POINTS - 8, 0), "bottom", **small)
    yield _beside(axes, forest.remark_heading, (1, 0.7), (REMARK_POINTS, 0), "bottom", ha="left", **small)
    for row, y in zip(forest.rows, places, strict=True):
        _beside(axes, row.gap, (1, y), (REMARK_POINTS - 8, 0), "center", fontsize=8.5)
        yield _beside(axes, row.remark, (1, y), (REMARK_POINTS, 0), "center", ha="left", fontsize=8.5)


def _beside(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    va: str,
    *,
    ha: str = "right",
    **font: Any,
) -> Annotation:
    """Text beside the axes: ``at`` is (0 left or 1 right, row), ``offset`` in points from there."""
    coordinates = axes.get_yaxis_transform()
    return axes.annotate(
        plain(text), at, xycoords=coordinates, xytext=offset, textcoords="offset points", ha=ha, va=va,
        annotation_clip=False, **font,
    )  # fmt: skip


def _title_and_legend(figure: Figure, forest: Forest) -> None:
    from matplotlib.lines import Line2D

    first, *others = forest.title.splitlines()
    height = figure.get_figheight()
    figure.text(0.1 / figure.get_figwidth(), 1 - 0.12 / height, plain(first), va="top", fontsize=11,
                fontweight="bold")  # fmt: skip
    figure.text(0.1 / figure.get_figwidth(), 1 - 0.36 / height, "\n".join(map(plain, others)), va="top",
                fontsize=9.5)  # fmt: skip
    handles = [
        Line2D([], [], color=colour, linewidth=width, label=plain(text))
        for which, (colour, width, text) in enumerate(
            zip((DARK, MIDDLE, PALE), (3, 7.5, 13), forest.legend, strict=True)
        )
        if any(row.intervals[which] is not None for row in forest.rows)
    ]
    if any(row.centre is not None for row in forest.rows):
        handles.append(
            Line2D(
                [],
                [],
                marker="o",
                color="white",
                markeredgecolor="black",
                linewidth=0,
                label=f"{forest.gap_heading} difference",
            )
        )
    if any(row.around_zero for row in forest.rows):
        handles.append(
            Line2D([], [], linewidth=0, label="bars without a circle: no size was printed; noise around zero")
        )
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=2,
        frameon=False,
        fontsize=8.5,
        title="95 % interval of each difference by itself, if the study were repeated with …",
        handlelength=3.0,
        handletextpad=1.2,
        labelspacing=0.7,
        columnspacing=3.0,
        title_fontsize=9,
    )


def save(forest: Forest, folder: Path, stem: str) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.pdf`` without a date inside, so that the same rows give the same bytes."""
    figure = draw(forest)
    paths = [folder / f"{stem}.png", folder / f"{stem}.pdf"]
    with replacing(paths[0]) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
    with replacing(paths[1]) as temporary:
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
    return paths
