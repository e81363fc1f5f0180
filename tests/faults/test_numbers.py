"""NaN and infinities, broken and hanging environments: the run stops or goes on as documented, and is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.train.coin import CoinEnvironment
from tests.train.setting import Setting
from turnscale.agent.rollout import rollout, sample
from turnscale.batch import TurnBatch
from turnscale.credit.group import group_relative
from turnscale.credit.segments import layout
from turnscale.envs.protocol import Step
from turnscale.envs.registry import LimitsConfig
from turnscale.errors import DataError, NumericalError
from turnscale.estimates import write_estimates
from turnscale.finite import require_finite
from turnscale.render import render_table
from turnscale.render.survivors import survivors
from turnscale.study import resolve
from turnscale.track.collect import collect
from turnscale.track.read import Store
from turnscale.track.records import critic_key, noting_failure
from turnscale.track.run import open_run
from turnscale.track.store import connect
from turnscale.train import update
from turnscale.train.loop import train_run
from turnscale.train.sampling import entropy_rises
from turnscale.train.trainer import Trainer


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_stop_the_sampler(bad: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    with pytest.raises(NumericalError) as caught:
        sample(logits, torch.zeros(3, dtype=torch.float64), 1.0)
    assert caught.value.reason == ("NaN in logits" if bad != bad else "infinity in logits")


def _poison(name: str, bad: float) -> Callable[[Trainer, TurnBatch], TurnBatch]:
    def poisoned(trainer: Trainer, batch: TurnBatch) -> TurnBatch:
        tensor = getattr(batch, name).clone()
        if tensor.ndim == 1:
            tensor[0] = bad
        else:
            tensor[0, int(batch.action_mask[0].nonzero()[0])] = bad
        return batch.with_(**{name: tensor})

    return poisoned


FAULTS = {
    "reward": ("grpo", "NaN in reward"),
    "values": ("mpo", "infinity in value"),
    "logp_rollout": ("grpo", "NaN in loss"),
    "advantage": ("grpo", "NaN in advantage"),
    "trainer": ("grpo", "NaN in trainer log-probabilities"),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("logp_rollout", "advantage") else name
        for name in FAULTS
    ],
)
def test_each_number_stops_the_run_with_its_own_reason(
    setting: Setting, store: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    method, reason = FAULTS[fault]
    nan = float("nan")
    if fault == "advantage":
        normalise = "turnscale.methods.Method.normalise"
        monkeypatch.setattr(normalise, lambda self, advantages, batch: advantages * nan)
    elif fault == "trainer":
        read = update.action_logprobs
        monkeypatch.setattr(update, "action_logprobs", lambda *a: tuple(x * nan for x in read(*a)))
    else:
        plain, bad = Trainer._read, float("inf") if fault == "values" else nan
        change = _poison(fault, bad)
        monkeypatch.setattr(Trainer, "_read", lambda self, batch: change(self, plain(self, batch)))
    critic = setting.critic() if method == "mpo" else None
    work = store / "work"
    with pytest.raises(NumericalError) as caught:
        train_run(setting.run(method, steps=2), setting.base, setting.panels, critic, work, root=store)
    assert caught.value.reason == reason
    client, experiment = connect(store)
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "FAILED" and stored.data.tags["turnscale.reason"] == reason
    assert stored.data.tags["turnscale.error"].startswith("NumericalError: ")
    assert list(work.glob("failed-step-000000.safetensors"))


def test_an_exploding_ratio_is_capped_and_recorded_and_the_run_goes_on(setting: Setting) -> None:
    trainer = Trainer(setting.run("mpo", steps=1), setting.base, setting.panels, setting.critic())
    plain = Trainer._read

    def distant(batch: TurnBatch) -> TurnBatch:
        batch = plain(trainer, batch)
        return batch.with_(logp_rollout=torch.where(batch.action_mask, -60.0, 0.0))

    trainer._read = distant  # type: ignore[method-assign]
    trainer.settings = trainer.settings.model_copy(update={"rollout_gap_limit": 100.0})
    trainer.advance()
    found = {name: value for _, name, value in trainer.metrics}
    assert found["ratio_max"] == pytest.approx(4.85e8, rel=0.01) and found["ratio_capped"] == 1.0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trainer._tensors().values())


def test_rows_and_batches_without_action_tokens_update_nothing(setting: Setting) -> None:
    trainer = Trainer(setting.run("grpo", steps=1), setting.base, setting.panels, None)
    batch = trainer._read(trainer.sample().batch)
    nothing = torch.zeros_like(batch.action_mask)
    paid = batch.with_(action_mask=nothing, reward=torch.ones_like(batch.reward))
    with pytest.raises(DataError, match="no action token to pay it on"):
        layout(paid)
    turn = torch.full_like(batch.turn, -1)
    empty = paid.with_(turn=turn, reward=torch.zeros_like(batch.reward))
    assert entropy_rises(empty, torch.zeros(batch.ids.shape)) == [(0, 0.0)] * batch.size
    before = [tensor.detach().clone() for tensor in trainer._tensors().values()]
    credit = trainer.method.credit(empty)
    advantages = trainer.method.normalise(credit.advantages, empty)
    found = update.update_policy(
        trainer.agent,
        trainer.method,
        empty,
        advantages,
        empty.logp_rollout,
        trainer.policy_optimiser,
        trainer.settings,
        torch.Generator().manual_seed(0),
    )
    assert found["loss"] == 0.0 and found["grad_norm"] == 0.0
    for left, right in zip(before, trainer._tensors().values(), strict=True):
        assert torch.equal(left, right.detach())


class Silent:
    """A policy that ends each turn at once."""

    device = torch.device("cpu")

    def __init__(self, end: int, vocabulary: int) -> None:
        self.logits = torch.full((vocabulary,), -1e4)
        self.logits[end] = 0.0

    def start(self, batch: int, max_len: int) -> None:
        pass

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(tokens), -1)

    def compact(self, rows: torch.Tensor) -> None:
        pass


def test_turns_without_words_are_played_and_trained_on(setting: Setting) -> None:
    trainer = Trainer(setting.run("mpo", steps=1), setting.base, setting.panels, setting.critic())
    chat, family = trainer.agent.chat, trainer.family
    decoder = Silent(chat.end_id, int(trainer.agent.model.config.vocab_size))
    played = rollout(
        decoder,
        chat,
        family.make,
        trainer.tasks[:4],
        [0] * 4,
        family.limits,
        torch.Generator(),
        group=[0, 0, 1, 1],
    )
    assert played.turns == [[""] * family.limits.max_turns] * 4
    assert played.n_action_tokens.tolist() == played.n_turns.tolist() == [family.limits.max_turns] * 4
    assert bool(played.batch.truncated.all()) and not played.failures
    trainer.sample = lambda: played  # type: ignore[method-assign]
    trainer.settings = trainer.settings.model_copy(update={"rollout_gap_limit": 1e9})
    trainer.advance()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trainer._tensors().values())


@pytest.mark.parametrize("rule", ["zero", "raw", "forbid"])
def test_groups_of_one_and_of_equal_rewards_follow_the_methods_rule(rule: str) -> None:
    scores, group = torch.tensor([1.0, 0.5, 0.5, 0.0, 1.0]), torch.tensor([0, 1, 1, 2, 2])
    settings = {"scale": "std", "ddof": 1, "eps": 1e-6, "min_std": 0.0, "singleton": rule}
    if rule == "forbid":
        with pytest.raises(DataError, match="a group of one"):
            group_relative(scores, group, **settings)
        return
    relative, metrics = group_relative(scores, group, **settings)
    assert relative[0] == (1.0 if rule == "raw" else 0.0) and relative[1:3].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(relative).all()) and relative[4] > 0
    assert metrics["singleton_group_share"] == pytest.approx(1 / 3)
    assert metrics["degenerate_group_share"] == pytest.approx(2 / 3)


class Broken(CoinEnvironment):
    """Raises in its second turn."""

    def step(self, turn: str, complete: bool = True) -> Step:
        if self.turns == 1:
            raise RuntimeError("the game crashed")
        return super().step(turn, complete)


class Hanging(CoinEnvironment):
    """Never answers its second turn."""

    def step(self, turn: str, complete: bool = True) -> Step:
        if self.turns == 1:
            threading.Event().wait(60)
        return super().step(turn, complete)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Broken, "step: RuntimeError"), (Hanging, "step: EnvironmentTimeout")]
)
def test_a_broken_or_hanging_environment_loses_its_episodes_and_the_run_goes_on(
    setting: Setting,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CoinEnvironment],
    reason: str,
) -> None:
    monkeypatch.setattr("tests.train.coin.CoinFamily.make", lambda self: kind())
    run = setting.run("grpo", steps=1, prompts=2, group_size=2)
    run.spec.value["base"]["family"]["limits"]["timeout_s"] = 0.05
    record = train_run(run, setting.base, setting.panels, None, store / "work", root=store)
    assert list(record["lost"]) == [reason] and record["lost"][reason] > 0
    client, experiment = connect(store)
    (stored,) = client.search_runs([experiment])
    assert (
        stored.info.status == "FINISHED" and json.loads(stored.data.tags["turnscale.lost"]) == record["lost"]
    )
    assert stored.data.metrics["lost_episodes"] <= record["lost"][reason], "validation counts too"


def test_no_limit_of_time_is_no_part_of_a_familys_identity() -> None:
    plain = {"max_turns": 2, "max_turn_tokens": 3, "max_tokens": 9}
    assert LimitsConfig(**plain).model_dump(mode="json") == plain
    assert LimitsConfig(**plain, timeout_s=5).model_dump(mode="json") == {**plain, "timeout_s": 5.0}
    assert LimitsConfig(**plain, timeout_s=5).build().timeout_s == 5.0


def test_a_table_of_the_rest_says_how_many_runs_failed_and_why(made: Path, tmp_path: Path) -> None:
    plan = resolve("mpo", "tiny", seeds=4, root=made)
    failed = next(run for run in plan.runs() if run.cell == "grpo" and run.seed == 2)
    with pytest.raises(NumericalError), open_run(failed, failed.spec.value, {}, made):
        require_finite("loss", float("nan"))
    stopped = next(run for run in plan.runs() if run.cell == "mpo" and run.seed == 2)
    with pytest.raises(KeyboardInterrupt), open_run(stopped, stopped.spec.value, {}, made):
        raise KeyboardInterrupt
    cell = next(cell for cell in plan.cells if cell.critic is not None)
    assert cell.critic is not None
    key = critic_key("tiny", cell.critic.value, cell.critic.hash, 3)
    with (
        pytest.raises(NumericalError),
        noting_failure("critic", key, "tiny", cell.critic.value, made),
    ):
        require_finite("loss of the critic's warm-up", float("inf"))
    assert Store(made).jobs("tiny")[failed.key].tags["reason"] == "NaN in loss"
    collect(plan, tmp_path, partial=True)
    table = pd.read_csv(tmp_path / "survivorship.csv").set_index("cell")
    assert json.loads(table.loc["grpo", "failed_reasons"]) == {"NaN in loss": 1}
    write_estimates(plan, tmp_path)
    name = next(iter(plan.study.tables))
    render_table(plan.study, "tiny", name, tmp_path, tmp_path / "out")
    for ending in ("md", "tex"):
        text = (tmp_path / "out" / f"{name}.{ending}").read_text(encoding="utf-8")
        assert "3 of 9 runs failed (1 NaN in loss, 1 critic: infinity in loss of the critic" in text
        assert "1 interrupted). 1 of 9 runs has not ended." in text


def test_sentences_about_runs_count_by_reason() -> None:
    columns = ["cell", "planned", "finished", "failed", "excluded"]
    rows = pd.DataFrame([["a", 6, 3, 1, 1], ["b", 6, 6, 0, 0]], columns=columns)
    reasons = (
        ['{"NaN in loss": 1}', "{}"],
        ['{"infinity in logits": 1}', "{}"],
        ["{}", '{"step: OSError": 4}'],
    )
    for name, values in zip(("failed_reasons", "excluded_reasons", "lost"), reasons, strict=True):
        rows[name] = values
    assert survivors(rows, ["a"]) == [
        "1 of 6 runs failed (NaN in loss).",
        "1 of 6 runs trained without being evaluated (infinity in logits).",
        "1 of 6 runs has not ended.",
    ]
    assert survivors(rows, ["b"]) == [
        "4 episodes of finished runs lost to the environment count as unsolved (step: OSError)."
    ]
