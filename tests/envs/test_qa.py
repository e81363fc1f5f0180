"""Question answering over user files: grading, grammar, search, gates and error messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.envs.panels import load_panels, make_panels
from turnscale.envs.protocol import Limits
from turnscale.envs.qa import QaFamily, QaParameters, parse
from turnscale.envs.qa_data import exact_match, normalise, read_corpus, read_questions
from turnscale.errors import TaskError

DATA = Path(__file__).parent / "data"
LIMITS = Limits(8, 128, 4096)


def build(folder: Path = DATA, **changes: object) -> QaFamily:
    settings: dict[str, object] = {
        "corpus": folder / "corpus.jsonl",
        "train": folder / "train.jsonl",
        "validation": folder / "validation.jsonl",
        "benchmarks": {"rivers": folder / "test.jsonl"},
    }
    return QaFamily("qa", LIMITS, QaParameters.model_validate({**settings, **changes}))


@pytest.mark.parametrize(
    ("answer", "accepted", "match"),
    [
        ("The Bay of Lume.", ["Bay of Lume"], True),
        ("  bay  OF lume", ["the Bay of Lume!"], True),
        ("Bay of Lumes", ["Bay of Lume"], False),
        ("Lume Bay", ["Bay of Lume", "Lume Bay"], True),
        ("268 km", ["268"], False),
        ("", ["the"], False),
        ("the", ["a"], False),
        ("The", ["The"], True),
        ("x Bay of Lume y", ["Bay of Lume"], False),
    ],
)
def test_exact_match(answer: str, accepted: list[str], match: bool) -> None:
    assert exact_match(answer, accepted) == match


@given(st.text())
def test_normalisation_is_idempotent_and_never_raises(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(st.sampled_from(["search", "answer"]), st.text(alphabet="abc <>/", min_size=1).filter(str.strip))
def test_parse_round_trip(kind: str, argument: str) -> None:
    assert parse(f"I think so. <{kind}>{argument}</{kind}>\n") == (kind, argument.strip())


@pytest.mark.parametrize(
    "turn",
    [
        "",
        "Lake Ombra",
        "<search></search>",
        "<answer> </answer>",
        "<search>a</search> and <answer>b</answer>",
        "<search>a</answer>",
        "<search><answer>a</answer></search>",
        "<answer>a</answer> trailing",
        "<answer>a",
    ],
)
def test_malformed_turns_get_err(turn: str) -> None:
    environment = build().make()
    environment.reset(build().task("rivers", 0), 0)
    before = environment.anchor()
    step = environment.step(turn)
    assert (step.observation, step.valid, step.done) == ("err", False, False)
    assert environment.anchor() == before


def test_two_searches_lead_to_the_answer() -> None:
    family = build(snippets=2)
    environment = family.make()
    assert "Tessil" in environment.reset(family.task("rivers", 0), 0)
    first = environment.step("<search>river Tessil rises</search>").observation
    assert first.startswith("[1] River Tessil: ") and "Brandt" in first and "[3]" not in first
    assert "Lea Munt" in environment.step("<search>mayor of Brandt</search>").observation
    step = environment.step("<answer>lea munt</answer>")
    assert step.done and step.success and step.reward == 1.0
    with pytest.raises(RuntimeError, match="ended"):
        environment.step("<answer>lea munt</answer>")


def test_nothing_found_is_none_and_snippets_are_cut() -> None:
    family = build(snippet_words=3)
    assert family.search("zzz the of") == "none"
    assert family.search("Tessil").splitlines()[0] == "[1] River Tessil: The Tessil is"


def test_answers_without_a_search_count_only_where_allowed() -> None:
    for required in (False, True):
        family = build(require_search=required)
        environment = family.make()
        environment.reset(family.task("rivers", 1), 0)
        assert environment.step("<answer>Lake Ombra</answer>").success is not required
        environment.reset(family.task("rivers", 1), 0)
        environment.step("<search>zzz</search>")
        assert environment.step("<answer>Lake Ombra</answer>").success is not required
        environment.reset(family.task("rivers", 1), 0)
        environment.step("<search>Ondry</search>")
        assert environment.step("<answer>Lake Ombra</answer>").success


def test_clone_is_independent() -> None:
    family = build(require_search=True)
    original = family.make()
    original.reset(family.task("rivers", 1), 0)
    fork = original.clone()
    fork.step("<search>Ondry</search>")
    assert fork.anchor() != original.anchor()
    assert not original.step("<answer>Lake Ombra</answer>").success
    assert fork.step("<answer>Lake Ombra</answer>").success


def test_demonstrations_oracle_and_vocabulary() -> None:
    family = build()
    vocabulary = set(family.vocabulary())
    for index in range(3):
        task = family.task("train", index)
        shown = family.demonstrate(task, np.random.default_rng(0), expert=True)
        assert shown.success
        features = family.oracle_features(task, shown.turns, shown.observations)
        assert features == ["t0 e0 s0", "t1 e0 s1"]
        words = " ".join((shown.prompt, *shown.turns, *shown.observations)).split()
        assert set(words) <= vocabulary


def test_identity_follows_the_files(tmp_path: Path) -> None:
    for name in ("corpus", "train", "validation", "test"):
        shutil.copy(DATA / f"{name}.jsonl", tmp_path)
    panels = make_panels(build(tmp_path), {"train": 3, "validation": 1, "rivers": 2})
    panels.save(tmp_path / "panels.json")
    assert load_panels(tmp_path / "panels.json", build(tmp_path)).hash == panels.hash
    assert {t.difficulty for t in panels.split("rivers")} == {"1", "2"}
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "one more"}\n')
    with pytest.raises(TaskError, match="no longer what the family generates"):
        load_panels(tmp_path / "panels.json", build(tmp_path))


def test_question_asked_in_training_and_in_the_benchmark_is_left_out_of_training(tmp_path: Path) -> None:
    for name in ("corpus", "train", "validation", "test"):
        shutil.copy(DATA / f"{name}.jsonl", tmp_path)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"id": "leak", "question": "into what does river Ondry flow", "answer": "x"}\n')
        file.write('{"id": "leak2", "question": "Into what does the river ONDRY flow?!", "answer": "x"}\n')
    with pytest.raises(TaskError, match="5 tasks were asked of a split that has 3 distinct"):
        make_panels(build(tmp_path), {"train": 5, "rivers": 2})


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("", None, "holds no lines"),
        ("{", None, "line 1 is not JSON"),
        ("[1]", None, "line 1 is not a JSON object"),
        ('\n{"question": "q", "answer": "a"}', "id", "id of line 2 is missing"),
        ('{"id": "1", "question": "q"}', "answer", "answer of line 1 is missing"),
        ('{"id": "1", "question": " ", "answer": "a"}', "question", "question of line 1 is not a non-empty"),
        ('{"id": "1", "question": "q", "answer": ["a"]}', "answer", "answer of line 1 is not a non-empty"),
        ('{"id": "1", "question": "q", "answer": "a", "aliases": "b"}', "aliases", "not a list"),
        (
            '{"id": "1", "question": "q", "answer": "a"}\n{"id": 1, "question": "r", "answer": "a"}',
            "id",
            "id of line 2 repeats '1' of line 1",
        ),
    ],
)
def test_malformed_questions_name_file_line_and_key(
    tmp_path: Path, text: str, key: str | None, message: str
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError, match=message) as caught:
        read_questions(path)
    assert (caught.value.file, caught.value.key) == (str(path), key)
    assert caught.value.remedy


def test_malformed_corpus_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with pytest.raises(TaskError, match="cannot be read"):
        read_corpus(path)
    path.write_bytes(b'{"id": "1", "text": "\xff"}')
    with pytest.raises(TaskError, match="not UTF-8"):
        read_corpus(path)
    path.write_text('{"id": "1", "title": "t"}')
    with pytest.raises(TaskError, match="text of line 1 is missing"):
        read_corpus(path)


def test_a_corpus_that_is_gone_and_a_byte_order_mark(tmp_path: Path) -> None:
    """The corpus is part of every task's identity, so it is read with the first task."""
    with pytest.raises(TaskError, match=r"gone\.jsonl: cannot be read .*configs/families"):
        build(corpus=tmp_path / "gone.jsonl").task("train", 0)
    with pytest.raises(TaskError, match="cannot be read"):
        build(corpus=tmp_path).task("train", 0)
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + (DATA / "train.jsonl").read_bytes())
    assert read_questions(marked) == read_questions(DATA / "train.jsonl")


def test_splits_without_a_file_and_indices_beyond_the_file() -> None:
    family = build(train=None)
    with pytest.raises(TaskError, match="no split 'train'"):
        family.task("train", 0)
    with pytest.raises(TaskError, match="task 2 was asked of 2 questions"):
        family.task("rivers", 2)
