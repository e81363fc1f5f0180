"""Configuration, published values, verdicts and products of the grouping study."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from turnscale.errors import ConfigError, TurnscaleError
from turnscale.tabular.plan import TabularPlan, is_tabular, resolve_tabular
from turnscale.tabular.results import draw_shares, pairs, published_values, welch

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the configuration, cut down to what seconds can run."""
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    path = tmp_path / "configs/studies/grouping.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["turns"] = [2, 3]
    study["training"]["iterations"] = 8
    study["estimators"] |= {"turns": [2], "tokens": [2], "group_sizes": [4]}
    study["estimators"]["credits"] = {k: study["estimators"]["credits"][k] for k in ("rloo", "tree")}
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    scale = {
        "scale": "tiny", "kind": "tabular", "description": "tiny", "seeds": 24, "block": 20, "estimator_batches": 40,
    }  # fmt: skip
    (tmp_path / "configs/scales/tiny.yaml").write_text(yaml.safe_dump(scale), encoding="utf-8")
    return tmp_path


def test_every_published_value_is_found() -> None:
    found = published_values(resolve_tabular("grouping", "grouping5", root=PROJECT))
    assert found["score", "t5", "tree"] == 0.778
    assert found["score", "t4", "anchor"] == 0.394
    assert found["singleton_bucket_share", "t3", "anchor"] == pytest.approx(0.536)
    assert found["distinct_tools", "t5", "anchor"] == 2.21
    assert found["environment_calls", "t5", "traj"] == 80
    scores = [key for key in found if key[0] == "score" and key[2] in ("traj", "anchor", "tree")]
    assert len(scores) == 12


def test_identity_follows_what_changes_numbers(project: Path) -> None:
    before = resolve_tabular("grouping", "tiny", root=project)
    assert [run.seeds for run in before.runs[:2]] == [range(20), range(20, 24)]
    assert before.runs[0].hash == before.runs[1].hash
    more = resolve_tabular("grouping", "tiny", seeds=40, root=project)
    for plan in (before, more):
        for run in plan.runs:
            again = resolve_tabular("grouping", "tiny", seeds=plan.seeds_until(run.path), root=project)
            assert again.run_at(run.path) == run
    with pytest.raises(ConfigError, match="seeds-<first>-<last>"):
        before.seeds_until(Path("run.json"))
    assert {run.path for run in more.runs} & {run.path for run in before.runs}
    path = project / "configs/studies/grouping.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("lr: 0.1", "lr: 0.2"), encoding="utf-8")
    after = resolve_tabular("grouping", "tiny", root=project)
    assert all(a.hash != b.hash for a, b in zip(before.runs, after.runs, strict=True))
    assert is_tabular("grouping", project)
    assert not is_tabular("mpo", project)


@pytest.mark.parametrize(
    ("study", "scale", "seeds", "key"),
    [
        ("mpo", "grouping5", None, "kind"),
        ("grouping", "quick", None, "kind"),
        ("grouping", "grouping5", 1, "seeds"),
    ],
)
def test_bad_input_names_the_key(study: str, scale: str, seeds: int | None, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_tabular(study, scale, seeds=seeds, root=PROJECT)
    assert error.value.key == key


def test_welch_against_scipy() -> None:
    from scipy.stats import ttest_ind

    generator = np.random.default_rng(0)
    a, b = generator.normal(0.6, 0.1, 12), generator.normal(0.5, 0.2, 9)
    wanted = ttest_ind(a, b, equal_var=False)
    found = welch(a, b)
    assert found["p"] == pytest.approx(float(wanted.pvalue))
    ends = wanted.confidence_interval(0.95)
    assert (found["lo"], found["hi"]) == pytest.approx((float(ends.low), float(ends.high)))
    assert welch(np.ones(3), np.ones(3))["p"] is None


def test_shares_of_small_draws() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(0.5, 0.1, 200)
    even = draw_shares(values, values.copy(), 0.087, 5, "even")
    assert even["order_share"] == pytest.approx(0.5, abs=0.02)
    assert even["order_lo"] < 0.5 < even["order_hi"]
    assert 0.05 < even["gap_share"] < 0.12  # 1 - Phi(0.087 / (0.1 sqrt(2 / 5))) is 0.085
    sure = draw_shares(values + 1, values, 0.087, 5, "sure")
    assert sure["order_share"] == sure["gap_share"] == 1.0
    assert draw_shares(values + 1, values, -0.1, 5, "wrong")["order_share"] == 0.0
    assert pairs(["traj", "anchor", "tree"]) == [("anchor", "traj"), ("tree", "traj"), ("tree", "anchor")]


def test_from_runs_to_products(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train into a store, lose the records, rebuild them, and print every table and figure from the store."""
    from turnscale.audit.local import read_comparisons
    from turnscale.tabular import runs
    from turnscale.tabular.figures import DRAWERS, render_figure
    from turnscale.tabular.report import BUILDERS, render_table
    from turnscale.tabular.results import write_results
    from turnscale.track.records import write_record
    from turnscale.track.store import init_tracking

    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    init_tracking(project)
    plan: TabularPlan = resolve_tabular("grouping", "tiny", root=project)
    for run in plan.runs:
        write_record(run.path, runs.train_block(plan, run))
    write_record(plan.estimators_path, runs.audit_estimators(plan))
    lost = plan.runs[3].path
    lost.unlink()
    with pytest.raises(TurnscaleError, match="not finished"):
        runs.collect(plan)
    assert runs.restore(plan) == (1, len(plan.runs), 0)
    runs.collect(plan)
    write_results(plan)
    outcomes = pd.read_parquet(plan.tables_dir / "outcomes.parquet")
    assert len(outcomes) == 24 * 400 * 6
    assert not outcomes.duplicated(["cell", "benchmark", "seed", "task", "attempt"]).any()
    estimates = pd.read_csv(plan.tables_dir / "estimates.csv")
    measured = outcomes.groupby(["benchmark", "cell"])["success"].mean()
    for (benchmark, cell), value in measured.items():
        mine = (estimates["benchmark"] == benchmark) & (estimates["cell"] == cell)
        row = estimates[mine & (estimates["metric"] == "score")].iloc[0]
        assert row["value"] == pytest.approx(value)
        assert (row["finished"], row["n_seeds"]) == (24, 24)
    assert len(read_comparisons(plan.tables_dir / "comparisons.csv")) == 6
    verdicts = pd.read_csv(plan.tables_dir / "verdicts.csv")
    assert verdicts["order_share"].notna().sum() == 5  # one published tie
    for name in BUILDERS:
        for path in render_table(plan, name, project / "out"):
            assert path.stat().st_size > 100
    for name in DRAWERS:
        render_figure(plan, name, project / "out")
        first = (project / "out" / f"{name}.png").read_bytes()
        render_figure(plan, name, project / "out")
        assert (project / "out" / f"{name}.png").read_bytes() == first
    text = (project / "out/grouping_main.md").read_text(encoding="utf-8")
    assert "24/24/0/0" in text
    assert "nan" not in text.lower()
