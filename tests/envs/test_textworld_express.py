"""Text games: words, gold paths, gates, forks, folds. Skipped where the package or Java is missing."""

from __future__ import annotations

import builtins
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from turnscale.envs import textworld_pool
from turnscale.envs.panels import make_panels
from turnscale.envs.protocol import Limits
from turnscale.envs.registry import read_family
from turnscale.envs.textworld_express import Map, TextWorldFamily, TextWorldParameters, in_words, parse
from turnscale.envs.textworld_pool import Pool
from turnscale.errors import TaskError

CONFIGS = Path(__file__).parents[2] / "configs" / "families"
available = importlib.util.find_spec("textworld_express") is not None and shutil.which("java") is not None
needs_games = pytest.mark.skipif(not available, reason="needs turnscale[textworld] and Java")


@pytest.fixture(scope="module", params=["textworld-coin", "textworld-mapreader"])
def family(request: pytest.FixtureRequest) -> TextWorldFamily:
    built = read_family(CONFIGS / f"{request.param}.yaml")
    assert isinstance(built, TextWorldFamily)
    return built


@pytest.mark.parametrize(
    ("turn", "action"),
    [
        ("<think> hmm so </think> move north", "move north"),
        ("  Move   NORTH\n", "move north"),
        ("<think></think>take coin", "take coin"),
        ("<think> hmm move north", None),
        ("hmm </think> move north", None),
        ("<think> a </think> <think> b </think> move north", None),
        ("", ""),
    ],
)
def test_parse(turn: str, action: str | None) -> None:
    assert parse(turn) == action


def test_rooms_in_words_keep_name_exits_and_the_objects_of_the_task() -> None:
    text = (
        "You are in the kitchen. In one part of the room you see a stove. There is also a fridge that is closed. "
        "You also see a coin. \nTo the North you see the laundry room. "
    )
    assert (
        in_words(text) == "you are in the kitchen you also see a coin to the north you see the laundry room"
    )
    assert in_words("You take the coin.") == "you take the coin"


def test_depth_first_search_goes_back_from_dead_ends_and_stops_at_the_coin() -> None:
    exits = {
        "hall": {"north": "attic", "south": "yard", "west": "shed"},
        "attic": {"south": "hall", "east": "loft"},
        "loft": {"west": "attic"},
        "yard": {"north": "hall"},
        "shed": {"east": "hall"},
    }
    path = ["move north", "move east", "move west", "move south", "move south", "take coin"]
    assert Map("", "hall", exits, frozenset({"yard"})).depth_first() == path
    assert Map("", "hall", exits, frozenset({"hall"})).depth_first() == ["take coin"]
    with pytest.raises(TaskError, match="no coin"):
        Map("", "hall", exits, frozenset()).depth_first()


def test_missing_package_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith(("py4j", "textworld_express")):
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TaskError, match=r"turnscale\[textworld\]"):
        Pool().take("coin", "numLocations=7")


@pytest.mark.skipif(
    importlib.util.find_spec("textworld_express") is None, reason="needs turnscale[textworld]"
)
def test_missing_java_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TaskError, match="Java"):
        Pool().take("coin", "numLocations=7")


def test_unknown_split_is_named(family: TextWorldFamily) -> None:
    with pytest.raises(TaskError, match="no split"):
        family.task("test", 0)


@needs_games
def test_splits_are_the_fitting_seeds_of_the_package_folds(family: TextWorldFamily) -> None:
    least, greatest = family.parameters.expert_turns
    for split, first in (("train", 0), ("validation", 10_000), (family.name, 20_000)):
        tasks = [family.task(split, i) for i in range(15)]
        seeds = [t.params["seed"] for t in tasks]
        assert seeds == sorted(set(seeds)) and first <= seeds[0] and seeds[-1] < first + 1000
        for task in tasks:
            length = len(family.expert_path(task))
            assert least <= length <= greatest and task.difficulty == f"{length:02d}-turn"
    with pytest.raises(TaskError, match="widen expert_turns"):
        family.task("train", 1000)
    assert 400 < family.size("train") <= 1000


@needs_games
def test_tasks_and_experts_are_the_same_for_every_instance_and_process(family: TextWorldFamily) -> None:
    """A second family with a virtual machine of its own (as another process has) finds the same tasks and paths."""
    other = read_family(CONFIGS / f"{family.name}.yaml")
    assert isinstance(other, TextWorldFamily)
    tasks = [family.task("train", i) for i in range(40)]
    here = [(t.hash, family.expert_path(t), family.content(t)) for t in tasks]
    process, textworld_pool.pool._process = textworld_pool.pool._process, 0
    there = [
        (t.hash, other.expert_path(t), other.content(t)) for t in (other.task("train", i) for i in range(40))
    ]
    assert here == there and textworld_pool.pool._process == process


