"""Task identity: stable, sensitive to every part of it, and the generator's output pinned to its version."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from turnscale.envs.protocol import Task
from turnscale.envs.registry import read_family

CONFIGS = Path(__file__).parents[2] / "configs" / "families"


def test_search_tasks_of_version_1_are_these() -> None:
    """A change of the generator that alters tasks must raise its version, and then this test."""
    family = read_family(CONFIGS / "search.yaml")
    assert family.version == "1"
    assert family.task("train", 2).hash == "3028a06f4d14e24f"
    splits = ("train", "validation", *family.benchmarks)
    text = "\n".join(family.content(family.task(split, i)) for split in splits for i in range(20))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "2dd1497ed585bd54"


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_hash_does_not_depend_on_the_order_of_parameters(params: dict[str, object]) -> None:
    one = Task("f", "1", "train", 0, params)
    assert one.hash == Task("f", "1", "train", 0, dict(reversed(params.items()))).hash
    assert len(one.hash) == 16


def test_every_part_of_the_identity_counts() -> None:
    one = Task("f", "1", "train", 0, {"a": 1})
    others = [
        replace(one, family="g"),
        replace(one, version="2"),
        replace(one, split="validation"),
        replace(one, index=1),
        replace(one, params={"a": 2}),
        replace(one, params={}),
    ]
    assert len({one.hash, *(o.hash for o in others)}) == 7


def test_difficulty_is_a_parameter() -> None:
    assert Task("f", "1", "train", 0, {"difficulty": "3-hop"}).difficulty == "3-hop"
    assert Task("f", "1", "train", 0).difficulty == "all"
