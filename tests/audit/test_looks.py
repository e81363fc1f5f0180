"""The look log: it grows, it verifies, and any change to it is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from turnscale.audit.adherence import judge, words
from turnscale.audit.looks import GENESIS, Logged, Look, append, verify
from turnscale.config.declared import DeclaredPlan
from turnscale.errors import DataError

LOOK = Look("mpo/ppo", 3, 3, 0.031, 0.21, "p", "2026-01-05T10:00:00Z")
OBF = DeclaredPlan(seeds_per_arm=10, looks=[3, 5, 10], rule="obrien_fleming")


def departures(plan: DeclaredPlan, entries: list[Logged], comparison: str = "mpo/ppo") -> str:
    return "; ".join(judge(plan, entries, comparison).departures)


def conclusion(plan: DeclaredPlan, entries: list[Logged], comparison: str = "mpo/ppo") -> str:
    return words(plan, judge(plan, entries, comparison))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "looks.jsonl"
    for seeds, p in ((3, 0.21), (5, 0.08), (10, 0.03)):
        append(path, replace(LOOK, seeds_a=seeds, seeds_b=seeds, value=p))
    return path


def test_append_then_verify(log: Path) -> None:
    entries = verify(log)
    assert [entry.look.seeds_a for entry in entries] == [3, 5, 10]
    assert entries[0].previous == GENESIS
    assert entries[2].previous == entries[1].hash
    assert verify(log, head=entries[2].hash) == entries


@pytest.mark.parametrize("line", [0, 1, 2])
def test_an_altered_value_is_found(log: Path, line: int) -> None:
    lines = log.read_text().splitlines()
    entry = json.loads(lines[line])
    entry["look"]["value"] = 0.001
    lines[line] = json.dumps(entry)
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=f"line {line + 1}.*altered"):
        verify(log)


@pytest.mark.parametrize("keep", [[1, 2], [0, 2], [1, 0, 2], [0, 0, 1, 2]], ids=str)
def test_a_removed_repeated_or_moved_look_is_found(log: Path, keep: list[int]) -> None:
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[i] for i in keep) + "\n")
    with pytest.raises(DataError, match="altered"):
        verify(log)


def test_a_cut_end_is_found_only_with_the_head(log: Path) -> None:
    head = verify(log)[-1].hash
    log.write_text("\n".join(log.read_text().splitlines()[:2]) + "\n")
    assert len(verify(log)) == 2
    with pytest.raises(DataError, match="not at the recorded head"):
        verify(log, head=head)


def test_nothing_is_appended_to_a_broken_log(log: Path) -> None:
    log.write_text(log.read_text().replace("0.08", "0.04"))
    before = log.read_text()
    with pytest.raises(DataError, match="altered"):
        append(log, LOOK)
    assert log.read_text() == before


def test_half_a_line_is_named(log: Path) -> None:
    log.write_text(log.read_text()[:-40])
    with pytest.raises(DataError, match="line 3"):
        verify(log)


@pytest.mark.parametrize(
    "change",
    [
        {"value": float("nan")},
        {"value": 1.5},
        {"value": -0.1},
        {"difference": 4.33},
        {"seeds_a": 0},
        {"statistic": "t"},
    ],
    ids=str,
)
def test_impossible_looks_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(DataError):
        append(tmp_path / "looks.jsonl", replace(LOOK, **change))  # type: ignore[arg-type]
    assert not (tmp_path / "looks.jsonl").exists()


def test_looks_that_follow_the_plan(log: Path) -> None:
    assert departures(OBF, verify(log)) == ""


def test_departures_from_the_plan_are_named(log: Path) -> None:
    append(log, replace(LOOK, seeds_a=12, seeds_b=12))
    plan = DeclaredPlan(seeds_per_arm=10, looks=[5, 10], rule="obrien_fleming")
    said = departures(plan, verify(log))
    assert "undeclared look at 3+3" in said
    assert "undeclared look at 12+12" in said
    assert "12 seeds per arm where 10 were declared" in said
    assert departures(plan, verify(log), "never/looked") == ""


def test_a_repeated_look_is_a_departure_and_a_skipped_one_is_only_said(log: Path) -> None:
    plan = DeclaredPlan(seeds_per_arm=10, looks=[3, 5, 8, 10], rule="obrien_fleming")
    judged = judge(plan, verify(log), "mpo/ppo")
    assert judged.departures == () and judged.skipped == (8,)
    assert "no look on record at 8 seeds" in words(plan, judged)
    append(log, replace(LOOK, seeds_a=10, seeds_b=10))
    assert "2 looks at 10+10 seeds" in departures(plan, verify(log))


def test_a_skipped_look_leaves_the_level_of_the_next_one(log: Path) -> None:
    entries = verify(log)
    assert judge(OBF, entries[1:2], "mpo/ppo").needed == judge(OBF, entries[:2], "mpo/ppo").needed


def test_arms_of_unequal_size_are_outside_the_plan(tmp_path: Path) -> None:
    entry = append(tmp_path / "looks.jsonl", replace(LOOK, seeds_b=2))
    assert "undeclared look at 3+2 seeds" in departures(OBF, [entry])
    assert judge(OBF, [entry], "mpo/ppo").needed is None


def test_an_arm_that_no_run_trains_has_no_seeds_to_count(tmp_path: Path) -> None:
    entry = append(tmp_path / "looks.jsonl", replace(LOOK, seeds_a=1, fixed="a"))
    assert departures(OBF, [entry]) == ""
    assert entry.look.counts == "-+3"


def test_a_plan_declared_or_changed_after_a_look_is_named(tmp_path: Path) -> None:
    path = tmp_path / "looks.jsonl"
    append(path, replace(LOOK, plan="none"))
    assert "no plan was declared at the look at 3+3" in departures(OBF, verify(path))
    earlier = DeclaredPlan(seeds_per_arm=5, looks=[3, 5], rule="obrien_fleming")
    append(path, replace(LOOK, seeds_a=5, seeds_b=5, plan=earlier.words))
    said = departures(OBF, verify(path))
    assert "another plan was declared at the look at 5+5" in said and "5 seeds per arm" in said
    assert departures(OBF, [append(tmp_path / "new.jsonl", replace(LOOK, plan=OBF.words))]) == ""


def test_another_configuration_is_another_experiment_and_is_counted(log: Path) -> None:
    for seeds in (3, 5):
        append(log, replace(LOOK, seeds_a=seeds, seeds_b=seeds, configuration="mended"))
    judged = judge(OBF, verify(log), "mpo/ppo")
    assert judged.departures == () and judged.earlier == 3
    assert judge(OBF, verify(log), "mpo/ppo", "").earlier == 2


def test_a_p_value_where_an_e_value_was_declared(log: Path) -> None:
    plan = DeclaredPlan(seeds_per_arm=20, looks=[20], rule="e_value")
    assert len(judge(plan, verify(log), "mpo/ppo").departures) == 3


def test_conclusions_follow_the_declared_rule(log: Path) -> None:
    entries = verify(log)  # p .21 at 3, .08 at 5, .03 at 10
    assert conclusion(OBF, entries[:1]).startswith("continue (p 0.21 at 3+3")
    assert conclusion(OBF, entries).startswith("difference shown (p 0.03 at 10+10 seeds, needed at most 0.04")
    fixed = DeclaredPlan(seeds_per_arm=10, looks=[10])
    assert conclusion(fixed, entries[2:]).startswith("difference shown")
    assert conclusion(fixed, entries).startswith("no conclusion, the plan was not followed")
    assert conclusion(OBF, entries, "never/looked") == "not looked at yet"


def test_p_below_five_percent_at_the_first_look_shows_nothing(tmp_path: Path) -> None:
    entry = append(tmp_path / "looks.jsonl", replace(LOOK, value=0.01))
    assert conclusion(OBF, [entry]).startswith("continue")
    assert judge(OBF, [entry], "mpo/ppo").needed == pytest.approx(0.000346, abs=1e-6)


def test_the_last_look_stops(log: Path) -> None:
    append(log.with_name("other"), replace(LOOK, seeds_a=10, seeds_b=10, value=0.06))
    assert conclusion(OBF, verify(log.with_name("other"))).startswith("stop: not shown")


def test_e_values_conclude_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "looks.jsonl"
    plan = DeclaredPlan(seeds_per_arm=20, looks=[20], rule="e_value")
    append(path, replace(LOOK, statistic="e", value=8.0))
    assert conclusion(plan, verify(path)) == "continue (e 8 at 3+3 seeds, needed at least 20)"
    append(path, replace(LOOK, statistic="e", value=21.0, seeds_a=4, seeds_b=4))
    assert conclusion(plan, verify(path)).startswith("difference shown")
