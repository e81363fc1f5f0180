"""A seed trained in a pack has the result that it has alone, whatever happens to the others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.train.setting import PROJECT, Setting
from turnscale.agent import transformer
from turnscale.files import sha256
from turnscale.methods import load_method
from turnscale.track.store import connect, init_tracking
from turnscale.train.loop import train_run
from turnscale.train.pack import Member, train_pack
from turnscale.train.trainer import Trainer

SEEDS = (0, 1, 2)
STEPS = 3
TIMES = {"row_tokens_per_second", "step_seconds"}


def members(
    setting: Setting, method: str, root: Path, seeds: tuple[int, ...] = SEEDS, steps: int = STEPS
) -> list[Member]:
    critic = setting.critic() if method == "mpo" else None
    runs = [setting.run(method, seed, steps=steps) for seed in seeds]
    return [Member(run, critic, root / "work" / f"seed-{run.seed}") for run in runs]


def alone(setting: Setting, member: Member, root: Path) -> dict[str, Any]:
    return train_run(
        member.run,
        setting.base,
        setting.panels,
        member.critic_record,
        member.work,
        checkpoint_every=1,
        root=root,
    )


def packed(setting: Setting, chosen: list[Member], root: Path, stack: bool = False) -> dict[str, Any]:
    return train_pack(chosen, setting.base, setting.panels, checkpoint_every=1, root=root, stack=stack)


def project(root: Path) -> Path:
    init_tracking(root)
    return root


def results(member: Member) -> dict[str, Any]:
    """Checksums of the trained files, and every metric but the times."""
    final = member.work / "final"
    metrics = pd.read_parquet(final / "metrics.parquet")
    kept = metrics[~metrics["metric"].isin(TIMES)].to_numpy().tolist()
    names = [name for name in ("adapter", "critic") if (final / name).exists()]
    sums = {name: sha256(final / name / "adapter_model.safetensors") for name in names}
    values = final / "critic_values.parquet"
    rows = pd.read_parquet(values).to_numpy().tolist() if values.exists() else []
    return {"files": sums, "metrics": kept, "critic": rows}


@pytest.fixture(scope="module")
def solo(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Results of three seeds of a critic-based and a group-based method, each trained alone."""
    found = {}
    for method in ("mpo", "grpo"):
        root = project(tmp_path_factory.mktemp(f"solo-{method}"))
        chosen = members(setting, method, root)
        for member in chosen:
            alone(setting, member, root)
        found[method] = [results(member) for member in chosen]
    return found


@pytest.mark.parametrize("stack", [False, True], ids=["in turn", "side by side"])
@pytest.mark.parametrize("method", ["mpo", "grpo"])
def test_each_seed_of_a_pack_equals_its_solo_run(
    method: str, stack: bool, setting: Setting, store: Path, solo: dict[str, list[dict[str, Any]]]
) -> None:
    chosen = members(setting, method, store)
    report = packed(setting, chosen, store, stack)
    assert report["failed"] == {} and list(report["records"]) == ["0", "1", "2"]
    assert [results(member) for member in chosen] == solo[method]
    assert solo[method][0]["files"] != solo[method][1]["files"]
    client, experiment = connect(store)
    stored = client.search_runs([experiment])
    assert {run.info.run_id for run in stored} == {r["run_id"] for r in report["records"].values()}
    assert len(stored) == 3 and all(run.info.status == "FINISHED" for run in stored)
    assert all(record["seed"] == int(seed) for seed, record in report["records"].items())
    # The start of the process is in them: here all that the tests before have used.
    assert 0 < sum(record["cpu_seconds"] for record in report["records"].values()) <= time.process_time() + 1


