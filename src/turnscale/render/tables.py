"""Tables of the paper as tidy CSV, Markdown and LaTeX, with a file that says where every number comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from turnscale.config.schema import Study, Table
from turnscale.estimates.schema import BAND, PUBLISHED_ONLY
from turnscale.files import write_csv, write_json, write_text
from turnscale.render import critic
from turnscale.render.data import Tables, entry_of
from turnscale.render.layout import RUNS, Panel, beside, panels
from turnscale.render.looks import sentences as plan_sentences
from turnscale.render.survivors import survivors
from turnscale.render.text import latex, markdown

COLUMNS = [
    "family",
    "model",
    "benchmark",
    "metric",
    "k",
    "method",
    "cell",
    "value",
    "lo",
    "hi",
    "question",
    "n_seeds",
    "n_tasks",
    "n_attempts",
    "planned",
    "finished",
    "failed",
    "excluded",
    "published",
    "published_source",
    "run_ids",
]


def render_table(study: Study, scale: str, name: str, tables_dir: Path, out_dir: Path) -> list[Path]:
    """Write one table of a study as ``<name>.csv``, ``.md``, ``.tex`` and ``.provenance.json``.

    Args:
        study: the study that declares the table.
        scale: the scale at which it was run.
        name: a key of ``study.tables``.
        tables_dir: holds estimates.csv and comparisons.csv.
        out_dir: such as ``paper_tables/<scale>``.

    Returns:
        The files written.

    Raises:
        ConfigError: the study has no such table.
        DataError: a tidy table is missing, malformed or of another study or scale.
    """
    return write_table(Tables(study, scale, tables_dir), name, out_dir)


def write_table(tables: Tables, name: str, out_dir: Path) -> list[Path]:
    """As :func:`render_table`, from tidy tables that several products are made from."""
    table = entry_of(tables.study.tables, name, "table", tables.study.study)
    if table.kind == "critic":
        rows = critic.printed(tables, table)
        arms = tables.estimates[tables.estimates["cell"].isin(set(rows["cell"]))]
        columns, blocks, caption = (
            critic.COLUMNS,
            critic.panels(tables, table),
            critic.caption_of(tables, table),
        )
    else:
        rows = arms = beside(select(tables, table), table)
        columns, blocks, caption = COLUMNS, panels(tables, name, table), caption_of(tables, table)
    paths = [out_dir / f"{name}{ending}" for ending in (".csv", ".md", ".tex", ".provenance.json")]
    write_csv(rows[columns], paths[0])
    write_text(to_markdown(table.title, caption, blocks), paths[1])
    write_text(to_latex(name, table.title, caption, blocks), paths[2])
    write_json(provenance(tables, name, arms, set(rows["published_source"])), paths[3])
    return paths


def select(tables: Tables, table: Table) -> pd.DataFrame:
    """The estimates of a table's cells and metrics, with the published values that stand beside them."""
    every = tables.estimates
    metrics = set(table.metrics)
    published = (
        every["metric"].str.startswith("pass_at_") if BAND in metrics else every["metric"].isin(metrics)
    )
    cells = [*tables.cells(table), ""]
    kept = every["metric"].isin(metrics) | (published & (every["question"] == PUBLISHED_ONLY))
    return every[kept & every["cell"].isin(cells)].reset_index(drop=True)


def caption_of(tables: Tables, table: Table) -> list[str]:
    """Sentences under a table: scale, question, marks, counts."""
    sentences = [f"Study {tables.study.study} at scale {tables.scale}.", tables.statement()]
    kind = "bands over all k of a row" if table.kind == "passk" else "intervals"
    sentences.append(
        f"Values are means over seeds and tasks with 95 % {kind} that answer: the method retrained, on new tasks."
    )
    sentences += [
        "† one run, or no spread between runs: the interval is over tasks for the checkpoints at hand and says "
        "nothing about retraining.",
        f"* differs from {tables.label(table.reference)} with Holm-adjusted p < 0.05 over every difference that this "
        "table states; never given where either side has a single seed.",
        *plan_sentences(tables, table),
        f"Runs: {RUNS}; a planned run in none of the other counts had not ended.",
        *survivors(tables.survivorship, tables.cells(table)),
    ]
    if "auc" in table.metrics:
        sentences.append(
            "Validation AUC is the mean height of the validation pass@1 curve over training; its interval answers: "
            "the method retrained, on these tasks."
        )
    if table.published is not None:
        sentences.append(
            "Published values come from another model and another benchmark; sources in the CSV."
        )
    return sentences


