"""Looks at an invented study: what is put on record, when, and what the plan says about it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from turnscale.audit.looks import verify
from turnscale.config.declared import DeclaredPlan
from turnscale.errors import DataError
from turnscale.estimates import write_estimates
from turnscale.estimates.schema import COMPARISONS, LOOKS, read_csv
from turnscale.stats.question import Question
from turnscale.stats.sequential import e_value_from_scores
from turnscale.study import Plan

CELLS = ["base", "grpo", "ppo", "mpo", "mpo-lam0.85"]
OBF = DeclaredPlan(seeds_per_arm=5, looks=[2, 3, 5], rule="obrien_fleming")
NAME = "search/qwen3-tiny: ppo - mpo, pass_at_1"


def at(
    synthetic: ModuleType, folder: Path, seeds: int, plan: DeclaredPlan | None = OBF, **options: Any
) -> Plan:
    """Make the tables of the invented study with so many seeds; seeds before stay as they are."""
    study = synthetic.make_plan().study.model_copy(update={"plan": plan})
    made: Plan = synthetic.make_plan(seeds=seeds, cells=CELLS, study=study)
    synthetic.make_tables(made, folder, tasks=8, attempts=8, steps=20, **options)
    return made


def table(folder: Path) -> pd.DataFrame:
    return read_csv(folder / "looks.csv", LOOKS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "looks" / "quick" / "mpo.jsonl"


def test_each_first_metric_of_each_table_is_one_look(
    synthetic: ModuleType, tmp_path: Path, log: Path
) -> None:
    added = write_estimates(at(synthetic, tmp_path, 2), tmp_path, log=log)
    assert [entry.hash for entry in verify(log)] == [entry.hash for entry in added]
    names = [entry.look.comparison.split(": ")[1] for entry in added]
    assert names == [
        "base - mpo, pass_at_1",
        "grpo - mpo, pass_at_1",
        "ppo - mpo, pass_at_1",
        "mpo-lam0.85 - mpo, pass_at_1",
        "grpo - mpo, pass_at_4",
        "ppo - mpo, pass_at_4",
    ]
    assert added[0].look.fixed == "a" and added[0].look.trained == (2,)
    comparisons = read_csv(tmp_path / "comparisons.csv", COMPARISONS)
    row = comparisons[
        (comparisons["product"] == "table:mpo_main")
        & (comparisons["cell_a"] == "ppo")
        & (comparisons["metric"] == "pass_at_1")
        & (comparisons["benchmark"] == "all")
        & (comparisons["question"] == str(Question.METHOD_NEW_TASKS))
    ].iloc[0]
    assert added[2].look.value == pytest.approx(row["p"], rel=1e-9)


def test_the_same_data_again_is_no_new_look(synthetic: ModuleType, tmp_path: Path, log: Path) -> None:
    plan = at(synthetic, tmp_path, 2)
    write_estimates(plan, tmp_path, log=log)
    bytes_before = log.read_bytes(), (tmp_path / "looks.csv").read_bytes()
    assert write_estimates(plan, tmp_path, log=log) == []
    assert (log.read_bytes(), (tmp_path / "looks.csv").read_bytes()) == bytes_before


def test_one_changed_outcome_is_new_data_of_its_comparisons_only(
    synthetic: ModuleType, tmp_path: Path, log: Path
) -> None:
    plan = at(synthetic, tmp_path, 2)
    write_estimates(plan, tmp_path, log=log)
    outcomes = pd.read_parquet(tmp_path / "outcomes.parquet")
    first = outcomes.index[outcomes["cell"] == "grpo"][0]
    outcomes.loc[first, "success"] = not outcomes.loc[first, "success"]
    outcomes.to_parquet(tmp_path / "outcomes.parquet", index=False)
    added = write_estimates(plan, tmp_path, log=log)
    assert {entry.look.comparison.split(": ")[1] for entry in added} == {
        "grpo - mpo, pass_at_1",
        "grpo - mpo, pass_at_4",
    }
    rows = table(tmp_path).set_index(["cell_a", "metric"])
    assert "2 looks at 2+2 seeds" in rows.loc[("grpo", "pass_at_1"), "departures"]
    assert rows.loc[("ppo", "pass_at_1"), "departures"] == ""


def test_declared_looks_follow_one_another(synthetic: ModuleType, tmp_path: Path, log: Path) -> None:
    for seeds in OBF.looks:
        write_estimates(at(synthetic, tmp_path, seeds), tmp_path, log=log)
    rows = table(tmp_path)
    assert (rows["departures"] == "").all() and (rows["skipped"] == "").all()
    trained = rows[rows["cell_a"] != "base"]
    assert (trained["looks"] == 3).all() and (trained["needed"] > 0.04).all()
    assert set(rows["verdict"]) <= {"difference shown", "stop: not shown"}
    assert len(verify(log)) == 18


def test_an_undeclared_look_stays_on_record(synthetic: ModuleType, tmp_path: Path, log: Path) -> None:
    write_estimates(at(synthetic, tmp_path, 4), tmp_path, log=log)
    assert table(tmp_path)["needed"].isna().all()
    write_estimates(at(synthetic, tmp_path, 5), tmp_path, log=log)
    rows = table(tmp_path)
    assert (rows["verdict"] == "no conclusion, the plan was not followed").all()
    assert rows["departures"].str.contains(r"an undeclared look at [4-]\+4 seeds").all()


def test_a_failed_run_leaves_unequal_arms_outside_the_plan(
    synthetic: ModuleType, tmp_path: Path, log: Path
) -> None:
    write_estimates(at(synthetic, tmp_path, 3, failed={"ppo": 1}), tmp_path, log=log)
    rows = table(tmp_path).set_index(["cell_a", "metric"])
    assert rows.loc[("ppo", "pass_at_1"), "departures"] == "an undeclared look at 2+3 seeds"
    assert rows.loc[("grpo", "pass_at_1"), "departures"] == ""
    assert rows.loc[("grpo", "pass_at_1"), "skipped"] == "2"


def test_a_plan_declared_after_the_first_look_is_seen(
    synthetic: ModuleType, tmp_path: Path, log: Path
) -> None:
    write_estimates(at(synthetic, tmp_path, 2, None), tmp_path, log=log)
    assert len(table(tmp_path)) == 0 and len(verify(log)) == 6
    assert write_estimates(at(synthetic, tmp_path, 2), tmp_path, log=log) == []
    assert table(tmp_path)["departures"].str.startswith("no plan was declared at the look at").all()


def test_e_values_are_of_the_seeds_that_both_arms_have(
    synthetic: ModuleType, tmp_path: Path, log: Path
) -> None:
    plan = DeclaredPlan(seeds_per_arm=20, looks=[20], rule="e_value")
    write_estimates(at(synthetic, tmp_path, 4, plan, failed={"ppo": 1}), tmp_path, log=log)
    looks = {entry.look.comparison: entry.look for entry in verify(log)}
    assert not any("base" in name for name in looks), "no e-value against a checkpoint that no run trains"
    outcomes = pd.read_parquet(tmp_path / "outcomes.parquet")
    means = outcomes.groupby(["cell", "seed"], observed=True)["success"].mean()
    expected = e_value_from_scores(means["ppo"].to_numpy(), means["mpo"].to_numpy()[:3])
    assert looks[NAME].value == pytest.approx(expected, rel=1e-9)
    assert (looks[NAME].statistic, looks[NAME].counts) == ("e", "3+3")
    row = table(tmp_path).set_index(["cell_a", "metric"]).loc[("ppo", "pass_at_1")]
    assert row["needed"] == pytest.approx(20) and row["departures"] == ""
    assert np.isnan(table(tmp_path).set_index(["cell_a", "metric"]).loc[("base", "pass_at_1"), "value"])


def test_nothing_is_written_beside_an_altered_log(synthetic: ModuleType, tmp_path: Path, log: Path) -> None:
    write_estimates(at(synthetic, tmp_path, 2), tmp_path, log=log)
    log.write_text(log.read_text().replace('"seeds_a": 2', '"seeds_a": 3', 1))
    before = (tmp_path / "looks.csv").read_bytes()
    with pytest.raises(DataError, match="altered"):
        write_estimates(at(synthetic, tmp_path, 3), tmp_path, log=log)
    assert (tmp_path / "looks.csv").read_bytes() == before


def test_without_a_log_the_table_knows_the_present_look(synthetic: ModuleType, tmp_path: Path) -> None:
    assert write_estimates(at(synthetic, tmp_path, 3), tmp_path) == []
    assert (table(tmp_path)["looks"] == 1).all()
    assert not (tmp_path / "looks").exists()
