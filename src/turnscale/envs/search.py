"""The search family: follow a chain of relations through a search tool and answer with its end.

A turn is ``<think> ... </think> search ENTITY RELATION`` or ``<think> ... </think> answer ENTITY``. The tool
answers ``ENTITY RELATION ENTITY``, ``none``, or ``err`` for a malformed turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from turnscale.envs.protocol import Demonstration, Limits, Step, Task
from turnscale.envs.retrieval import Fact, FactIndex, distractor_documents
from turnscale.envs.search_demonstrations import Progress, expert_action, imperfect_action, think_span
from turnscale.envs.search_task import (
    ENTITIES,
    ENTITY_SET,
    FILLERS,
    GRAMMAR,
    INSTRUCTIONS,
    RELATIONS,
    Content,
    SearchParameters,
    generate,
    parse,
)
from turnscale.errors import TaskError


class SearchEnvironment:
    """One episode of the search family. The state is what was found so far; the think span is never read."""

    def __init__(self, family: SearchFamily) -> None:
        self._family = family
        self._known: dict[Fact, str] = {}
        self._done = False

    def reset(self, task: Task, seed: int) -> str:
        """Start an episode; the seed changes nothing, as the tool is deterministic."""
        self._content = self._family.parse_task(task)
        self._tool = self._family.tool(task)
        self._known, self._done = {}, False
        return self._content.prompt

    def step(self, turn: str, complete: bool = True) -> Step:
        """Search or answer. An answer earns 1 if it is right and some fact of the chain was found before."""
        if self._done:
            raise RuntimeError("step() after the episode ended")
        action = parse(turn) if complete else None
        if action is None:
            return Step("err", valid=False)
        if action[0] == "answer":
            self._done = True
            solved = action[1] == self._content.chain[-1] and self._found_chain_fact()
            return Step("", done=True, reward=float(solved), success=solved)
        _, entity, relation = action
        target = self._tool.lookup(entity, relation)
        if target is None:
            return Step("none")
        self._known[entity, relation] = target
        return Step(f"{entity} {relation} {target}")

    def _found_chain_fact(self) -> bool:
        content = self._content
        return any(key in self._known for key in zip(content.chain, content.relations, strict=False))

    def clone(self) -> SearchEnvironment:
        """An independent copy at the same turn."""
        copy = SearchEnvironment(self._family)
        copy._content, copy._tool = self._content, self._tool
        copy._known, copy._done = dict(self._known), self._done
        return copy

    def anchor(self) -> str:
        """The question and the facts found so far, sorted (a failed search leaves the state as it was)."""
        facts = sorted(f"{e} {r} {t}" for (e, r), t in self._known.items())
        return " | ".join((self._content.prompt, *facts))

    def close(self) -> None:
        """Nothing to release."""


class SearchFamily:
    """The search family with given parameters. Splits differ in the task hash that seeds each task."""

    version = "1"

    def __init__(self, name: str, limits: Limits, parameters: SearchParameters) -> None:
        self.name, self.limits, self.parameters = name, limits, parameters
        self.benchmarks = tuple(parameters.benchmarks)
        self.instructions = INSTRUCTIONS if parameters.instructions else ""
        self.expert_share = parameters.demonstrations.expert_share
        self._hops = {
            "train": parameters.train_hops,
            "validation": parameters.train_hops,
            **parameters.benchmarks,
        }
        self._distractors = distractor_documents(
            ENTITIES, RELATIONS, FILLERS, parameters.distractor_documents, seed=0
        )
        self._content = lru_cache(maxsize=4096)(generate)
        self._tools = lru_cache(maxsize=512)(self._build_tool)

    def task(self, split: str, index: int) -> Task:
        """Task ``index`` of a split; its hops are taken in turn from the split's list."""
        if split not in self._hops:
            raise TaskError(
                f"family {self.name} has no split {split!r}",
                key=split,
                remedy=f"use one of {', '.join(self._hops)}.",
            )
        hops = self._hops[split][index % len(self._hops[split])]
        params = {
            "difficulty": f"{hops}-hop",
            "hops": hops,
            "side_probability": self.parameters.side_probability,
        }
        return Task(self.name, self.version, split, index, params)

    def size(self, split: str) -> int | None:
        """Unbounded for every split."""
        self.task(split, 0)
        return None

    def parse_task(self, task: Task) -> Content:
        """The task's content, drawn from a generator seeded by its hash."""
        return self._content(int(task.hash, 16), task.params["hops"], task.params["side_probability"])

    def content(self, task: Task) -> str:
        """Question and facts as canonical JSON."""
        content = self.parse_task(task)
        return json.dumps([content.prompt, sorted((*key, target) for key, target in content.facts.items())])

    def tool(self, task: Task) -> FactIndex:
        """The task's search tool, shared by all its episodes."""
        return self._tools(int(task.hash, 16), task.params["hops"], task.params["side_probability"])

    def _build_tool(self, seed: int, hops: int, side_probability: float) -> FactIndex:
        return FactIndex(self._content(seed, hops, side_probability).facts, self._distractors)

    def make(self) -> SearchEnvironment:
        """A fresh environment."""
        return SearchEnvironment(self)

    def vocabulary(self) -> Sequence[str]:
        """All words of the family, in a fixed order."""
        return (*GRAMMAR, *FILLERS, *RELATIONS, *ENTITIES)

    def random_turn(self, prompt: str, observation: str, rng: np.random.Generator) -> str:
        """Search a random question relation, or answer, with an entity seen last or with any one."""
        _, first, *relations = prompt.split()
        seen = [w for w in observation.split() if w in ENTITY_SET] or [first]
        entity = str(rng.choice(seen if rng.random() < 0.5 else list(ENTITIES)))
        action = f"answer {entity}" if rng.random() < 0.3 else f"search {entity} {rng.choice(relations)}"
        return f"{think_span(rng, self.parameters.demonstrations)} {action}"

    def demonstrate(self, task: Task, rng: np.random.Generator, expert: bool) -> Demonstration:
        """Play an optimal or an imperfect demonstration (``DemonstrationMix``) within the turn budget.

        Observations come from the task's facts directly: building an index for each of the many tasks of
        supervised training would cost more than the training step (tests hold the two equal).
        """
        content = self.parse_task(task)
        choose = expert_action if expert else imperfect_action
        state = Progress(content.chain[0])
        turns: list[str] = []
        observations: list[str] = []
        solved = False
        while len(turns) < self.limits.max_turns and not state.answered:
            action = choose(content, state, rng, self.parameters.demonstrations)
            turns.append(f"{think_span(rng, self.parameters.demonstrations)} {action}")
            observations.append(state.advance(action, content))
            solved = action == f"answer {content.chain[-1]}" and state.found_chain_fact
        observations[-1] = ""
        return Demonstration(task, content.prompt, tuple(turns), tuple(observations), float(solved), solved)

    def skill(self, task: Task) -> str:
        """The searches of the shortest solution in order.

        Gives away every entity on the chain but the last, which is the answer: whoever follows it still has to
        make the last search and to read its result.
        """
        content = self.parse_task(task)
        return " ".join(f"search {e} {r}" for e, r in zip(content.chain, content.relations, strict=False))

    def oracle_features(self, task: Task, turns: Sequence[str], observations: Sequence[str]) -> list[str]:
        """Per turn: hops, hops resolved, turns used, whether an error happened, whether the head is right."""
        content = self.parse_task(task)
        features, resolved, error, head = [], 0, False, content.chain[0]
        for used, observation in enumerate(observations[: len(turns)]):
            right = head == content.chain[resolved]
            features.append(f"h{len(content.relations)} r{resolved} t{used} e{int(error)} c{int(right)}")
            words = observation.split()
            error = error or observation == "err"
            if len(words) == 3:
                head = words[2]
                hop = resolved < len(content.relations) and tuple(words[:2]) == (
                    content.chain[resolved],
                    content.relations[resolved],
                )
                resolved += int(hop)
        return features
