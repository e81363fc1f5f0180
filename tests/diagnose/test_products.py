"""The table and the figure of the diagnosis, from tables on disk; and the study's declaration of them."""

import matplotlib
import pandas as pd
import pytest
from matplotlib.text import Text

from tests.diagnose.invented import study_frame
from tests.render.conftest import _load
from turnscale.config.schema import Study, Table
from turnscale.diagnose import write_diagnosis
from turnscale.diagnose.nulls import mean_reverting, random_walk, walk_through_observations
from turnscale.errors import ConfigError, DataError
from turnscale.estimates import write_estimates
from turnscale.render import render_figure, render_table
from turnscale.render.critic import HEADS
from turnscale.render.data import Tables
from turnscale.render.figures.critic import draw, over_training
from turnscale.render.style import RC, faults

CELLS = ["base", "grpo", "ppo", "vapo", "mpo"]
PROCESSES = {"ppo": mean_reverting(0.2), "vapo": random_walk, "mpo": walk_through_observations}


def build(folder, seeds, processes):
    synthetic = _load()
    plan = synthetic.make_plan(seeds=seeds, cells=CELLS)
    synthetic.make_tables(plan, folder, tasks=6, attempts=6, steps=20)
    write_estimates(plan, folder)
    frame = study_frame(processes or PROCESSES, seeds=seeds, size=16, checkpoints=(0, 20, 40))
    (frame if processes else frame.iloc[:0]).to_parquet(folder / "critic_values.parquet", index=False)
    write_diagnosis(plan.study, "quick", folder, plan.root)
    return plan.study


SCENARIOS = {"two seeds": (2, PROCESSES), "one seed": (1, PROCESSES), "no critic": (2, {})}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}
    for name, (seeds, processes) in SCENARIOS.items():
        folder = tmp_path_factory.mktemp("critic")
        found[name] = (build(folder, seeds, processes), folder)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_table_has_measured_simulated_and_published_values(made, name, tmp_path):
    study, folder = made[name]
    csv, markdown, latex, provenance = render_table(study, "quick", "mpo_critic", folder, tmp_path)
    text, rows = markdown.read_text(encoding="utf-8"), pd.read_csv(csv)
    assert latex.read_text(encoding="utf-8").count("\\begin{tabular}") == text.count("\n## ")
    if name == "no critic":
        assert "no cell with a critic was run" in text and set(rows["kind"]) == {"published"}
        return
    assert {"published", "method", "simulated", "run"} <= set(rows["kind"])
    assert "| MPO critic | 89.5 | 90.2 | 93.8 | 22.4 | 9.2 |" in text
    assert "random walk through observations" in text and "before any update" in text
    assert ("†" in text.split("## ")[1]) == (name == "one seed")
    mine = rows.query("kind == 'method' and cell == 'mpo' and set == 'probe' and checkpoint != checkpoint")
    beside = mine.set_index("statistic")["published"]
    assert beside["share_token"] == pytest.approx(0.895) and beside["enrichment"] != beside["enrichment"]
    assert rows.query("cell == 'ppo'")["published"].isna().all()
    assert '"search/qwen3-tiny/mpo"' in provenance.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_figure_has_four_panels_and_no_clipped_text(made, name):
    study, folder = made[name]
    with matplotlib.rc_context(RC):
        drawing, data = draw(Tables(study, "quick", folder), "mpo_critic", study.figures["mpo_critic"])
        assert faults(drawing) == []
    assert len(drawing.axes) == 4
    texts = " ".join(
        text.get_text() for text in drawing.findobj(Text) if isinstance(text, Text) and text.get_visible()
    )
    texts = " ".join(texts.split())
    if name == "no critic":
        assert data.empty and texts.count("no critic here") == 4
        return
    assert set(data["panel"]) == {"a", "b", "c", "d"}
    assert ("One training run" in texts) == (name == "one seed")
    assert data.query("statistic == 'published:share_turn'")["value"].tolist() == [0.902]
    rows = pd.read_csv(folder / "critic_statistics.csv")
    where = "kind == 'method' and cell == 'mpo' and set == 'probe' and checkpoint == 40"
    expected = rows.query(f"{where} and statistic == 'boundary_share'")["value"].item()
    drawn = data.query(
        "panel == 'd' and cell == 'mpo' and checkpoint == 40 and statistic == 'boundary_share'"
    )
    assert drawn["value"].item() == pytest.approx(expected)
    dots = data.query("statistic == 'trajectory'")
    assert len(dots) == (2 if name == "two seeds" else 1) * 2 * 16 and (dots["value"] >= 0).all()


def test_files_are_the_same_again(made, tmp_path):
    study, folder = made["one seed"]
    first = render_figure(study, "quick", "mpo_critic", folder, tmp_path / "a")
    tables = [(folder / n).read_bytes() for n in ("critic_statistics.csv", "critic_trajectories.parquet")]
    synthetic_root = _load().ROOT
    write_diagnosis(study, "quick", folder, synthetic_root)
    assert tables == [
        (folder / n).read_bytes() for n in ("critic_statistics.csv", "critic_trajectories.parquet")
    ]
    second = render_figure(study, "quick", "mpo_critic", folder, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_another_study_or_no_diagnosis_is_refused(made, tmp_path):
    study, folder = made["one seed"]
    with pytest.raises(DataError):
        render_table(study, "smoke", "mpo_critic", folder, tmp_path)
    with pytest.raises(DataError, match="critic_values"):
        write_diagnosis(study, "quick", tmp_path, _load().ROOT)


def test_over_training_takes_the_interval_that_answers_most():
    row = {"cell": "mpo", "statistic": "share_token", "value": 0.5, "checkpoint": 20}
    rows = pd.DataFrame(
        [
            {**row, "kind": "run", "lo": 0.4, "hi": 0.6, "n_seeds": 1},
            {**row, "kind": "method", "lo": float("nan"), "hi": float("nan"), "n_seeds": 1},
        ]
    )
    assert over_training(rows, "mpo", "share_token")["lo"].tolist() == [0.4]
    assert over_training(rows, "ppo", "share_token").empty


def test_a_critic_table_takes_no_metrics_and_others_need_them():
    common = {"title": "x", "groups": ["main"], "reference": "mpo"}
    Table.model_validate({**common, "kind": "critic"})
    for wrong in ({"kind": "critic", "metrics": ["pass_at_1"]}, {"kind": "main"}):
        with pytest.raises(ValueError, match="metrics"):
            Table.model_validate({**common, **wrong})


def test_two_references_are_refused(tmp_path):
    study = _load().make_plan().study
    data = study.model_dump(mode="json")
    data["figures"]["mpo_critic"]["reference"] = "ppo"
    with pytest.raises(ConfigError, match="reference"):
        write_diagnosis(Study.model_validate(data), "quick", tmp_path, tmp_path)


def test_every_printed_statistic_exists():
    from turnscale.diagnose.table import ALL_STATISTICS

    assert set(HEADS) <= set(ALL_STATISTICS)
