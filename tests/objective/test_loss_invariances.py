"""Losses may not depend on padding, on how a minibatch is cut, or on how rows are cut; and what is logged."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.errors import DataError, NumericalError
from turnscale.gates.batches import random_batch
from turnscale.methods import Method, list_methods, load_method
from turnscale.objective import denominators, explained_variance, merge_metrics, policy_loss, value_loss
from turnscale.objective.aggregate import LENGTH_BUCKETS, bucket_of
from turnscale.objective.clip import decoupled, hard_mask, log_symmetric

torch.set_num_threads(1)

TRAINED = [name for name in list_methods() if load_method(name).train]
each_method = pytest.mark.parametrize("name", TRAINED)


def drift_of(batch: TurnBatch, seed: int = 0, size: float = 0.3) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch.turn.shape, generator=draw, dtype=batch.logp_rollout.dtype)
    return torch.where(batch.action_mask, size * noise, 0.0)


def cut_columns(x: Tensor, index: Tensor, batch: TurnBatch) -> Tensor:
    return x[index][:, : int(batch.length[index].max())]


def loss_and_gradient(
    method: Method, batch: TurnBatch, advantages: Tensor, logp: Tensor, parts: list[Tensor]
) -> tuple[float, Tensor, dict[str, float]]:
    """Summed over micro-batches given as row indices."""
    logp = logp.clone().requires_grad_(True)
    count = denominators(batch)
    total, metrics = torch.zeros((), dtype=torch.float64), []
    for index in parts:
        small = batch.rows(index)
        pick = [cut_columns(x, index, batch) for x in (logp, advantages, batch.logp_rollout)]
        loss, seen = policy_loss(method, pick[0], small, pick[1], pick[2], count)
        total = total + loss
        metrics.append(seen)
    (gradient,) = torch.autograd.grad(total, logp)
    return float(total.detach()), gradient, merge_metrics(metrics)


@each_method
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_add_up(name: str, size: int) -> None:
    method = load_method(name)
    batch = random_batch(1, rows=12)
    advantages = method.normalise(method.credit(batch).advantages, batch)
    logp = batch.logp_rollout + drift_of(batch)
    rows = torch.arange(batch.size)
    whole = loss_and_gradient(method, batch, advantages, logp, [rows])
    cut = loss_and_gradient(method, batch, advantages, logp, list(rows.split(size)))
    assert cut[0] == pytest.approx(whole[0], abs=1e-12)
    torch.testing.assert_close(cut[1], whole[1], atol=1e-14, rtol=1e-12)
    assert cut[2].keys() == whole[2].keys()
    for key, value in whole[2].items():
        assert cut[2][key] == pytest.approx(value, abs=1e-12), key


@each_method
def test_padding_does_not_move_the_loss(name: str) -> None:
    method = load_method(name)
    batch = random_batch(2)
    wide = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is not None and value.ndim == 2:
            fill = -1 if field.name in {"turn", "anchor"} else 0
            wide[field.name] = torch.nn.functional.pad(value, (0, 50), value=fill)
    padded = batch.with_(**wide)
    drift = drift_of(batch)
    losses = []
    for each, moved in ((batch, drift), (padded, torch.nn.functional.pad(drift, (0, 50)))):
        advantages = method.normalise(method.credit(each).advantages, each)
        loss, _ = policy_loss(
            method, each.logp_rollout + moved, each, advantages, each.logp_rollout, denominators(each)
        )
        losses.append(float(loss))
    assert losses[0] == losses[1]


@each_method
def test_row_order_does_not_move_the_loss(name: str) -> None:
    method = load_method(name)
    batch = random_batch(3)
    order = torch.randperm(batch.size, generator=torch.Generator().manual_seed(1))
    shuffled = batch.rows(order)
    drift = drift_of(batch)
    losses = []
    for each, moved in ((batch, drift), (shuffled, cut_columns(drift, order, batch))):
        advantages = method.normalise(method.credit(each).advantages, each)
        loss, _ = policy_loss(
            method, each.logp_rollout + moved, each, advantages, each.logp_rollout, denominators(each)
        )
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


def split_rows(batch: TurnBatch, *tensors: Tensor) -> tuple[TurnBatch, list[Tensor]]:
    """Each row as one row per turn, everything else masked off."""
    rows, masks = [], []
    for row in range(batch.size):
        for index in range(int(batch.turn[row].max()) + 1):
            rows.append(row)
            masks.append(batch.turn[row] == index)
    index, mask = torch.tensor(rows), torch.stack(masks)
    cut = {f.name: getattr(batch, f.name)[index] for f in fields(batch) if getattr(batch, f.name) is not None}
    cut["action_mask"] = mask
    cut["turn"] = torch.where(mask, cut["turn"], -1)
    return TurnBatch(**cut), [torch.where(mask, t[index], 0.0) for t in tensors]


@pytest.mark.parametrize("name", ["ppo", "vapo", "sao", "mpo", "mpo-token-is", "turn-ppo", "dapo", "opsd"])
def test_cutting_rows_at_turns_keeps_every_trajectory_weight(name: str) -> None:
    """Token and turn means weigh a long episode the same however its turns are laid out in rows."""
    method = load_method(name)
    batch = random_batch(4)
    advantages = method.normalise(method.credit(batch).advantages, batch)
    logp = (batch.logp_rollout + drift_of(batch)).requires_grad_(True)
    gradients = []
    for each, (p, a, old) in (
        (batch, (logp, advantages, batch.logp_rollout)),
        split_rows(batch, logp, advantages, batch.logp_rollout),
    ):
        loss, _ = policy_loss(method, p, each, a, old, denominators(each))
        gradients.append(torch.autograd.grad(loss, logp)[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-14, rtol=1e-10)


@each_method
def test_at_rest_nothing_is_clipped(name: str) -> None:
    method = load_method(name)
    batch = random_batch(5)
    advantages = method.normalise(method.credit(batch).advantages, batch)
    _, metrics = policy_loss(
        method, batch.logp_rollout.clone(), batch, advantages, batch.logp_rollout, denominators(batch)
    )
    assert metrics["clip_fraction"] == 0 and metrics["kl"] == 0
    assert metrics["ratio_max"] == 1 and metrics["ess"] == pytest.approx(1)


@settings(max_examples=50, deadline=None)
@given(ratio=st.floats(0.01, 9), a=st.floats(-3, 3))
def test_clips_by_definition(ratio: float, a: float) -> None:
    r, adv = torch.tensor([ratio], dtype=torch.float64), torch.tensor([a], dtype=torch.float64)
    gain, active = decoupled(r, adv, low=0.2, high=0.3)
    assert float(gain) == pytest.approx(min(ratio * a, min(max(ratio, 0.8), 1.3) * a), abs=1e-12)
    assert bool(active) == ((a > 0 and ratio > 1.3) or (a < 0 and ratio < 0.8))
    gain, _ = log_symmetric(r, adv, eps=1.0)
    assert float(gain) == pytest.approx(min(ratio * a, min(max(ratio, 0.5), 2.0) * a), abs=1e-12)
    gain, active = hard_mask(r, adv, low=0.3, high=5.0)
    inside = 0.7 < ratio < 6.0
    assert float(gain) == pytest.approx(ratio * a if inside else 0.0, abs=1e-12)
    assert bool(active) == (not inside and a != 0)


def test_clip_fraction_by_turn_length() -> None:
    method = load_method("mpo", {"normalisation": {"name": "none"}})
    batch = random_batch(6, rows=8, turn_length=(1, 20))
    drift = torch.where(batch.action_mask, 0.03, 0.0).double()
    ones = batch.action_mask.double()
    count = denominators(batch)
    _, metrics = policy_loss(method, batch.logp_rollout + drift, batch, ones, batch.logp_rollout, count)
    # exp(.03 L) passes 1.2 from L = 7 on
    clipped = tokens = 0
    for row in range(batch.size):
        for index in range(int(batch.turn[row].max()) + 1):
            length = int((batch.turn[row] == index).sum())
            tokens += length
            clipped += length if length >= 7 else 0
    assert metrics["clip_fraction"] == pytest.approx(clipped / tokens)
    assert metrics["clip_fraction_len_1_4"] == 0
    assert metrics["clip_fraction_len_9_16"] == pytest.approx(1)
    assert sum(count.bucket_tokens) == count.tokens == tokens
    for index, (low, high) in enumerate(LENGTH_BUCKETS):
        assert int(bucket_of(torch.tensor(low))) == index
        assert high is None or int(bucket_of(torch.tensor(high))) == index


def test_kl_is_half_the_squared_drift() -> None:
    method = load_method("ppo")
    batch = random_batch(7)
    drift = drift_of(batch)
    _, metrics = policy_loss(
        method, batch.logp_rollout + drift, batch, drift * 0, batch.logp_rollout, denominators(batch)
    )
    assert metrics["kl"] == pytest.approx(float((drift[batch.action_mask] ** 2 / 2).mean()))
    ratio = drift[batch.action_mask].exp()
    assert metrics["ratio_max"] == pytest.approx(float(ratio.max()))
    assert metrics["ess"] == pytest.approx(float(ratio.sum() ** 2 / (ratio**2).sum() / len(ratio)))


def test_runaway_product_stays_finite_and_is_reported() -> None:
    method = load_method("mpo")
    batch = random_batch(8, turn_length=(50, 60))
    drift = torch.where(batch.action_mask, 2.0, 0.0).double()
    _, metrics = policy_loss(
        method,
        batch.logp_rollout + drift,
        batch,
        -batch.action_mask.double(),
        batch.logp_rollout,
        denominators(batch),
    )
    assert math.isfinite(metrics["loss"]) and metrics["ratio_capped"] == pytest.approx(1)


def test_not_a_number_stops() -> None:
    batch = random_batch(9)
    method = load_method("ppo")
    bad = torch.full_like(batch.logp_rollout, float("nan"))
    with pytest.raises(NumericalError, match="NaN in loss"):
        policy_loss(method, bad, batch, batch.values, batch.logp_rollout, denominators(batch))
    credit = method.credit(batch)
    with pytest.raises(NumericalError, match="value loss"):
        value_loss(method, bad, batch, credit, denominators(batch))


def test_value_loss_micro_batches_add_up_and_heads_are_checked() -> None:
    method = load_method("vetta")
    batch = random_batch(10)
    credit = method.credit(batch)
    count = denominators(batch)
    whole, _ = value_loss(method, batch.values, batch, credit, count, batch.values_turn)
    total = 0.0
    for index in torch.arange(batch.size).split(5):
        small = batch.rows(index)
        part = type(credit)(
            *[cut_columns(t, index, batch) for t in (credit.advantages, credit.returns, credit.returns_turn)],
            {},
        )
        total += float(value_loss(method, small.values, small, part, count, small.values_turn)[0])
    assert total == pytest.approx(float(whole), abs=1e-12)
    with pytest.raises(DataError, match="turn head"):
        value_loss(method, batch.values, batch, credit, count)
    with pytest.raises(DataError, match="no critic"):
        value_loss(load_method("grpo"), batch.values, batch, load_method("grpo").credit(batch), count)


def test_explained_variance() -> None:
    batch = random_batch(11)
    reward = torch.where(batch.action_mask, batch.reward[:, None], 0.0)
    perfect = explained_variance(reward, batch)
    assert perfect == pytest.approx(dict.fromkeys(perfect, 1.0)) and len(perfect) == 4
    shifted = explained_variance(torch.where(batch.action_mask, reward + 2.0, 0.0), batch)
    assert shifted["explained_variance"] < 0
    for key in ("centred", "first", "last"):
        assert shifted[f"explained_variance_{key}"] == pytest.approx(1.0)
    flat = explained_variance(torch.where(batch.action_mask, 0.5, 0.0).double(), batch)
    assert flat["explained_variance_centred"] == pytest.approx(0.0)
    assert explained_variance(reward, batch.with_(reward=torch.ones_like(batch.reward))) == {}
