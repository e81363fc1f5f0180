"""The tidy diagnosis of a study: runs, seeds, differences, simulated critics and published values."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.diagnose.invented import study_frame
from turnscale.diagnose import diagnose, diagnose_table, verdict
from turnscale.diagnose.nulls import NULLS, mean_reverting, random_walk, steps
from turnscale.diagnose.published import read_published
from turnscale.diagnose.table import ALL_STATISTICS, ROWS
from turnscale.diagnose.verdict import interval_row, sides
from turnscale.errors import DataError

ROOT = Path(__file__).parents[2]
FILE = "configs/published/mpo_critic_diagnostic.csv"
OPTIONS = {"resamples": 50, "permutations": 9, "reference": "mpo"}


@pytest.fixture(scope="module")
def values():
    return study_frame(
        {"ppo": mean_reverting(0.3), "mpo": random_walk}, seeds=2, size=24, checkpoints=(0, 20, 40)
    )


@pytest.fixture(scope="module")
def found(values):
    return diagnose(values, read_published(FILE, ROOT), **OPTIONS)


def pick(rows, **where):
    for key, value in where.items():
        rows = rows[rows[key].isna() if value is None else rows[key] == value]
    return rows


def test_every_run_set_and_checkpoint_has_every_statistic(found):
    rows, trajectories = found
    runs = pick(rows, kind="run")
    assert list(rows.columns) == ROWS
    assert set(runs["statistic"]) == set(ALL_STATISTICS)
    # Two cells and seeds; common rollouts at three checkpoints and own ones at two; and both sets as a whole.
    assert len(runs) == 2 * 2 * (3 + 2 + 2) * len(ALL_STATISTICS)
    assert not runs.duplicated(["cell", "seed", "set", "checkpoint", "statistic"]).any()
    assert len(trajectories) == 2 * 2 * (3 + 2) * 24


def test_whole_runs_leave_the_first_checkpoint_out(found):
    rows, trajectories = found
    whole = pick(rows, kind="run", cell="mpo", seed=0, set="common", checkpoint=None, statistic="share_token")
    mine = trajectories.query("cell == 'mpo' and seed == 0 and set == 'common' and checkpoint > 0")
    assert whole["value"].item() == pytest.approx(mine["share_token"].median())
    assert whole["n_trajectories"].item() == 48 and whole["n_prompts"].item() == 6


def test_methods_are_means_over_seeds_with_a_t_interval(found):
    rows, _ = found
    where = {"cell": "ppo", "set": "probe", "checkpoint": 20, "statistic": "enrichment"}
    runs, method = pick(rows, kind="run", **where)["value"], pick(rows, kind="method", **where).iloc[0]
    assert method["value"] == pytest.approx(runs.mean()) and method["n_seeds"] == 2
    assert method["hi"] - method["value"] == pytest.approx(12.7062 * runs.std() / np.sqrt(2), rel=1e-5)
    assert method["run_ids"] == "ppo.0 ppo.1"
    assert not set(pick(rows, kind="method")["statistic"]) & {"excess_p", "permutation_p"}
    shares = pick(rows, kind="method", statistic="share_token")
    assert (shares["lo"] >= 0).all() and (shares["hi"] <= 1).all()


def test_differences_are_paired_by_seed_on_the_common_rollouts(found):
    rows, _ = found
    difference = pick(rows, kind="difference", statistic="share_token").iloc[0]
    where = {"kind": "run", "set": "common", "checkpoint": None, "statistic": "share_token"}
    runs = pick(rows, **where)
    gap = pick(runs, cell="ppo")["value"].to_numpy() - pick(runs, cell="mpo")["value"].to_numpy()
    assert difference["value"] == pytest.approx(gap.mean()) and difference["cell"] == "ppo"
    assert set(pick(rows, kind="difference")["set"]) == {"common"}


def test_nulls_have_the_lengths_of_the_study(found):
    rows, trajectories = found
    nulls = pick(rows, kind="simulated", set="probe")
    assert set(nulls["method"]) == set(NULLS)
    own = trajectories.query("set == 'probe' and checkpoint > 0")
    mine = pick(nulls, method="drift", statistic="turns")
    assert mine["value"].item() == pytest.approx(own["turns"].mean())
    assert not nulls["statistic"].str.startswith("explained").any()


def test_published_values_are_fractions_and_say_where_they_are_from(found):
    rows = pick(found[0], kind="published").set_index("statistic")
    assert rows.loc["share_token", "value"] == pytest.approx(0.895)
    assert rows.loc["boundary_share", "value"] == pytest.approx(0.092)
    assert rows.loc["boundary_change_failed", "value"] == pytest.approx(-0.27)
    assert rows.loc["turns", "value"] == pytest.approx(16323 / 2048)
    assert rows["published_source"].str.startswith(FILE).all()


def test_equal_critics_have_equal_numbers_whatever_their_cell(values):
    """So that the common starting point of several methods is one row of the table."""
    twin = values[values["cell"] == "mpo"]
    rows = diagnose_table(pd.concat([twin, twin.assign(cell="vapo", run_id="x")]), **OPTIONS)
    one, other = (pick(rows, kind="run", cell=cell).reset_index(drop=True) for cell in ("mpo", "vapo"))
    numbers = ["seed", "set", "checkpoint", "statistic", "value", "lo", "hi"]
    pd.testing.assert_frame_equal(one[numbers], other[numbers])
    assert (pick(rows, kind="difference")["value"] == 0).all()


def test_the_same_values_give_the_same_numbers_in_any_order(values, found):
    again = diagnose_table(values.sample(frac=1.0, random_state=1), read_published(FILE, ROOT), **OPTIONS)
    key = ["kind", "cell", "method", "seed", "set", "checkpoint", "statistic"]
    one, other = (t.sort_values(key).reset_index(drop=True) for t in (found[0], again))
    pd.testing.assert_frame_equal(one.drop(columns="run_ids"), other.drop(columns="run_ids"))


def test_one_seed_has_no_interval_over_seeds_and_says_so(values):
    rows = diagnose_table(values[values["seed"] == 0], **OPTIONS)
    method = pick(rows, kind="method", cell="mpo", set="probe", checkpoint=None, statistic="share_token")
    assert method["lo"].isna().all() and "about prompts, not about critics" in method["note"].item()
    mine = pick(rows, cell="mpo", set="probe", checkpoint=None)
    assert interval_row(mine, "share_token")["kind"] == "run"
    assert "One training run" in verdict(mine, pick(rows, kind="simulated", set="probe"), "MPO")


def test_no_values_give_no_rows(values):
    rows, trajectories = diagnose(values.iloc[:0], read_published(FILE, ROOT))
    assert set(rows["kind"]) == {"published"} and trajectories.empty
    with pytest.raises(DataError):
        diagnose(values.drop(columns="value"))


def test_the_verdict_sorts_the_nulls():
    values = study_frame({"mpo": random_walk, "ppo": steps}, seeds=1, size=60, groups=1, checkpoints=(0, 20))
    rows = diagnose_table(values, resamples=200, permutations=39)
    nulls = pick(rows, kind="simulated", set="probe")
    walk, step = (pick(rows, cell=cell, set="probe", checkpoint=None) for cell in ("mpo", "ppo"))
    found = sides(walk, nulls)
    assert (found["white_noise"], found["random_walk"], found["drift"]) == ("above", "like", "below")
    text = verdict(walk, nulls, "MPO")
    assert "lies above white noise" in text and "no sign that boundaries matter" in text
    assert set(sides(step, nulls).values()) == {"above", "like"} and sides(step, nulls)["steps"] == "like"
    assert "merely elapsed time" in verdict(step, nulls, "PPO")
    nothing = walk.assign(value=np.nan)
    assert verdict(nothing, nulls, "X") == "X: no trajectory has a between-turn share."


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [("percent", "stone", "unit"), ("89.5", "many", "value"), ("metric", "m", "metric")],
)
def test_a_wrong_published_file_is_named(tmp_path, old, new, key):
    text = (ROOT / FILE).read_text(encoding="utf-8")
    (tmp_path / "p.csv").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=key):
        read_published("p.csv", tmp_path)
