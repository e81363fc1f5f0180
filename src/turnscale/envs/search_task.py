"""Tasks of the search family: words, parameters, generation and the grammar of a turn.

A task hides a chain of h facts (entity, relation) -> entity with distinct relations. The question gives the
first entity and the h relations in order. Every other question relation exists on a chain entity with
probability ``side_probability`` and leads off the chain, so that a wrong relation is punished late, and an
answer given one hop too early or one search too late looks like a right one. Facts are drawn afresh for each
task: nothing can be memorised.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from turnscale.config.load import Name, Strict
from turnscale.envs.retrieval import Fact

ENTITIES = (
    "Ada",
    "Boris",
    "Clara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Leon",
    "Mira",
    "Nadia",
    "Oscar",
    "Petra",
    "Quinn",
    "Rosa",
    "Stefan",
    "Tara",
    "Ugo",
    "Vera",
    "Walter",
    "Xenia",
    "Yuri",
    "Zora",
    "Anton",
    "Bella",
    "Carlo",
    "Dora",
    "Emil",
    "Flora",
    "Goran",
    "Hanna",
    "Ivan",
    "Julia",
    "Karl",
    "Lena",
    "Marco",
    "Nora",
)
RELATIONS = (
    "mentor",
    "neighbour",
    "doctor",
    "landlord",
    "editor",
    "partner",
    "rival",
    "cousin",
    "teacher",
    "agent",
)
FILLERS = (
    "hmm",
    "so",
    "now",
    "next",
    "let",
    "me",
    "see",
    "first",
    "then",
    "well",
    "right",
    "ok",
)
GRAMMAR = ("question", "<think>", "</think>", "search", "answer", "none", "err")

INSTRUCTIONS = (
    "You find a person by following relations step by step. The question names a first person and then the "
    "relations to follow, in order. Each of your messages is one turn and has exactly one of two forms:\n"
    "<think> a few words </think> search PERSON RELATION\n"
    "<think> a few words </think> answer PERSON\n"
    "A search is answered by `PERSON RELATION PERSON`, or by `none` if nothing is known, or by `err` if the "
    "turn was malformed. Example: the question is `question Ada mentor doctor`; search `Ada mentor`, read "
    "`Ada mentor Hugo`, search `Hugo doctor`, read `Hugo doctor Vera`, and answer `Vera`."
)

_TURN = re.compile(
    r"\s*<think>(?:(?!</?think>).)*</think>\s*(?:search\s+(\S+)\s+(\S+)|answer\s+(\S+))\s*", re.DOTALL
)
ENTITY_SET, _RELATION_SET = frozenset(ENTITIES), frozenset(RELATIONS)


class DemonstrationMix(Strict):
    """How demonstrations are drawn. All probabilities apply to imperfect demonstrators only.

    Every think span comes from one distribution, whoever speaks: otherwise it gives the expert away, and a
    checkpoint trained on the mix decodes greedily as an expert and leaves nothing to learn but sampling.

    Attributes:
        expert_share: share of optimal demonstrations.
        premature_answer: after a hop that does not complete the chain, answer with the entity reached.
        wrong_relation: search another question relation, and follow what it returns.
        wrong_entity: search another entity, and follow what it returns.
        malformed: emit a turn outside the grammar.
        superfluous_search: once the chain is complete, search on instead of answering.
        wrong_final_answer: once the chain is complete, answer another entity.
        think_min, think_max: number of filler words in a think span, uniform.
    """

    expert_share: float = Field(default=0.30, ge=0, le=1)
    premature_answer: float = Field(default=0.65, ge=0, le=1)
    wrong_relation: float = Field(default=0.20, ge=0, le=1)
    wrong_entity: float = Field(default=0.08, ge=0, le=1)
    malformed: float = Field(default=0.06, ge=0, le=1)
    superfluous_search: float = Field(default=0.25, ge=0, le=1)
    wrong_final_answer: float = Field(default=0.10, ge=0, le=1)
    think_min: int = Field(default=1, ge=0, le=40)
    think_max: int = Field(default=5, ge=1, le=40)

    @model_validator(mode="after")
    def _ordered(self) -> DemonstrationMix:
        if self.think_min > self.think_max:
            raise ValueError("think_min must not exceed think_max")
        return self


Hops = Annotated[tuple[int, ...], Field(strict=False)]  # YAML and JSON have lists only


class SearchParameters(Strict):
    """Parameters of the search family; those that shape tasks are part of each task's identity.

    Attributes:
        train_hops: numbers of hops of the train and validation tasks, taken in turn.
        benchmarks: name of each test benchmark and the numbers of hops of its tasks, taken in turn.
        side_probability: probability that another question relation exists on a chain entity.
        distractor_documents: documents in the index that answer nothing, the same for every task.
        instructions: whether to explain the grammar in prose, for the system message of a chat model.
        demonstrations: the demonstration mix.
    """

    train_hops: Hops = Field(default=(2, 3, 4), min_length=1)
    benchmarks: dict[Name, Hops] = Field(
        default={"search-2hop": (2,), "search-3hop": (3,), "search-4hop": (4,)}, min_length=1
    )
    side_probability: float = Field(default=0.5, ge=0, le=1)
    distractor_documents: int = Field(default=40, ge=0, le=100_000)
    instructions: bool = False
    demonstrations: DemonstrationMix = DemonstrationMix()

    @model_validator(mode="after")
    def _hops(self) -> SearchParameters:
        for name, hops in {"train_hops": self.train_hops, **self.benchmarks}.items():
            if not hops or min(hops) < 1 or max(hops) > MAX_HOPS:
                raise ValueError(f"hops of {name} must lie between 1 and {MAX_HOPS}, not {list(hops)}")
        for reserved in ("train", "validation"):
            if reserved in self.benchmarks:
                raise ValueError(f"a benchmark may not be called {reserved}")
        return self


MAX_HOPS = 5
"""A chain of h facts uses h + 1 entities and h * h side targets at most, of 40 entities."""


@dataclass(frozen=True)
class Content:
    """What a task asks and hides: chain[0] --relations[0]--> chain[1] ...; ``facts`` has side facts too."""

    chain: tuple[str, ...]
    relations: tuple[str, ...]
    facts: Mapping[Fact, str]

    @property
    def prompt(self) -> str:
        """The question in words."""
        return " ".join(("question", self.chain[0], *self.relations))


def generate(seed: int, hops: int, side_probability: float) -> Content:
    """Draw a task: distinct chain entities, distinct relations, side facts with targets off the chain."""
    rng = random.Random(seed)
    entities = rng.sample(ENTITIES, len(ENTITIES))
    relations = tuple(rng.sample(RELATIONS, hops))
    chain, others = tuple(entities[: hops + 1]), entities[hops + 1 :]
    facts = {}
    for k, entity in enumerate(chain):
        for j, relation in enumerate(relations):
            if j == k:
                facts[entity, relation] = chain[k + 1]
            elif rng.random() < side_probability:
                facts[entity, relation] = rng.choice(others)
    return Content(chain, relations, facts)


def parse(turn: str) -> tuple[str, ...] | None:
    """``("search", entity, relation)``, ``("answer", entity)``, or None for a malformed turn."""
    match = _TURN.fullmatch(turn)
    if match is None:
        return None
    entity, relation, answer = match.groups()
    if answer is not None:
        return ("answer", answer) if answer in ENTITY_SET else None
    return ("search", entity, relation) if entity in ENTITY_SET and relation in _RELATION_SET else None
