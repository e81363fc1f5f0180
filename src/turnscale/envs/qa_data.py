"""Question and corpus files of the question-answering family, and how answers are graded.

One JSON object a line: ``{"id", "question", "answer", "aliases"?, "difficulty"?}`` for questions and
``{"id", "title"?, "text"}`` for the corpus.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnscale.errors import TaskError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question with its accepted answers, the first being the reference."""

    id: str
    text: str
    answers: tuple[str, ...]
    difficulty: str


@dataclass(frozen=True)
class Document:
    """A document of the corpus."""

    id: str
    title: str
    text: str

    def snippet(self, words: int) -> str:
        """The title and the first words of the text."""
        body = " ".join(self.text.split()[:words])
        return f"{self.title}: {body}" if self.title else body


def normalise(answer: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces (Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """Whether the normalised answer equals a normalised accepted one. An answer that normalises to nothing
    (only articles or punctuation) is compared as written, so that an empty one never matches by accident."""
    if normalise(answer):
        return normalise(answer) in {normalise(a) for a in accepted}
    return bool(answer.strip()) and answer.strip() in {a.strip() for a in accepted}


def read_questions(path: Path) -> list[Question]:
    """Read a question file; raises TaskError naming file, line and key."""
    questions = []
    for line, row in _rows(path):
        aliases = row.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(a, str) and a.strip() for a in aliases):
            raise _malformed(path, line, "aliases", "is not a list of non-empty strings")
        answers = (_text(path, line, row, "answer"), *aliases)
        difficulty = _text(path, line, row, "difficulty") if "difficulty" in row else "all"
        identity, text = _text(path, line, row, "id"), _text(path, line, row, "question")
        questions.append(Question(identity, text, answers, difficulty))
    return questions


def read_corpus(path: Path) -> list[Document]:
    """Read a corpus file; raises TaskError naming file, line and key."""
    return [
        Document(
            _text(path, line, row, "id"),
            _text(path, line, row, "title") if "title" in row else "",
            _text(path, line, row, "text"),
        )
        for line, row in _rows(path)
    ]


def read_bytes(path: Path) -> bytes:
    """Content of a file that a family names. Raises TaskError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(
            f"cannot be read ({error.strerror}).",
            file=path,
            remedy="correct the path in configs/families; it is relative to the project folder.",
        ) from None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each non-blank line, ids checked to be distinct, at least one of them."""
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise TaskError("is not UTF-8 text.", file=path, remedy="save it as UTF-8.") from None
    seen: dict[object, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _malformed(path, number, None, "is not JSON") from error
        if not isinstance(row, dict):
            raise _malformed(path, number, None, "is not a JSON object")
        identity = _text(path, number, row, "id")
        if identity in seen:
            raise _malformed(path, number, "id", f"repeats {identity!r} of line {seen[identity]}")
        seen[identity] = number
        yield number, row
    if not seen:
        raise TaskError("holds no lines", file=path, remedy="put one JSON object on each line.")


def _text(path: Path, line: int, row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and key in ("id", "answer", "difficulty")
    ):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise _malformed(path, line, key, "is missing" if value is None else "is not a non-empty string")
    return value.strip()


def _malformed(path: Path, line: int, key: str | None, problem: str) -> TaskError:
    return TaskError(
        f"line {line} {problem}" if key is None else f"{key} of line {line} {problem}",
        file=path,
        key=key,
        remedy='each line must be like {"id": "1", "question": "...", "answer": "..."} '
        'or {"id": "1", "text": "..."}.',
    )
