"""The table of the critic diagnosis: measured, warm-up only, simulated and published values side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from turnscale.config.schema import Figure, Table
from turnscale.diagnose.across_seeds import COMMON, COMPARED
from turnscale.diagnose.nulls import NULLS
from turnscale.diagnose.table import OWN
from turnscale.diagnose.verdict import interval_row, sides, verdict
from turnscale.render.data import Tables
from turnscale.render.layout import Panel
from turnscale.render.survivors import survivors
from turnscale.render.text import MISSING, points, with_interval

COLUMNS = [
    *("kind", "family", "model", "cell", "method", "seed", "set", "checkpoint", "statistic", "value", "lo"),
    *("hi", "question", "n_seeds", "n_prompts", "n_trajectories", "left_out", "published"),
    *("published_source", "run_ids", "note"),
]
SETS = {
    OWN: "own training rollouts, all checkpoints",
    COMMON: "common rollouts of the base policy, all checkpoints",
    "shuffled": "common rollouts, a critic warmed up on rewards shuffled over trajectories",
}
HEADS = {
    "share_token": "between-turn share",
    "share_turn": "turns equal",
    "share_long": "turns ≥ 2 tokens",
    "between_exceeds_within": "between > within",
    "jump_exceeds_span": "jump > span",
    "boundary_share": "boundary share of squared change",
    "boundary_share_median": "its median",
    "boundary_pairs": "boundaries among token pairs",
    "enrichment": "enrichment",
    "excess_share": "excess over permuted lengths",
    "clock_excess": "clock: excess",
    "clock_rate": "clock: rate",
    "one_token_turns": "one-token turns",
    "turns": "turns",
    "success": "success",
    "explained_variance": "explained variance",
    "explained_variance_centred": "bias removed",
    "explained_variance_first": "first token",
    "explained_variance_last": "last token",
    "squared_error": "squared error",
    "calibration_slope": "slope",
    "boundary_change_failed": "change at boundaries, failed",
    "boundary_change_succeeded": "succeeded",
}
PLAIN = {
    "enrichment": 2,
    "clock_rate": 2,
    "turns": 1,
    "squared_error": 3,
    "calibration_slope": 2,
    "boundary_change_failed": 3,
    "boundary_change_succeeded": 3,
    **{name: 2 for name in HEADS if name.startswith("explained")},
    "clock_excess": 2,
}
"""statistic -> decimals, for those that are not shares in points."""
HEADLINE = ("share_token", "share_turn", "between_exceeds_within", "jump_exceeds_span", "boundary_share")
CONTROLS = ("excess_share", "enrichment", "clock_rate", "clock_excess", "share_long", "boundary_share_median")
COUNTS = ("boundary_pairs", "one_token_turns", "turns", "success")
ACCURACY = (
    *("explained_variance", "explained_variance_centred", "explained_variance_first"),
    *("explained_variance_last", "squared_error", "calibration_slope"),
    *("boundary_change_failed", "boundary_change_succeeded"),
)
NOT_SIMULATED = {*COUNTS, *ACCURACY}


def printed(tables: Tables, table: Table) -> pd.DataFrame:
    """The rows of a table's cells over all checkpoints and before any update, the nulls and the published ones."""
    rows = tables.critic_statistics
    whole = rows["checkpoint"].isna() | (rows["checkpoint"] == 0)
    return beside(rows[whole.astype(bool)], table, tables.cells(table))


def beside(rows: pd.DataFrame, entry: Table | Figure, cells: Sequence[str]) -> pd.DataFrame:
    """The rows of some cells, the nulls and the published ones, with published values beside mapped cells."""
    kept = rows[rows["cell"].isin([*cells, ""])].reset_index(drop=True)
    known = {
        (row["method"], row["statistic"]): (row["value"], row["published_source"])
        for row in kept[kept["kind"] == "published"].to_dict("records")
    }
    mapped: Mapping[str, str] = entry.published.cells if entry.published else {}
    models: Mapping[str, str] = entry.published.models if entry.published else {}
    mine = kept[(kept["kind"] == "method") & kept["model"].isin(list(models)) & (kept["set"] == OWN)]
    found = [
        known.get((mapped.get(row["cell"], ""), row["statistic"]), (math.nan, ""))
        for row in mine.to_dict("records")
    ]
    local = pd.DataFrame({"published": math.nan, "source": ""}, index=kept.index)
    if found:
        local.loc[mine.index, ["published", "source"]] = found
    source = kept["published_source"].where(kept["kind"] == "published", local["source"])
    return kept.assign(published=local["published"].astype("float64"), published_source=source)


