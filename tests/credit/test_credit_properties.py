"""What no credit function may depend on, and what multiscale credit and belief credit promise."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_against_loops import CASES, forked, run

from turnscale.axes import CREDIT
from turnscale.batch import TurnBatch
from turnscale.credit.multiscale import multiscale
from turnscale.credit.segments import forward_scan, layout, reverse_scan
from turnscale.credit.turn_gae import turn_gae
from turnscale.errors import DataError
from turnscale.gates.batches import random_batch
from turnscale.methods import load_method

torch.set_num_threads(1)

each_credit = pytest.mark.parametrize(
    ("name", "params"), [c[:2] for c in CASES], ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
FILL = {"turn": -1, "anchor": -1}


def spread_columns(batch: TurnBatch, columns: torch.Tensor, width: int) -> TurnBatch:
    """The batch with old column c moved to columns[c]; new columns are observation tokens."""
    changes = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is not None and value.ndim == 2:
            wide = torch.full((value.shape[0], width), FILL.get(field.name, 0)).to(value.dtype)
            wide[:, columns] = value
            changes[field.name] = wide
    return batch.with_(**changes, length=torch.full_like(batch.length, width))


@each_credit
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_observations_anywhere_change_nothing(name: str, params: dict[str, Any], seed: int) -> None:
    batch = forked(seed)
    draw = torch.Generator().manual_seed(seed)
    gaps = torch.randint(0, 4, (batch.turn.shape[1],), generator=draw)
    columns = torch.arange(batch.turn.shape[1]) + gaps.cumsum(0)
    wide = spread_columns(batch, columns, int(columns[-1]) + 6)
    assert torch.equal(run(name, wide, params)[:, columns], run(name, batch, params))


@each_credit
def test_padding_changes_nothing(name: str, params: dict[str, Any]) -> None:
    batch = forked(1)
    width = batch.turn.shape[1]
    wide = spread_columns(batch, torch.arange(width), width + 50)
    got = run(name, wide, params)
    assert torch.equal(got[:, :width], run(name, batch, params))
    assert not got[:, width:].any()


@each_credit
def test_row_order_changes_nothing(name: str, params: dict[str, Any]) -> None:
    batch = forked(2)
    order = torch.randperm(batch.size, generator=torch.Generator().manual_seed(0))
    width = batch.turn.shape[1]
    got = run(name, batch.rows(order), params)
    torch.testing.assert_close(got, run(name, batch, params)[order][:, : got.shape[1]], atol=1e-12, rtol=0)
    assert got.shape[1] <= width


@each_credit
def test_single_precision_agrees(name: str, params: dict[str, Any]) -> None:
    double = forked(5)
    changes = {
        f.name: getattr(double, f.name).float()
        for f in fields(double)
        if getattr(double, f.name) is not None and getattr(double, f.name).dtype == torch.float64
    }
    got = run(name, double.with_(**changes), params)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), run(name, double, params), atol=2e-5, rtol=1e-5)


@each_credit
def test_nothing_off_action_tokens(name: str, params: dict[str, Any]) -> None:
    batch = forked(6)
    got = run(name, batch, params)
    assert not got[~batch.action_mask].any()


@each_credit
def test_missing_tensors_are_named(name: str, params: dict[str, Any]) -> None:
    batch = forked(7)
    for needed in CREDIT[name].needs:
        with pytest.raises(DataError, match=needed):
            run(name, batch.with_(**{needed: None}), params)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 1), lam_intra=st.floats(0, 1), beta=st.floats(0, 2))
def test_refinement_keeps_every_turn_mean(seed: int, lam: float, lam_intra: float, beta: float) -> None:
    batch = random_batch(seed, dtype=torch.float32)
    got = multiscale(batch, lam=lam, lam_intra=lam_intra, beta=beta, lam_critic=1.0).advantages
    turn = turn_gae(batch, lam=lam, read="first", lam_critic=1.0).advantages
    lay = layout(batch)
    torch.testing.assert_close(lay.turn_mean(lay.take(got)), lay.take(turn)[lay.first], atol=1e-6, rtol=0)


def test_refinement_keeps_turn_means_of_long_turns() -> None:
    batch = random_batch(0, rows=4, turns=(2, 4), turn_length=(500, 2000), dtype=torch.float32)
    got = multiscale(batch, lam=0.8, lam_intra=0.95, beta=1.0, lam_critic=1.0).advantages
    turn = turn_gae(batch, lam=0.8, read="first", lam_critic=1.0).advantages
    lay = layout(batch)
    torch.testing.assert_close(lay.turn_mean(lay.take(got)), lay.take(turn)[lay.first], atol=1e-6, rtol=0)


def test_whitening_keeps_turn_means_affinely() -> None:
    batch = random_batch(3)
    method = load_method("mpo")
    raw = method.credit(batch).advantages
    white = method.normalise(raw, batch)
    chosen = raw[batch.action_mask]
    turn = turn_gae(batch, lam=0.8, read="first", lam_critic=1.0).advantages
    lay = layout(batch)
    want = (lay.take(turn)[lay.first] - chosen.mean()) / (chosen.var(correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(lay.turn_mean(lay.take(white)), want, atol=1e-9, rtol=0)


def test_turn_advantage_ignores_values_inside_turns() -> None:
    batch = random_batch(4)
    lay = layout(batch)
    values = lay.take(batch.values).clone()
    inside = torch.ones(len(values), dtype=torch.bool)
    inside[lay.first] = False
    values[inside] += 5.0
    moved = batch.with_(values=lay.put(values))
    for credit in (turn_gae(batch, lam=0.7, read="first", lam_critic=1.0).advantages,):
        assert torch.equal(credit, turn_gae(moved, lam=0.7, read="first", lam_critic=1.0).advantages)
    a = multiscale(batch, lam=0.7, lam_intra=0.9, beta=1.0, lam_critic=1.0).advantages
    b = multiscale(moved, lam=0.7, lam_intra=0.9, beta=1.0, lam_critic=1.0).advantages
    assert not torch.allclose(a, b)
    torch.testing.assert_close(lay.turn_mean(lay.take(a)), lay.turn_mean(lay.take(b)), atol=1e-12, rtol=0)


def test_one_token_turn_gets_its_turn_advantage() -> None:
    batch = random_batch(5, turn_length=(1, 1))
    got = multiscale(batch, lam=0.8, lam_intra=0.95, beta=1.0, lam_critic=1.0).advantages
    assert torch.equal(got, turn_gae(batch, lam=0.8, read="first", lam_critic=1.0).advantages)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 1), b=st.floats(0, 0.99), gamma=st.floats(0, 1))
def test_belief_never_flips_a_sign(seed: int, lam: float, b: float, gamma: float) -> None:
    batch = random_batch(seed)
    overrides = {"credit.lam": lam, "credit.b": b, "credit.gamma": gamma}
    got = load_method("agentopsd", overrides).credit(batch).advantages
    plain = load_method("grpo-agent").credit(batch).advantages
    assert torch.equal(torch.sign(got), torch.sign(plain))


def test_belief_prior_is_success_not_reward() -> None:
    batch = random_batch(8)
    scaled = batch.with_(reward=batch.reward * 10)
    method = load_method("agentopsd", {"credit.eps": 0.0})
    torch.testing.assert_close(
        method.credit(scaled).advantages, method.credit(batch).advantages, atol=1e-12, rtol=0
    )


def test_one_turn_trajectory_keeps_its_group_advantage() -> None:
    batch = random_batch(9, turns=(1, 1))
    assert torch.equal(
        load_method("agentopsd").credit(batch).advantages, load_method("grpo-agent").credit(batch).advantages
    )


def test_malformed_turns_are_refused() -> None:
    batch = random_batch(10)
    with pytest.raises(DataError, match="turn index"):
        layout(batch.with_(turn=torch.full_like(batch.turn, -1)))
    with pytest.raises(DataError, match="never goes backwards"):
        layout(batch.with_(turn=torch.where(batch.action_mask, batch.turn.max() - batch.turn, -1)))
    silent = batch.with_(action_mask=torch.zeros_like(batch.action_mask), reward=torch.ones(batch.size))
    with pytest.raises(DataError, match="no action token"):
        layout(silent)


def test_row_without_action_tokens_is_harmless() -> None:
    batch = random_batch(11)
    mask = batch.action_mask.clone()
    mask[4] = False
    hollow = batch.with_(
        action_mask=mask,
        turn=torch.where(mask, batch.turn, -1),
        reward=torch.where(torch.arange(batch.size) == 4, 0.0, batch.reward),
    )
    for name, params, _ in CASES:
        got = run(name, hollow, params)
        assert torch.isfinite(got).all() and not got[4].any()


def test_group_of_one_can_be_forbidden() -> None:
    batch = random_batch(12, rows=5, group_size=4)
    with pytest.raises(DataError, match="group of one"):
        load_method("grpo").credit(batch)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    decay=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_scans_agree_with_their_definition(lengths: list[int], decay: float, seed: int) -> None:
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    after = torch.tensor([n - 1 - i for n in lengths for i in range(n)])
    before = torch.tensor([i for n in lengths for i in range(n)])
    want_back = [sum(decay**j * float(x[i + j]) for j in range(int(after[i]) + 1)) for i in range(len(x))]
    want_on = [sum(decay**j * float(x[i - j]) for j in range(int(before[i]) + 1)) for i in range(len(x))]
    same = {"atol": 1e-9, "rtol": 1e-9}
    torch.testing.assert_close(reverse_scan(x, decay, after), torch.tensor(want_back, dtype=x.dtype), **same)
    torch.testing.assert_close(forward_scan(x, decay, before), torch.tensor(want_on, dtype=x.dtype), **same)
    each = torch.full_like(x, decay)
    torch.testing.assert_close(reverse_scan(x, each, after), torch.tensor(want_back, dtype=x.dtype), **same)


def test_logged_shares() -> None:
    batch = random_batch(13)
    metrics = load_method("grpo").credit(batch).metrics
    mass = [v for k, v in metrics.items() if k.startswith("advantage_mass_turn_")]
    assert sum(mass) == pytest.approx(1.0)
    advantages = load_method("grpo").credit(batch).advantages[batch.action_mask]
    assert metrics["dead_gradient_share"] == pytest.approx(float((advantages == 0).double().mean()))
