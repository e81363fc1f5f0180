"""Printed tables of an invented study."""

import json
import re

import pandas as pd
import pytest

from turnscale.errors import ConfigError, DataError
from turnscale.estimates.schema import COMPARISONS, read_csv
from turnscale.files import write_csv
from turnscale.jobs import _render
from turnscale.render import render_table
from turnscale.render.data import Tables
from turnscale.render.tables import COLUMNS, write_table

from .helpers import build, hostile_study

NAMES = ("mpo_main", "mpo_lambda", "mpo_beta", "mpo_passk")


@pytest.fixture(scope="module")
def made(synthetic, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    plan = build(
        synthetic,
        folder,
        models=("qwen3-tiny", "qwen3-moe-tiny"),
        failed={"ppo": 1, "gspo": 2},
        absent=["vapo"],
    )
    for name in NAMES:
        render_table(plan.study, "quick", name, folder, folder / "out")
    return plan, folder


def rows_of(text, label):
    return [line for line in text.splitlines() if line.startswith(f"| {label} |")]


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_four_files_and_rectangular_rows(made, name):
    _, folder = made
    table = pd.read_csv(folder / "out" / f"{name}.csv")
    assert list(table.columns) == COLUMNS and len(table)
    width = None
    for line in (folder / "out" / f"{name}.md").read_text().splitlines():
        if not line.startswith("|"):
            width = None
            continue
        bars = len(re.findall(r"(?<!\\)\|", line))
        assert width in (None, bars)
        width = bars
    tex = (folder / "out" / f"{name}.tex").read_text()
    for block in re.findall(r"\\begin\{tabular\}\{(l r*|lr*)\}(.*?)\\end\{tabular\}", tex, re.S):
        for line in block[1].splitlines():
            if line.endswith("\\\\"):
                spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                cells = len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans)
                assert cells == len(block[0])
    assert tex.count("{") - tex.count("\\{") == tex.count("}") - tex.count("\\}")
    origin = json.loads((folder / "out" / f"{name}.provenance.json").read_text())
    assert origin["inputs_sha256"].keys() >= {"estimates.csv", "comparisons.csv", "outcomes.parquet"}


def test_bytes_are_the_same_again(made, tmp_path):
    plan, folder = made
    for name in NAMES:
        for path in render_table(plan.study, "quick", name, folder, tmp_path):
            assert path.read_bytes() == (folder / "out" / path.name).read_bytes()


def test_tables_made_in_one_go_are_the_bytes_of_each_alone(made, tmp_path):
    plan, folder = made
    tables = Tables(plan.study, "quick", folder)
    for name in reversed(NAMES):
        for path in write_table(tables, name, tmp_path):
            assert path.read_bytes() == (folder / "out" / path.name).read_bytes()


def test_a_table_that_cannot_be_made_is_named_and_the_others_are_written(tmp_path, capsys):
    def write(name, folder):
        if name == "bad":
            raise DataError("holds nonsense", file="metrics.parquet")
        return [folder / f"{name}.csv"]

    with pytest.raises(DataError, match="1 of 3 tables could not be made: bad"):
        _render("table", write, ["first", "bad", "last"], tmp_path)
    said = capsys.readouterr()
    assert said.out.split() == [str(tmp_path / "first.csv"), str(tmp_path / "last.csv")]
    assert "table bad: metrics.parquet: holds nonsense" in said.err


