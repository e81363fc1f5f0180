"""Question answering over a corpus: benchmark files supplied by the user, searched with BM25.

The files (``qa_data.py``) have the shape of BrowseComp-Plus, or of the text questions of GAIA and HLE.

Answers are graded by normalised exact match against the answer and its aliases. That is stricter and cheaper than
the language-model judges those benchmarks prescribe; figures obtained here must be called exact match.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from turnscale.config.load import Name, Strict
from turnscale.envs.protocol import Demonstration, Limits, Step, Task
from turnscale.envs.qa_data import (
    Document,
    Question,
    exact_match,
    normalise,
    read_bytes,
    read_corpus,
    read_questions,
)
from turnscale.envs.retrieval import Index
from turnscale.errors import TaskError

INSTRUCTIONS = (
    "Answer the question by searching a collection of documents. Each of your messages is one turn: think briefly, "
    "then end with exactly one action.\n"
    "<search>words to look for</search> shows the best matching documents.\n"
    "<answer>the answer</answer> ends the episode; give only the answer, as short as possible, without a sentence "
    "around it.\n"
    "You may search several times before answering."
)

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"</?(?:search|answer)>")


File = Annotated[Path, Field(strict=False)]  # YAML and JSON have text only


class QaParameters(Strict):
    """Files and tool settings of a question-answering family.

    Attributes:
        corpus: JSONL file of the documents.
        train, validation: JSONL files of questions; a family for evaluation only may leave them out.
        benchmarks: JSONL file of each test benchmark.
        snippets: documents shown per search.
        snippet_words: words shown of each document.
        require_search: whether an answer without an earlier search that found something earns nothing.
        expert_share: share of demonstrations that give the right answer.
    """

    corpus: File
    train: File | None = None
    validation: File | None = None
    benchmarks: dict[Name, File] = Field(min_length=1)
    snippets: int = Field(default=3, ge=1, le=100)
    snippet_words: int = Field(default=80, ge=1, le=1_000_000)
    require_search: bool = False
    expert_share: float = Field(default=0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _names(self) -> QaParameters:
        if {"train", "validation"} & set(self.benchmarks):
            raise ValueError("a benchmark may not be called train or validation")
        return self


def parse(turn: str) -> tuple[str, str] | None:
    """(``search`` or ``answer``, argument) of a turn with exactly one action, at its end; None otherwise."""
    matches = list(_ACTION.finditer(turn))
    if len(matches) != 1 or len(_TAG.findall(turn)) != 2 or turn[matches[0].end() :].strip():
        return None
    argument = matches[0].group(2).strip()
    return (matches[0].group(1), argument) if argument else None


def terms(text: str) -> list[str]:
    """Lower-case words without English stop words: the terms that BM25 sees."""
    import bm25s  # here, so that a plan can be read without the packages of training

    return bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)[0]


class QaFamily:
    """User-supplied questions over a user-supplied corpus. Files are read when first needed."""

    version = "1"
    instructions = INSTRUCTIONS

    def __init__(self, name: str, limits: Limits, parameters: QaParameters) -> None:
        self.name, self.limits, self.parameters = name, limits, parameters
        self.benchmarks = tuple(parameters.benchmarks)
        self.expert_share = parameters.expert_share
        files = {"train": parameters.train, "validation": parameters.validation, **parameters.benchmarks}
        self._files = {split: path for split, path in files.items() if path is not None}
        self._questions: dict[str, list[Question]] = {}
        self._digests: dict[Path, str] = {}

    def questions(self, split: str) -> list[Question]:
        """The questions of a split."""
        if split not in self._files:
            raise TaskError(
                f"family {self.name} has no split {split!r}",
                key=split,
                remedy=f"name a file for it, or use one of {', '.join(self._files)}.",
            )
        if split not in self._questions:
            self._questions[split] = read_questions(self._files[split])
        return self._questions[split]

    @cached_property
    def documents(self) -> list[Document]:
        """The corpus."""
        return read_corpus(self.parameters.corpus)

    @cached_property
    def index(self) -> Index:
        """The BM25 index over title and text."""
        return Index([terms(f"{d.title} {d.text}") for d in self.documents])

    def task(self, split: str, index: int) -> Task:
        """Task ``index`` of a split. Content hashes of question file and corpus are part of its identity."""
        questions = self.questions(split)
        if index >= len(questions):
            raise TaskError(
                f"task {index} was asked of {len(questions)} questions",
                file=self._files[split],
                key=split,
                remedy="ask for fewer tasks.",
            )
        parameters = self.parameters
        return Task(
            self.name,
            self.version,
            split,
            index,
            {
                "id": questions[index].id,
                "difficulty": questions[index].difficulty,
                "questions": self._digest(self._files[split]),
                "corpus": self._digest(parameters.corpus),
                "snippets": parameters.snippets,
                "snippet_words": parameters.snippet_words,
                "require_search": parameters.require_search,
            },
        )

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(read_bytes(path)).hexdigest()[:16]
        return self._digests[path]

    def question(self, task: Task) -> Question:
        """The question a task asks."""
        return self.questions(task.split)[task.index]

    def size(self, split: str) -> int:
        """Number of questions."""
        return len(self.questions(split))

    def content(self, task: Task) -> str:
        """The normalised question: a benchmark question asked in training is a leak whatever its answer."""
        return normalise(self.question(task).text)

    def make(self) -> QaEnvironment:
        """A fresh environment."""
        return QaEnvironment(self)

    def search(self, query: str) -> str:
        """Numbered snippets of the best documents, or ``none``."""
        found = self.index.top(terms(query), self.parameters.snippets)
        lines = [
            f"[{n}] {self.documents[i].snippet(self.parameters.snippet_words)}"
            for n, i in enumerate(found, 1)
        ]
        return "\n".join(lines) or "none"

    def vocabulary(self) -> Sequence[str]:
        """Every space-separated word of questions, answers, corpus and protocol."""
        texts = [d.snippet(self.parameters.snippet_words) for d in self.documents]
        for split in self._files:
            texts += [" ".join((q.text, *q.answers)) for q in self.questions(split)]
        numbers = [f"[{n}]" for n in range(1, self.parameters.snippets + 1)]
        tags = ["<search>", "</search>", "<answer>", "</answer>", "none", "err"]
        return [*tags, *numbers, *sorted({word for text in texts for word in text.split()})]

    def random_turn(self, prompt: str, observation: str, rng: np.random.Generator) -> str:
        """Search for some words of the question, or answer with a word that was seen."""
        words = [w for w in f"{prompt} {observation}".split() if not _TAG.search(w)]
        if rng.random() < 0.5:
            return f"<search> {' '.join(rng.choice(prompt.split(), size=3))} </search>"
        return f"<answer> {rng.choice(words)} </answer>"

    def demonstrate(self, task: Task, rng: np.random.Generator, expert: bool) -> Demonstration:
        """Search for the question itself, then answer: the reference, or some word of what was found."""
        question = self.question(task)
        environment = self.make()
        prompt = environment.reset(task, 0)
        turns = [f"<search> {question.text} </search>"]
        observation = environment.step(turns[0]).observation
        answer = question.answers[0] if expert else str(rng.choice(observation.split()))
        turns.append(f"<answer> {answer} </answer>")
        end = environment.step(turns[1])
        return Demonstration(task, prompt, tuple(turns), (observation, ""), end.reward, end.success)

    def skill(self, task: Task) -> str:
        """None: a benchmark file holds questions and answers, and no steps in between.

        Raises TaskError.
        """
        raise TaskError(
            f"family {self.name} has no skill texts",
            key="sampling.context",
            remedy="use methods without a privileged text, or a family that generates its tasks.",
        )

    def oracle_features(self, task: Task, turns: Sequence[str], observations: Sequence[str]) -> list[str]:
        """Per turn: turns used, whether an error happened, whether a snippet has shown an accepted answer."""
        accepted = [normalise(a) for a in self.question(task).answers]
        features, error, shown = [], False, False
        for used, observation in enumerate(observations[: len(turns)]):
            features.append(f"t{used} e{int(error)} s{int(shown)}")
            error = error or observation == "err"
            shown = shown or any(f" {a} " in f" {normalise(observation)} " for a in accepted if a)
        return features


class QaEnvironment:
    """One question. The state is what was searched and found."""

    def __init__(self, family: QaFamily) -> None:
        self._family = family
        self._seen: tuple[str, ...] = ()
        self._done = False

    def reset(self, task: Task, seed: int) -> str:
        """Start an episode; the seed changes nothing."""
        self._question = self._family.question(task)
        self._seen, self._done = (), False
        return self._question.text

    def step(self, turn: str, complete: bool = True) -> Step:
        """Search or answer."""
        if self._done:
            raise RuntimeError("step() after the episode ended")
        action = parse(turn) if complete else None
        if action is None:
            return Step("err", valid=False)
        kind, argument = action
        if kind == "search":
            observation = self._family.search(argument)
            if observation != "none":
                self._seen = (*self._seen, observation)
            return Step(observation)
        self._done = True
        allowed = bool(self._seen) or not self._family.parameters.require_search
        solved = allowed and exact_match(argument, self._question.answers)
        return Step("", done=True, reward=float(solved), success=solved)

    def clone(self) -> QaEnvironment:
        """An independent copy at the same turn."""
        copy = QaEnvironment(self._family)
        copy._question, copy._seen, copy._done = self._question, self._seen, self._done
        return copy

    def anchor(self) -> str:
        """The question and the distinct results seen so far, sorted."""
        return "\n".join((self._question.text, *sorted(set(self._seen))))

    def close(self) -> None:
        """Nothing to release."""