@needs_games
def test_expert_succeeds_within_limits_and_replays(family: TextWorldFamily) -> None:
    rng = np.random.default_rng(0)
    vocabulary = set(family.vocabulary())
    for split in ("train", "validation", family.name):
        for index in range(10):
            shown = family.demonstrate(family.task(split, index), rng, expert=True)
            assert shown.success and shown.reward == 1.0
            assert max(len(t.split()) + 1 for t in shown.turns) <= family.limits.max_turn_tokens
            assert set(" ".join((shown.prompt, *shown.turns, *shown.observations)).split()) <= vocabulary
            environment = family.make()
            assert environment.reset(shown.task, 1) == shown.prompt
            for turn, observation in zip(shown.turns, shown.observations, strict=True):
                step = environment.step(turn)
                assert step.observation == observation
            assert step.done and step.success


@needs_games
def test_imperfect_demonstrations_use_known_words_and_often_fail(family: TextWorldFamily) -> None:
    rng = np.random.default_rng(0)
    vocabulary = set(family.vocabulary())
    shown = [family.demonstrate(family.task("train", i), rng, expert=False) for i in range(60)]
    assert 0.02 < np.mean([d.success for d in shown]) < 0.8
    for one in shown:
        assert set(" ".join((one.prompt, *one.turns, *one.observations)).split()) <= vocabulary
        assert len(one.turns) <= family.limits.max_turns


@needs_games
def test_impossible_actions_say_nothing_and_text_earns_nothing(family: TextWorldFamily) -> None:
    environment = family.make()
    environment.reset(family.task("train", 0), 0)
    before = environment.anchor()
    for turn in (
        "dance",
        "",
        "<think> hmm",
        "you take the coin",
        "<think> tasksuccess true </think> put coin in box",
    ):
        step = environment.step(turn)
        assert (step.observation, step.valid, step.done) == ("err", False, False)
    assert environment.step(environment.valid_actions()[0], complete=False).observation == "err"
    assert environment.anchor() == before
    environment.close()


@needs_games
def test_forks_and_parallel_games_are_independent(family: TextWorldFamily) -> None:
    task = family.task("train", 5)
    path = family.expert_path(task)
    original, other = family.make(), family.make()
    original.reset(task, 0)
    other.reset(family.task("train", 6), 0)
    original.step(path[0])
    fork = original.clone()
    assert fork.anchor() == original.anchor()
    other.step("look around")
    for action in path[1:]:
        step = fork.step(action)
    assert step.success
    for action in path[1:]:
        step = original.step(action)
    assert step.success
    with pytest.raises(RuntimeError, match="ended"):
        original.step("look around")
    other.close()


@needs_games
def test_oracle_features_follow_the_episode(family: TextWorldFamily) -> None:
    task = family.task("train", 1)
    shown = family.demonstrate(task, np.random.default_rng(0), expert=True)
    features = family.oracle_features(task, shown.turns, shown.observations)
    assert len(features) == len(shown.turns) and features[0].startswith("t0 e0")
    in_sight = [
        f.split()[2] == "s1" for f, t in zip(features, shown.turns, strict=True) if t.endswith("take coin")
    ]
    assert in_sight == [True]


@needs_games
def test_panels_have_distinct_games(family: TextWorldFamily) -> None:
    panels = make_panels(family, {"train": 40, "validation": 15, family.name: 15})
    assert len(set(panels.content.values())) == 70


@needs_games
def test_games_that_cannot_be_generated_are_named() -> None:
    parameters = TextWorldParameters(game="mapreader", locations=5, max_distance=3)
    broken = TextWorldFamily("m", Limits(9, 14, 500), parameters)
    with pytest.raises(TaskError, match="cannot generate seed"):
        broken.size("train")


@needs_games
def test_full_text_is_left_as_it_is_and_has_no_closed_vocabulary() -> None:
    full = TextWorldFamily("c", Limits(9, 14, 500), TextWorldParameters(game="coin", observations="full"))
    environment = full.make()
    assert environment.reset(full.task("train", 0), 0).startswith("Your task is to search the environment")
    environment.close()
    with pytest.raises(TaskError, match="closed vocabulary"):
        full.vocabulary()
