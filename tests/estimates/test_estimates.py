"""Estimates and comparisons of an invented study against values computed by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from turnscale.errors import DataError
from turnscale.estimates import estimate_study, write_estimates
from turnscale.estimates.compare import add_holm, area_difference, shown_ks
from turnscale.estimates.schema import COMPARISONS, ESTIMATES, frame, read_csv
from turnscale.estimates.scores import ArmData, curve_areas
from turnscale.estimates.series import blocks, over_seeds
from turnscale.files import write_csv
from turnscale.stats.question import Question

MAIN = "table:mpo_main"
NEW, SAME = str(Question.METHOD_NEW_TASKS), str(Question.METHOD_RETRAINED)
TASKS, THESE = str(Question.TASKS_LIKE_THESE), str(Question.THESE_CHECKPOINTS)


@pytest.fixture(scope="module")
def made(synthetic, tmp_path_factory):
    """A study with one failed PPO run, a single GSPO run left, and no VAPO run."""
    folder = tmp_path_factory.mktemp("tables")
    plan = synthetic.make_plan(seeds=3)
    synthetic.make_tables(
        plan, folder, tasks=20, attempts=8, steps=20, failed={"ppo": 1, "gspo": 2}, absent=["vapo"]
    )
    write_estimates(plan, folder)
    return (
        plan,
        folder,
        read_csv(folder / "estimates.csv", ESTIMATES),
        read_csv(folder / "comparisons.csv", COMPARISONS),
    )


def pick(table, **wanted):
    rows = table
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1, f"{len(rows)} rows for {wanted}"
    return rows.iloc[0]


def success(folder, cell, benchmark=None):
    """[S, T] mean success of each task."""
    table = pd.read_parquet(folder / "outcomes.parquet")
    table = table[(table["cell"] == cell) & ((benchmark is None) | (table["benchmark"] == benchmark))]
    return table.groupby(["seed", "task"])["success"].mean().unstack().to_numpy()


def test_pass_at_1_is_the_mean_and_its_seed_interval_is_t(made):
    _, folder, estimates, _ = made
    row = pick(estimates, cell="mpo", benchmark="search-3hop", metric="pass_at_1", question=SAME)
    seeds = success(folder, "mpo", "search-3hop").mean(axis=1)
    half = stats.t.ppf(0.975, 2) * seeds.std(ddof=1) / np.sqrt(3)
    assert row["value"] == pytest.approx(seeds.mean())
    assert (row["lo"], row["hi"]) == pytest.approx((seeds.mean() - half, seeds.mean() + half))
    assert (row["n_seeds"], row["n_tasks"], row["n_attempts"]) == (3, 20, 8)


def test_the_default_interval_is_crossed(made):
    _, folder, estimates, _ = made
    row = pick(estimates, cell="mpo", benchmark="search-2hop", metric="pass_at_1", question=NEW)
    scores = success(folder, "mpo", "search-2hop")
    s, t = scores.shape
    residual = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    parts = np.array(
        [
            scores.mean(1).var(ddof=1) / s,
            scores.mean(0).var(ddof=1) / t,
            -(residual**2).sum() / ((s - 1) * (t - 1)) / (s * t),
        ]
    )
    df = np.array([s - 1, t - 1, (s - 1) * (t - 1)])
    variance, nu = parts.sum(), parts.sum() ** 2 / (parts**2 / df).sum()
    if max(parts) > variance:
        variance, nu = max(parts), df[parts.argmax()]
    half = stats.t.ppf(0.975, nu) * np.sqrt(variance)
    assert row["hi"] - row["value"] == pytest.approx(min(half, 1 - row["value"]))


def test_pass_at_3_averages_tasks_and_the_mean_weighs_benchmarks_alike(made):
    _, folder, estimates, _ = made
    values = []
    for benchmark in ("search-2hop", "search-3hop", "search-4hop"):
        c = np.round(8 * success(folder, "mpo", benchmark))
        expected = np.mean(1 - (8 - c) * (7 - c) * (6 - c) / (8 * 7 * 6) * (c <= 5))
        row = pick(estimates, cell="mpo", benchmark=benchmark, metric="pass_at_3", question=NEW)
        assert row["value"] == pytest.approx(expected)
        values.append(expected)
    row = pick(estimates, cell="mpo", benchmark="all", metric="pass_at_3", question=NEW)
    assert row["value"] == pytest.approx(np.mean(values)) and row["n_tasks"] == 60


def test_pass_hat_3_is_reported(made):
    _, folder, estimates, _ = made
    c = np.round(8 * success(folder, "mpo", "search-2hop"))
    row = pick(estimates, cell="mpo", benchmark="search-2hop", metric="pass_hat_3", question=NEW)
    assert row["value"] == pytest.approx(np.mean(c * (c - 1) * (c - 2) / (8 * 7 * 6)))


def test_one_run_has_no_seed_interval_but_one_over_tasks(made):
    _, folder, estimates, _ = made
    for question in (NEW, SAME):
        row = pick(estimates, cell="gspo", benchmark="search-2hop", metric="pass_at_1", question=question)
        assert np.isfinite(row["value"]) and np.isnan(row["lo"]) and np.isnan(row["hi"])
        assert row["note"].startswith("not estimable")
    row = pick(estimates, cell="gspo", benchmark="search-2hop", metric="pass_at_1", question=TASKS)
    tasks = success(folder, "gspo", "search-2hop")[0]
    half = stats.t.ppf(0.975, 19) * tasks.std(ddof=1) / np.sqrt(20)
    assert row["hi"] - row["value"] == pytest.approx(min(half, 1 - row["value"]))
    area = pick(estimates, cell="gspo", metric="auc")
    assert np.isfinite(area["value"]) and np.isnan(area["lo"])


def test_the_base_is_asked_about_tasks_only(made):
    _, _, estimates, _ = made
    rows = estimates[(estimates["cell"] == "base") & (estimates["value"].notna())]
    assert set(rows["question"]) == {TASKS, THESE}
    assert not (rows["metric"] == "auc").any()


def test_every_row_counts_its_runs(made):
    _, _, estimates, _ = made
    measured = estimates[estimates["cell"] != ""]
    counts = measured.groupby("cell")[["planned", "finished", "failed", "excluded"]].agg(["min", "max"])
    for cell, expected in {
        "ppo": (3, 2, 1, 0),
        "gspo": (3, 1, 2, 0),
        "vapo": (3, 0, 3, 0),
        "base": (1, 1, 0, 0),
    }.items():
        for name, number in zip(("planned", "finished", "failed", "excluded"), expected, strict=True):
            assert tuple(counts.loc[cell, name]) == (number, number)
    assert estimates.loc[estimates["cell"] == "ppo", "n_seeds"].dropna().unique().tolist() == [2]


def test_a_cell_without_a_result_has_rows_that_say_so(made):
    _, _, estimates, _ = made
    rows = estimates[(estimates["cell"] == "vapo") & (estimates["question"] != "published only")]
    assert len(rows) and rows["value"].isna().all()
    assert rows["note"].str.contains("3 failed, 0 excluded of 3 planned").all()


def test_published_values_stand_beside_their_cell_and_benchmark(made):
    _, _, estimates, _ = made
    row = pick(estimates, cell="mpo", benchmark="search-2hop", metric="pass_at_1", question=NEW)
    assert row["published"] == pytest.approx(0.4808)
    assert "Qwen3-4B-Thinking on BrowseComp-Plus" in row["published_source"]
    ablated = pick(estimates, cell="mpo-lam0.85", benchmark="search-3hop", metric="pass_at_1", question=NEW)
    assert ablated["published"] == pytest.approx(0.3726)
    zero = pick(estimates, cell="mpo-beta0", benchmark="search-2hop", metric="pass_at_1", question=NEW)
    assert zero["published"] == pytest.approx(0.418)
    assert estimates.loc[estimates["cell"] == "mpo-beta0.5", "published"].isna().all()
    assert estimates.loc[estimates["benchmark"] == "all", "published"].isna().all()
    alone = pick(estimates, cell="", method="SAO", benchmark="search-2hop")
    assert np.isnan(alone["value"]) and alone["published"] == pytest.approx(0.4375)
    far = pick(estimates, cell="mpo", metric="pass_at_32", benchmark="search-2hop")
    assert np.isnan(far["value"]) and far["published"] == pytest.approx(0.759)


def test_curves_have_wider_bands_than_points(made):
    _, _, estimates, _ = made
    curve = estimates[(estimates["cell"] == "mpo") & (estimates["metric"] == "pass_at_k")]
    assert sorted(curve.loc[curve["benchmark"] == "all", "k"]) == [1, 2, 3, 4]
    band = pick(curve, benchmark="search-4hop", k=1)
    point = pick(estimates, cell="mpo", benchmark="search-4hop", metric="pass_at_1", question=NEW)
    assert band["value"] == pytest.approx(point["value"])
    assert band["hi"] - band["lo"] >= point["hi"] - point["lo"] - 1e-12
    values = curve[curve["benchmark"] == "search-4hop"].sort_values("k")["value"].to_numpy()
    assert (np.diff(values) >= 0).all()
    assert "pass_at_k" not in set(estimates.loc[estimates["cell"] == "gspo", "metric"])


def test_comparison_over_seeds_is_welch(made):
    _, folder, _, comparisons = made
    row = pick(
        comparisons,
        product="table:mpo_main",
        cell_a="ppo",
        benchmark="search-3hop",
        metric="pass_at_1",
        question=SAME,
    )
    a, b = (success(folder, cell, "search-3hop").mean(axis=1) for cell in ("ppo", "mpo"))
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert row["difference"] == pytest.approx(a.mean() - b.mean())
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["lo"], row["hi"]) == pytest.approx((interval.low, interval.high))
    assert (row["n_seeds_a"], row["n_seeds_b"]) == (2, 3)


def test_comparison_over_tasks_is_paired(made):
    _, folder, _, comparisons = made
    row = pick(
        comparisons,
        product="table:mpo_main",
        cell_a="grpo",
        benchmark="search-3hop",
        metric="pass_at_1",
        question=TASKS,
    )
    a, b = (success(folder, cell, "search-3hop").mean(axis=0) for cell in ("grpo", "mpo"))
    assert row["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_area_comparison_is_welch_on_areas(made):
    _, folder, estimates, comparisons = made
    areas = curve_areas(pd.read_parquet(folder / "metrics.parquet"))
    a, b = (np.array(list(areas["search", "qwen3-tiny", cell].values())) for cell in ("grpo", "mpo"))
    row = pick(comparisons, product="table:mpo_main", cell_a="grpo", metric="auc")
    assert row["p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert pick(estimates, cell="mpo", metric="auc")["value"] == pytest.approx(b.mean())


def test_a_wide_interval_of_areas_ends_where_differences_do(synthetic):
    cell = synthetic.make_plan().cells[1]
    wide = [ArmData(cell, {}, areas=np.array(areas)) for areas in ([0.1, 0.9], [0.05, 0.7])]
    row = area_difference(*wide)
    assert (row["lo"], row["hi"]) == (-1.0, 1.0)
    assert row["difference"] == pytest.approx(0.125) and 0 < row["p"] < 1


def test_one_seed_gives_no_p_for_a_method(made):
    _, _, _, comparisons = made
    rows = comparisons[(comparisons["cell_a"] == "gspo") & comparisons["question"].isin([NEW, SAME])]
    assert len(rows) and rows["p"].isna().all() and rows["p_holm"].isna().all()


def test_holm_family_is_one_product_and_question(made):
    _, _, _, comparisons = made
    for (_, _), family in comparisons.groupby(["product", "question"]):
        stated = family[family["p_holm"].notna()]
        assert (stated["holm_size"] == len(stated)).all()
        assert (stated["p_holm"] >= stated["p"] - 1e-12).all()
        if len(stated):
            assert stated["p_holm"].min() == pytest.approx(min(1.0, stated["p"].min() * len(stated)))


def test_holm_by_hand_and_curves_count_once():
    shared = {"product": "t", "question": "q"}
    rows = [{**shared, "metric": "pass_at_1", "k": 1, "p": p} for p in (0.01, 0.04, 0.03)]
    rows += [{**shared, "metric": "pass_at_k", "k": k, "p": 0.02} for k in (1, 2)]
    add_holm(rows)
    assert [row.get("p_holm") for row in rows] == [
        pytest.approx(0.04),
        pytest.approx(0.06),
        pytest.approx(0.06),
        None,
        pytest.approx(0.06),
    ]
    assert shown_ks(16) == [1, 2, 4, 8, 16] and shown_ks(6) == [1, 2, 4, 6] and shown_ks(1) == [1]


def test_bytes_are_the_same_again_and_tables_read_back(made, tmp_path):
    plan, folder, estimates, _ = made
    write_estimates(plan, folder, tmp_path)
    for name in ("estimates.csv", "comparisons.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    write_csv(estimates, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (folder / "estimates.csv").read_bytes()


def tables(folder):
    return (
        pd.read_parquet(folder / "outcomes.parquet"),
        pd.read_parquet(folder / "metrics.parquet"),
        pd.read_csv(folder / "survivorship.csv"),
    )


def test_a_missing_task_is_an_error_and_not_a_zero(made):
    plan, folder, _, _ = made
    outcomes, metrics, survivors = tables(folder)
    drop = (outcomes["cell"] == "mpo") & (outcomes["seed"] == 1) & (outcomes["task"] == "search-2hop-00003")
    with pytest.raises(DataError, match="search-2hop-00003"):
        estimate_study(plan, outcomes[~drop], metrics, survivors)


def test_inconsistent_tables_are_refused(made):
    plan, folder, _, _ = made
    outcomes, metrics, survivors = tables(folder)
    with pytest.raises(DataError, match="not planned"):
        estimate_study(
            plan, outcomes.assign(cell=outcomes["cell"].replace("mpo", "other")), metrics, survivors
        )
    with pytest.raises(DataError, match="not evaluated on"):
        lost = (outcomes["cell"] == "grpo") & (outcomes["benchmark"] == "search-4hop")
        estimate_study(plan, outcomes[~lost], metrics, survivors)
    with pytest.raises(DataError, match="finished"):
        estimate_study(
            plan, outcomes, metrics, survivors.assign(finished=survivors["finished"].clip(upper=1))
        )
    with pytest.raises(DataError, match="no row"):
        estimate_study(plan, outcomes, metrics, survivors[survivors["cell"] != "mpo"])
    with pytest.raises(DataError, match="two rows"):
        estimate_study(plan, outcomes, metrics, pd.concat([survivors, survivors]))
    with pytest.raises(DataError, match="lacks the column 'run_id'"):
        estimate_study(plan, outcomes.drop(columns="run_id"), metrics, survivors)


def test_areas_by_hand():
    rows = pd.DataFrame({"step": [0, 10, 40], "metric": "val_pass_at_1", "value": [0.0, 0.4, 0.6]})
    rows = rows.assign(family="f", model="m", cell="c", seed=0)
    # (0.2 * 10 + 0.5 * 30) / 40
    assert curve_areas(rows) == {("f", "m", "c"): {0: pytest.approx(0.425)}}
    assert curve_areas(rows.head(1)) == {}
    with pytest.raises(DataError, match="two validations"):
        curve_areas(pd.concat([rows, rows.tail(1)]))
    with pytest.raises(DataError, match="other steps"):
        curve_areas(pd.concat([rows, rows.head(2).assign(seed=1)]))


def test_series_over_seeds():
    mean, lo, hi = over_seeds(np.array([[1.0, 2.0, 5.0], [3.0, 2.0, 6.0], [5.0, 2.0, 10.0]]))
    assert mean == pytest.approx([3, 2, 7])
    assert hi[0] - mean[0] == pytest.approx(stats.t.ppf(0.975, 2) * 2 / np.sqrt(3))
    assert np.isnan(lo[1]) and np.isnan(hi[1])
    assert np.isnan(over_seeds(np.array([[1.0, 2.0]]))[1]).all()
    steps, values = blocks(np.arange(5.0), np.arange(10.0).reshape(2, 5), 2)
    assert steps == pytest.approx([1, 3.5]) and values == pytest.approx(np.array([[1, 3.5], [6, 8.5]]))


def test_columns_are_fixed(tmp_path):
    with pytest.raises(DataError, match="no column"):
        frame([{"family": "f", "oops": 1}], ESTIMATES)
    write_csv(frame([{"value": 0.5}], ESTIMATES), tmp_path / "e.csv")
    text = (tmp_path / "e.csv").read_text().replace("0.5", "half")
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(DataError, match="not a number"):
        read_csv(tmp_path / "e.csv", ESTIMATES)
    with pytest.raises(DataError, match="no such file"):
        read_csv(tmp_path / "absent.csv", ESTIMATES)
