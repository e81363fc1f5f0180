"""Figures of an invented study: every kind, from every kind of data, without clipped text."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from turnscale.config.schema import Figure
from turnscale.errors import ConfigError
from turnscale.render import render_figure
from turnscale.render.data import Tables
from turnscale.render.figures import KINDS, write_figure
from turnscale.render.figures.common import missing, series
from turnscale.render.figures.dynamics import buckets
from turnscale.render.style import LOOKS, RC, faults, look

from .helpers import HOSTILE, build, hostile_study

NAMES = ("mpo_learning", "mpo_dynamics", "mpo_passk", "mpo_ablations", "mpo_gains")
SCENARIOS = {
    "gaps": {
        "seeds": 3,
        "models": ("qwen3-tiny", "qwen3-moe-tiny"),
        "failed": {"ppo": 1, "gspo": 2},
        "absent": ["vapo"],
    },
    "one seed": {"seeds": 1, "cells": ["base", "grpo", "gspo", "ppo", "mpo"]},
    "hostile": {"seeds": 2, "cells": ["grpo", "mpo"]},
}


@pytest.fixture(scope="module")
def made(synthetic, tmp_path_factory):
    found = {}
    for name, options in SCENARIOS.items():
        folder = tmp_path_factory.mktemp("figures")
        options = dict(options)
        if name == "hostile":
            options["study"] = hostile_study(synthetic.make_plan().study)
        found[name] = (build(synthetic, folder, **options), folder)
    return found


DRAWN = {}


def draw(made, scenario, name):
    if (scenario, name) not in DRAWN:
        DRAWN[scenario, name] = draw_now(made, scenario, name)
    return DRAWN[scenario, name]


def draw_now(made, scenario, name):
    plan, folder = made[scenario]
    entry = plan.study.figures[name]
    with matplotlib.rc_context(RC):
        drawing, data = KINDS[entry.kind](Tables(plan.study, "quick", folder), name, entry)
        outside = faults(drawing)
    texts = [
        text.get_text() for text in drawing.findobj(Text) if isinstance(text, Text) and text.get_visible()
    ]
    return drawing, data, outside, " ".join(" ".join(texts).split())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_draws_without_clipped_text_and_with_labelled_axes(made, scenario, name):
    drawing, data, outside, texts = draw(made, scenario, name)
    assert outside == []
    assert len(data)
    for axes in drawing.axes:
        if (
            any(label.get_visible() for label in axes.get_xticklabels())
            and axes.xaxis.get_label().get_text() == ""
        ):
            rows = [other for other in drawing.axes if other.get_position().x0 == axes.get_position().x0]
            assert any(other.xaxis.get_label().get_text() for other in rows)
    assert "Local proxy" in texts and "scale quick" in texts
    if scenario == "hostile":
        assert HOSTILE in texts


@pytest.mark.parametrize(
    "name", [name if name == "mpo_gains" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_files_are_the_same_again(made, tmp_path, name):
    plan, folder = made["hostile"]
    first = render_figure(plan.study, "quick", name, folder, tmp_path / "a")
    second = render_figure(plan.study, "quick", name, folder, tmp_path / "b")
    assert [path.suffix for path in first] == [".pdf", ".png", ".csv"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"CreationDate" not in first[0].read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(path.name for path in first)


@pytest.mark.slow
def test_figures_drawn_in_one_go_are_the_bytes_of_each_alone(made, tmp_path):
    plan, folder = made["hostile"]
    tables = Tables(plan.study, "quick", folder)
    for name in reversed(NAMES):
        for path in write_figure(tables, name, tmp_path / "all"):
            alone = render_figure(plan.study, "quick", name, folder, tmp_path / "alone")
            assert path.read_bytes() == next(one for one in alone if one.name == path.name).read_bytes()


def test_families_have_their_own_benchmarks(synthetic, tmp_path):
    study = synthetic.make_plan().study
    two = study.model_copy(update={"families": ["search", "other"]})
    plan = build(synthetic, tmp_path, study=two, cells=["grpo", "ppo", "mpo"], seeds=2)
    for name in ("mpo_passk", "mpo_ablations", "mpo_gains"):
        drawing, _, outside, texts = draw_now({"two": (plan, tmp_path)}, "two", name)
        assert outside == []
        titles = [
            [axes.get_title().split("\n")[0] for axes in drawing.axes if axes.get_visible()][n:][:4]
            for n in (0, 4)
        ]
        assert "search-2hop" in titles[0] and "other-easy" not in titles[0]
        assert "other-easy" in titles[1] and "search-2hop" not in titles[1]
        assert "other qwen3-tiny" in texts


def test_absent_cells_are_named(made):
    assert "no result (3 failed, 0 excluded of 3)" in draw(made, "gaps", "mpo_learning")[3]
    assert "VAPO on qwen3-tiny: no result" in draw(made, "gaps", "mpo_dynamics")[3]
    assert "no result" in draw(made, "gaps", "mpo_gains")[3]
    assert "not run" in draw(made, "one seed", "mpo_ablations")[3]
    assert (
        "VAPO" in draw(made, "one seed", "mpo_learning")[3]
        and "not run" in draw(made, "one seed", "mpo_gains")[3]
    )
    plan, folder = made["gaps"]
    tables = Tables(plan.study, "quick", folder)
    assert missing(tables, "search", "qwen3-tiny", "base") == "not trained"
    assert missing(tables, "search", "qwen3-tiny", "nothing") == "not run"


def test_learning_data_are_the_logged_values(made):
    _, folder = made["gaps"]
    _, data, _, _ = draw(made, "gaps", "mpo_learning")
    logged = pd.read_parquet(folder / "metrics.parquet")
    where = "model == 'qwen3-tiny' and cell == 'mpo' and metric == 'val_pass_at_1'"
    seeds, mine = logged.query(where), data.query(where)
    last = seeds[seeds["step"] == seeds["step"].max()]["value"]
    mean = mine[mine["seed"].isna()].iloc[-1]
    assert mean["value"] == pytest.approx(last.mean()) and mean["lo"] < mean["value"] < mean["hi"]
    assert sorted(mine.loc[mine["step"] == mean["step"], "value"].astype(float))[0] == pytest.approx(
        last.min()
    )
    single = data.query("model == 'qwen3-tiny' and cell == 'gspo' and metric == 'val_pass_at_1'")
    assert single["lo"].isna().all()


def test_passk_shows_published_points_apart(made):
    _, data, _, texts = draw(made, "gaps", "mpo_passk")
    published = data[data["metric"] == "pass_at_32"]
    assert set(published["method"]) == {"mpo", "max(GRPO,PPO)"} and published["value"].isna().all()
    assert "max(GRPO,PPO), published" in texts and "(hollow: BrowseComp-Plus)" in texts


def test_gains_of_one_seed_have_no_method_interval(made):
    _, data, _, _ = draw(made, "one seed", "mpo_gains")
    method = data[data["question"].str.startswith("the method")]
    assert method["lo"].isna().all()
    assert data.loc[data["question"] == "these checkpoints on tasks like these", "lo"].notna().all()


def test_looks_are_fixed_and_distinct():
    assert len({(style.color, style.marker) for style in LOOKS.values()}) == len(LOOKS)
    assert look("mpo") == LOOKS["mpo"]
    assert look("some-new-cell") == look("some-new-cell") and look("cell-1") != look("cell-2")


def test_buckets_sort_by_length():
    names = pd.Series(
        ["clip_fraction_len_10_up", "clip_fraction_len_2_3", "clip_fraction", "clip_fraction_len_1_1"]
    )
    assert [label for _, label in buckets(names)] == ["1", "2–3", "≥10"]


def test_series_takes_the_steps_that_all_seeds_have(made):
    plan, folder = made["gaps"]
    tables = Tables(plan.study, "quick", folder)
    found = series(tables, "search", "qwen3-tiny", "mpo", "reward", count=5)
    assert found is not None and found.steps.size == 5 and found.values.shape == (3, 5)
    assert found.mean == pytest.approx(found.values.mean(axis=0))
    assert np.isfinite(found.lo).all()
    assert series(tables, "search", "qwen3-tiny", "mpo", "no_such_metric") is None


def test_an_unknown_figure_is_refused(made, tmp_path):
    plan, folder = made["gaps"]
    with pytest.raises(ConfigError, match="no figure"):
        render_figure(plan.study, "quick", "mpo_main", folder, tmp_path)
    assert set(KINDS) == set(Figure.model_fields["kind"].annotation.__args__)
