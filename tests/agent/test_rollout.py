from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.conftest import LIMITS, Chatter, tasks
from turnscale.agent.adapter import Agent, base_weights_hash, policy_parameters
from turnscale.agent.chat import ChatFormat
from turnscale.agent.decode import make_decoder
from turnscale.agent.episode import anchor_id
from turnscale.agent.forward import action_logprobs
from turnscale.agent.rollout import Rollouts, rollout, sample
from turnscale.envs.protocol import Limits, Step, Task
from turnscale.errors import NumericalError, TaskError

Make = Callable[[str], Agent]


class Script:
    """A decoder that makes each row say the given tokens, whatever it reads.

    ``lines[row]`` is what the row says next; every step's logits put all mass on the row's next token.
    """

    def __init__(self, chat: ChatFormat, lines: Sequence[str]) -> None:
        self.device = torch.device("cpu")
        self.chat = chat
        self.words = [list(chat.encode(line)) for line in lines]
        self.rows = list(range(len(lines)))
        self.seen: list[tuple[int, int]] = []

    def start(self, batch: int, max_len: int) -> None:
        self.fed: list[list[int]] = [[] for _ in range(batch)]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append((tokens.shape[0], tokens.shape[1]))
        logits = torch.full((len(self.rows), 40), -50.0)
        for line, row in enumerate(self.rows):
            self.fed[row] += tokens[line].tolist()
            spoken = self.words[row]
            logits[line, spoken[self.count(row) % len(spoken)]] = 50.0
        return logits

    def count(self, row: int) -> int:
        """How many scripted tokens were fed back, in order, since the prompt ended: where the row is."""
        at = 0
        opening = self.chat.encode("<assistant>")[0]
        prompt = self.fed[row].index(opening) + 1 if opening in self.fed[row] else len(self.fed[row])
        for token in self.fed[row][prompt:]:
            if at < len(self.words[row]) and token == self.words[row][at]:
                at += 1
        return at

    def compact(self, rows: torch.Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]


class Asking:
    """Asks w20, w21, ...; done when the turn says answer; reward by the word after it."""

    def reset(self, task: Task, seed: int) -> str:
        self.turns: list[tuple[str, bool]] = []
        return "w29 " * (1 + task.index) + "w28"

    def step(self, turn: str, complete: bool = True) -> Step:
        self.turns.append((turn, complete))
        if complete and turn.startswith("answer"):
            solved = turn == "answer w1"
            return Step("", done=True, reward=float(solved), success=solved)
        return Step(f"w{20 + len(self.turns)}", valid=complete)

    def clone(self) -> Asking:
        raise AssertionError("rollouts do not fork here")

    def anchor(self) -> str:
        return " / ".join(turn for turn, _ in self.turns)

    def close(self) -> None:
        return None


def scripted(
    chat: ChatFormat, lines: Sequence[str], limits: Limits, **options: float
) -> tuple[Rollouts, Script]:
    decoder = Script(chat, lines)
    played = [Task("asking", "1", "train", index % 2) for index in range(len(lines))]
    generator = torch.Generator().manual_seed(0)
    out = rollout(decoder, chat, Asking, played, [0] * len(lines), limits, generator, share=False, **options)  # type: ignore[arg-type]
    return out, decoder


def test_masks_turns_and_rewards_of_ragged_turns(agent: Make) -> None:
    chat = agent("dense").chat
    lines = [
        "search w2 <end> answer w1 <end>",
        "answer w3 <end>",
        "<think> </think> search w4 <end> answer w1 <end>",
    ]
    out, _ = scripted(chat, lines, Limits(5, 8, 60))
    batch = out.batch
    assert out.turns == [
        ["search w2", "answer w1"],
        ["answer w3"],
        ["<think> </think> search w4", "answer w1"],
    ]
    assert out.observations == [["w21", ""], [""], ["w21", ""]]
    for row, line in enumerate(lines):
        spoken = batch.ids[row][batch.action_mask[row]].tolist()
        assert spoken == list(chat.encode(line))
        end = int(batch.length[row])
        assert batch.action_mask[row, end - 1] and not batch.action_mask[row, end:].any()
    whole = "<user> w29 w28 <assistant> search w2 <end> <user> w21 <assistant> answer w1 <end>"
    assert batch.ids[0, : int(batch.length[0])].tolist() == list(chat.encode(whole))
    actions = batch.turn[0, : int(batch.length[0])].tolist()
    assert actions == [-1] * 4 + [0] * 3 + [-1] * 3 + [1] * 3
    assert batch.reward.tolist() == [1.0, 0.0, 1.0] and batch.success.tolist() == [True, False, True]
    assert not batch.truncated.any() and out.n_invalid.tolist() == [0, 0, 0]
    assert out.n_turns.tolist() == [2, 1, 2] and out.n_action_tokens.tolist() == [6, 3, 8]
    assert batch.task.tolist() == [0, 1, 0] == batch.group.tolist()
    assert batch.turns_per_row().tolist() == out.n_turns.tolist()