def test_a_bug_says_which_product_it_was(tmp_path):
    def write(name, folder):
        return [folder / str(1 // 0)]

    with pytest.raises(ZeroDivisionError) as caught:
        _render("figure", write, ["curves"], tmp_path)
    assert caught.value.__notes__ == ["This was figure curves."]


def test_the_printed_value_is_the_tidy_one(made):
    _, folder = made
    table = pd.read_csv(folder / "out" / "mpo_main.csv")
    row = table[
        (table["model"] == "qwen3-tiny")
        & (table["cell"] == "mpo")
        & (table["benchmark"] == "search-4hop")
        & (table["metric"] == "pass_at_1")
        & (table["question"] == "the method retrained, on new tasks")
    ].iloc[0]
    text = (folder / "out" / "mpo_main.md").read_text()
    cells = [cell.strip() for cell in rows_of(text, "MPO (reference)")[0].split("|")]
    assert cells[4].startswith(f"{100 * row['value']:.1f} ±")
    assert cells[6:9] == ["48.08", "39.47", "9.92"] and cells[9] == "3/3/0/0"


def test_absent_and_single_runs_are_shown_as_such(made):
    _, folder = made
    text = (folder / "out" / "mpo_main.md").read_text()
    gone = rows_of(text, "VAPO")[0]
    assert gone.count("no result") == 4 and "3/0/3/0" in gone
    single = rows_of(text, "GSPO")[0]
    assert single.count("†") == 4 and "3/1/2/0" in single
    base = rows_of(text, "Base")
    assert base[0].count("†") == 4 and "1/1/0/0" in base[0] and "no result" not in base[2]
    assert "| SAO (published only) | not run | not run | not run | not run | 43.75 | 35.62 | – | – |" in text
    assert "SAO" not in (folder / "out" / "mpo_beta.md").read_text()


def test_published_columns_are_headed_as_other_models(made):
    _, folder = made
    text = (folder / "out" / "mpo_main.tex").read_text()
    assert "Published: Qwen3-4B-Thinking, other model and benchmark" in text
    assert "Published: Qwen3-30B-A3B-Instruct, other model and benchmark" in text
    assert "Published: qwen3" not in (folder / "out" / "mpo_beta.tex").read_text()
    assert "Local proxy" in text and "scale quick" in text and "the method retrained, on new tasks" in text


def test_cells_outside_the_scale_are_not_run(synthetic, tmp_path):
    plan = build(synthetic, tmp_path, cells=["base", "grpo", "mpo"], seeds=2)
    render_table(plan.study, "quick", "mpo_lambda", tmp_path, tmp_path)
    text = (tmp_path / "mpo_lambda.md").read_text()
    assert rows_of(text, "lambda 0.60")[0].split("|")[2:6] == [" not run "] * 4
    assert "±" in rows_of(text, "MPO (reference)")[0]


def test_one_seed_has_no_star_and_no_method_interval(synthetic, tmp_path):
    plan = build(synthetic, tmp_path, cells=["base", "grpo", "mpo"], seeds=1)
    # even if a p value were there, a single seed must not be starred
    comparisons = read_csv(tmp_path / "comparisons.csv", COMPARISONS)
    write_csv(comparisons.assign(p=1e-9, p_holm=1e-9), tmp_path / "comparisons.csv")
    render_table(plan.study, "quick", "mpo_main", tmp_path, tmp_path)
    text = (tmp_path / "mpo_main.md").read_text().split("## ", 1)[1]
    assert "\\*" not in text
    assert rows_of(text, "GRPO")[0].count("†") == 4
    assert "not estimable" in text and "stands while σ(seeds) <" in text.replace("&lt;", "<")


def test_a_star_needs_holm_and_two_seeds(made, tmp_path):
    plan, folder = made
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    comparisons = read_csv(tmp_path / "comparisons.csv", COMPARISONS)
    hit = (
        (comparisons["product"] == "table:mpo_main")
        & (comparisons["cell_a"] == "grpo")
        & (comparisons["benchmark"] == "search-2hop")
        & (comparisons["metric"] == "pass_at_1")
    )
    comparisons["p_holm"] = comparisons["p_holm"].where(~hit, 0.01).where(hit, 0.5)
    write_csv(comparisons, tmp_path / "comparisons.csv")
    render_table(plan.study.model_copy(update={"plan": None}), "quick", "mpo_main", tmp_path, tmp_path)
    body = (tmp_path / "mpo_main.md").read_text().split("## ", 1)[1]
    assert [line.split("|")[1].strip() for line in body.splitlines() if "\\*" in line] == ["GRPO", "GRPO"]


def test_user_strings_are_text_everywhere(synthetic, tmp_path):
    study = hostile_study(synthetic.make_plan().study)
    plan = build(synthetic, tmp_path, cells=["grpo", "mpo"], study=study, seeds=2)
    render_table(plan.study, "quick", "mpo_main", tmp_path, tmp_path)
    tex = (tmp_path / "mpo_main.tex").read_text()
    assert (
        "\\input" not in tex
        and r"a\_b \& \textless{}script\textgreater{} \textbackslash{}input\{x\} \$\textbar{}" in tex
    )
    md = (tmp_path / "mpo_main.md").read_text()
    assert "<script" not in md and "a\\_b &amp; &lt;script&gt;" in md


def test_wrong_names_and_tables_are_refused(made, tmp_path):
    plan, folder = made
    with pytest.raises(ConfigError, match="no table"):
        render_table(plan.study, "quick", "mpo_learning", folder, tmp_path)
    with pytest.raises(DataError, match="at scale 'quick'"):
        render_table(plan.study, "cpu", "mpo_main", folder, tmp_path)
    with pytest.raises(DataError, match="no such file"):
        render_table(plan.study, "quick", "mpo_main", tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())