def to_markdown(title: str, caption: Sequence[str], blocks: Sequence[Panel]) -> str:
    """The panels as Markdown; span headings go into the column headings, which have no second level."""
    lines = [f"# {markdown(title)}", "", markdown(" ".join(caption)), ""]
    for panel in blocks:
        heads = [markdown(head) for head in _flat_heads(panel)]
        lines += [f"## {markdown(panel.title)}", "", _row(heads), _row(["---"] + ["---:"] * (len(heads) - 1))]
        for row in panel.rows:
            if len(row) == 1:
                lines.append(_row([f"**{markdown(row[0])}**"] + [""] * (len(heads) - 1)))
            else:
                lines.append(_row([markdown(cell) for cell in row]))
        lines.append("")
    return "\n".join(lines)


def to_latex(name: str, title: str, caption: Sequence[str], blocks: Sequence[Panel]) -> str:
    """The panels as one ``table*`` float for booktabs; every string is escaped."""
    lines = [
        "% Needs: \\usepackage{booktabs} and \\usepackage[T1]{fontenc}",
        "\\begin{table*}",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
        f"\\caption{{{latex(title)}. {latex(' '.join(caption))}}}",
        f"\\label{{tab:{''.join(char if char.isalnum() else '-' for char in name)}}}",
    ]
    for panel in blocks:
        lines += ["\\medskip", f"\\textit{{{latex(panel.title)}}}\\\\[2pt]"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(panel.columns) - 1)}}}", "\\toprule"]
        if panel.spans:
            lines += _latex_spans(panel.spans)
        lines += [_tex_row(panel.columns, latex), "\\midrule"]
        for number, row in enumerate(panel.rows):
            if len(row) == 1:
                lines += ["\\addlinespace"] if number else []
                lines.append(
                    f"\\multicolumn{{{len(panel.columns)}}}{{l}}{{\\textit{{{latex(row[0])}}}}} \\\\"
                )
            else:
                lines.append(_tex_row(row, latex))
        lines += ["\\bottomrule", "\\end{tabular}", ""]
    lines.append("\\end{table*}")
    return "\n".join(lines) + "\n"


def provenance(tables: Tables, name: str, rows: pd.DataFrame, sources: set[str]) -> dict[str, object]:
    """Run ids, specification hashes and code revisions of each cell, and the hashes of the tables read."""
    arms = {}
    for key, line in rows[rows["cell"] != ""].groupby(["family", "model", "cell"], sort=True):
        known = line[line["spec_hash"] != ""]
        first = known.iloc[0] if len(known) else line.iloc[0]
        arms["/".join(map(str, key))] = {
            "run_ids": first["run_ids"].split(),
            "spec_hash": first["spec_hash"],
            "evaluation_hash": first["evaluation_hash"],
            "code_revisions": first["code_revision"].split(),
        }
    return {
        "study": tables.study.study,
        "scale": tables.scale,
        "product": name,
        "cells": arms,
        "inputs_sha256": tables.hashes(name),
        "published_sources": sorted(sources - {""}),
    }


def _flat_heads(panel: Panel) -> list[str]:
    """Column headings with the heading of their span in front, where the span covers several of them."""
    prefixes = [
        heading if count > 1 or heading.startswith("Published") else ""
        for heading, count in panel.spans
        for _ in range(count)
    ]
    prefixes = prefixes or [""] * len(panel.columns)
    return [
        f"{prefix.split(':')[0].lower()}: {head}" if prefix.startswith("Published") else head
        for prefix, head in zip(prefixes, panel.columns, strict=True)
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tex_row(cells: Sequence[str], escape: Callable[[str], str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + " \\\\"


def _latex_spans(spans: Sequence[tuple[str, int]]) -> list[str]:
    cells, rules, start = [], [], 1
    for heading, count in spans:
        cells.append(
            f"\\multicolumn{{{count}}}{{c}}{{{latex(heading)}}}" if heading else "&".join([""] * count)
        )
        if heading and count > 1:
            rules.append(f"\\cmidrule(lr){{{start}-{start + count - 1}}}")
        start += count
    return [" & ".join(cells) + " \\\\", *rules]