def test_anchors_are_equal_exactly_when_task_and_state_are(agent: Make) -> None:
    chat = agent("dense").chat
    lines = ["search w2 <end> answer w1 <end>", "search w2 <end> answer w1 <end>", "search w2 <end> answer w3 <end>",
             "search w4 <end> answer w1 <end>"]  # fmt: skip
    out, _ = scripted(chat, lines, Limits(5, 8, 60))
    batch = out.batch
    assert batch.anchor is not None
    assert ((batch.anchor >= 0) == batch.action_mask).all()
    first = [int(batch.anchor[row][batch.turn[row] == 0].unique()) for row in range(4)]
    second = [int(batch.anchor[row][batch.turn[row] == 1].unique()) for row in range(4)]
    assert first[0] == first[2] != first[1] == first[3]  # tasks alternate
    assert second[0] == second[2] and len({*second}) == 3 and not {*first} & {*second}
    assert anchor_id("t", "s") == anchor_id("t", "s") != anchor_id("s", "t")


def test_a_long_turn_is_closed_by_a_forced_end_token(agent: Make) -> None:
    chat = agent("dense").chat
    out, _ = scripted(chat, ["w5 w6 w7 w8 answer w1 <end>"], Limits(5, 4, 60))
    assert out.turns[0] == ["w5 w6 w7 w8", "answer w1"]
    assert out.n_invalid.tolist() == [1]
    row = out.batch.ids[0].tolist()
    closing = row.index(chat.end_id)
    assert not out.batch.action_mask[0, closing] and out.batch.turn[0, closing] == -1
    assert out.batch.logp_rollout[0, closing] == 0
    assert out.batch.action_mask[0, closing - 4 : closing].all()
    assert out.batch.reward.tolist() == [1.0]


def test_a_turn_that_ends_exactly_at_its_budget_is_complete(agent: Make) -> None:
    out, _ = scripted(agent("dense").chat, ["answer w1 <end>"], Limits(5, 3, 60))
    assert out.n_invalid.tolist() == [0] and out.batch.success.tolist() == [True]


def test_running_out_of_turns_truncates_with_reward_zero(agent: Make) -> None:
    chat = agent("dense").chat
    lines = ["search w2 <end> search w3 <end> answer w1 <end>", "search w2 <end> answer w1 <end>"]
    out, _ = scripted(chat, lines, Limits(2, 8, 60))
    assert out.batch.truncated.tolist() == [True, False]
    assert out.batch.reward.tolist() == [0.0, 1.0]
    assert out.n_turns.tolist() == [2, 2] and out.observations[0][-1] == ""
    last = int(out.batch.length[0]) - 1
    assert out.batch.action_mask[0, last], "no observation follows the last turn"


@pytest.mark.parametrize(
    ("tokens", "truncated"), [(13, False), (12, True), (11, True), (10, True), (7, True), (5, True)]
)
def test_running_out_of_tokens_truncates_wherever_it_happens(
    agent: Make, tokens: int, truncated: bool
) -> None:
    """The whole episode has 13 tokens: 4 of prompt, 3 of a turn, 3 of an observation, 3 of the answer."""
    chat = agent("dense").chat
    out, _ = scripted(chat, ["search w2 <end> answer w1 <end>"], Limits(5, 8, tokens))
    assert out.batch.truncated.tolist() == [truncated]
    assert out.batch.reward.tolist() == [0.0 if truncated else 1.0]
    assert int(out.batch.length[0]) <= tokens
    assert out.batch.action_mask[0, int(out.batch.length[0]) - 1], "a row ends with a sampled token"
    assert len(out.turns[0]) == len(out.observations[0]) == int(out.n_turns[0])


