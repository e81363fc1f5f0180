"""The diagnosis of a study: measured, simulated and published critic statistics in one tidy table.

One number a row. ``kind`` says where it is from:

* ``run``: one training run; the interval is over prompts, for the critic at hand;
* ``method``: the mean over the seeds of a cell, with a t interval over seeds (none for one seed);
* ``difference``: a cell minus the reference on the common rollouts, paired by seed;
* ``simulated``: a critic that is simulated at the lengths of the trajectories of all cells;
* ``published``.

``checkpoint`` is empty where all checkpoints after the first (which no update has touched) are taken together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from turnscale.diagnose.across_seeds import Row, difference_rows, method_rows
from turnscale.diagnose.nulls import NULLS, simulate
from turnscale.diagnose.permutation import PERMUTATIONS, Permuted, excess_share, permute
from turnscale.diagnose.published import PublishedStatistic
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.summary import RESAMPLES, STATISTICS, Statistic, summarise
from turnscale.diagnose.values import RUN, CriticValues, check_columns, from_frame
from turnscale.estimates.schema import frame
from turnscale.seeding import numpy_stream
from turnscale.stats.passk import Ints

ROWS = [
    "study",
    "scale",
    "kind",
    "family",
    "model",
    "cell",
    "method",
    "seed",
    "set",
    "checkpoint",
    "statistic",
    "value",
    "lo",
    "hi",
    "question",
    "n_seeds",
    "n_prompts",
    "n_trajectories",
    "left_out",
    "published_source",
    "run_ids",
    "note",
]
IDENTITY = ["family", "model", "cell", "method", "seed", "run_id"]
SHARED = ["family", "model", "seed"]
"""What names the random streams: cells of a seed have the same, so that equal critics get equal numbers."""
PERMUTED = ("excess_share", "excess_p", "permutation_p")
ALL_STATISTICS = (*STATISTICS, *PERMUTED)
OWN = "probe"
"""The set of a policy's own training rollouts, as in the published diagnosis."""

DRAWN = [
    *("family", "model", "cell", "set", "checkpoint", "turns", "share_token", "within", "between"),
    *("jump", "span"),
]
"""What figures read of the table of trajectories; one without a trajectory has these columns alone."""

MOST_OF_A_RUN = 200
"""Trajectories of one run and set, at most, whose lengths enter the nulls."""

RUN_QUESTION = "these critics on prompts like these"
NULL_QUESTION = "simulated trajectories like these"


@dataclass(frozen=True)
class RunDiagnosis:
    """What one run adds to the diagnosis of a study.

    Attributes:
        key: values of ``RUN``, the order of runs in every table.
        rows: its statistics, tidy rows of kind ``run``.
        table: one row per trajectory, with identity, lengths and statistics.
        lengths: set -> trained trajectories whose lengths the simulated critics get, `MOST_OF_A_RUN` at most.
    """

    key: tuple[Any, ...]
    rows: list[Row]
    table: pd.DataFrame
    lengths: dict[str, CriticValues]


