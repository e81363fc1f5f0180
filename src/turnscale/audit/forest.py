"""The forest plot: one row per difference, three nested intervals, readable without the text around it.

Narrow and dark: the same checkpoints answer the same tasks again (rollouts). Wider: other tasks like these. Widest
and pale: the method is trained again as well (seeds). A row whose pale bar crosses zero is no claim about a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnscale.audit.from_outcomes import PairAudit
from turnscale.audit.ledger_report import LedgerAudit, gap
from turnscale.audit.summary import ROLLOUTS, SEED_2, TASKS_R80
from turnscale.errors import DataError
from turnscale.render.text import plot as plain
from turnscale.render.text import points
from turnscale.stats.question import Comparison, Question

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DARK, MIDDLE, PALE = "#08306b", "#4292c6", "#c6dbef"
MAX_ROWS = 60
"""Beyond this a page cannot be read; plot one family or one reference at a time."""

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Row:
    """One line of the plot, in points. ``intervals``: rollouts, tasks, seeds; None where it cannot be estimated."""

    label: str
    detail: str
    centre: float
    intervals: tuple[Interval, Interval, Interval]
    remark: str


@dataclass(frozen=True)
class Forest:
    """A plot to draw: rows and the words of its legend."""

    title: str
    rows: tuple[Row, ...]
    legend: tuple[str, str, str]
    remark_heading: str


def from_ledger(audit: LedgerAudit, family: str) -> Forest:
    """The claims of one family that have a gap and a noise bound, at the likeliest number of tasks."""
    rows = []
    for entry, judgements in zip(audit.claims, audit.judgements, strict=True):
        claim = entry.claim
        if claim.family != family or entry.reading or claim.gap is None or not entry.p:
            continue
        benchmark = audit.ledger.benchmarks[claim.benchmark].name
        rows.append(
            Row(
                label=f"{claim.label}: {benchmark} {claim.metric_label}",
                detail=f"{claim.model}, {entry.n_tasks} tasks",
                centre=claim.gap,
                intervals=(entry.interval(ROLLOUTS), entry.interval(TASKS_R80), entry.interval(SEED_2)),
                remark=f"{gap(claim)}   {_remark([judgements[q].verdict.value for q in Question][:2])}",
            )
        )
    return Forest(
        f"{audit.ledger.title}\n{family.replace('_', ' ')} claims: how far could each published gap move?",
        tuple(rows),
        (
            "same checkpoints, same tasks (rollout noise)",
            "same checkpoints, other tasks like these (arms correlate .8)",
            "method trained again too (seed sd of 2 points assumed: one run published)",
        ),
        f"gap    after correcting for {sum(e.claim.family == family and not e.reading for e in audit.claims)} claims",
    )


def _remark(verdicts: list[str]) -> str:
    these, tasks = (verdict == "supported" for verdict in verdicts)
    if tasks:
        return "holds over tasks"
    return "holds on these tasks only" if these else "not distinguishable"


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
                remark=f"{points(audit.difference, signed=True)}   {verdict}",
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
        "gap    the method, on new tasks, after correction",
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
    from matplotlib.figure import Figure as NewFigure

    # No pyplot: no global state, no window system.
    height = 0.46 * len(forest.rows) + 2.2
    figure = NewFigure(figsize=(11.0, height), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(forest.rows):
        _draw_row(axes, row, -place)
    _frame(axes, forest)
    return figure


def _draw_row(axes: Axes, row: Row, y: float) -> None:
    rollouts, tasks, seeds = row.intervals
    for interval, thickness, colour in ((seeds, 13, PALE), (tasks, 7.5, MIDDLE), (rollouts, 3, DARK)):
        if interval is not None:
            axes.plot(interval, (y, y), color=colour, linewidth=thickness, solid_capstyle="butt", zorder=2)
    axes.plot([row.centre], [y], marker="o", markersize=5.5, color="white", markeredgecolor="black", zorder=4)


def _frame(axes: Axes, forest: Forest) -> None:
    from matplotlib.lines import Line2D

    count = len(forest.rows)
    ends = [end for row in forest.rows for pair in row.intervals if pair is not None for end in pair]
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = 0.04 * (high - low)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(-count + 0.4, 0.6)
    axes.axvline(0.0, color="black", linewidth=1.0, zorder=3)
    axes.grid(axis="x", color="0.9", zorder=0)
    axes.set_axisbelow(True)
    axes.set_yticks([-place for place in range(count)], [""] * count)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    from_left = axes.get_yaxis_transform()
    for place, row in enumerate(forest.rows):
        axes.text(
            -0.012, -place + 0.04, plain(row.label), transform=from_left, ha="right", va="bottom", fontsize=9
        )
        axes.text(
            -0.012,
            -place - 0.04,
            plain(row.detail),
            transform=from_left,
            ha="right",
            va="top",
            fontsize=7.5,
            color="0.35",
        )
        axes.text(1.012, -place, plain(row.remark), transform=from_left, ha="left", va="center", fontsize=8.5)
    axes.text(
        1.012, 0.62, plain(forest.remark_heading), transform=from_left, ha="left", va="bottom", fontsize=8.5
    )
    axes.set_xlabel("difference in percentage points   (right of the line: the first-named arm is better)")
    title = "\n".join(plain(line) for line in forest.title.splitlines())
    figure = axes.get_figure()
    assert figure is not None
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    handles = [
        Line2D([], [], color=colour, linewidth=width, label=plain(text))
        for colour, width, text in zip((DARK, MIDDLE, PALE), (3, 7.5, 13), forest.legend, strict=True)
    ]
    handles.append(
        Line2D(
            [],
            [],
            marker="o",
            color="white",
            markeredgecolor="black",
            linewidth=0,
            label="reported difference",
        )
    )
    figure.legend(
        handles=handles,
        loc="outside lower center",
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
    figure.savefig(paths[0], dpi=160, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
