"""The tables of a tabular study as CSV, Markdown and LaTeX, read from its tidy tables alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.errors import ConfigError, DataError
from turnscale.estimates.schema import ESTIMATES, SURVIVORSHIP, read_csv
from turnscale.files import write_csv, write_json, write_text
from turnscale.render.layout import RUNS, Panel
from turnscale.render.survivors import survivors
from turnscale.render.tables import COLUMNS, to_latex, to_markdown
from turnscale.render.text import MISSING, p_value, points, with_interval
from turnscale.tabular.plan import ON_POLICY, SCORE, TabularPlan
from turnscale.tabular.results import RANGE, VERDICTS

STATEMENT = (
    "The task is rebuilt from the published description, since its code is not public; the numbers here are of that "
    "reading."
)

QUANTITIES = {
    SCORE: ("accuracy of the greedy policy, in points", True),
    "singleton_bucket_share": ("degenerate rate: buckets of a single sample, % of buckets", True),
    "dead_step_share": ("steps with an advantage of exactly 0, % of steps", True),
    "distinct_tools": ("different tools probed by the greedy policy", False),
    "environment_calls": ("environment calls per iteration", False),
}
"""metric -> (printed name, whether it is a fraction)."""


@dataclass(frozen=True)
class Results:
    """The tidy tables of a tabular study, read when first used."""

    plan: TabularPlan

    @property
    def study(self) -> Any:
        """The study."""
        return self.plan.study

    @property
    def scale(self) -> str:
        """Name of the scale."""
        return self.plan.scale.scale

    @property
    def folder(self) -> Path:
        """Where the tables are."""
        return self.plan.root / self.plan.tables_dir

    def statement(self) -> str:
        """What the numbers are."""
        return STATEMENT

    @cached_property
    def estimates(self) -> pd.DataFrame:
        """estimates.csv. Raises DataError when missing or malformed."""
        return read_csv(self.folder / "estimates.csv", ESTIMATES)

    @cached_property
    def survivorship(self) -> pd.DataFrame:
        """survivorship.csv, which counts seeds. Raises DataError when missing or malformed."""
        return read_csv(self.folder / "survivorship.csv", SURVIVORSHIP)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """verdicts.csv. Raises DataError when missing or malformed."""
        return self._plain("verdicts.csv", VERDICTS)

    @cached_property
    def estimators(self) -> pd.DataFrame:
        """estimators.csv. Raises DataError when missing or malformed."""
        return self._plain("estimators.csv", ["credit", "ratio", "turns", "metric", "value", "lo", "hi"])

    def _plain(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        path = self.folder / name
        try:
            table = pd.read_csv(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(f"cannot be read ({reason}).", file=path, remedy="run the workflow.") from None
        for column in columns:
            if column not in table.columns:
                raise DataError("the column is missing.", file=path, key=column, remedy="make it again.")
        return table

    def row(self, metric: str, turns: int, cell: str) -> Mapping[Any, Any] | None:
        """The estimate of a metric, a number of turns and a cell, if there is one."""
        rows = self.estimates
        kept = rows[(rows["metric"] == metric) & (rows["benchmark"] == f"t{turns}") & (rows["cell"] == cell)]
        return kept.iloc[0].to_dict() if len(kept) else None

    @property
    def turns(self) -> list[int]:
        """Numbers of turns of the study."""
        return list(self.plan.study.turns)


def render_table(plan: TabularPlan, name: str, out_dir: Path) -> list[Path]:
    """Write one table as ``<name>.csv``, ``.md``, ``.tex`` and ``.provenance.json``.

    Raises:
        ConfigError: no such table.
        DataError: a tidy table is missing or malformed.
    """
    if name not in BUILDERS:
        raise ConfigError(
            f"there is no table '{name}'.", key=name, remedy=f"choose from: {', '.join(BUILDERS)}."
        )
    results = Results(plan)
    title, caption, blocks, rows = BUILDERS[name](results)
    paths = [out_dir / f"{name}{ending}" for ending in (".csv", ".md", ".tex", ".provenance.json")]
    write_csv(rows, paths[0])
    write_text(to_markdown(title, caption, blocks), paths[1])
    write_text(to_latex(name, title, caption, blocks), paths[2])
    write_json(provenance(results, name), paths[3])
    return paths


def provenance(results: Results, name: str) -> dict[str, Any]:
    """Run ids, specification hashes and code revisions behind a table."""
    if name == "grouping_estimators":
        cells = {"estimators": {"run_ids": sorted(set(results.estimators["run_id"]))}}
    else:
        cells = {
            f"{benchmark}/{cell}": {
                "run_ids": str(line.iloc[0]["run_ids"]).split(),
                "spec_hash": line.iloc[0]["spec_hash"],
                "code_revisions": str(line.iloc[0]["code_revision"]).split(),
            }
            for (benchmark, cell), line in results.estimates.groupby(["benchmark", "cell"], sort=True)
        }
    return {
        "study": results.study.study,
        "scale": results.scale,
        "product": name,
        "cells": cells,
        "published_sources": [results.study.published.source],
    }


Built = tuple[str, list[str], list[Panel], pd.DataFrame]


def main_table(results: Results) -> Built:
    """Every quantity of every method and number of turns, the published value beside."""
    blocks = [quantity_panel(results, metric) for metric in QUANTITIES]
    ranges = range_panel(results)
    blocks[1:1] = [ranges] if ranges.rows else []
    seeds = int(results.estimates["n_seeds"].max())
    caption = [
        f"Study {results.study.study} at scale {results.scale}: {seeds} seeds per method and T.",
        STATEMENT,
        "Values are means over seeds with 95 % t intervals, which answer: the method retrained on this task.",
        f"Published: means of {results.study.draw} seeds ({results.study.published.source}).",
        "Degenerate rate: over all turns of an iteration, then averaged over iterations; the buckets are those of "
        "the method's own credit, so trajectory groups and forks have none of one.",
        f"Seeds: {RUNS}.",
        *survivors(results.survivorship, list(results.study.cells)),
    ]
    rows = results.estimates[[*COLUMNS, "note"]]
    return results.study.title, caption, blocks, rows


def quantity_panel(results: Results, metric: str) -> Panel:
    """One quantity: a row per method, measured and published values by number of turns."""
    title, fraction = QUANTITIES[metric]
    shown = [turns for turns in results.turns if _any_published(results, metric, turns)]
    body = []
    for cell in results.study.cells:
        lines = [results.row(metric, turns, cell) for turns in results.turns]
        by_turns = dict(zip(results.turns, lines, strict=True))
        body.append(
            [
                results.plan.label(cell),
                *(value_text(line, fraction) for line in lines),
                *(published_text(by_turns[turns], fraction) for turns in shown),
                counts_text(lines),
            ]
        )
    if metric == SCORE:
        body.append(optimum_row(results, shown))
    spans = [("", 1), ("Measured here", len(results.turns))]
    if shown:
        spans.append((f"Published: means of {results.study.draw} seeds", len(shown)))
    heads = [f"T = {turns}" for turns in results.turns]
    published = [f"T = {turns}" for turns in shown]
    return Panel(title[0].upper() + title[1:], [*spans, ("", 1)], ["", *heads, *published, "seeds"], body)


def optimum_row(results: Results, shown: Sequence[int]) -> list[str]:
    """The best accuracy that any policy reaches, computed."""
    from turnscale.tabular.task import ProbeTask

    best = {turns: points(ProbeTask(turns).optimum) for turns in results.turns}
    return ["optimum, computed", *best.values(), *(best[turns] for turns in shown), MISSING]


def range_panel(results: Results) -> Panel:
    """The range that holds 95 % of means of a few seeds, marked where the published value lies outside."""
    body = []
    for cell in results.study.cells:
        cells = []
        for turns in results.turns:
            line, own = results.row(RANGE, turns, cell), results.row(SCORE, turns, cell)
            if line is None or own is None:
                continue
            outside = not line["lo"] <= own["published"] <= line["hi"] and math.isfinite(own["published"])
            cells.append(f"{points(line['lo'])} to {points(line['hi'])}{' (published outside)' * outside}")
        if cells:
            body.append([results.plan.label(cell), *cells])
    draw = results.study.draw
    title = f"Range that holds 95 % of means of {draw} seeds: accuracy, in points"
    return Panel(title, [], ["", *(f"T = {turns}" for turns in results.turns)], body)


def value_text(line: Mapping[Any, Any] | None, fraction: bool) -> str:
    """Mean and interval of an estimate."""
    if line is None:
        return "not run"
    value, lo, hi = (float(line[name]) for name in ("value", "lo", "hi"))
    if fraction:
        return with_interval(value, lo, hi)
    return f"{value:.2f} ± {(hi - lo) / 2:.2f}" if math.isfinite(lo) else f"{value:g}"


def published_text(line: Mapping[Any, Any] | None, fraction: bool) -> str:
    """A published value; a dash where there is none."""
    if line is None or not math.isfinite(float(line["published"])):
        return MISSING
    return points(float(line["published"])) if fraction else f"{float(line['published']):g}"


def counts_text(lines: Sequence[Mapping[Any, Any] | None]) -> str:
    """planned/finished/failed/excluded seeds of a row; the numbers of turns share them or are listed."""
    names = ("planned", "finished", "failed", "excluded")
    texts = {"/".join(str(int(line[name])) for name in names) for line in lines if line is not None}
    return "; ".join(sorted(texts))


def _any_published(results: Results, metric: str, turns: int) -> bool:
    rows = results.estimates
    kept = rows[(rows["metric"] == metric) & (rows["benchmark"] == f"t{turns}")]
    return bool(kept["published"].notna().any())


def verdict_table(results: Results) -> Built:
    """Each difference beside the published one."""
    draw = results.study.draw
    body = []
    for turns in results.turns:
        lines = results.verdicts[results.verdicts["benchmark"] == f"t{turns}"].to_dict("records")
        body.append([f"T = {turns}"])
        for line in lines:
            body.append(
                [
                    f"{results.plan.label(line['cell_a'])} − {results.plan.label(line['cell_b'])}",
                    points(line["published"], signed=True),
                    difference_text(line),
                    p_value(float(line["p_holm"])),
                    "tie published" if line["published"] == 0 else line["direction"],
                    MISSING if line["published"] == 0 else line["size"],
                    share_text(line["order_share"], line["order_lo"], line["order_hi"]),
                    share_text(line["gap_share"], math.nan, math.nan),
                ]
            )
    columns = [
        "accuracy, points", "published", "here", "p (Holm)", "sign", "size",
        f"{draw} seeds show the published order", f"{draw} seeds show at least the published gap",
    ]  # fmt: skip
    caption = [
        headline(results),
        f"Study {results.study.study} at scale {results.scale}. {STATEMENT}",
        "Intervals are Welch's over seeds, for the method retrained on this task; p is adjusted over all rows. "
        "Sign and size: whether the interval reproduces the published ones.",
        f"The last columns draw {draw} seeds per method from those trained here; a tie counts half for the order.",
    ]
    return (
        f"{results.study.title}: verdicts",
        caption,
        [Panel("Differences", [], columns, body)],
        results.verdicts,
    )


def headline(results: Results) -> str:
    """The longest task's tree against trajectory groups, in words."""
    rows = results.verdicts
    rows = rows[(rows["cell_a"] == "tree") & (rows["cell_b"] == "traj")]
    if rows.empty:
        return "Tree and trajectory groups were not both run."
    line = rows.iloc[-1].to_dict()
    turns = str(line["benchmark"]).removeprefix("t")
    words = (
        f"Published: tree beats traj at T = {turns} by {points(line['published'])} points "
        f"({results.study.draw} seeds each). Here: {difference_text(line)} points with {int(line['n_seeds_a'])} "
        f"seeds each; sign {line['direction']}, size {line['size']}."
    )
    if math.isfinite(line["order_share"]):
        share = share_text(line["order_share"], line["order_lo"], line["order_hi"])
        words += f" Of draws of {results.study.draw} seeds per method, {share} % show the published order."
    return words


