"""The family report: experts win, random and imperfect players rarely, and counts are those of the episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turnscale.envs.registry import read_family
from turnscale.envs.report import family_report, play, random_policy

CONFIGS = Path(__file__).parents[2] / "configs" / "families"


def test_report_of_the_search_family() -> None:
    family = read_family(CONFIGS / "search.yaml")
    report = (
        family_report(family, tasks_per_split=60).set_index(["player", "split", "difficulty"]).sort_index()
    )
    assert (report.loc["expert", "success"] == 1.0).all() and (report.loc["expert", "truncated"] == 0.0).all()
    assert report.loc[("random", "train", "all"), "success"] < 0.1
    assert report.loc[("imperfect", "search-4hop", "all"), "success"] < 0.1
    assert report.loc[("expert", "search-4hop", "4-hop"), "turns"] == 5
    assert report.loc[("expert", "train", "all"), "tasks"] == 60
    assert report.loc[("expert", "train", "3-hop"), "tasks"] == 20
    per_turn = report.loc["expert", "words_per_turn"]
    assert per_turn.between(8, 11).all()
    expert = report.loc["expert"]
    assert expert["words"].to_numpy() == pytest.approx(
        (expert["words_per_turn"] * expert["turns"]).to_numpy()
    )


def test_a_given_policy_is_reported_beside_the_others() -> None:
    family = read_family(CONFIGS / "search.yaml")
    report = family_report(family, policy=lambda *_: "nonsense", tasks_per_split=3)
    row = report[(report.player == "policy") & (report.split == "train") & (report.difficulty == "all")].iloc[
        0
    ]
    assert (row.success, row.truncated, row.turns, row.words_per_turn) == (0.0, 1.0, 7.0, 2.0)


def test_overlong_turns_count_as_unfinished() -> None:
    family = read_family(CONFIGS / "search.yaml")
    turn = f"<think> {'hmm ' * 20}</think> answer Ada"
    episode = play(family, family.task("train", 0), lambda *_: turn, np.random.default_rng(0))
    assert set(episode.observations) == {"err"} and episode.truncated


def test_play_is_a_function_of_its_generator() -> None:
    family = read_family(CONFIGS / "search.yaml")
    one, two = (
        play(family, family.task("train", 1), random_policy(family), np.random.default_rng(4))
        for _ in range(2)
    )
    assert one == two
