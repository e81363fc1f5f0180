"""BM25 layer: exactness of the fact tool against a dictionary, tie-breaking, top-k."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.envs.protocol import Limits
from turnscale.envs.retrieval import FactIndex, Index, distractor_documents
from turnscale.envs.search import SearchFamily
from turnscale.envs.search_task import ENTITIES, FILLERS, RELATIONS, SearchParameters, generate


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    hops=st.integers(1, 5),
    side=st.floats(0, 1),
    count=st.sampled_from([0, 40, 300]),
)
def test_fact_index_answers_exactly_the_facts(seed: int, hops: int, side: float, count: int) -> None:
    facts = generate(seed, hops, side).facts
    tool = FactIndex(facts, distractor_documents(ENTITIES, RELATIONS, FILLERS, count, seed=0))
    for entity in ENTITIES:
        for relation in RELATIONS:
            assert tool.lookup(entity, relation) == facts.get((entity, relation))


def test_fact_is_not_found_through_its_target() -> None:
    tool = FactIndex({("Ada", "mentor"): "Boris"}, [])
    assert tool.lookup("Boris", "mentor") is None
    assert tool.lookup("Ada", "mentor") == "Boris"


def test_distractors_are_the_same_every_time() -> None:
    one, two = (distractor_documents(ENTITIES, RELATIONS, FILLERS, 20, seed=3) for _ in range(2))
    assert one == two and len(one) == 20 and all(len(d) == 3 for d in one)


def test_ties_go_to_the_earlier_document() -> None:
    index = Index([["a", "x"], ["b", "y"], ["a", "z"], ["a", "w"]])
    assert index.best(["a"]) == 0
    assert index.top(["a"], 2) == [0, 2]
    assert index.top(["a"], 10) == [0, 2, 3]


def test_unknown_words_find_nothing() -> None:
    index = Index([["a"], ["b"]])
    assert index.best(["nothing", ""]) is None
    assert index.top([], 3) == []


@settings(max_examples=50, deadline=None)
@given(
    documents=st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6), min_size=1, max_size=20),
    query=st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=3),
    k=st.integers(1, 25),
)
def test_top_is_the_head_of_the_full_ranking(documents: list[list[str]], query: list[str], k: int) -> None:
    index = Index(documents)
    scores = index.scores(query)
    if scores is None:
        assert index.top(query, k) == []
        return
    ranking = sorted(np.flatnonzero(scores > 0), key=lambda i: (-scores[i], i))
    assert index.top(query, k) == [int(i) for i in ranking[:k]]


def test_throughput_suffices_for_rollouts() -> None:
    """64 episodes of 5 searches on 16 new tasks: under 1 ms of CPU a turn, indexing included (about 0.1 ms)."""
    family = SearchFamily("search", Limits(7, 14, 160), SearchParameters())
    rng = np.random.default_rng(0)
    start = time.process_time()
    for episode in range(64):
        environment = family.make()
        environment.reset(family.task("train", episode // 4), 0)
        for _ in range(5):
            turn = f"<think> hmm </think> search {rng.choice(ENTITIES)} {rng.choice(RELATIONS)}"
            assert environment.step(turn).valid
    assert time.process_time() - start < 64 * 5 * 1e-3
