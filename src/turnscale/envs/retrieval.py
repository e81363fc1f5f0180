"""BM25 retrieval for the search tools: a thin, deterministic layer over bm25s (numpy backend)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Fact = tuple[str, str]
"""A fact's key: (entity, relation). Its value is the entity the relation leads to."""


class Index:
    """A BM25 index over tokenised documents (Lucene's variant, k1 1.5, b 0.75).

    Ties are broken by the lower document number, so results do not depend on the order in which numpy's
    partial sort happens to leave equal scores.
    """

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        import bm25s  # here, so that a plan can be read without the packages of training

        self._bm25 = bm25s.BM25(backend="numpy")
        self._bm25.index([list(d) for d in documents], show_progress=False)
        self._known = self._bm25.vocab_dict

    def scores(self, query: Sequence[str]) -> np.ndarray | None:
        """[documents] float32 BM25 scores, or None when no word of the query occurs in any document."""
        known = [token for token in query if token and token in self._known]
        return self._bm25.get_scores(known) if known else None

    def best(self, query: Sequence[str]) -> int | None:
        """Number of the best document, None when no word of the query occurs in any document."""
        scores = self.scores(query)
        return None if scores is None else int(scores.argmax())

    def top(self, query: Sequence[str], k: int) -> list[int]:
        """Numbers of at most k documents with a positive score, best first."""
        scores = self.scores(query)
        if scores is None:
            return []
        threshold = np.partition(scores, -k)[-k] if k < len(scores) else scores.min()
        candidates = np.flatnonzero((scores >= threshold) & (scores > 0))
        order = np.argsort(-scores[candidates], kind="stable")
        return [int(i) for i in candidates[order][:k]]


class FactIndex:
    """The search tool of one task: its facts as short documents among documents that answer nothing.

    A fact (entity, relation) -> target becomes a document of three fielded terms; a distractor mentions an
    entity or a relation among other words. The tool looks at the one document that BM25 ranks first and
    answers only if that document covers the whole query, so that neither a partial match nor a distractor is
    ever taken for an answer.
    """

    def __init__(self, facts: Mapping[Fact, str], distractors: Sequence[Sequence[str]]) -> None:
        self._targets = list(facts.items())
        documents = [[*_terms(entity, relation), f"target:{t}"] for (entity, relation), t in self._targets]
        self._documents = [*documents, *distractors]
        self._index = Index(self._documents)
        self._cache: dict[Fact, str | None] = {}

    def lookup(self, entity: str, relation: str) -> str | None:
        """The entity that the relation leads to, or None when no document answers the query."""
        key = (entity, relation)
        if key not in self._cache:
            query = _terms(entity, relation)
            best = self._index.best(query)
            covered = best is not None and set(query) <= set(self._documents[best])
            self._cache[key] = self._targets[best][1] if best is not None and covered else None
        return self._cache[key]


def _terms(entity: str, relation: str) -> list[str]:
    return [f"entity:{entity}", f"relation:{relation}"]


def distractor_documents(
    entities: Sequence[str], relations: Sequence[str], words: Sequence[str], count: int, seed: int
) -> list[list[str]]:
    """``count`` documents of three terms that mention one entity or one relation and two plain words."""
    rng = np.random.default_rng(seed)
    subjects = [f"entity:{e}" for e in entities] + [f"relation:{r}" for r in relations]
    return [
        [subjects[rng.integers(len(subjects))], *(words[i] for i in rng.integers(len(words), size=2))]
        for _ in range(count)
    ]
