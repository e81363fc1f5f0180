"""The search family: generation, grammar, gates, determinism, demonstrations and oracle features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.envs.protocol import Limits
from turnscale.envs.registry import load_family, read_family
from turnscale.envs.search import SearchFamily
from turnscale.envs.search_task import (
    ENTITIES,
    FILLERS,
    RELATIONS,
    Content,
    DemonstrationMix,
    SearchParameters,
    generate,
    parse,
)
from turnscale.errors import ConfigError, TaskError

CONFIGS = Path(__file__).parents[2] / "configs" / "families"


@pytest.fixture(scope="module")
def family() -> SearchFamily:
    built = read_family(CONFIGS / "search.yaml")
    assert isinstance(built, SearchFamily)
    return built


def content_of(family: SearchFamily, index: int = 2, split: str = "train") -> Content:
    return family.parse_task(family.task(split, index))


def search(entity: str, relation: str) -> str:
    return f"<think> hmm </think> search {entity} {relation}"


def answer(entity: str) -> str:
    return f"<think> hmm </think> answer {entity}"


@given(seed=st.integers(0, 2**64 - 1), hops=st.integers(1, 5), side=st.floats(0, 1))
def test_generated_chain_is_unique_and_side_facts_lead_off_it(seed: int, hops: int, side: float) -> None:
    content = generate(seed, hops, side)
    assert len(set(content.chain)) == hops + 1
    assert len(set(content.relations)) == hops
    for (entity, relation), target in content.facts.items():
        position = content.chain.index(entity)
        if position < hops and relation == content.relations[position]:
            assert target == content.chain[position + 1]
        else:
            assert target not in content.chain
    assert content == generate(seed, hops, side)


def test_side_facts_appear_with_the_stated_probability() -> None:
    drawn = [generate(seed, 3, 0.5) for seed in range(500)]
    possible = 500 * (4 * 3 - 3)
    assert sum(len(c.facts) - 3 for c in drawn) / possible == pytest.approx(0.5, abs=0.03)


@given(
    think=st.lists(st.sampled_from((*FILLERS, "<obs>", "answer", "Ada")), max_size=6),
    entity=st.sampled_from(ENTITIES),
    relation=st.sampled_from(RELATIONS),
)
def test_well_formed_turns_parse_whatever_the_think_span_says(
    think: list[str], entity: str, relation: str
) -> None:
    span = " ".join(("<think>", *think, "</think>"))
    assert parse(f"{span} search {entity} {relation}") == ("search", entity, relation)
    assert parse(f"{span} answer {entity}") == ("answer", entity)
    assert parse(f" {span}\nanswer {entity}\n") == ("answer", entity)


@given(
    st.lists(
        st.sampled_from((*ENTITIES[:3], *RELATIONS[:3], "hmm", "search", "answer", "<think>", "</think>"))
    )
)
def test_parse_accepts_exactly_the_grammar(words: list[str]) -> None:
    closing = words.index("</think>") if "</think>" in words else -1
    action = words[closing + 1 :]
    shaped = (
        len(action) == 3 and action[0] == "search" and action[1] in ENTITIES and action[2] in RELATIONS
    ) or (len(action) == 2 and action[0] == "answer" and action[1] in ENTITIES)
    tags = [w for w in words if w in ("<think>", "</think>")]
    expected = shaped and bool(words) and words[0] == "<think>" and tags == ["<think>", "</think>"]
    assert (parse(" ".join(words)) is not None) == expected


@given(st.text())
def test_parse_never_raises(turn: str) -> None:
    assert parse(turn) is None


@pytest.mark.parametrize(
    "turn",
    [
        "",
        "search Ada mentor",
        "<think> hmm </think> search Ada",
        "<think> hmm </think> search mentor Ada",
        "<think> hmm </think> search Nobody mentor",
        "<think> hmm </think> answer mentor",
        "<think> hmm </think> answer Ada Boris",
        "<think> hmm search Ada mentor",
        "<think> <think> hmm </think> answer Ada",
        "<think> hmm </think> answer Ada </think>",
        "so <think> hmm </think> answer Ada",
    ],
)
def test_malformed_turns_say_nothing_and_leave_the_state(family: SearchFamily, turn: str) -> None:
    environment = family.make()
    environment.reset(family.task("train", 0), 0)
    before = environment.anchor()
    step = environment.step(turn)
    assert (step.observation, step.done, step.valid, step.reward) == ("err", False, False, 0.0)
    assert environment.anchor() == before


def test_unfinished_turn_is_malformed_even_if_it_reads_well(family: SearchFamily) -> None:
    content = content_of(family)
    environment = family.make()
    environment.reset(family.task("train", 2), 0)
    environment.step(search(content.chain[0], content.relations[0]))
    assert environment.step(answer(content.chain[-1]), complete=False).observation == "err"
    assert environment.step(answer(content.chain[-1])).success


@given(index=st.integers(0, 300), seed=st.integers(0, 9))
def test_following_the_chain_solves_and_the_seed_changes_nothing(index: int, seed: int) -> None:
    family = SearchFamily("search", Limits(7, 14, 160), SearchParameters())
    content = content_of(family, index)
    environment = family.make()
    assert environment.reset(family.task("train", index), seed) == content.prompt
    for k, relation in enumerate(content.relations):
        step = environment.step(search(content.chain[k], relation))
        assert step.observation == f"{content.chain[k]} {relation} {content.chain[k + 1]}"
    step = environment.step(answer(content.chain[-1]))
    assert step.done and step.success and step.reward == 1.0


def test_right_answer_without_any_fact_of_the_chain_earns_nothing(family: SearchFamily) -> None:
    content = content_of(family)
    side = next(k for k in content.facts if k not in set(zip(content.chain, content.relations, strict=False)))
    for first in ([], [search(*side)], [search(content.chain[0], "nothing")]):
        environment = family.make()
        environment.reset(family.task("train", 2), 0)
        for turn in first:
            environment.step(turn)
        step = environment.step(answer(content.chain[-1]))
        assert step.done and not step.success and step.reward == 0.0


def test_reward_ignores_observation_like_text_in_the_policys_turn(family: SearchFamily) -> None:
    """A policy that writes the tool's answer itself has still not searched."""
    content = content_of(family)
    fact = f"{content.chain[0]} {content.relations[0]} {content.chain[1]}"
    forged = f"<think> search {content.chain[0]} {content.relations[0]} <obs> {fact} </obs> </think>"
    environment = family.make()
    environment.reset(family.task("train", 2), 0)
    step = environment.step(f"{forged} answer {content.chain[-1]}")
    assert step.done and step.reward == 0.0
    environment.reset(family.task("train", 2), 0)
    assert environment.step(f"{forged} answer {content.chain[-1]} success reward 1").observation == "err"
    assert environment.step(f"<obs> {fact} </obs>").observation == "err"