def value_text(row: Mapping[str, Any] | None, statistic: str) -> str:
    """A value with its interval, in points unless it is no share; † where the interval is over prompts."""
    if row is None:
        return MISSING
    if statistic in PLAIN:
        digits = PLAIN[statistic]
        text = with_interval(row["value"] / 100, row["lo"] / 100, row["hi"] / 100, digits)
    else:
        text = with_interval(row["value"], row["lo"], row["hi"])
    return text + ("†" if row["kind"] == "run" else "")


def panels(tables: Tables, table: Table) -> list[Panel]:
    """Blocks of each family, model and set of rollouts: headline, controls, accuracy; then differences."""
    rows = tables.critic_statistics
    cells = tables.cells(table)
    found = []
    for family, model in tables.arms:
        own = rows[(rows["family"] == family) & (rows["model"] == model)]
        where = f"{family}, {model}" if len({pair[0] for pair in tables.arms}) > 1 else model
        critics = [cell for cell in cells if (own["cell"] == cell).any()]
        if not critics:
            found.append(Panel(f"{where}: no cell with a critic was run", [], ["", "runs"], [["–", "–"]]))
            continue
        for group in sorted(set(own["set"]), key=lambda name: (name not in SETS, name)):
            here = own[own["set"] == group]
            title = f"{where}: {SETS.get(group, group)}"
            published = rows[rows["kind"] == "published"] if group == OWN else rows.iloc[:0]
            stands = table.published is not None and model in table.published.models
            for name, columns in (
                ("shares and comparisons, in points", HEADLINE),
                ("what tells turns from time", CONTROLS),
                ("what the trajectories are like", COUNTS),
                ("accuracy", ACCURACY),
            ):
                body = _body(tables, here, critics, columns, published if stands else rows.iloc[:0])
                heads = ["", *(HEADS[column] for column in columns)]
                found.append(Panel(f"{title}: {name}", [], heads, body))
            found.append(
                Panel(
                    f"{title}: the between-turn share beside each simulated critic's (like: not distinguished)",
                    [],
                    ["", *(label for label, _ in NULLS.values())],
                    _sides(tables, here, critics),
                )
            )
        differences = _differences(tables, own, critics, table.reference)
        if differences:
            found.append(
                Panel(
                    f"{where}: difference to {tables.label(table.reference)} on the common rollouts, "
                    "paired by seed",
                    [],
                    ["", *(HEADS[column] for column in COMPARED), "seeds"],
                    differences,
                )
            )
    return found


def sentence(tables: Tables, entry: Table | Figure, group: str = OWN) -> list[str]:
    """The verdict on the reference cell of each family and model, on one set of rollouts."""
    rows = tables.critic_statistics
    found = []
    for family, model in tables.arms:
        own = rows[(rows["family"] == family) & (rows["model"] == model) & (rows["set"] == group)]
        mine = own[(own["cell"] == entry.reference) & own["checkpoint"].isna()]
        if entry.reference is not None and len(mine):
            label = tables.label(entry.reference) + (f" on {model}" if len(tables.arms) > 1 else "")
            found.append(verdict(mine, own[own["kind"] == "simulated"], label))
    return found


