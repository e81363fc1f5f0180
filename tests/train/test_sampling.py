"""Sampling schemes: what is shared, what is dropped, what is counted, and what a resumed run repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.coin import CoinEnvironment
from tests.train.setting import PROJECT, Setting
from turnscale.agent.adapter import activate
from turnscale.agent.episode import told
from turnscale.agent.rollout import Rollouts
from turnscale.envs.registry import read_family
from turnscale.errors import ConfigError, TaskError
from turnscale.gates.batches import random_batch
from turnscale.methods import Sampling
from turnscale.train import sampling, state
from turnscale.train.sampling import Source, dynamic, entropy_rises, independent, varied_groups
from turnscale.train.trainer import Trainer

TIMES = {"row_tokens_per_second", "step_seconds"}


def make(setting: Setting, method: str, **training: Any) -> Trainer:
    run = setting.run(method, validate_every=9, **training)
    return Trainer(run, setting.base, setting.panels, None)


# Dynamic sampling, on rollouts written by hand.


def played(success: list[list[bool]], reward: list[list[float]], groups: list[int]) -> Rollouts:
    """Rollouts with these outcomes by group; 2 environment calls, 5 sampled and 7 consumed tokens a row."""
    size = sum(map(len, success))
    batch = random_batch(0, rows=size, group_size=len(success[0])).with_(
        success=torch.tensor(success).flatten(),
        reward=torch.tensor(reward).flatten(),
        group=torch.tensor(groups),
    )
    names = [f"row {i}" for i in range(size)]
    ones = torch.ones(size, dtype=torch.long)
    return Rollouts(
        batch, names, [[n] for n in names], [[""]] * size, ones, ones, ones, Counter({"step: X": 1}),
        row_tokens=7 * size, fed_tokens=6 * size, consumed=size, solved=int(batch.success.sum()), env_calls=2 * size,
        sampled_tokens=5 * size,
    )  # fmt: skip


def source(
    draws: list[tuple[list[list[bool]], list[list[float]]]], **changes: Any
) -> tuple[Source, list[Any]]:
    """A source whose draws are given, and the calls made to it."""
    calls: list[Any] = []

    def play(chosen: Any, groups: Any, draw: int = 0, *_: Any) -> Rollouts:
        calls.append((list(chosen), draw))
        return played(*draws[draw], list(groups))

    settings = {
        "play": play, "task_at": lambda position: 100 + position, "entropy": torch.zeros_like,
        "rng": np.random.default_rng(0), "sampling": Sampling(scheme="dynamic"), "prompts": 3, "group_size": 2,
        "max_turns": 4, "step": 5, "cursor": 40,
    }  # fmt: skip
    return Source(**(settings | changes)), calls


T, F = True, False


def test_dynamic_sampling_judges_success_and_not_reward() -> None:
    first = ([[T, T], [T, F], [F, F]], [[0.2, 0.9], [0.5, 0.5], [0.0, 0.3]])
    second = ([[F, F], [F, T], [T, F]], [[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    given, calls = source([first, second])
    out, cursor = dynamic(given)
    assert out.batch.group.tolist() == [1, 1, 4, 4, 5, 5]
    assert out.batch.reward.tolist() == [0.5, 0.5, 1.0, 1.0, 0.0, 1.0]
    assert out.prompts == ["row 2", "row 3", "row 2", "row 3", "row 4", "row 5"]
    assert calls == [([140, 140, 141, 141, 142, 142], 0), ([143, 143, 144, 144, 145, 145], 1)]
    assert cursor == 46


def test_dynamic_sampling_counts_what_it_consumed() -> None:
    nothing = ([[T, T], [T, T], [F, F]], [[1.0, 1.0]] * 3)
    everything = ([[T, F]] * 3, [[1.0, 0.0]] * 3)
    out, cursor = dynamic(source([nothing, nothing, everything])[0])
    assert (out.batch.size, out.consumed, out.solved) == (6, 18, 11)
    assert (out.env_calls, out.sampled_tokens, out.row_tokens) == (36, 90, 126)
    assert out.failures == {"step: X": 3} and cursor == 49
    left_over = ([[T, F], [F, F], [F, F]], [[1.0, 0.0]] * 3)
    out, _ = dynamic(source([left_over, everything])[0])
    assert out.batch.group.tolist() == [0, 0, 3, 3, 4, 4], "the last group is left over and counted"
    assert out.consumed == 12


def test_dynamic_sampling_gives_up_after_a_declared_number_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_DRAWS", 3)
    solved = ([[T, T], [T, F], [T, T]], [[1.0, 1.0]] * 3)
    given, calls = source([solved, ([[T, T]] * 3, [[1.0, 0.0]] * 3), solved])
    with pytest.raises(TaskError, match="only 2 of 3 groups vary in success after 3 draws") as error:
        dynamic(given)
    assert len(calls) == 3 and error.value.key == "sampling.scheme" and error.value.remedy


def test_groups_that_do_not_fit_a_step_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups of 8 do not fit 6 rollouts"):
        dynamic(source([], sampling=Sampling(group_size=8))[0])


def test_independent_sampling_takes_the_next_tasks_of_the_permutation() -> None:
    given, calls = source([([[T, F]] * 3, [[1.0, 0.0]] * 3)], cursor=0)
    out, cursor = independent(given)
    assert calls == [([115, 115, 116, 116, 117, 117], 0)] and cursor == 18
    assert out.batch.group.tolist() == [0, 0, 1, 1, 2, 2] and out.consumed == 6


def test_varied_groups() -> None:
    assert varied_groups(torch.tensor([T, T, T, F, F, F, F, T]), 2).tolist() == [1, 3]


# Forks.


def shared_tokens(rollouts: Rollouts, row: int) -> int:
    """Tokens of a row before its fork."""
    assert rollouts.batch.fork_turn is not None
    turn = int(rollouts.batch.fork_turn[row])
    return int((rollouts.batch.turn[row] == turn).nonzero()[0])


def assert_prefixes_are_shared(rollouts: Rollouts, members: set[int]) -> int:
    """Rows of a group have equal tokens, log-probabilities and text before the fork; returns the latest fork."""
    batch = rollouts.batch
    for group in batch.group.unique().tolist():
        rows = (batch.group == group).nonzero().squeeze(1).tolist()
        assert len(rows) in members
        assert len({int(batch.fork_turn[row]) for row in rows}) == 1
        assert len({int(batch.task[row]) for row in rows}) == 1
        start, turn = shared_tokens(rollouts, rows[0]), int(batch.fork_turn[rows[0]])
        for row in rows[1:]:
            assert shared_tokens(rollouts, row) == start
            for name in ("ids", "logp_rollout", "action_mask", "turn", "anchor"):
                assert torch.equal(
                    getattr(batch, name)[row, :start], getattr(batch, name)[rows[0], :start]
                ), name
            assert rollouts.turns[row][:turn] == rollouts.turns[rows[0]][:turn]
            assert rollouts.observations[row][:turn] == rollouts.observations[rows[0]][:turn]
    return int(batch.fork_turn.max())


def test_forks_at_every_turn_share_their_prefix(setting: Setting) -> None:
    trainer = make(setting, "grouping-tree", prompts=8)
    rollouts = trainer.sample()
    assert assert_prefixes_are_shared(rollouts, {4}) >= 2
    batch = rollouts.batch
    differing = 0
    for group in batch.group.unique().tolist():
        rows = (batch.group == group).nonzero().squeeze(1)
        differing += len({tuple(batch.ids[row].tolist()) for row in rows}) > 1
    assert differing >= 6, "siblings go on differently"
    assert batch.size == 32 and rollouts.consumed > 32
    advantages = trainer.method.credit(batch).advantages
    before = batch.action_mask & (batch.turn < batch.fork_turn[:, None])
    assert before.any() and not advantages[before].any() and advantages[batch.action_mask & ~before].any()


def test_entropy_forks_share_their_prefix_and_leave_a_row_once(setting: Setting) -> None:
    trainer = make(setting, "arpo", prompts=8)
    rollouts = trainer.sample()
    assert assert_prefixes_are_shared(rollouts, {1, 2}) >= 1
    batch = rollouts.batch
    assert rollouts.consumed == batch.size == 32
    assert torch.bincount(batch.task[:16]).max() == 2 and torch.bincount(batch.task).max() == 4
    rises = entropy_rises(batch, trainer._entropy(batch))
    forked = (batch.fork_turn[:16] > 0).nonzero().squeeze(1).tolist()
    assert forked and all(rises[row] == (int(batch.fork_turn[row]), rises[row][1]) for row in forked)
    assert all(rises[row][1] > 0 for row in forked)
    advantages = trainer.method.credit(batch).advantages
    pair = (batch.group == batch.group[forked[0]]).nonzero().squeeze(1)
    first, later = batch.turn[pair] == 0, batch.turn[pair] == batch.fork_turn[forked[0]]
    own = torch.stack([advantages[row][mask][0] for row, mask in zip(pair, later, strict=True)])
    for row, mask in zip(pair, first, strict=True):
        torch.testing.assert_close(advantages[row][mask], own.mean().expand(int(mask.sum())))


def test_entropy_rises_by_hand() -> None:
    batch = random_batch(3, rows=3, turns=(1, 1)).with_(
        turn=torch.tensor([[-1, 0, 0, -1, 1, 1, 2], [-1, 0, 0, -1, 1, 1, 2], [-1, 0, 0, 0, -1, -1, -1]]),
        action_mask=torch.tensor([[F, T, T, F, T, T, T], [F, T, T, F, T, T, T], [F, T, T, T, F, F, F]]),
    )
    entropies = torch.tensor(
        [[9.0, 1, 2, 9, 1, 4, 2], [9.0, 3, 5, 9, 2, 2, 3], [9.0, 1, 2, 3, 0, 0, 0]], dtype=torch.float32
    )
    assert entropy_rises(batch, entropies) == [(1, 1.0), (2, -1.0), (0, 0.0)]


@pytest.mark.parametrize("method", ["grpo", "dapo", "arpo", "grouping-tree"])
def test_environment_calls_and_tokens_are_those_made(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    step, calls = CoinEnvironment.step, []

    def counting(self: CoinEnvironment, turn: str, complete: bool = True) -> Any:
        calls.append(turn)
        return step(self, turn, complete)

    monkeypatch.setattr(CoinEnvironment, "step", counting)
    rollouts = make(setting, method).sample()
    assert rollouts.env_calls == len(calls)
    batch = rollouts.batch
    if method == "grpo":
        assert rollouts.sampled_tokens == int(batch.action_mask.sum())
        last = (batch.action_mask * torch.arange(batch.ids.shape[1])).amax(1)
        assert rollouts.row_tokens == int(last.sum()), "all tokens before a row's last sampled one are fed"
    if method == "arpo":
        branches = range(8, 16)
        inherited = sum(int(batch.action_mask[row, : shared_tokens(rollouts, row)].sum()) for row in branches)
        assert inherited > 0
        assert rollouts.sampled_tokens == int(batch.action_mask.sum()) - inherited


# Privileged contexts.


def test_teacher_scores_are_those_of_the_rendered_transcript(setting: Setting) -> None:
    trainer = make(setting, "agentopsd", group_size=8, prompts=1, micro_batch=3)
    trainer.advance()  # the teacher is the policy, adapter and all
    rollouts = trainer.sample()
    batch, chat = rollouts.batch, trainer.agent.chat
    found = trainer._teacher(rollouts)
    activate(trainer.agent.model, "policy")
    largest = 0.0
    for row in range(batch.size):
        task = trainer.tasks[int(batch.task[row])]
        prompt = chat.encode(chat.render(f"{trainer.family.skill(task)} {rollouts.prompts[row]}"))
        start = int(batch.action_mask[row].int().argmax())
        rest = batch.ids[row, start : int(batch.length[row])]
        with torch.no_grad():
            logits = trainer.agent.model(torch.tensor([[*prompt, *rest.tolist()]])).logits[0]
        naive = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(1, rest[:, None]).squeeze(1)
        mask = batch.action_mask[row, start : int(batch.length[row])]
        torch.testing.assert_close(
            found[row, start : int(batch.length[row])][mask], naive[mask], rtol=0, atol=3e-5
        )
        largest = max(
            largest, float((naive[mask] - batch.logp_rollout[row][batch.action_mask[row]]).abs().max())
        )
    assert not found[~batch.action_mask].any()
    assert largest > 1e-3, "the skill text changes what the policy thinks of its tokens"


def test_a_policy_in_a_skill_context_is_sampled_and_trained_in_it(setting: Setting) -> None:
    plain = make(setting, "grpo-agent", prompts=2, group_size=8).sample().batch
    trainer = make(setting, "grpo-skill", prompts=2, group_size=8)
    rollouts = trainer.sample()
    batch, chat = rollouts.batch, trainer.agent.chat
    for row in range(batch.size):
        task = trainer.tasks[int(batch.task[row])]
        prompt = chat.prompt_ids(told(trainer.family.skill(task), rollouts.prompts[row]))
        start = int(batch.action_mask[row].int().argmax())
        assert batch.ids[row, :start].tolist() == list(prompt)
    extra = len(chat.encode("go heads"))
    assert (batch.action_mask.int().argmax(1) == plain.action_mask.int().argmax(1) + extra).all()
    assert batch.task.tolist() == plain.task.tolist()
    trainer.advance()
    assert next(value for _, name, value in trainer.metrics if name == "rollout_gap") < 3e-5


def test_a_context_does_not_use_up_the_episode_s_tokens(setting: Setting) -> None:
    def lengths(method: str) -> tuple[int, int]:
        trainer = make(setting, method, prompts=2, group_size=8)
        limits = replace(trainer.family.limits, max_tokens=12)
        trainer.family.limits = limits
        batch = trainer.sample().batch
        prompts = batch.action_mask.int().argmax(1)
        return int((batch.length - prompts).max()), int(batch.length.max())

    assert lengths("grpo-agent") == (lengths("grpo-skill")[0], lengths("grpo-skill")[1] - 2)


@pytest.mark.parametrize("name", ["search", "search-hard", "search-chat"])
def test_search_skills_are_sayable_and_do_not_tell_the_answer(name: str) -> None:
    family = read_family(PROJECT / "configs" / "families" / f"{name}.yaml")
    for index in range(20):
        task = family.task("train", index)
        words = family.skill(task).split()
        assert set(words) <= set(family.vocabulary())
        answer = family.parse_task(task).chain[-1]
        assert answer not in words
        environment = family.make()
        environment.reset(task, 0)
        seen = ""
        for at in range(0, len(words), 3):
            seen = environment.step(f"<think> </think> {' '.join(words[at : at + 3])}").observation
        assert seen.split()[-1] == answer, "following the skill leads to the answer"
        assert environment.step(f"<think> </think> answer {answer}").success


# Resuming.


class Tags:
    def tag(self, name: str, value: object) -> None:
        self.last = (name, value)


@pytest.mark.parametrize("method", ["dapo", "grouping-tree", "arpo"])
def test_a_killed_run_resumes_with_its_data_cursor(setting: Setting, tmp_path: Path, method: str) -> None:
    def trainer() -> Trainer:
        return make(setting, method, steps=3)

    def log(one: Trainer) -> list[list[Any]]:
        return [row for row in one.metrics if row[1] not in TIMES]

    whole = trainer()
    whole.advance()
    state.save(tmp_path, whole.snapshot())
    at_kill = whole.cursor
    whole.advance()
    whole.advance()
    resumed = trainer()
    resumed.resume(tmp_path, Tags())  # type: ignore[arg-type]
    assert (resumed.step, resumed.cursor) == (1, at_kill)
    resumed.advance()
    resumed.advance()
    assert log(resumed) == log(whole) and resumed.cursor == whole.cursor
    for name, value in whole._tensors().items():
        assert torch.equal(value, resumed._tensors()[name]), name
    if method != "arpo":
        assert whole.cursor != 3 * 4, "the cursor is not a function of the step"


def test_schemes_do_not_disturb_each_others_first_draw(setting: Setting) -> None:
    """The first draw of dynamic sampling is the very rollouts independent sampling gives."""
    plain = make(setting, "grpo").sample()
    drawn: list[Rollouts] = []
    trainer = make(setting, "dapo")
    play: Callable[..., Rollouts] = trainer._play
    trainer._play = lambda *args: drawn.append(play(*args)) or drawn[-1]  # type: ignore[method-assign,func-returns-value]
    kept = trainer.sample()
    for name in ("ids", "logp_rollout", "success", "task"):
        assert torch.equal(getattr(plain.batch, name), getattr(drawn[0].batch, name)), name
    solved = kept.batch.success.view(4, 4).sum(1)
    assert ((solved > 0) & (solved < 4)).all()