def test_a_prompt_without_room_is_an_error(agent: Make) -> None:
    with pytest.raises(TaskError, match=r"limits\.max_tokens"):
        scripted(agent("dense").chat, ["answer w1 <end>"], Limits(5, 8, 4))


def test_forced_tokens_are_fed_in_chunks_and_finished_rows_are_dropped(agent: Make) -> None:
    chat = agent("dense").chat
    lines = ["answer w1 <end>"] * 3 + ["search w2 <end> " * 3 + "answer w1 <end>"]
    out, decoder = scripted(chat, lines, Limits(6, 8, 60))
    assert decoder.seen[0] == (4, 4)  # the shortest prompt in one step
    assert decoder.seen[-1][0] == 1
    assert any(n == 4 for b, n in decoder.seen if b == 1), "its end token and the observation go in at once"
    full, kept = scripted(chat, lines, Limits(6, 8, 60), compaction=0.0)
    assert {b for b, _ in kept.seen} == {4}
    assert torch.equal(full.batch.ids, out.batch.ids)


def play(made: Agent, kind: str = "fused", seed: int = 0, **options: float) -> Rollouts:
    generator = torch.Generator().manual_seed(seed)
    return rollout(
        make_decoder(made.model, "policy", kind), made.chat, Chatter, tasks(12), range(12), LIMITS, generator,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


def equal(a: Rollouts, b: Rollouts, *, except_logp: bool = False) -> bool:
    for field in fields(a.batch):
        x, y = getattr(a.batch, field.name), getattr(b.batch, field.name)
        if x is None or y is None or (except_logp and field.name == "logp_rollout"):
            continue
        if not torch.equal(x, y):
            return False
    return a.turns == b.turns and a.observations == b.observations


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_the_seed_alone_decides(agent: Make, kind: str) -> None:
    made = agent(kind)
    torch.manual_seed(1)
    first = play(made)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert equal(first, play(made))
    assert torch.equal(before, torch.get_rng_state()), "the global generator was used"
    assert not equal(first, play(made, seed=1))


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_compaction_and_decoder_do_not_change_what_is_sampled(agent: Make, kind: str) -> None:
    made = agent(kind)
    reference = play(made, compaction=0.0)
    for decoder, share in (("fused", 0.5), ("auto", 1.0), ("hf", 0.8), ("hf-merged", 0.0)):
        other = play(made, decoder, compaction=share)
        assert equal(reference, other, except_logp=True)
        gap = (reference.batch.logp_rollout - other.batch.logp_rollout).abs().max()
        assert gap < 3e-5


def test_the_generator_advances_by_a_fixed_amount(agent: Make) -> None:
    made = agent("dense")
    states = []
    for temperature in (0.0, 1.0):
        generator = torch.Generator().manual_seed(4)
        rollout(
            make_decoder(made.model),
            made.chat,
            Chatter,
            tasks(4),
            range(4),
            LIMITS,
            generator,
            temperature=temperature,
        )
        states.append(generator.get_state())
    expected = torch.Generator().manual_seed(4)
    torch.rand(LIMITS.max_tokens, 4, generator=expected, dtype=torch.float64)
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], expected.get_state())


def test_reading_the_prompt_in_one_chunk_or_token_by_token_is_the_same(agent: Make) -> None:
    class OneByOne:
        def __init__(self, inner: object) -> None:
            self.inner, self.device = inner, torch.device("cpu")

        def start(self, batch: int, max_len: int) -> None:
            self.inner.start(batch, max_len)  # type: ignore[attr-defined]

        def step(self, tokens: torch.Tensor) -> torch.Tensor:
            for position in range(tokens.shape[1]):
                out = self.inner.step(tokens[:, position : position + 1])  # type: ignore[attr-defined]
            return out

        def compact(self, rows: torch.Tensor) -> None:
            self.inner.compact(rows)  # type: ignore[attr-defined]

    made = agent("dense")
    chunked = play(made)
    generator = torch.Generator().manual_seed(0)
    decoder = OneByOne(make_decoder(made.model))
    single = rollout(decoder, made.chat, Chatter, tasks(12), range(12), LIMITS, generator)
    assert equal(chunked, single, except_logp=True)


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6, 0.0])
def test_trainer_and_sampler_agree_under_an_active_adapter(
    agent: Make, kind: str, temperature: float
) -> None:
    made = agent(kind)
    out = play(made, temperature=temperature)
    logp, entropy = action_logprobs(made.model, out.batch, "policy", temperature)
    assert (logp - out.batch.logp_rollout).abs().max() < 3e-5
    base, _ = action_logprobs(made.model, out.batch, None, temperature)
    assert (base - out.batch.logp_rollout).abs().max() > 1e-2, "the adapter does something"
    assert (logp[~out.batch.action_mask] == 0).all() and (entropy[~out.batch.action_mask] == 0).all()


