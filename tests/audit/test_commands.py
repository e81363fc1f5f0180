"""The commands end to end: what they print, what they write, how they fail, and what they must not load."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from matplotlib.text import Text
from scipy.stats import ttest_ind
from typer.testing import CliRunner, Result

from tests.audit.builders import outcomes
from turnscale import method_commands
from turnscale.audit import commands
from turnscale.audit.document import to_latex
from turnscale.audit.forest import Forest, Row, from_ledger
from turnscale.audit.forest_drawing import MAX_ROWS, draw
from turnscale.audit.ledger import load_ledger
from turnscale.audit.ledger_report import audit_ledger, document
from turnscale.audit.looks import Look, append
from turnscale.audit.preplan import preplan
from turnscale.errors import DataError

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).with_name("fixtures")
CLAIMS = ROOT / "configs/claims"
MPO = CLAIMS / "mpo.yaml"


def call(*arguments: str | Path) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    commands.register(app)
    method_commands.register(app)
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    result = call("audit", MPO, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


def test_every_format_is_written(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    assert {f"audit_mpo.{suffix}" for suffix in ("md", "tex", "csv", "json")} <= names
    assert {"audit_mpo.png", "audit_mpo.pdf"} <= names
    assert all(path.stat().st_size > 500 for path in written.iterdir())


def test_csv_and_json_hold_the_same_verdicts(written: Path) -> None:
    with (written / "audit_mpo.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    value = json.loads((written / "audit_mpo.json").read_text(encoding="utf-8"))
    assert [r["verdict_these_checkpoints"] for r in rows] == [
        r["verdict_these_checkpoints"] for r in value["claims"]
    ]
    assert {r["verdict_method_retrained"] for r in rows} == {"not testable"}
    assert {"families", "whole_counts", "tasks_won", "patterns", "local"} <= value.keys()
    assert len(rows) == len(value["claims"]) == 58


def test_markdown_tables_are_regular(written: Path) -> None:
    lines = (written / "audit_mpo.md").read_text(encoding="utf-8").splitlines()
    widths: list[set[int]] = [set()]
    for line in lines:
        if line.startswith("|"):
            widths[-1].add(len(re.findall(r"(?<!\\)\|", line)))
        elif widths[-1]:
            widths.append(set())
    assert [len(w) for w in widths if w] == [1] * 6


def test_latex_is_escaped_and_balanced(written: Path) -> None:
    text = (written / "audit_mpo.tex").read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.count("{") - body.count(r"\{") == body.count("}") - body.count(r"\}")
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 6
    assert not re.search(r"(?<!\\)[%#_]", body)
    for table in re.findall(r"\\midrule\n\\endhead\n(.*?)\\bottomrule", body, re.S):
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in table.strip().splitlines()}) == 1


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    hostile = r"50% \input{x} & $y_1$ #~^ <b>"
    text = MPO.read_text(encoding="utf-8").replace("name: BrowseComp-Plus", f"name: '{hostile}'")
    path = tmp_path / "claims.yaml"
    path.write_text(text, encoding="utf-8")
    latex = to_latex(document(audit_ledger(load_ledger(path))))
    assert r"\input{x}" not in latex
    assert r"50\% \textbackslash{}input\{x\} \& \$y\_1\$ \#\textasciitilde{}\textasciicircum{}" in latex


def test_the_same_ledger_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    assert call("audit", MPO, "--out", tmp_path).exit_code == 0
    for path in written.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_the_terminal_report_names_every_part() -> None:
    output = call("audit", MPO).output
    for words in (
        "Verdicts",
        "Numbers behind",
        "Claims that remain",
        "Whole counts",
        "Statements over",
        "impossible",
    ):
        assert words in output
    for study in ("agentopsd", "grouping"):
        assert call("audit", ROOT / f"configs/claims/{study}.yaml").exit_code == 0


def test_the_ledger_audit_takes_seconds_and_loads_no_heavy_library() -> None:
    code = (
        "import sys; from typer import Typer; from turnscale.audit import commands\n"
        "app = Typer(); commands.register(app)\n"
        f"app(['audit', {str(MPO)!r}], standalone_mode=False)\n"
        "print('LOADED', [m for m in ('torch', 'transformers', 'peft', 'mlflow') if m in sys.modules])"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "LOADED []" in done.stdout
    assert time.monotonic() - start < 30  # 2 s alone; the margin is for a busy machine


def test_audit_of_an_outcomes_table(tmp_path: Path) -> None:
    frame = outcomes({"A": [0.8, 0.82, 0.78, 0.81], "B": [0.4, 0.42, 0.38, 0.41]})
    frame.to_parquet(tmp_path / "outcomes.parquet")
    result = call("audit", tmp_path / "outcomes.parquet", "--out", tmp_path / "o", "--reference", "B", "--metric",
                  "pass_at_1", "--metric", "pass_hat_2")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "pass@1, all tasks" in result.output
    with (tmp_path / "o/audit_outcomes.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["verdict"] for row in rows} == {"supported"}
    assert (tmp_path / "o/audit_outcomes.png").stat().st_size > 5000


def test_one_file_per_run_is_audited_together(tmp_path: Path) -> None:
    files = []
    for (arm, seed), part in outcomes({"A": [0.6, 0.6], "B": [0.5, 0.5]}).groupby(["arm", "seed"]):
        files.append(tmp_path / f"{arm}-{seed}.csv")
        part.to_csv(files[-1], index=False)
    result = call("audit", *files)
    assert result.exit_code == 0, result.output
    assert "2+2" in result.output


def test_import_then_audit(tmp_path: Path) -> None:
    for arm in ("mpo", "ppo"):
        result = call("import", "verl", FIXTURES / "verl_100.jsonl", "--arm", arm, "--seed", "0", "--out",
                      tmp_path / f"{arm}.csv")  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "4 rows" in result.output
    assert call("audit", tmp_path / "mpo.csv", tmp_path / "ppo.csv").exit_code == 0


def test_import_of_wandb_then_audit_of_seed_scores(tmp_path: Path) -> None:
    source = next(FIXTURES.glob("wandb*"))
    result = call("import", "wandb", source, "--field", "eval/success", "--out", tmp_path / "scores.csv")
    assert "1 left out" in result.output
    output = call("audit", tmp_path / "scores.csv").output
    assert "seed score" in output
    assert "one score per seed and no tasks" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", MPO, MPO], "audited alone"),
        (["audit", MPO, "--metric", "pass_at_1"], "no meaning for a claims ledger"),
        (["audit", "none.yaml"], "no such file"),
        (["import", "rliable", "x", "--out", "a.csv"], "no importer 'rliable'"),
        (["import", "verl", "x.jsonl", "--out", "a.csv"], "needs it"),
        (["grim", "69,90", "--n", "103"], "not a percentage"),
        (["grim", "101", "--n", "103"], "not a percentage"),
        (["grim", "69.90", "--n", "none"], "not a number of tasks"),
        (["grim", "69.90", "--n", "0"], "not a number of tasks"),
        (["power", "--sd", "0", "--gap", "4"], "--sd: is 0. Remedy: give points from 0.1"),
        (["power", "--sd", "nan", "--gap", "4"], "--sd: is nan"),
        (["power", "--sd", "2", "--gap", "0"], "--gap: is 0"),
        (
            ["power", "--sd", "2", "--gap", "0.05"],
            "--gap: is 0.05 points, which no study could see. Remedy: give points: 5",
        ),
        (["power", "--sd", "0.02", "--gap", "5"], "--sd: is 0.02 points"),
        (["power", "--sd", "2", "--gap", "101"], "--gap: is 101"),
        (["looks", "none.jsonl"], "no such file"),
        (["methods", "list", "--directory", "/none"], "is no folder of methods"),
        (["methods", "show", "mpo", "--directory", "/none"], "is no folder of methods"),
        *(
            (["methods", "diff", "mpo", "grpo", "--rewards", text], "--rewards: cannot read rewards")
            for text in ("nan,1", "inf", "1e308,-1e308", ";", "x")
        ),
    ],
    ids=str,
)
def test_mistakes_on_the_command_line(arguments: list[str | Path], words: str) -> None:
    result = call(*arguments)
    assert words in str(result.exception)
    assert type(result.exception).__module__ == "turnscale.errors"


def test_a_run_in_two_files_is_not_two_runs(tmp_path: Path) -> None:
    """Seeds counted twice would halve the standard error."""
    scores = "arm,seed,score\nA,0,0.5\nA,1,0.6\nB,0,0.4\nB,1,0.5\n"
    one, same, other = (tmp_path / f"{name}.csv" for name in ("one", "same", "other"))
    one.write_text(scores, encoding="utf-8")
    same.write_text(scores, encoding="utf-8")
    assert call("audit", one).exit_code == 0
    assert "arm 'A' has seed 0 twice" in str(call("audit", one, same).exception)
    other.write_text(scores.replace(",0,", ",2,").replace(",1,", ",3,"), encoding="utf-8")
    assert call("audit", one, other).exit_code == 0
    lines = [
        f"{line},{'benchmark' if not number else 'b'}" for number, line in enumerate(scores.splitlines())
    ]
    other.write_text("\n".join(lines), encoding="utf-8")
    assert "only some of the files have the column 'benchmark'" in str(call("audit", one, other).exception)
    for option in (["--metric", "pass_at_1"], ["--untrained", "A"], ["--checkpoint", "1"], ["--ragged"]):
        assert f"{option[0]}: has no meaning for a table of scores" in str(
            call("audit", one, *option).exception
        )


def test_an_untrained_arm_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    outcomes({"A": [0.5, 0.6], "B": [0.4, 0.5]}, n_tasks=5).to_csv(path, index=False)
    assert "--untrained: no arm 'base'. Remedy: use one of A, B." in str(
        call("audit", path, "--untrained", "base").exception
    )


def test_grim() -> None:
    assert "of about 10^3" in call("grim", "69.90", "--n", "103", "--rollouts", "10000", "--k", "5000").output
    assert "72 of 103" in call("grim", "69.90", "--n", "103").output
    assert "impossible" in call("grim", "12.06", "--n", "600").output
    assert "1301 of 3,296" in call("grim", "39.47", "--n", "103", "--rollouts", "32").output
    assert "103" in call("grim", "69.90", "--n", "20-205").output


def test_power() -> None:
    output = call("power", "--sd", "2", "--gap", "4.33").output
    assert "5 seeds per arm for 80% power" in output
    assert "146 seeds per arm" in call("power", "--sd", "2", "--gap", "0.66").output


def test_looks(tmp_path: Path) -> None:
    log = tmp_path / "looks.jsonl"
    entry = append(log, Look("mpo/ppo", 3, 3, 0.031, 0.21, "p", "2026-01-05T10:00:00Z"))
    output = call("looks", log, "--head", entry.hash).output
    assert "1 looks, chain intact" in output
    assert "+3.10 points" in output


def test_preplan_gives_seeds_and_power_per_claim() -> None:
    plans = {p.claim.id: p for p in preplan(load_ledger(MPO), seeds=5)}
    assert plans["4b-bcp-vs-sao"].needed == {1.0: 3, 2.0: 5, 3.0: 9}
    assert plans["4b-bcp-vs-sao"].power[2.0] > 0.8 > plans["4b-bcp-vs-sao"].power[3.0]
    assert preplan(load_ledger(MPO), seeds=1)[0].power == {}


def test_the_plot_draws_three_nested_intervals_per_claim() -> None:
    audit = audit_ledger(load_ledger(MPO))
    forest = from_ledger(audit)
    main = [row for row in forest.rows if row.section == "main (12)"]
    assert len(main) == 12 and len(forest.rows) == len(audit.ledger.claims)
    for row in main:
        rollouts, tasks, seeds = row.intervals
        assert rollouts is not None and tasks is not None and seeds is not None and row.centre is not None
        assert seeds[0] < tasks[0] < rollouts[0] < row.centre < rollouts[1] < tasks[1] < seeds[1]
    axes = draw(forest).axes[0]
    drawn = [line for line in axes.lines if line.get_linewidth() in (3, 7.5, 13)]
    assert len(drawn) == sum(interval is not None for row in forest.rows for interval in row.intervals)
    assert "no row can speak for a method" in forest.title


def test_published_seed_sds_give_the_interval_of_their_welch_test() -> None:
    forest = from_ledger(audit_ledger(load_ledger(CLAIMS / "grouping.yaml")))
    row = next(row for row in forest.rows if row.detail.startswith("t5-tree-vs-traj;"))
    assert row.intervals[:2] == (None, None) and row.intervals[2] is not None
    claim = load_ledger(CLAIMS / "grouping.yaml").claim("t5-tree-vs-traj")
    a, b = (
        np.array([-1, -0.5, 0, 0.5, 1]) / np.std([-1, -0.5, 0, 0.5, 1], ddof=1) * sd
        for sd in (claim.seed_sd_a, claim.seed_sd_b)
    )
    expected = ttest_ind(a + claim.gap, b, equal_var=False).confidence_interval()
    assert row.intervals[2] == pytest.approx((expected.low, expected.high))
    assert "not distinguishable over seeds, p 0.247" in row.remark
    assert "sd as published" in forest.legend[2] and "assumed" not in forest.legend[2]


def test_a_claim_without_a_printed_size_shows_the_noise_around_zero() -> None:
    forest = from_ledger(audit_ledger(load_ledger(CLAIMS / "agentopsd.yaml")))
    rows = {row.detail.split(";")[0]: row for row in forest.rows}
    bars = rows["alfworld-best"].intervals[0]
    assert rows["alfworld-best"].around_zero and bars is not None and bars[0] == -bars[1]
    slope = rows["horizon-vs-rlsd"]
    assert slope.centre is None and not slope.around_zero and slope.gap == "+3.05 per turn"


@pytest.mark.parametrize("ledger", ["mpo", "agentopsd", "grouping"])
def test_no_text_of_the_plot_is_cut_or_runs_into_another(ledger: str) -> None:
    figure = draw(from_ledger(audit_ledger(load_ledger(CLAIMS / f"{ledger}.yaml"))))
    figure.canvas.draw()
    page = figure.bbox
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible()
    ]
    for words, box in boxes:
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1, words
    for index, (words, box) in enumerate(boxes):
        for other, second in boxes[index + 1 :]:
            across = min(box.x1, second.x1) - max(box.x0, second.x0)
            down = min(box.y1, second.y1) - max(box.y0, second.y0)
            assert across <= 1 or down <= 3, f"{words!r} runs into {other!r}"


def test_figures_may_go_to_another_folder(tmp_path: Path) -> None:
    result = call("audit", CLAIMS / "grouping.yaml", "--out", tmp_path / "a", "--figures", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"audit_grouping.png", "audit_grouping.pdf"}
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".md", ".tex", ".csv", ".json"}
    alone = call("audit", CLAIMS / "grouping.yaml", "--figures", tmp_path / "b")
    assert alone.exit_code == 1 and "without --out" in str(alone.exception)


def test_a_plot_without_rows_or_with_too_many_is_refused() -> None:
    row = Row("a", "b", 1.0, ((0.0, 2.0), None, None), "c")
    with pytest.raises(DataError, match="nothing to plot"):
        draw(Forest("t", (), ("a", "b", "c"), "d"))
    with pytest.raises(DataError, match="do not fit a page"):
        draw(Forest("t", (row,) * (MAX_ROWS + 1), ("a", "b", "c"), "d"))
