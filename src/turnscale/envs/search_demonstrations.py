"""Demonstrators of the search family: an expert and an imperfect one (``DemonstrationMix``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnscale.envs.search_task import ENTITIES, FILLERS, Content, DemonstrationMix, parse


def think_span(rng: np.random.Generator, mix: DemonstrationMix) -> str:
    """A think span of uniformly many filler words, the same for every demonstrator."""
    count = int(rng.integers(mix.think_min, mix.think_max + 1))
    return " ".join(("<think>", *(FILLERS[i] for i in rng.integers(len(FILLERS), size=count)), "</think>"))


@dataclass
class Progress:
    """Where a demonstrator believes to be: ``hops`` followed so far, standing at ``head``."""

    head: str
    hops: int = 0
    answered: bool = False
    found_chain_fact: bool = False

    def advance(self, action: str, content: Content) -> str:
        """Apply an action and return its observation; a search that returns something is followed."""
        words = parse(f"<think> </think> {action}")
        if words is None:
            return "err"
        if words[0] == "answer":
            self.answered = True
            return ""
        _, entity, relation = words
        target = content.facts.get((entity, relation))
        if target is None:
            return "none"
        if (entity, relation) in zip(content.chain, content.relations, strict=False):
            self.found_chain_fact = True
        if self.hops < len(content.relations):
            self.head, self.hops = target, self.hops + 1
        return f"{entity} {relation} {target}"


def expert_action(content: Content, state: Progress, rng: np.random.Generator, mix: DemonstrationMix) -> str:
    """The best action: search along the chain, and answer with its end. Draws nothing.

    Args:
        content: the task.
        state: how far the demonstration is.
        rng, mix: unused; the imperfect demonstrator has the same arguments.
    """
    if state.hops == len(content.relations):
        return f"answer {state.head}"
    return f"search {state.head} {content.relations[state.hops]}"


def imperfect_action(
    content: Content, state: Progress, rng: np.random.Generator, mix: DemonstrationMix
) -> str:
    """An action as of someone who errs: the best one, unless one of the mix's mistakes is drawn.

    Args:
        content: the task.
        state: how far the demonstration is.
        rng: draws the mistakes; how many numbers it gives depends on the state.
        mix: probability of each mistake, given that its occasion has come.
    """
    hops, total = state.hops, len(content.relations)
    if rng.random() < mix.malformed:
        return _malformed_action(state, content, rng)
    if hops == total:
        if rng.random() < mix.superfluous_search:
            return f"search {state.head} {rng.choice(content.relations)}"
        wrong = rng.random() < mix.wrong_final_answer
        return f"answer {_other(ENTITIES, state.head, rng) if wrong else state.head}"
    if hops > 0 and rng.random() < mix.premature_answer:
        return f"answer {state.head}"
    relation, entity = content.relations[hops], state.head
    if total > 1 and rng.random() < mix.wrong_relation:
        relation = _other(content.relations, relation, rng)
    elif rng.random() < mix.wrong_entity:
        entity = _other(ENTITIES, entity, rng)
    return f"search {entity} {relation}"


def _malformed_action(state: Progress, content: Content, rng: np.random.Generator) -> str:
    """An action with a word missing or in the wrong place."""
    relation = str(rng.choice(content.relations))
    forms = (f"search {state.head}", f"search {relation}", "answer", f"search {relation} {state.head}")
    return forms[int(rng.integers(len(forms)))]


def _other(words: Sequence[str], avoid: str, rng: np.random.Generator) -> str:
    """A word other than ``avoid``, uniformly."""
    index = int(rng.integers(len(words) - 1))
    return words[index if index < words.index(avoid) else index + 1]