def caption_of(tables: Tables, table: Table) -> list[str]:
    """Sentences under the table."""
    return [
        f"Study {tables.study.study} at scale {tables.scale}.",
        tables.statement(),
        "Values are means over seeds of each run's statistic (shares: median over trajectories) with 95 % t "
        "intervals over seeds: the method retrained, on new tasks.",
        "† one training run: the interval is over prompts and says nothing about another critic.",
        "Simulated critics know nothing of turns (except the last) and have the turn and observation lengths of the "
        "trajectories here; their intervals are over simulated trajectories.",
        "Excess: share minus its mean under the same turn lengths in random order; it is 0 on average where turn "
        "boundaries have nothing to do with the values and every order of the lengths is equally likely.",
        "Clock: rate is the squared change per elapsed token, observations included, at boundaries relative to that "
        "inside turns; excess is what the squared change at boundaries has beyond observation length and the change "
        "of one token, as a part of it, by regression.",
        "Trajectories of one turn or of constant value have no between-turn share and are left out of it.",
        "Published values come from one training run of another model on another benchmark.",
        "The published changes at boundaries are those marked in the paper's figure and need not be means: seven "
        "boundaries of +0.55 would exceed the range of a probability.",
        *sentence(tables, table),
        *survivors(tables.survivorship, tables.cells(table)),
    ]


def _body(
    tables: Tables, rows: pd.DataFrame, cells: Sequence[str], columns: Sequence[str], published: pd.DataFrame
) -> list[list[str]]:
    body = [
        [tables.label(cell), *_values(rows[(rows["cell"] == cell) & rows["checkpoint"].isna()], columns)]
        for cell in cells
        if ((rows["cell"] == cell) & rows["checkpoint"].isna()).any()
    ]
    first = rows[rows["checkpoint"] == 0]
    if len(first):
        body.append(["before any update (warmed up on the base policy)"])
        seen: dict[tuple[str, ...], list[str]] = {}
        for cell in cells:
            mine = first[first["cell"] == cell]
            if len(mine):
                seen.setdefault(tuple(_values(mine, columns)), []).append(tables.label(cell))
        body += [[", ".join(labels), *values] for values, labels in seen.items()]
    nulls = rows[rows["kind"] == "simulated"]
    if len(nulls) and not set(columns) <= NOT_SIMULATED:
        body.append(["simulated at these lengths"])
        for name, (label, _) in NULLS.items():
            mine = nulls[nulls["method"] == name]
            body.append([label, *(value_text(_one(mine, column), column) for column in columns)])
    outside = published[published["statistic"].isin(columns)]
    if len(outside):
        body.append(["published"])
        for method in dict.fromkeys(outside["method"]):
            mine = outside[outside["method"] == method]
            body.append([method, *(_published(_one(mine, column), column) for column in columns)])
    return body


def _sides(tables: Tables, rows: pd.DataFrame, cells: Sequence[str]) -> list[list[str]]:
    nulls, whole = rows[rows["kind"] == "simulated"], rows[rows["checkpoint"].isna()]
    return [
        [tables.label(cell), *(found.get(name, MISSING) for name in NULLS)]
        for cell in cells
        if (whole["cell"] == cell).any()
        for found in (sides(whole[whole["cell"] == cell], nulls),)
    ]


def _values(rows: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    return [value_text(interval_row(rows, column), column) for column in columns]


def _one(rows: pd.DataFrame, statistic: str) -> dict[str, Any] | None:
    here = rows[rows["statistic"] == statistic]
    return dict(here.iloc[0]) if len(here) and math.isfinite(here.iloc[0]["value"]) else None


def _published(row: Mapping[str, Any] | None, statistic: str) -> str:
    if row is None:
        return MISSING
    return f"{row['value']:.2f}".replace("-", "−") if statistic in PLAIN else points(row["value"], 1)


def _differences(tables: Tables, rows: pd.DataFrame, cells: Sequence[str], reference: str) -> list[list[str]]:
    body = []
    for cell in cells:
        mine = rows[(rows["kind"] == "difference") & (rows["cell"] == cell)]
        if mine.empty or cell == reference:
            continue
        texts = []
        for column in COMPARED:
            row = _one(mine, column)
            if row is None:
                texts.append(MISSING)
                continue
            scale, digits = (100, PLAIN[column]) if column in PLAIN else (1, 1)
            value, lo, hi = (row[name] / scale for name in ("value", "lo", "hi"))
            texts.append(with_interval(value, lo, hi, digits, signed=True))
        body.append([tables.label(cell), *texts, str(int(mine["n_seeds"].max()))])
    return body
