from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.agent.conftest import WORDS
from turnscale.agent.chat import ChatFormat
from turnscale.agent.checkpoint import word_tokenizer
from turnscale.errors import CheckpointError, TaskError

# Templates of the kinds met in the wild, written for these tests.
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Thinks in its generation prompt; drops the thinking of turns before the last user message, as Qwen3 does, but not
# before tool results.
FORGETFUL = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m['role'] == 'tool' else m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ m['content'] }}"
    "{% else %}{{ m['content'].split('</think>')[-1] | trim }}{% endif %}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
NO_END = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
ONLY_LAST = "{{ messages[-1]['content'] }}<|im_end|>\n"


def byte_pair_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few sentences, with ChatML's special tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["assistant user system the answer to the question is here"] * 3, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


FORMATS = {
    "words": lambda: ChatFormat(word_tokenizer(WORDS)),
    "words with system": lambda: ChatFormat(word_tokenizer(WORDS), system="w1 w2"),
    "chatml": lambda: ChatFormat(byte_pair_tokenizer(CHATML)),
    "chatml with system": lambda: ChatFormat(byte_pair_tokenizer(CHATML), system="Do this."),
    "chatml with tools": lambda: ChatFormat(byte_pair_tokenizer(CHATML), observation_role="tool"),
    "thinking with tools": lambda: ChatFormat(byte_pair_tokenizer(FORGETFUL), observation_role="tool"),
}
CACHE: dict[str, ChatFormat] = {}


def chat_format(name: str) -> ChatFormat:
    if name not in CACHE:
        CACHE[name] = FORMATS[name]()
    return CACHE[name]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_appending_equals_rendering_for_every_prefix(name: str, data: st.DataObject) -> None:
    chat = chat_format(name)
    text = st.lists(st.sampled_from(WORDS[4:]), min_size=1, max_size=5).map(" ".join)
    user = data.draw(text)
    turns = data.draw(st.lists(text, max_size=4))
    if name.startswith("thinking"):
        turns = [f"{turn}\n</think>\n\n{turn}" for turn in turns]
    observations = [data.draw(text) for _ in turns]
    ids = list(chat.prompt_ids(user))
    assert ids == list(chat.encode(chat.render(user)))
    for count, (turn, observation) in enumerate(zip(turns, observations, strict=True), start=1):
        ids += [*chat.text_ids(turn), chat.end_id, *chat.observation_ids(observation)]
        rendered = chat.encode(chat.render(user, turns[:count], observations[:count]))
        assert ids == list(rendered)


@pytest.mark.parametrize("name", [name for name in FORMATS if "words" not in name])
@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_observation_text_is_rendered_as_the_template_does(name: str, text: str) -> None:
    chat = chat_format(name)
    turn = "x\n</think>\n\ny" if name.startswith("thinking") else "x"
    ids = [*chat.prompt_ids("q"), *chat.text_ids(turn), chat.end_id, *chat.observation_ids(text)]
    assert ids == list(chat.encode(chat.render("q", [turn], [text])))


def test_byte_pairs_are_not_a_bijection() -> None:
    chat = chat_format("chatml")
    spelled = [chat.text_ids(letter)[0] for letter in "answer"]
    assert chat.decode_turn(spelled) == "answer"
    assert list(chat.text_ids("answer")) != spelled


def test_special_tokens_stay_visible_in_a_turn() -> None:
    chat = chat_format("words")
    assert chat.decode_turn(chat.encode("w1 <user> w2")) == "w1 <user> w2"
    assert chat.decode_turn([]) == ""


def test_templates_that_rewrite_history_are_refused_and_the_role_is_named() -> None:
    with pytest.raises(CheckpointError, match="rewrites earlier turns") as caught:
        ChatFormat(byte_pair_tokenizer(FORGETFUL))
    assert "tool" in str(caught.value.remedy)
    with pytest.raises(CheckpointError, match="rewrites earlier turns"):
        ChatFormat(byte_pair_tokenizer(ONLY_LAST))


def test_templates_without_an_end_token_or_missing_are_refused() -> None:
    with pytest.raises(CheckpointError, match="one special token"):
        ChatFormat(byte_pair_tokenizer(NO_END))
    tokenizer = byte_pair_tokenizer(CHATML)
    tokenizer.chat_template = None
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatFormat(tokenizer)


def test_unknown_words_are_an_error_not_an_unknown_token() -> None:
    with pytest.raises(TaskError, match="'zebra'"):
        chat_format("words").prompt_ids("w1 zebra")