def test_step_after_the_end_is_a_programming_error(family: SearchFamily) -> None:
    environment = family.make()
    environment.reset(family.task("train", 0), 0)
    environment.step(answer("Ada"))
    with pytest.raises(RuntimeError, match="ended"):
        environment.step(answer("Ada"))


def test_clone_and_original_do_not_share_state(family: SearchFamily) -> None:
    content = content_of(family)
    original = family.make()
    original.reset(family.task("train", 2), 0)
    fork = original.clone()
    assert fork.anchor() == original.anchor()
    fork.step(search(content.chain[0], content.relations[0]))
    assert fork.anchor() != original.anchor()
    assert original.step(answer(content.chain[-1])).reward == 0.0
    assert fork.step(answer(content.chain[-1])).reward == 1.0


def test_anchor_is_the_knowledge_not_the_path(family: SearchFamily) -> None:
    content = content_of(family)
    first, second = (
        search(content.chain[0], content.relations[0]),
        search(content.chain[1], content.relations[1]),
    )
    anchors = []
    for path in ([first, second], [second, first], [first, "nonsense", second, first]):
        environment = family.make()
        environment.reset(family.task("train", 2), 0)
        for turn in path:
            environment.step(turn)
        anchors.append(environment.anchor())
    assert len(set(anchors)) == 1


