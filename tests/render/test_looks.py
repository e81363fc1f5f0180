"""What a table says about the declared plan: levels, seeds outside it, and stars that wait for it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnscale.config.declared import DeclaredPlan
from turnscale.config.schema import Study
from turnscale.estimates import write_estimates
from turnscale.estimates.schema import COMPARISONS, LOOKS, read_csv
from turnscale.files import write_csv
from turnscale.render.tables import render_table

CELLS = ["base", "grpo", "ppo", "mpo"]
OBF = DeclaredPlan(seeds_per_arm=10, looks=[3, 5, 10], rule="obrien_fleming")


def made(synthetic: ModuleType, folder: Path, declared: DeclaredPlan | None, **options: Any) -> Study:
    study: Study = synthetic.make_plan().study.model_copy(update={"plan": declared})
    plan = synthetic.make_plan(seeds=options.pop("seeds", 3), cells=CELLS, study=study)
    synthetic.make_tables(plan, folder, tasks=8, attempts=8, steps=20, **options)
    write_estimates(plan, folder, log=folder / "looks.jsonl")
    return study


def text(study: Study, folder: Path, name: str = "mpo_main", form: str = "md") -> str:
    render_table(study, "quick", name, folder, folder / "out")
    return (folder / "out" / f"{name}.{form}").read_text(encoding="utf-8")


def differences(page: str, label: str) -> list[list[str]]:
    """Cells of the rows of a label in the panel of differences."""
    panel = page.split("difference to MPO")[1]
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in panel.splitlines()
        if line.startswith(f"| {label} |")
    ]


def starred(page: str) -> list[str]:
    body = page.split("## ", 1)[1]
    return [line.split("|")[1].strip() for line in body.splitlines() if "\\*" in line]


def all_significant(folder: Path) -> None:
    table = read_csv(folder / "comparisons.csv", COMPARISONS)
    write_csv(
        table.assign(p_holm=table["p_holm"].where(table["p_holm"].isna(), 1e-4)), folder / "comparisons.csv"
    )


def test_the_level_stands_beside_the_p_it_holds(synthetic: ModuleType, tmp_path: Path) -> None:
    study = made(synthetic, tmp_path, OBF)
    page = text(study, tmp_path)
    assert "Declared plan: 10 seeds per arm, looks at 3, 5 and 10, O'Brien-Fleming spending" in page
    assert "| p | declared plan | p, Holm over" in page
    first, second, area = differences(page, "GRPO")
    assert first[4] in ("p ≤ 0.00035: continue", "p ≤ 0.00035: difference shown")
    assert second[4] == area[4] == "–", "the plan covers the first metric only"
    assert first[-1] == "3 v 3" and "‡" not in page
    assert r"p $\leq$ 0.00035" in text(study, tmp_path, form="tex")


def test_seeds_outside_the_plan_are_marked_and_explained(synthetic: ModuleType, tmp_path: Path) -> None:
    study = made(synthetic, tmp_path, OBF, failed={"ppo": 1})
    page = text(study, tmp_path)
    assert [row[-1] for row in differences(page, "PPO")] == ["2 v 3 ‡"] * 3
    assert differences(page, "PPO")[0][4] == "no conclusion ‡"
    assert [row[-1] for row in differences(page, "GRPO")] == ["3 v 3"] * 3
    assert "‡ outside the plan, so nothing is concluded, PPO: an undeclared look at 2+3 seeds." in page
    assert r"$^{\ddagger}$" in text(study, tmp_path, form="tex")


def test_an_undeclared_look_taken_before_is_still_marked(synthetic: ModuleType, tmp_path: Path) -> None:
    made(synthetic, tmp_path, OBF, seeds=4)
    page = text(made(synthetic, tmp_path, OBF, seeds=5), tmp_path)
    assert differences(page, "GRPO")[0][-1] == "5 v 5 ‡"
    assert "an undeclared look at 4+4 seeds" in page


def test_a_skipped_look_is_said_and_not_marked(synthetic: ModuleType, tmp_path: Path) -> None:
    page = text(made(synthetic, tmp_path, OBF, seeds=5), tmp_path)
    assert "No look is on record at 3 seeds, Base, GRPO and PPO" in page
    assert differences(page, "GRPO")[0][-1] == "5 v 5"


@pytest.mark.parametrize(("verdict", "expected"), [("continue", []), ("difference shown", ["GRPO"])])
def test_a_star_waits_for_the_planned_difference(
    synthetic: ModuleType, tmp_path: Path, verdict: str, expected: list[str]
) -> None:
    study = made(synthetic, tmp_path, OBF)
    all_significant(tmp_path)
    looks = read_csv(tmp_path / "looks.csv", LOOKS)
    others = looks["cell_a"] != "grpo"
    write_csv(looks.assign(verdict=looks["verdict"].where(others, verdict).where(~others, "continue")),
              tmp_path / "looks.csv")  # fmt: skip
    assert sorted(set(starred(text(study, tmp_path)))) == expected


def test_without_a_plan_stars_need_holm_alone_and_the_table_says_so(
    synthetic: ModuleType, tmp_path: Path
) -> None:
    study = made(synthetic, tmp_path, None)
    all_significant(tmp_path)
    page = text(study, tmp_path)
    assert set(starred(page)) == {"GRPO", "PPO"}
    assert "No plan of seeds and looks was declared" in page
    assert "declared plan |" not in page


def test_e_values_are_printed_with_what_they_need(synthetic: ModuleType, tmp_path: Path) -> None:
    plan = DeclaredPlan(seeds_per_arm=20, looks=[20], rule="e_value")
    page = text(made(synthetic, tmp_path, plan), tmp_path)
    held = differences(page, "GRPO")[0][4]
    assert held.startswith("e ") and " of 20: " in held
    assert differences(page, "Base")[0][4] == "no test"


def test_bytes_are_the_same_again_although_the_log_has_times(synthetic: ModuleType, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    pages = []
    for folder in (first, second):
        study = made(synthetic, folder, OBF)
        paths = render_table(study, "quick", "mpo_main", folder, folder / "out")
        pages.append([path.read_bytes() for path in paths if path.suffix != ".json"])
    assert pages[0] == pages[1]
    assert (first / "looks.csv").read_bytes() == (second / "looks.csv").read_bytes()


def test_the_curve_is_held_at_its_largest_k(synthetic: ModuleType, tmp_path: Path) -> None:
    page = text(made(synthetic, tmp_path, OBF), tmp_path, "mpo_passk")
    rows = differences(page, "GRPO")
    assert [row[1] for row in rows] == ["pass@1", "pass@2", "pass@4"]
    assert [row[4].split(":")[0] for row in rows] == ["–", "–", "p ≤ 0.00035"]