def difference_text(line: Mapping[Any, Any]) -> str:
    """A difference with its interval, signed, in points."""
    value, lo, hi = (float(line[name]) for name in ("difference", "lo", "hi"))
    ends = f" [{points(lo, signed=True)}, {points(hi, signed=True)}]" if math.isfinite(lo) else ""
    return f"{points(value, signed=True)}{ends}"


def share_text(value: float, lo: float, hi: float) -> str:
    """A share in whole points, with its interval if it has one."""
    if not math.isfinite(value):
        return MISSING
    ends = f" [{points(lo, 0)}, {points(hi, 0)}]" if math.isfinite(lo) else ""
    return f"{points(value, 0)}{ends}"


ESTIMATOR_PANELS = (
    ("cosine", "cosine of the mean estimate with the exact gradient", 3),
    ("relative_bias", "bias: |mean − gradient| / |gradient|", 2),
    ("relative_variance", "variance of one batch: trace / |gradient|²", 1),
    ("snr_per_100_calls", "signal to noise of batches worth 100 environment calls", 3),
    ("dead_token_share", "action tokens with an advantage of exactly 0, share", 3),
)


def estimator_table(results: Results) -> Built:
    """On the policy by number of turns; off it by ratio; by group size."""
    table = results.estimators
    wanted = results.study.estimators
    size, longest = max(wanted.group_sizes), max(wanted.turns)
    blocks = []
    for tokens in wanted.tokens:
        own = table[(table["tokens"] == tokens) & (table["ratio"] == ON_POLICY)]
        for metric, words, digits in ESTIMATOR_PANELS:
            rows = own[(own["metric"] == metric) & (own["group_size"] == size)]
            heads = [(f"T = {turns}", rows[rows["turns"] == turns]) for turns in wanted.turns]
            title = f"{_tokens(tokens)}, groups of {size}, on the policy: {words}"
            blocks.append(_estimator_panel(results, title, heads, digits))
        for metric, words, digits in ESTIMATOR_PANELS[:1] + ESTIMATOR_PANELS[3:4]:
            rows = own[(own["metric"] == metric) & (own["turns"] == longest)]
            heads = [(f"group of {n}", rows[rows["group_size"] == n]) for n in wanted.group_sizes]
            title = f"{_tokens(tokens)}, T = {longest}, on the policy: {words}"
            blocks.append(_estimator_panel(results, title, heads, digits))
        moved = table[
            (table["tokens"] == tokens) & (table["turns"] == longest) & (table["group_size"] == size)
        ]
        for metric, words, digits in ESTIMATOR_PANELS[:2]:
            rows = moved[moved["metric"] == metric]
            present = [ratio for ratio in wanted.ratios if (rows["ratio"] == ratio).any()]
            heads = [(f"{ratio} ratio", rows[rows["ratio"] == ratio]) for ratio in present]
            title = (
                f"{_tokens(tokens)}, T = {longest}, groups of {size}, {wanted.off_policy_kl:g} nats off the "
                f"policy: {words}"
            )
            blocks.append(_estimator_panel(results, title, heads, digits))
    return "Gradient estimators against the exact gradient", estimator_caption(results), blocks, table