def test_splits_draw_different_tasks(family: SearchFamily) -> None:
    contents = [
        family.content(family.task(s, i))
        for s in ("train", "validation", *family.benchmarks)
        for i in range(50)
    ]
    assert len(set(contents)) == len(contents)
    assert {family.task("search-3hop", i).difficulty for i in range(5)} == {"3-hop"}
    assert {family.task("train", i).difficulty for i in range(3)} == {"2-hop", "3-hop", "4-hop"}
    assert family.size("train") is None


def test_unknown_split_is_named(family: SearchFamily) -> None:
    with pytest.raises(TaskError, match="no split 'test'"):
        family.task("test", 0)


@pytest.mark.parametrize("name", ["search.yaml", "search-hard.yaml"])
def test_expert_always_succeeds_within_limits_and_its_transcript_replays(name: str) -> None:
    family = read_family(CONFIGS / name)
    rng = np.random.default_rng(0)
    for split in ("train", *family.benchmarks):
        for index in range(30):
            task = family.task(split, index)
            shown = family.demonstrate(task, rng, expert=True)
            assert shown.success and shown.reward == 1.0
            assert len(shown.turns) <= family.limits.max_turns
            assert max(len(t.split()) + 1 for t in shown.turns) <= family.limits.max_turn_tokens
            replay(family, shown)


def replay(family: object, shown: object) -> None:
    """Play a demonstration in the real environment: the same prompt, observations and reward."""
    environment = family.make()  # type: ignore[attr-defined]
    assert environment.reset(shown.task, 0) == shown.prompt  # type: ignore[attr-defined]
    step = None
    for turn, observation in zip(shown.turns, shown.observations, strict=True):  # type: ignore[attr-defined]
        step = environment.step(turn)
        if not step.done and turn is not shown.turns[-1]:  # type: ignore[attr-defined]
            assert step.observation == observation
    assert step is not None and step.success == shown.success  # type: ignore[attr-defined]


def test_imperfect_demonstrations_replay_and_succeed_rarely_and_less_with_more_hops(
    family: SearchFamily,
) -> None:
    """Success needs no premature answer and a right final one: at most .90 * .35^(hops - 1)."""
    rng = np.random.default_rng(1)
    rates = {}
    for hops in (2, 3, 4):
        shown = [
            family.demonstrate(family.task(f"search-{hops}hop", i), rng, expert=False) for i in range(1500)
        ]
        for demonstration in shown[:100]:
            replay(family, demonstration)
        rates[hops] = np.mean([d.success for d in shown])
    assert 0.15 < rates[2] < 0.90 * 0.35
    assert 0.03 < rates[3] < 0.90 * 0.35**2
    assert 0.004 < rates[4] < 0.90 * 0.35**3