def test_after_an_update_the_next_rollout_agrees_again(agent: Make) -> None:
    made = agent("dense")
    base = base_weights_hash(made.model)
    optimiser = torch.optim.AdamW(policy_parameters(made), lr=1e-2)
    before = play(made)
    logp, _ = action_logprobs(made.model, before.batch)
    (-logp.sum() / before.batch.action_mask.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy_parameters(made))
    optimiser.step()
    after = play(made)
    logp, _ = action_logprobs(made.model, after.batch)
    assert (logp - after.batch.logp_rollout).abs().max() < 3e-5
    assert not equal(before, after)
    assert base_weights_hash(made.model) == base


def test_greedy_is_the_most_likely_token_and_ignores_the_noise(agent: Make) -> None:
    made = agent("dense")
    a, b = play(made, temperature=0.0), play(made, seed=9, temperature=0.0)
    assert equal(a, b)
    ids, mask = a.batch.ids, a.batch.action_mask
    with torch.no_grad():
        made.model.set_adapter("policy")
        logits = made.model(input_ids=ids).logits
    assert torch.equal(logits[:, :-1].argmax(-1)[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])


def test_a_broken_environment_loses_its_episode_and_is_counted(agent: Make) -> None:
    class Broken(Chatter):
        def step(self, turn: str, complete: bool = True) -> Step:
            if self.left == 2 and self.heard:
                raise ValueError("boom")
            return super().step(turn, complete)

    made = agent("dense")
    generator = torch.Generator().manual_seed(0)
    out = rollout(make_decoder(made.model), made.chat, Broken, tasks(12), range(12), LIMITS, generator)
    lost = sum(out.failures.values())
    assert 0 < lost < 12 and set(out.failures) == {"step: ValueError"}
    assert len(out.turns) == 12 and (out.batch.reward[out.batch.success.logical_not()] == 0).all()


def test_non_finite_logits_stop_the_run() -> None:
    with pytest.raises(NumericalError):
        sample(torch.tensor([[0.0, float("nan")]]), torch.tensor([0.5], dtype=torch.float64), 1.0)


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=12),
    noise=st.floats(0, 1, exclude_max=True),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_sampling_inverts_the_distribution_function(
    logits: list[float], noise: float, temperature: float
) -> None:
    scores = torch.tensor([logits], dtype=torch.float32)
    token, logp = sample(scores, torch.tensor([noise], dtype=torch.float64), temperature)
    chosen = int(token)
    p = torch.softmax(scores.double() / temperature, -1)[0]
    assert abs(float(logp) - float(p[chosen].log())) < 1e-4
    below = float(p[:chosen].sum())
    assert below - 1e-5 <= noise <= below + float(p[chosen]) + 1e-5


def test_sampling_frequencies_follow_the_tempered_softmax() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0])
    noise = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, _ = sample(scores.expand(len(noise), -1), noise, 2.0)
    observed = np.bincount(tokens.numpy(), minlength=4) / len(noise)
    assert np.allclose(observed, torch.softmax(scores / 2.0, -1).numpy(), atol=0.005)


def test_bfloat16_rollouts_agree_loosely_with_the_trainer(agent: Make) -> None:
    made = agent("dense")
    made.model.get_base_model().to(torch.bfloat16)
    for name, parameter in made.model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.float()
    out = play(made)
    logp, _ = action_logprobs(made.model, out.batch)
    assert (logp - out.batch.logp_rollout).abs().max() < 0.15
    assert (logp - out.batch.logp_rollout).abs().mean() < 0.02


def test_group_and_task_numbers_may_be_given(agent: Make) -> None:
    made = agent("dense")
    out = rollout(
        make_decoder(made.model), made.chat, Chatter, tasks(4), range(4), replace(LIMITS, max_turns=1),
        torch.Generator().manual_seed(0), task_index=[7, 7, 9, 9], group=[0, 1, 2, 3],
    )  # fmt: skip
    assert out.batch.task.tolist() == [7, 7, 9, 9] and out.batch.group.tolist() == [0, 1, 2, 3]
