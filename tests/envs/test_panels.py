"""Frozen panels: round trip, verification when loaded, disjointness."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from turnscale.envs.panels import Panels, check_disjoint, load_panels, make_panels, split_sizes
from turnscale.envs.protocol import Limits, Task
from turnscale.envs.search import SearchFamily
from turnscale.envs.search_task import SearchParameters
from turnscale.errors import ConfigError, TaskError

SIZES = {"train": 30, "validation": 10, "search-2hop": 5, "search-4hop": 5}


@pytest.fixture(scope="module")
def family() -> SearchFamily:
    return SearchFamily("search", Limits(7, 14, 160), SearchParameters())


@pytest.fixture
def saved(family: SearchFamily, tmp_path: Path) -> Path:
    path = tmp_path / "search.json"
    make_panels(family, SIZES).save(path)
    return path


def test_round_trip_keeps_tasks_and_hash(family: SearchFamily, saved: Path) -> None:
    made, loaded = make_panels(family, SIZES), load_panels(saved, family)
    assert loaded == made and loaded.hash == made.hash
    assert loaded.split("search-2hop") == [family.task("search-2hop", i) for i in range(5)]
    assert not list(saved.parent.glob("*.partial"))


def test_hash_depends_on_the_tasks(family: SearchFamily) -> None:
    assert make_panels(family, SIZES).hash != make_panels(family, {**SIZES, "train": 29}).hash


def edit(path: Path, change: object) -> None:
    data = json.loads(path.read_text())
    change(data)  # type: ignore[operator]
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["splits"]["train"][3].update(hash="0" * 16), "but the file says '0000000000000000'"),
        (lambda d: d["splits"]["train"][3]["params"].update(hops=4), "has hash"),
        (lambda d: d["splits"]["train"][3].update(content="0" * 16), "content hash"),
        (lambda d: d["splits"]["train"].pop(), "content hash"),
        (lambda d: d.update(format=99), "format"),
        (lambda d: d.pop("splits"), "not a panel file"),
        (lambda d: d["splits"]["train"][0].update(index="x"), "not a panel file"),
    ],
)
def test_edited_files_are_refused(saved: Path, change: object, message: str) -> None:
    edit(saved, change)
    with pytest.raises(TaskError, match=message) as caught:
        load_panels(saved)
    assert caught.value.file == str(saved) and caught.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "\x00"])
def test_files_that_are_no_panels_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TaskError, match="not a panel file"):
        load_panels(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        load_panels(tmp_path / "none.json")


def test_another_generator_is_refused(saved: Path) -> None:
    other = SearchFamily("search", Limits(7, 14, 160), SearchParameters(side_probability=0.3))
    with pytest.raises(TaskError, match="no longer what the family generates"):
        load_panels(saved, other)
    renamed = SearchFamily("hunt", Limits(7, 14, 160), SearchParameters())
    with pytest.raises(TaskError, match="not of hunt"):
        load_panels(saved, renamed)


class Repeating:
    """Six tasks a split and three contents in all: content ``index % 3``."""

    name, version = "repeating", "1"

    def size(self, split: str) -> int:
        return 6

    def task(self, split: str, index: int) -> Task:
        return Task(self.name, self.version, split, index)

    def content(self, task: Task) -> str:
        return str(task.index % 3)


def test_benchmarks_may_differ_in_size() -> None:
    each = {"train": 5, "validation": 2, "test": {"large": 830, "small": 103}}
    assert split_sizes(each, ["large", "small"]) == {"train": 5, "validation": 2, "large": 830, "small": 103}
    one = each | {"test": 7}
    assert split_sizes(one, ["large", "small"]) == {"train": 5, "validation": 2, "large": 7, "small": 7}
    with pytest.raises(ConfigError, match=r"x\.yaml: panels\.test\.small: is no test.*Remedy: .*large, tiny"):
        split_sizes(each, ["large", "tiny"], "x.yaml")
    with pytest.raises(ConfigError, match=r"panels\.test\.more: is absent"):
        split_sizes(each, ["large", "small", "more"])


def test_training_gives_way_where_content_repeats() -> None:
    panels = make_panels(Repeating(), {"train": 1, "validation": 1, "test": 1})  # type: ignore[arg-type]
    assert {s: [t.index for t in ts] for s, ts in panels.tasks.items()} == {
        "train": [2],
        "validation": [1],
        "test": [0],
    }


def test_task_in_two_splits_is_named() -> None:
    shared, other = Task("f", "1", "train", 0), Task("f", "1", "train", 1)
    panels = Panels(
        "f", "1", {"train": (shared, other), "test": (shared,)}, {shared.hash: "a", other.hash: "b"}
    )
    with pytest.raises(TaskError, match=shared.hash):
        check_disjoint(panels)


def test_equal_content_under_another_identity_is_a_leak(family: SearchFamily) -> None:
    panels = make_panels(family, SIZES)
    seen, held_out = panels.split("train")[0], panels.split("search-2hop")[0]
    leaking = replace(panels, content={**panels.content, held_out.hash: panels.content[seen.hash]})
    with pytest.raises(TaskError, match=held_out.hash):
        check_disjoint(leaking)


def test_too_large_or_empty_splits_are_refused(family: SearchFamily) -> None:
    with pytest.raises(TaskError, match="0 tasks"):
        make_panels(family, {"train": 0})
    with pytest.raises(TaskError, match="4 tasks were asked of a split that has 3 distinct"):
        make_panels(Repeating(), {"train": 4})  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="no split"):
        make_panels(family, {"nothing": 1})
    with pytest.raises(TaskError, match="no split"):
        make_panels(family, SIZES).split("nothing")