def diagnose(
    critic_values: pd.DataFrame,
    published: Sequence[PublishedStatistic] = (),
    *,
    reference: str | None = None,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Diagnose every run of a table of critic values.

    Args:
        critic_values: `turnscale.diagnose.values.COLUMNS` and family, model, cell, method, seed and run_id.
        published: the published statistics.
        reference: the cell that others are compared with on the common rollouts; none, no comparison.
        resamples: bootstrap draws of prompts.
        permutations: permuted orders of the turn lengths.

    Returns:
        The tidy statistics (`ROWS`), and one row per trajectory with its identity, lengths and statistics.

    Raises:
        DataError: malformed values; see `turnscale.diagnose.values.from_frame`.
    """
    check_columns(critic_values)
    runs = critic_values.groupby(RUN, sort=False, observed=True)
    found = [diagnose_run(runs.get_group(key), resamples, permutations) for key in runs.groups]
    return combine(found, published, reference=reference, resamples=resamples, permutations=permutations)


def diagnose_run(
    values: pd.DataFrame, resamples: int = RESAMPLES, permutations: int = PERMUTATIONS
) -> RunDiagnosis:
    """Diagnose one run; nothing of it depends on the other runs.

    Args:
        values: critic values of one run, as in :func:`diagnose`.
        resamples, permutations: as in :func:`diagnose`.

    Raises:
        DataError: malformed values; see `turnscale.diagnose.values.from_frame`.
    """
    key = tuple(values[name].iloc[0] for name in RUN)
    identity = {name: values[name].iloc[0] for name in IDENTITY}
    critic, names = from_frame(values)
    table = pd.concat([names.drop(columns="prompt"), trajectory_statistics(critic)], axis=1)
    permuted = _permuted(identity, critic, table, permutations)
    rows = _run_rows(identity, table, permuted, resamples)
    lengths = {}
    for name, group in _trained(table):
        some = _stream("lengths", *key, name).permutation(group)[:MOST_OF_A_RUN]
        lengths[name] = critic.rows(np.sort(some))
    table["excess"] = permuted.excess
    table["prompt"] = names["prompt"]
    return RunDiagnosis(key, rows, table.assign(**identity), lengths)


def combine(
    runs: Iterable[RunDiagnosis],
    published: Sequence[PublishedStatistic] = (),
    *,
    reference: str | None = None,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The diagnosis of a study from those of its runs, in any order; arguments and result as of :func:`diagnose`."""
    rows: list[Row] = [
        {
            "kind": "published",
            "method": item.method,
            "set": OWN,
            "statistic": item.statistic,
            "value": item.value,
            "published_source": item.source,
        }
        for item in published
    ]
    trajectories: list[pd.DataFrame] = []
    lengths: dict[tuple[str, str, str], list[CriticValues]] = {}
    for run in sorted(runs, key=lambda run: run.key):
        rows += run.rows
        trajectories.append(run.table)
        family, model = (str(run.key[RUN.index(name)]) for name in ("family", "model"))
        for name, some in run.lengths.items():
            lengths.setdefault((family, model, name), []).append(some)
    rows += list(method_rows(rows))
    if reference is not None:
        rows += list(difference_rows(rows, reference))
    for (family, model, name), parts in lengths.items():
        rows += _null_rows(family, model, name, join(parts), resamples, permutations)
    every = pd.concat(trajectories, ignore_index=True) if trajectories else pd.DataFrame(columns=DRAWN)
    return _tidy(rows), every


def diagnose_table(
    critic_values: pd.DataFrame, published: Sequence[PublishedStatistic] = (), **options: Any
) -> pd.DataFrame:
    """The tidy statistics of :func:`diagnose` alone."""
    return diagnose(critic_values, published, **options)[0]


def join(parts: Sequence[CriticValues]) -> CriticValues:
    """Trajectories of several runs one after another; prompts of different runs stay different."""
    tokens = np.cumsum([0, *(part.values.size for part in parts)])
    turns = np.cumsum([0, *(part.turn_starts.size for part in parts)])
    prompts = np.cumsum([0, *(int(part.prompt.max()) + 1 for part in parts)])

    def stack(name: str, offsets: Ints | None = None) -> Any:
        shift = np.zeros(len(parts), dtype=np.int64) if offsets is None else offsets
        return np.concatenate([getattr(part, name) + shift[i] for i, part in enumerate(parts)])

    return CriticValues(
        stack("values"),
        stack("turn_starts", tokens),
        stack("row_starts", turns),
        stack("gaps"),
        stack("reward"),
        np.concatenate([part.success for part in parts]),
        stack("prompt", prompts),
    )


def _trained(table: pd.DataFrame) -> Iterator[tuple[str, Ints]]:
    """(set, trajectories at any checkpoint after the first, which precedes all updates)."""
    for name, part in table.groupby("set", sort=True):
        index = part.index[part["checkpoint"] > 0].to_numpy(np.int64)
        if index.size:
            yield str(name), index


def _permuted(
    identity: Mapping[str, Any], critic: CriticValues, table: pd.DataFrame, permutations: int
) -> Permuted:
    """Permuted shares by set, with the same orders for all cells of a seed that share their rollouts."""
    observed = np.full(critic.size, np.nan)
    shares = np.full((permutations, critic.size), np.nan)
    for name, part in table.groupby("set", sort=True):
        index = part.index.to_numpy(np.int64)
        stream = _stream("permute", *(identity[key] for key in SHARED), str(name))
        found = permute(critic.rows(index), stream, permutations)
        observed[index], shares[:, index] = found.observed, found.shares
    return Permuted(observed, shares)


def _run_rows(
    identity: Mapping[str, Any], table: pd.DataFrame, permuted: Permuted, resamples: int
) -> list[Row]:
    groups: list[tuple[str, int | None, Ints]] = [(name, None, index) for name, index in _trained(table)]
    for name, own in table.groupby("set", sort=True):
        for step in sorted(set(own["checkpoint"])):
            groups.append((str(name), int(step), own.index[own["checkpoint"] == step].to_numpy(np.int64)))
    rows = []
    for group, checkpoint, index in groups:
        stream = _stream("prompts", *(identity[key] for key in SHARED), group, str(checkpoint))
        found = summarise(table.loc[index], stream, resamples=resamples)
        found |= excess_share(permuted, table["prompt"].to_numpy(), index)
        place = {
            "kind": "run",
            "set": group,
            "checkpoint": checkpoint,
            "n_seeds": 1,
            "question": RUN_QUESTION,
        }
        rows += _statistic_rows(
            {**{key: identity[key] for key in RUN}, "method": identity["method"], **place}, found
        )
        for row in rows[-len(found) :]:
            row["run_ids"] = identity["run_id"]
    return rows


def _statistic_rows(place: Mapping[str, Any], found: Mapping[str, Statistic]) -> list[Row]:
    return [
        {
            **place,
            "statistic": name,
            "value": item.value,
            "lo": item.lo,
            "hi": item.hi,
            "n_prompts": item.n_prompts,
            "n_trajectories": item.n_trajectories,
            "left_out": item.left_out,
            "note": item.note,
        }
        for name, item in found.items()
    ]


def _null_rows(
    family: str, model: str, name: str, critic: CriticValues, resamples: int, permutations: int
) -> list[Row]:
    rows = []
    for null in NULLS:
        simulated = simulate(critic, null, _stream("simulated", null, family, model, name))
        found = summarise(
            trajectory_statistics(simulated),
            _stream("null prompts", null, family, model, name),
            resamples=resamples,
        )
        permuted = permute(simulated, _stream("null permute", null, family, model, name), permutations)
        found |= excess_share(permuted, simulated.prompt)
        # A simulated critic predicts no reward.
        kept = {
            key: item
            for key, item in found.items()
            if not key.startswith(("explained", "calibration", "boundary_change", "squared_error", "success"))
        }
        place = {"kind": "simulated", "family": family, "model": model, "method": null, "set": name}
        rows += _statistic_rows({**place, "checkpoint": None, "question": NULL_QUESTION}, kept)
    return rows


def _tidy(rows: Iterable[Row]) -> pd.DataFrame:
    order = {"published": 0, "run": 1, "method": 2, "difference": 3, "simulated": 4}
    entries = sorted(rows, key=lambda row: order[row["kind"]])
    return frame(entries, ROWS)


def _stream(*names: Any) -> np.random.Generator:
    return numpy_stream(0, "diagnose", *map(str, names))