def estimator_caption(results: Results) -> list[str]:
    """What is measured and how."""
    batches = int(results.estimators["batches"].iloc[0])
    return [
        f"Study {results.study.study} at scale {results.scale}: {batches} Monte-Carlo batches per estimator, 95 % "
        "jackknife intervals.",
        "The gradient is exact, by enumeration of every trajectory of the probe task, at a policy half-way between "
        "chance and the optimum.",
        "Critics are exact too, so GAE rows show the estimator without the critic's error; no clip, no whitening of "
        "the batch.",
        "Leave-one-out, token GAE and turn GAE aim at the gradient itself. Division by the group's standard "
        "deviation, anchor buckets, MPO's refinement inside the turn, HyGAE's value at the last token, and a tree's "
        "extra weight on later turns aim elsewhere: judge those by the cosine; their bias in length is a learning "
        "rate.",
        "A tree row's group is the fork's; it forks at every turn, so its batches cost more or fewer calls than the "
        "others', which the signal to noise per 100 calls accounts for.",
    ]


def _tokens(tokens: int) -> str:
    return "One token per turn" if tokens == 1 else "Two tokens per turn"


def _estimator_panel(
    results: Results, title: str, heads: Sequence[tuple[str, pd.DataFrame]], digits: int
) -> Panel:
    body = []
    for credit, cell in results.study.estimators.credits.items():
        line = []
        for _, rows in heads:
            own = rows[rows["credit"] == credit]
            line.append(MISSING if own.empty else plain_text(own.iloc[0].to_dict(), digits))
        body.append([cell.label or credit, *line])
    return Panel(title, [], ["", *(head for head, _ in heads)], body)


def plain_text(row: Mapping[Any, Any], digits: int) -> str:
    """A number with its interval, not in points."""
    value, lo, hi = (f"{float(row[name]):.{digits}f}".replace("-", "−") for name in ("value", "lo", "hi"))
    if not math.isfinite(float(row["value"])):
        return MISSING
    return value if lo == hi else f"{value} [{lo}, {hi}]"


BUILDERS: dict[str, Callable[[Results], Built]] = {
    "grouping_main": main_table,
    "grouping_verdicts": verdict_table,
    "grouping_estimators": estimator_table,
}