@pytest.mark.parametrize("stack", [False, True], ids=["in turn", "side by side"])
def test_a_seed_that_fails_costs_the_others_nothing_and_is_reported(
    stack: bool,
    setting: Setting,
    store: Path,
    solo: dict[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = Trainer._valued

    def poisoned(self: Trainer, batch):  # type: ignore[no-untyped-def]
        valued = read(self, batch)
        if self.seed == 1 and self.step == 1:
            valued.values[0, int(valued.action_mask[0].nonzero()[0])] = float("nan")
        return valued

    monkeypatch.setattr(Trainer, "_valued", poisoned)
    chosen = members(setting, "mpo", store)
    report = packed(setting, chosen, store, stack)
    assert list(report["records"]) == ["0", "2"]
    assert list(report["failed"]) == ["1"] and "NumericalError" in report["failed"]["1"]
    assert "Traceback" in capsys.readouterr().err
    for index in (0, 2):
        assert results(chosen[index]) == solo["mpo"][index]
    client, experiment = connect(store)
    status = {run.data.tags["turnscale.seed"]: run.info.status for run in client.search_runs([experiment])}
    assert status == {"0": "FINISHED", "1": "FAILED", "2": "FINISHED"}

    monkeypatch.setattr(Trainer, "_valued", read)
    record = alone(setting, chosen[1], store)  # as the workflow tries a failed seed again
    assert record["attempt"] == 2
    assert results(chosen[1]) == solo["mpo"][1]


@pytest.mark.parametrize("stack", [False, True], ids=["in turn", "side by side"])
def test_a_killed_pack_goes_on_alone_and_a_killed_run_in_a_pack(
    stack: bool,
    setting: Setting,
    store: Path,
    solo: dict[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = Trainer.advance

    def until_the_second_step(self: Trainer) -> None:
        if self.step == 2:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Trainer, "advance", until_the_second_step)
    chosen = members(setting, "mpo", store)
    with pytest.raises(KeyboardInterrupt):
        packed(setting, chosen[:1], store, stack)
    with pytest.raises(KeyboardInterrupt):
        alone(setting, chosen[1], store)
    monkeypatch.setattr(Trainer, "advance", advance)

    assert alone(setting, chosen[0], store)["attempt"] == 2
    report = packed(setting, chosen[1:], store, stack)
    assert [report["records"][seed]["attempt"] for seed in ("1", "2")] == [2, 1]
    assert [results(member) for member in chosen] == solo["mpo"]


def test_a_stopped_pack_writes_every_checkpoint(
    setting: Setting, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trainer.advance

    def terminated(self: Trainer) -> None:
        advance(self)
        if self.seed == 1 and self.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "advance", terminated)
    chosen = members(setting, "grpo", store)
    with pytest.raises(KeyboardInterrupt):
        packed(setting, chosen, store, stack=True)
    assert all(list(member.work.glob("step-*")) for member in chosen)
    client, experiment = connect(store)
    assert {run.info.status for run in client.search_runs([experiment])} == {"KILLED"}


def test_wide_models_share_the_bases_products(
    setting: Setting, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fused path out of the way, as for a wide model: rounding may differ, and nothing else."""
    monkeypatch.setattr(transformer, "FUSED_WIDTH", 0)

    def trained(name: str, stack: bool) -> list[pd.DataFrame]:
        root = project(store / name)
        chosen = members(setting, "grpo", root, seeds=(0, 1), steps=1)
        assert packed(setting, chosen, root, stack)["failed"] == {}
        return [pd.read_parquet(member.work / "final" / "metrics.parquet") for member in chosen]

    for one, other in zip(trained("alone", False), trained("together", True), strict=True):
        first = [
            table[(table["step"] == 1) & table["metric"].isin(["reward", "loss", "entropy", "grad_norm"])]
            for table in (one, other)
        ]
        assert len(first[0]) == 4
        pd.testing.assert_frame_equal(*(table.reset_index(drop=True) for table in first), rtol=1e-4)
        assert other[other["metric"] == "rollout_gap"]["value"].max() < 3e-5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["archer", "arpo", "dapo", "grouping-tree"])
def test_twins_forks_and_dynamic_sampling_keep_their_bits_side_by_side(
    method: str, setting: Setting, store: Path
) -> None:
    chosen = load_method(method, {}, directory=PROJECT / "configs" / "methods")
    critic = setting.critic(chosen.critic.outputs) if chosen.needs_critic else None

    def trained(name: str, stack: bool) -> list[dict[str, Any]]:
        root = project(store / name)
        runs = [setting.run(method, seed, steps=2) for seed in SEEDS]
        found = [Member(run, critic, root / f"seed-{run.seed}") for run in runs]
        assert packed(setting, found, root, stack)["failed"] == {}
        return [results(member) for member in found]

    assert trained("in turn", False) == trained("side by side", True)