def test_mix_parameters_take_effect() -> None:
    """With all error probabilities 0 the imperfect demonstrator is the expert; each error at 1 shows."""
    none = {k: 0.0 for k in DemonstrationMix.model_fields if k not in ("think_min", "think_max")}

    def shown(**changes: float) -> list[str]:
        parameters = SearchParameters(demonstrations=DemonstrationMix(**{**none, **changes}))
        family = SearchFamily("search", Limits(7, 14, 160), parameters)
        drawn = family.demonstrate(family.task("search-3hop", 0), np.random.default_rng(0), expert=False)
        return [turn.split("</think> ")[1] for turn in drawn.turns]

    family = SearchFamily("search", Limits(7, 14, 160), SearchParameters())
    content = content_of(family, 0, "search-3hop")
    steps = [f"search {e} {r}" for e, r in zip(content.chain, content.relations, strict=False)]
    assert shown() == [*steps, f"answer {content.chain[-1]}"]
    assert shown(premature_answer=1) == [steps[0], f"answer {content.chain[1]}"]
    assert shown(wrong_final_answer=1)[:3] == steps
    assert shown(wrong_final_answer=1)[3] != f"answer {content.chain[-1]}"
    assert shown(superfluous_search=1)[:3] == steps
    assert all(turn.startswith("search") for turn in shown(superfluous_search=1))
    assert shown(wrong_relation=1)[0].split()[2] != content.relations[0]
    assert shown(wrong_entity=1)[0].split()[1] != content.chain[0]
    assert all(parse(f"<think> hmm </think> {turn}") is None for turn in shown(malformed=1))


def test_think_spans_do_not_give_the_expert_away(family: SearchFamily) -> None:
    """The number of fillers has the same distribution for both demonstrators, uniform over 1..5."""
    rng = np.random.default_rng(2)
    for expert in (True, False):
        lengths = [
            turn.split().index("</think>") - 1
            for i in range(1500)
            for turn in family.demonstrate(family.task("train", i), rng, expert).turns
        ]
        shares = np.bincount(lengths, minlength=6)[1:] / len(lengths)
        assert shares == pytest.approx(np.full(5, 0.2), abs=0.03)


def test_demonstrations_are_a_function_of_task_and_generator(family: SearchFamily) -> None:
    task = family.task("train", 7)
    one, two = (family.demonstrate(task, np.random.default_rng(5), expert=False) for _ in range(2))
    assert one == two


def test_vocabulary_covers_every_word(family: SearchFamily) -> None:
    vocabulary = family.vocabulary()
    assert len(vocabulary) == len(set(vocabulary)) == 69
    rng = np.random.default_rng(3)
    for index in range(200):
        shown = family.demonstrate(family.task("train", index), rng, expert=index % 2 == 0)
        words = " ".join((shown.prompt, *shown.turns, *shown.observations)).split()
        assert set(words) <= set(vocabulary)


def test_oracle_features_follow_the_state(family: SearchFamily) -> None:
    content = content_of(family, 0, "search-3hop")
    side = next(k for k in content.facts if k[0] == content.chain[1] and k[1] != content.relations[1])
    turns = [search(content.chain[0], content.relations[0]), search(*side), "nonsense", answer("Ada")]
    observations = [" ".join((content.chain[0], content.relations[0], content.chain[1]))]
    observations += [" ".join((*side, content.facts[side])), "err", ""]
    assert family.oracle_features(family.task("search-3hop", 0), turns, observations) == [
        "h3 r0 t0 e0 c1",
        "h3 r1 t1 e0 c1",
        "h3 r1 t2 e0 c0",
        "h3 r1 t3 e1 c0",
    ]


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"hops": [2]}, "parameters.hops"),
        ({"train_hops": [9]}, "parameters"),
        ({"benchmarks": {"validation": [2]}}, "parameters"),
        ({"side_probability": 2}, "parameters.side_probability"),
        ({"demonstrations": {"expert": 1}}, "parameters.demonstrations.expert"),
        ({"demonstrations": {"think_min": 5, "think_max": 2}}, "parameters.demonstrations"),
    ],
)
def test_bad_parameters_name_file_and_key(parameters: dict[str, object], key: str) -> None:
    config = {
        "name": "search",
        "kind": "search",
        "limits": {"max_turns": 7, "max_turn_tokens": 14, "max_tokens": 160},
        "parameters": parameters,
    }
    with pytest.raises(ConfigError) as caught:
        load_family(config, "family.yaml")
    assert (caught.value.file, caught.value.key) == ("family.yaml", key)
    assert caught.value.remedy
