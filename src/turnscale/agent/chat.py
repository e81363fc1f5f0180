"""Token-exact chat transcripts: what to append around sampled turns, taken from the tokenizer's chat template.

A transcript is prompt_ids(user) + turn + [end] + observation_ids(obs) + turn + [end] + ... Sampled ids are never
decoded and encoded again; the template only supplies what lies between them. The same number of BPE pieces does
not come back from text in general, so a rendered transcript would train on tokens the policy never emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from turnscale.errors import CheckpointError, TaskError

# Assistant turns rendered when a template is examined: a plain one and one that thinks first; where the
# generation prompt itself opens the thinking, a turn that continues it.
PROBES = ("alpha beta", "<think>\ngamma\n</think>\n\ndelta")
PROBES_IN_THOUGHT = ("gamma\n</think>\n\ndelta",)


class ChatFormat:
    """The tokens around turns for one tokenizer and one system prompt.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        system: system prompt, or None to leave it to the template.
        observation_role: the role under which observations are shown (``user`` or ``tool``).

    Raises CheckpointError when the template is missing, rewrites earlier turns (for instance drops their
    thinking), or puts text before its end-of-turn token, because appended transcripts would then differ from
    rendered ones.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        system: str | None = None,
        observation_role: str = "user",
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise CheckpointError(
                "the tokenizer has no chat template", file=tokenizer.name_or_path, remedy="use a chat model"
            )
        if not tokenizer.is_fast:
            raise CheckpointError(
                "the tokenizer is not a fast one",
                file=tokenizer.name_or_path,
                remedy="add its tokenizer.json",
            )
        self.tokenizer = tokenizer
        self.system = system
        self.observation_role = observation_role
        self._backend = tokenizer.backend_tokenizer
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        in_thought = self.render("question").rstrip().endswith("<think>")
        self._probes = PROBES_IN_THOUGHT if in_thought else PROBES
        self._before = len(self.render("question") + self._probes[0])  # an observation's text comes after it
        self.end_id = self._examine()
        self.prompt_ids = lru_cache(maxsize=4096)(self._prompt_ids)
        self.observation_ids = lru_cache(maxsize=4096)(self._observation_ids)

    def render(self, user: str, turns: Sequence[str] = (), observations: Sequence[str] = ()) -> str:
        """The full text of a transcript up to the next generation prompt, by the template alone.

        ``len(observations)`` is ``len(turns)``: every turn has been answered.
        """
        messages = [*self._opening, {"role": "user", "content": user}]
        for turn, observation in zip(turns, observations, strict=True):
            messages.append({"role": "assistant", "content": turn})
            messages.append({"role": self.observation_role, "content": observation})
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of already rendered text; special tokens written in it are recognised, none are added.

        Raises TaskError when a word is unknown to the tokenizer.
        """
        ids = tuple(self._backend.encode(text, add_special_tokens=False).ids)
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids and str(self.tokenizer.unk_token) not in text:
            known = self.tokenizer.get_vocab()
            word = next((word for word in text.split() if word not in known), "?")
            raise TaskError(
                f"the word {word!r} is not in the tokenizer's vocabulary",
                remedy="make the checkpoint for the family whose tasks it is to solve",
            )
        return ids

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a written turn, without its end token: for supervision only, never for a sampled turn."""
        return self.encode(text)

    @property
    def pad_id(self) -> int:
        """The id that fills rows on the right; no model output at it is ever read."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else int(pad)

    def decode_turn(self, ids: Sequence[int]) -> str:
        """The text of a sampled turn, without its end token; special tokens in it stay visible."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def _prompt_ids(self, user: str) -> tuple[int, ...]:
        """Everything before the first turn: system prompt, user message and generation prompt."""
        return self.encode(self.render(user))

    def _observation_ids(self, observation: str) -> tuple[int, ...]:
        """What follows an end token: the rest of the turn's frame, the observation, the generation prompt."""
        answered = self.render("question", [self._probes[0]], [observation])
        return self.encode(answered[self._before :])[1:]

    def _examine(self) -> int:
        """Check that rendering is append-only and return the id that ends a turn."""
        prefix = self.render("question")
        tails = set()
        for probe in self._probes:
            once = self.render("question", [probe], ["answer"])
            twice = self.render("question", [probe, probe], ["answer", "answer"])
            if not once.startswith(prefix + probe) or not twice.startswith(once + probe):
                raise CheckpointError(
                    "the chat template rewrites earlier turns, so appended tokens would differ from rendered ones",
                    file=self.tokenizer.name_or_path,
                    key="observation_role",
                    remedy="if it drops the thinking of earlier turns, show observations under the role tool",
                )
            tails |= {once[len(prefix + probe) :], twice[len(once + probe) :]}
        if len(tails) != 1:
            raise CheckpointError(
                "the chat template frames turns differently from one turn to the next",
                file=self.tokenizer.name_or_path,
                remedy="use a chat template that is append-only",
            )
        tail = tails.pop()
        ids = self._backend.encode(tail, add_special_tokens=False).ids
        head = self._backend.encode(prefix + self._probes[0], add_special_tokens=False).ids
        whole = self._backend.encode(prefix + self._probes[0] + tail, add_special_tokens=False).ids
        if not ids or ids[0] not in self.tokenizer.added_tokens_decoder or whole != head + ids:
            raise CheckpointError(
                "the chat template does not close a turn with one special token",
                file=self.tokenizer.name_or_path,
                remedy="use a chat template that ends assistant messages with an end-of-turn token",
            )
        return int(ids[0])
