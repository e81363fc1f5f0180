"""Value and gradient of every method's loss on a tabular policy: autograd, loops and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_loss import plain_loss, table_logp
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.credit.segments import layout
from turnscale.gates.batches import random_batch
from turnscale.methods import list_methods, load_method
from turnscale.objective import denominators, policy_loss, value_loss
from turnscale.objective.ratio import turn as turn_ratio
from turnscale.objective.terms import kl_per_token

torch.set_num_threads(1)

STATES, TOKENS = 4, 3
EXTRA: list[tuple[str, dict[str, Any]]] = [
    ("mpo", {"ratio.gradient": "shared"}),
    ("mpo", {"ratio.gradient": "shared_mean"}),
    ("mpo", {"clip": {"name": "log_symmetric", "eps": 0.8}}),
    ("grpo", {"aggregation": {"name": "fixed", "divisor": 7.0}}),
    *[
        ("grpo-agent", {"terms.kl.estimator": e, "terms.kl.gradient": g, "terms.kl.coef": 0.5})
        for e in ("k1", "k2", "k3")
        for g in ("exact", "estimator")
    ],
]
ROWS = [(name, {}) for name in list_methods() if load_method(name).train] + EXTRA


def tabular(seed: int) -> tuple[TurnBatch, Tensor, Tensor, Tensor, Tensor]:
    """A batch, its old and new log-probabilities under tables, and (state, token) of each position."""
    draw = torch.Generator().manual_seed(seed)
    batch = random_batch(seed, rows=6, group_size=3, turns=(1, 3), turn_length=(1, 3), graded=True)
    state = torch.randint(0, STATES, batch.turn.shape, generator=draw)
    token = torch.randint(0, TOKENS, batch.turn.shape, generator=draw)
    start = torch.randn(STATES, TOKENS, generator=draw, dtype=torch.float64)
    theta = start + 0.15 * torch.randn(STATES, TOKENS, generator=draw, dtype=torch.float64)
    old = torch.where(batch.action_mask, table_logp(start, state, token), 0.0)
    noise = 0.02 * torch.randn(batch.turn.shape, generator=draw, dtype=torch.float64)
    batch = batch.with_(logp_rollout=torch.where(batch.action_mask, old + noise, 0.0))
    return batch, old, theta, state, token


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "overrides"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_loss_and_gradient(name: str, overrides: dict[str, Any], seed: int) -> None:
    method = load_method(name, overrides)
    batch, old, theta, state, token = tabular(seed)
    advantages = method.normalise(method.credit(batch).advantages, batch)
    if method.credit_choice["name"] != "none":
        assert advantages.abs().max() > 0.1
    theta.requires_grad_(True)
    loss, _ = policy_loss(
        method, table_logp(theta, state, token), batch, advantages, old, denominators(batch)
    )
    (gradient,) = torch.autograd.grad(loss, theta)
    theta = theta.detach()
    fixed = table_logp(theta, state, token)
    assert float(loss.detach()) == pytest.approx(
        plain_loss(method, fixed, fixed, batch, advantages, old), abs=1e-10
    )
    numeric = torch.zeros_like(theta)
    step = 1e-5
    for i in range(STATES):
        for j in range(TOKENS):
            sides = []
            for sign in (1, -1):
                moved = theta.clone()
                moved[i, j] += sign * step
                logp = table_logp(moved, state, token)
                sides.append(plain_loss(method, logp, fixed, batch, advantages, old))
            numeric[i, j] = (sides[0] - sides[1]) / (2 * step)
    torch.testing.assert_close(gradient, numeric, atol=1e-7, rtol=1e-5)


def test_exact_kl_gradient_is_that_of_the_reverse_kl() -> None:
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(5, generator=draw, dtype=torch.float64).requires_grad_(True)
    ref = torch.log_softmax(torch.randn(5, generator=draw, dtype=torch.float64), 0)
    logp = torch.log_softmax(theta, 0)
    probability = logp.exp().detach()
    exact = (logp.exp() * (logp - ref)).sum()
    (want,) = torch.autograd.grad(exact, theta, retain_graph=True)
    forward = (ref.exp() * (ref - logp)).sum()
    (of_forward,) = torch.autograd.grad(forward, theta, retain_graph=True)
    for estimator in ("k1", "k2", "k3"):
        value = (probability * kl_per_token(logp, ref, estimator=estimator, gradient="exact")).sum()
        (got,) = torch.autograd.grad(value, theta, retain_graph=True)
        torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
        if estimator != "k2":
            assert float(value.detach()) == pytest.approx(float(exact.detach()), abs=1e-12)
    naive = {}
    for estimator in ("k1", "k3"):
        value = (probability * kl_per_token(logp, ref, estimator=estimator, gradient="estimator")).sum()
        (naive[estimator],) = torch.autograd.grad(value, theta, retain_graph=True)
    assert naive["k1"].abs().max() < 1e-12
    torch.testing.assert_close(naive["k3"], of_forward, atol=1e-12, rtol=0)


def test_refinement_survives_only_the_tokenwise_gradient() -> None:
    """At ratio 1 the unclipped sum with a shared ratio has the same gradient with and without the refinement."""
    batch = random_batch(2)
    zero = torch.zeros_like(batch.logp_rollout)
    gradients = {}
    for gradient in ("own", "shared", "shared_mean"):
        for beta in (0.0, 1.0):
            advantages = load_method("mpo", {"credit.beta": beta}).credit(batch).advantages
            logp = zero.clone().requires_grad_(True)
            ratio = turn_ratio(logp, zero, batch, gradient=gradient).exp()
            (gradients[gradient, beta],) = torch.autograd.grad((ratio * advantages).sum(), logp)
    torch.testing.assert_close(gradients["shared", 0.0], gradients["shared", 1.0], atol=1e-12, rtol=0)
    assert (gradients["own", 0.0] - gradients["own", 1.0]).abs().max() > 0.1
    lay = layout(batch)
    length = lay.put(lay.tokens_per_turn[lay.segment].double())
    torch.testing.assert_close(gradients["shared", 0.0], length * gradients["own", 0.0], atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients["shared_mean", 0.0], gradients["own", 0.0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("gradient", ["own", "shared", "shared_mean"])
def test_turn_ratio_has_the_turn_value_at_every_token(gradient: str) -> None:
    batch = random_batch(3)
    noise = torch.randn(batch.turn.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = turn_ratio(noise, torch.zeros_like(noise), batch, gradient=gradient)
    for row in range(batch.size):
        for index in range(int(batch.turn[row].max()) + 1):
            here = batch.turn[row] == index
            product = noise[row, here].exp().prod()
            torch.testing.assert_close(got[row, here].exp(), product.expand(int(here.sum())))


@pytest.mark.parametrize(("length", "want"), [(10, 1.01), (100, 1.11), (1000, 2.72)])
def test_product_ratio_grows_with_turn_length(length: int, want: float) -> None:
    batch = random_batch(0, rows=1, group_size=1, turns=(1, 1), turn_length=(length, length))
    drift = torch.where(batch.action_mask, 1e-3, 0.0).double()
    got = turn_ratio(drift, torch.zeros_like(drift), batch, gradient="own").exp()[batch.action_mask]
    assert float(got[0]) == pytest.approx(want, abs=0.005)


@pytest.mark.parametrize(
    ("name", "overrides", "places"),
    [
        ("mpo", {}, "tokens"),
        ("turn-ppo", {}, "turn_first"),
        ("ppo", {"critic.trained_at": "turn_last"}, "turn_last"),
        ("vetta", {}, "both"),
    ],
)
def test_value_loss_and_gradient(name: str, overrides: dict[str, Any], places: str) -> None:
    method = load_method(name, overrides)
    batch = random_batch(4, rows=5, group_size=5)
    credit = method.credit(batch)
    values = batch.values.clone().requires_grad_(True)
    second = batch.values_turn.clone().requires_grad_(True)
    loss, metrics = value_loss(method, values, batch, credit, denominators(batch), second)
    lay = layout(batch)
    kept = {"tokens": slice(None), "both": slice(None), "turn_first": lay.first, "turn_last": lay.last}[
        places
    ]
    error = lay.take(batch.values - credit.returns)[kept]
    want = float((error**2).mean() / 2)
    if places == "both":
        want += float((lay.take(batch.values_turn - credit.returns_turn)[lay.first] ** 2).mean() / 2)
        assert sum(metrics.values()) == pytest.approx(want)
    assert float(loss.detach()) == pytest.approx(want, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, values)
    compact = torch.zeros(len(lay.flat), dtype=torch.float64)
    compact[kept] = error / len(error)
    torch.testing.assert_close(gradient, lay.put(compact), atol=1e-12, rtol=0)
