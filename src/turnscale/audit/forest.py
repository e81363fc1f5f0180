"""The forest plot: one row per difference, three nested intervals, readable without the text around it.

Narrow and dark: the same checkpoints answer the same tasks again (rollouts). Wider: other tasks like these. Widest
and pale: the method is trained again as well (seeds). A row whose pale bar crosses zero is no claim about a method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.audit.from_outcomes import PairAudit
from turnscale.audit.ledger_report import LedgerAudit, gap
from turnscale.audit.summary import ROLLOUTS, SEED_2, TASKS_R80, ClaimAudit, Scenario
from turnscale.audit.verdicts import Judgement, seed_interval, seed_tolerance
from turnscale.errors import DataError
from turnscale.render.text import p_value, points
from turnscale.render.text import plot as plain
from turnscale.stats.question import Comparison, Question

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

DARK, MIDDLE, PALE = "#08306b", "#4292c6", "#c6dbef"
ROW_INCHES, AXES_INCHES, TOP_INCHES, BOTTOM_INCHES = 0.37, 4.6, 0.85, 1.65
DPI = 160
REMARK_POINTS = 84  # from the axes to the remarks; the printed difference stands between
LONG_LABEL = 70  # characters; the benchmark of a longer label moves to the line below
MAX_ROWS = 60
"""Beyond this a page cannot be read; plot one family or one reference at a time."""

Z = 1.96  # standard errors to each side of a 95 % interval
Interval = tuple[float, float] | None
Judged = dict[Question, Judgement]


@dataclass(frozen=True)
class Row:
    """One line of the plot, in points.

    Attributes:
        label, detail: left of the axes.
        centre: where the marker stands; None where no size was published, or in another unit than points.
        intervals: rollouts, tasks, seeds; None where it cannot be estimated.
        remark: right of the axes, after ``gap``.
        gap: the difference as printed.
        section: heading under which the row stands.
    """

    label: str
    detail: str
    centre: float | None
    intervals: tuple[Interval, Interval, Interval]
    remark: str
    gap: str = ""
    section: str = ""

    @property
    def around_zero(self) -> bool:
        """Whether the bars show noise alone, because no size was published."""
        return self.centre is None and any(interval is not None for interval in self.intervals)


@dataclass(frozen=True)
class Forest:
    """A plot to draw: rows and the words of its legend."""

    title: str
    rows: tuple[Row, ...]
    legend: tuple[str, str, str]
    remark_heading: str
    gap_heading: str = "printed"


def from_ledger(audit: LedgerAudit) -> Forest:
    """Every claim at the likeliest number of tasks, by family, with each interval that can be given.

    Where no size was published the bars stand around zero: a difference inside them is noise.
    """
    first = [
        (entry, judged)
        for entry, judged in zip(audit.claims, audit.judgements, strict=True)
        if not entry.reading
    ]
    families: dict[str, list[tuple[ClaimAudit, Judged]]] = {}
    for entry, judged in first:
        families.setdefault(entry.claim.family, []).append((entry, judged))
    rows = [
        _claim_row(audit, entry, judged, f"{family.replace('_', ' ')} ({len(members)})")
        for family, members in families.items()
        for entry, judged in members
    ]
    published = any(row.intervals[2] and not row.intervals[1] for row in rows)
    assumed = any(row.intervals[2] and row.intervals[1] for row in rows)
    spread = [
        *(["seed sd of 2 points assumed: one run published"] if assumed else []),
        *(["seed sd as published"] if published else []),
    ]
    single = all(min(entry.claim.runs_a, entry.claim.runs_b) < 2 for entry, _ in first)
    return Forest(
        f"{audit.ledger.title}\nHow far could each published difference move?"
        + (" One training run per arm: no row can speak for a method." if single else ""),
        tuple(rows),
        (
            "same checkpoints, same tasks (rollout noise)",
            "same checkpoints, other tasks like these (arms correlate .8)",
            f"method trained again too ({'; '.join(spread)})",
        ),
        "what can be said, after correcting within the family",
    )


def _claim_row(audit: LedgerAudit, entry: ClaimAudit, judged: Judged, section: str) -> Row:
    claim = entry.claim
    intervals = tuple(
        entry.interval(scenario) or _around_zero(entry, scenario)
        for scenario in (ROLLOUTS, TASKS_R80, SEED_2)
    )
    if not entry.se:
        intervals = (None, None, seed_interval(claim))
    tasks = "" if entry.n_tasks is None else f", {entry.n_tasks} tasks"
    runs = "" if min(claim.runs_a, claim.runs_b) < 2 else f", {claim.runs_a}+{claim.runs_b} seeds"
    unit = {"points": "", "points/turn": " per turn", "count": " (count)"}[claim.unit]
    measured = "" if claim.unit == "count" else f" {claim.metric_label}"
    where = f"{audit.ledger.benchmarks[claim.benchmark].name}{measured}"
    long = len(claim.label) + len(where) > LONG_LABEL
    return Row(
        label=claim.label if long else f"{claim.label}: {where}",
        detail=f"{claim.id}; {f'{where}; ' * long}{claim.model}{tasks}{runs}",
        centre=claim.gap if claim.unit == "points" else None,
        intervals=(intervals[0], intervals[1], intervals[2]),
        remark=_claim_remark(entry, judged),
        gap=gap(claim).replace("-", "−") + unit,
        section=section,
    )


def _around_zero(entry: ClaimAudit, scenario: Scenario) -> Interval:
    if entry.claim.gap is not None or scenario.key not in entry.se:
        return None
    half = Z * entry.se[scenario.key]
    return -half, half


def _claim_remark(entry: ClaimAudit, judged: Judged) -> str:
    claim = entry.claim
    if claim.deterministic:
        return "fixed by the design"
    if claim.gap is None:
        return "no size was printed" + ("; inside the bars it is noise" if entry.se else "")
    if entry.p:
        return _remark([judged[question].verdict.value for question in Question][:2])
    retrained = judged[Question.METHOD_RETRAINED]
    if retrained.p is not None:
        return f"{retrained.verdict.value} over seeds, p {p_value(retrained.p)}"
    tolerance = seed_tolerance(claim)
    if tolerance is None:
        return "not testable: nothing published bounds its noise"
    if tolerance < 0.05:
        return "not testable: the seed sd was not published"
    return f"not testable: stands only while the seed sd is below {tolerance:.1f}"


def _remark(verdicts: list[str]) -> str:
    these, tasks = (verdict == "supported" for verdict in verdicts)
    if tasks:
        return "these checkpoints differ, on other tasks too"
    return "these checkpoints differ, on these tasks only" if these else "not distinguishable from noise"


def from_pairs(audits: Sequence[PairAudit], title: str) -> Forest:
    """Measured differences: rollouts, tasks, and seeds with tasks where there are several seeds."""
    questions = (Question.THESE_CHECKPOINTS, Question.TASKS_LIKE_THESE, Question.METHOD_NEW_TASKS)
    rows = []
    for audit in audits:
        intervals = [_points(audit, question) for question in questions]
        if intervals[0] is None and intervals[1] is None and intervals[2] is None:
            continue
        verdict = audit.answers[Question.METHOD_NEW_TASKS].verdict.value
        if min(audit.seeds_a, audit.seeds_b) < 2 and intervals[2] is None:
            verdict = "not testable (one seed)"
        rows.append(
            Row(
                label=f"{audit.arm_a} vs {audit.arm_b}: {audit.metric_label}",
                detail=f"{audit.panel.title}, {audit.n_tasks} tasks, {audit.seeds_a}+{audit.seeds_b} seeds",
                centre=100 * audit.difference,
                intervals=(intervals[0], intervals[1], intervals[2]),
                remark=verdict,
                gap=points(audit.difference, signed=True),
            )
        )
    return Forest(
        title,
        tuple(rows),
        (
            "same checkpoints, same tasks (rollout noise)",
            "same checkpoints, other tasks like these",
            "method trained again, other tasks (seeds and tasks)",
        ),
        "the method, on new tasks, after correction",
        "measured",
    )


def _points(audit: PairAudit, question: Question) -> Interval:
    result = audit.answers[question].result
    return (100 * result.lo, 100 * result.hi) if isinstance(result, Comparison) else None


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
            remedy="give --reference or a single --metric.",
        )
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
    figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
