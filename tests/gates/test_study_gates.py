"""Disjointness and the gates of a whole study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from turnscale.envs.panels import Panels
from turnscale.envs.protocol import Task
from turnscale.gates.disjoint import disjoint
from turnscale.gates.study import knob_gates, probes
from turnscale.study import Plan, resolve

ROOT = Path(__file__).resolve().parents[2]


def panels(**splits: list[tuple[int, str]]) -> Panels:
    """Panels whose tasks are (index, content) pairs; equal indices of ``again`` splits are equal tasks."""
    tasks = {split: tuple(Task("toy", "1", "s", i) for i, _ in rows) for split, rows in splits.items()}
    content = {Task("toy", "1", "s", i).hash: text for rows in splits.values() for i, text in rows}
    return Panels("toy", "1", tasks, content)


def test_disjoint_panels_pass() -> None:
    result = disjoint(panels(train=[(0, "a"), (1, "b")], validation=[(2, "c")], test=[(3, "d")]))
    assert result.passed and result.difference == 0 and "train 2, validation 1, test 1" in result.detail


def test_a_task_or_content_that_comes_again_is_counted_where_it_does() -> None:
    same_task = disjoint(panels(train=[(0, "a"), (1, "b")], validation=[(2, "c")], test=[(1, "b")]))
    assert not same_task.passed and same_task.difference == 1 and "1 in train and test" in same_task.detail
    same_content = disjoint(
        panels(train=[(0, "a")], validation=[(1, "a"), (2, "x")], test=[(3, "x"), (4, "a")])
    )
    assert same_content.difference == 3
    assert "1 in train and validation" in same_content.detail
    assert "1 in validation and test" in same_content.detail and "1 in train and test" in same_content.detail


def plan() -> Plan:
    return resolve("mpo", "smoke", root=ROOT)


def test_knobs_of_a_study_are_alive() -> None:
    results = list(knob_gates(plan()))
    assert {result.name for result in results} == {"knobs/grpo", "knobs/ppo", "knobs/mpo"}
    assert all(result.passed for result in results)


def test_a_cell_that_turns_a_dead_knob_is_named() -> None:
    given = plan()
    dead = given.study.cells["mpo"].model_copy(update={"set": {"credit.beta": 0.0, "credit.lam_intra": 0.9}})
    study = given.study.model_copy(update={"cells": {**given.study.cells, "mpo": dead}})
    (result,) = [r for r in knob_gates(replace(given, study=study)) if r.name == "knobs/mpo"]
    assert not result.passed and result.detail.endswith(": credit.lam_intra")


def test_probes_of_a_study_cover_every_trained_cell_once(tmp_path: Path) -> None:
    given = plan()
    cells = tuple(cell for cell in given.cells if cell.cell in ("base", "grpo", "ppo"))
    results = list(probes(replace(given, cells=cells * 2), tmp_path))
    assert [r.name for r in results] == [
        f"lr-0/{cell}/{what}"
        for cell in ("grpo", "ppo")
        for what in ("logp", "ratio", "clip", "kl", "weights")
    ]
    assert all(result.passed for result in results)
