"""One style for all figures: what each cell looks like, sizes, and files whose bytes depend on the data alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from turnscale.files import replacing

PAGE = 7.2
"""Width of the text over two columns, inches."""
DPI = 200

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "text.parse_math": False,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.hashsalt": "turnscale",
    "figure.dpi": DPI,
}

# Okabe and Ito's colours, which remain distinct for the common forms of colour blindness; yellow is darkened.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#B8A500",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#7F7F7F",
)
FAINT = "#c8c8c8"
Line = Literal["-"] | tuple[float, tuple[float, ...]]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES: tuple[Line, ...] = (
    "-",
    (0.0, (5.0, 1.5)),
    (0.0, (1.2, 1.2)),
    (0.0, (5.0, 1.2, 1.2, 1.2)),
)


class Look(NamedTuple):
    """How a cell is drawn everywhere."""

    color: str
    marker: str
    line: Line


LOOKS = {
    "base": Look(GREY, "o", LINES[2]),
    "grpo": Look(ORANGE, "s", LINES[0]),
    "gspo": Look(YELLOW, "^", LINES[1]),
    "ppo": Look(BLUE, "D", LINES[0]),
    "vapo": Look(SKY, "v", LINES[1]),
    "mpo-token-is": Look(PURPLE, "P", LINES[1]),
    "mpo": Look(VERMILION, "o", LINES[0]),
    "mpo-beta0": Look(GREEN, "X", LINES[3]),
}


def look(cell: str) -> Look:
    """The look of a cell: fixed for the known ones, and for any other a function of its name alone."""
    if cell in LOOKS:
        return LOOKS[cell]
    number = int.from_bytes(hashlib.sha256(cell.encode()).digest()[:4], "big")
    colors = (ORANGE, SKY, GREEN, YELLOW, BLUE, PURPLE, BLACK)
    number, color = divmod(number, len(colors))
    number, marker = divmod(number, len(MARKERS))
    return Look(colors[color], MARKERS[marker], LINES[number % len(LINES)])


Share = Literal["all", "row"] | bool


def grid(
    rows: int, columns: int, *, height: float, share_x: Share = False, share_y: Share = False
) -> tuple[Figure, np.ndarray]:
    """An empty figure as wide as the page with ``rows`` x ``columns`` axes [rows, columns]; height in inches."""
    figure = Figure(figsize=(PAGE, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    for panel in axes.flat:
        panel.xaxis.set_tick_params(labelbottom=True)
    return figure, axes


def say(axes: Axes, text: str) -> None:
    """A grey sentence in the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, wrap=True)


def faults(figure: Figure) -> list[str]:
    """What a reader would wince at: text beyond the edge of the figure, and titles that run into each other."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    edge = figure.bbox.padded(1.0)
    found = []
    for number, axes in enumerate(figure.axes):
        box = axes.get_tightbbox(renderer)
        if box is not None and not (edge.containsx(box.x0) and edge.containsx(box.x1)):
            found.append(f"axes {number} ('{axes.get_title()}') reach beyond the left or right edge")
        if box is not None and not (edge.containsy(box.y0) and edge.containsy(box.y1)):
            found.append(f"axes {number} ('{axes.get_title()}') reach beyond the top or bottom edge")
    loose = [text for text in figure.findobj(Text) if text in figure.texts or text is figure._suptitle]  # type: ignore[attr-defined]
    for artist in [*loose, *figure.legends]:
        box = artist.get_window_extent(renderer)
        if not (edge.contains(box.x0, box.y0) and edge.contains(box.x1, box.y1)):
            found.append(f"'{getattr(artist, 'get_text', lambda: 'legend')()}' reaches beyond the edge")
    labels = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    boxes = [(text, text.get_window_extent(renderer)) for text in labels if text.get_text()]
    for place, (one, box) in enumerate(boxes):
        for other, other_box in boxes[place + 1 :]:
            if box.overlaps(other_box):
                found.append(f"'{one.get_text()}' runs into '{other.get_text()}'")
    return found


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``<name>.pdf`` and ``<name>.png`` without dates or versions, by temporary file and replace."""
    paths = []
    for ending, metadata in (
        ("pdf", {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}),
        ("png", {"Software": None}),
    ):
        path = folder / f"{name}.{ending}"
        with replacing(path) as temporary:
            figure.savefig(temporary, format=ending, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths
