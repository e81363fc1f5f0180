"""Our credit and losses against verl's own functions (``verl.trainer.ppo.core_algos``), at 1e-6 in float64.

Where the two differ by convention, the test names the convention and holds the difference to what it implies.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.peers.ragged import (
    SEEDS,
    TOLERANCE,
    gradient,
    moved,
    our_loss,
    ragged,
    rows_at_random,
    tokens_at_random,
    without_actions,
)
from turnscale.batch import TurnBatch
from turnscale.conventions import side
from turnscale.credit.group import group, leave_one_out
from turnscale.credit.segments import layout
from turnscale.credit.token_gae import token_gae
from turnscale.credit.turn_gae import turn_gae
from turnscale.gates.batches import one_token_turns, random_batch
from turnscale.objective.aggregate import denominators, fixed, sequence_mean, token_mean
from turnscale.objective.normalise import whiten
from turnscale.objective.terms import kl_per_token
from turnscale.objective.value import squared_error

verl = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl or a package it imports is absent: see benchmarks/README.md"
)
torch.set_num_threads(1)


def paid_last(batch: TurnBatch) -> Tensor:
    """[B, T] verl's token rewards: the terminal reward on the last action token."""
    out = torch.zeros(batch.ids.shape, dtype=torch.float64)
    last = batch.action_mask.long().cumsum(1).argmax(1)
    out[torch.arange(batch.size), last] = batch.reward.double()
    return out


def verl_gae(batch: TurnBatch, lam: float) -> tuple[Tensor, Tensor]:
    """(whitened advantages, returns) [B, T] by verl."""
    return verl.compute_gae_advantage_return(
        paid_last(batch), batch.values, batch.action_mask.double(), gamma=1.0, lam=lam
    )


def actor(**changes: Any) -> Any:
    """verl's actor configuration, with its dual clip out of reach unless changed."""
    from verl.workers.config import ActorConfig

    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1e9} | changes
    return ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, **settings)


CLIP = {"clip": {"name": "decoupled", "low": 0.2, "high": 0.28}}


# Credit


@pytest.mark.parametrize("lam", [0.0, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_gae(seed: int, lam: float) -> None:
    """Both skip observations. verl always whitens, by the sample variance with 1e-8 inside the root."""
    batch = ragged(seed)
    credit = token_gae(batch, lam=lam, lam_critic=lam)
    advantages, returns = verl_gae(batch, lam)
    mask = batch.action_mask
    assert credit.returns is not None and batch.values is not None
    torch.testing.assert_close(credit.returns[mask], returns[mask], **TOLERANCE)
    torch.testing.assert_close(credit.advantages[mask], (returns - batch.values)[mask], **TOLERANCE)
    ours = whiten(credit.advantages, mask, ddof=1, eps=1e-8)
    torch.testing.assert_close(ours[mask], advantages[mask], **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_turn_gae_of_one_token_turns(seed: int) -> None:
    """verl has no turn GAE; with one token a turn it is verl's token GAE."""
    batch = one_token_turns(seed)
    mask, values = batch.action_mask, batch.values
    assert values is not None
    _, returns = verl_gae(batch, 0.8)
    ours = turn_gae(batch, lam=0.8, read="first", lam_critic=1.0).advantages
    torch.testing.assert_close(ours[mask], (returns - values)[mask], **TOLERANCE)


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_grpo(seed: int, lone: bool) -> None:
    """The preset's conventions are verl's: ddof 1, eps 1e-6, a lone member keeps its raw reward (/(1 + eps))."""
    batch = ragged(seed, lone=lone)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        paid_last(batch), batch.action_mask.double(), batch.group.numpy()
    )
    ours = side("verl").method.credit(batch).advantages
    torch.testing.assert_close(ours, theirs, atol=1e-6 if not lone else 1.1e-6, rtol=0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_unscaled_grpo(seed: int) -> None:
    batch = ragged(seed, lone=True)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        paid_last(batch), batch.action_mask.double(), batch.group.numpy(), norm_adv_by_std_in_grpo=False
    )
    ours = group(batch, scale="none", ddof=1, eps=0.0, min_std=0.0, singleton="raw").advantages
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_other_degrees_of_freedom_would_be_seen(ddof: int) -> None:
    """The tolerance tells the conventions apart: population deviation is off by sqrt(4 / 3)."""
    batch = ragged(0)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        paid_last(batch), batch.action_mask.double(), batch.group.numpy()
    )
    ours = group(batch, scale="std", ddof=ddof, eps=1e-6, min_std=0.0, singleton="raw").advantages
    assert (float((ours - theirs).abs().max()) < 1e-6) == (ddof == 1)
    if ddof == 0:
        torch.testing.assert_close(ours, theirs * (4 / 3) ** 0.5, atol=1e-4, rtol=0.0)


def test_a_constant_group_is_zero_here_and_rounding_noise_in_verl() -> None:
    """Eight float32 rewards of 0.7 do not average to 0.7; verl divides the residue by eps, we give exactly 0."""
    batch = random_batch(0, rows=8, group_size=8, dtype=torch.float32)
    batch = batch.with_(reward=torch.full((8,), 0.7, dtype=torch.float32))
    theirs, _ = verl.compute_grpo_outcome_advantage(
        paid_last(batch).float(), batch.action_mask.float(), batch.group.numpy()
    )
    assert not side("verl").method.credit(batch).advantages.any()
    assert 0.0 < float(theirs.abs().max()) < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo(seed: int) -> None:
    """A lone member: raw in verl's loop, 0 in its vectorised form, declared here."""
    batch = ragged(seed, lone=True)
    arguments = (paid_last(batch), batch.action_mask.double(), batch.group.numpy())
    looped, _ = verl.compute_rloo_outcome_advantage(*arguments)
    vectorised, _ = verl.compute_rloo_vectorized_outcome_advantage(*arguments)
    torch.testing.assert_close(leave_one_out(batch, singleton="raw").advantages, looped, **TOLERANCE)
    torch.testing.assert_close(leave_one_out(batch, singleton="zero").advantages, vectorised, **TOLERANCE)


# Losses


@pytest.mark.parametrize("empty_row", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregation(seed: int, empty_row: bool) -> None:
    """Rows without action tokens count nowhere, in both. verl's token sums are ``fixed`` with its divisor."""
    batch = without_actions(ragged(seed), 2) if empty_row else ragged(seed)
    lay, count = layout(batch), denominators(batch)
    per_token = tokens_at_random(batch, seed)
    width = batch.ids.shape[1]
    pairs = {
        ("token-mean", None): token_mean(lay, count),
        ("seq-mean-token-mean", None): sequence_mean(lay, count),
        ("seq-mean-token-sum", None): fixed(lay, count, divisor=1.0),
        ("seq-mean-token-sum-norm", 98): fixed(lay, count, divisor=98.0),
        ("seq-mean-token-sum-norm", None): fixed(lay, count, divisor=float(width)),
    }
    for (mode, factor), weights in pairs.items():
        theirs = verl.agg_loss(per_token, batch.action_mask.double(), mode, loss_scale_factor=factor)
        torch.testing.assert_close((weights * lay.take(per_token)).sum(), theirs, **TOLERANCE)


@pytest.mark.parametrize(
    ("mode", "aggregation"),
    [
        ("token-mean", {"name": "token_mean"}),
        ("seq-mean-token-mean", {"name": "sequence_mean"}),
        ("seq-mean-token-sum-norm", {"name": "fixed", "divisor": 98.0}),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_clipped_loss_and_its_gradient(seed: int, mode: str, aggregation: dict[str, Any]) -> None:
    batch = ragged(seed)
    logp, advantages = moved(batch, seed=seed), tokens_at_random(batch, seed)
    ours, slope, metrics = our_loss("grpo", {**CLIP, "aggregation": aggregation}, batch, logp, advantages)
    config = actor(global_batch_info={"loss_scale_factor": 98})
    theirs, reported = verl.compute_policy_loss_vanilla(
        batch.logp_rollout, logp, advantages, batch.action_mask.double(), mode, config
    )
    torch.testing.assert_close(ours, theirs.detach(), **TOLERANCE)
    torch.testing.assert_close(slope, gradient(theirs, logp), **TOLERANCE)
    assert metrics["clip_fraction"] > 0
    assert metrics["clip_fraction"] == pytest.approx(reported["actor/pg_clipfrac"], abs=1e-6)


def test_verl_bounds_the_loss_of_bad_tokens_and_we_do_not() -> None:
    """verl's dual clip: at A < 0 a ratio above 3 counts as 3. Ours, PPO's, keeps r A: the excess is that."""
    batch = ragged(0)
    logp, advantages = moved(batch, scale=1.5), tokens_at_random(batch)
    overrides = {**CLIP, "aggregation": {"name": "token_mean"}}
    ours, _, _ = our_loss("grpo", overrides, batch, logp, advantages)
    theirs, _ = verl.compute_policy_loss_vanilla(
        batch.logp_rollout,
        logp,
        advantages,
        batch.action_mask.double(),
        "token-mean",
        actor(clip_ratio_c=3.0),
    )
    ratio = (logp.detach() - batch.logp_rollout).exp()
    excess = torch.where(advantages < 0, (ratio - 3.0).clamp(min=0.0) * -advantages, 0.0)
    assert float(excess.sum()) > 0
    torch.testing.assert_close(ours - theirs.detach(), excess.sum() / batch.action_mask.sum(), **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_loss_and_its_gradient(seed: int) -> None:
    batch = ragged(seed)
    logp, rows = moved(batch, seed=seed), rows_at_random(batch, seed)
    advantages = torch.where(batch.action_mask, rows[:, None], 0.0)
    ours, slope, _ = our_loss("gspo", CLIP, batch, logp, advantages)
    config = actor()
    theirs, _ = verl.compute_policy_loss_gspo(
        batch.logp_rollout, logp, advantages, batch.action_mask.double(), "seq-mean-token-mean", config
    )
    torch.testing.assert_close(ours, theirs.detach(), **TOLERANCE)
    torch.testing.assert_close(slope, gradient(theirs, logp), **TOLERANCE)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("exact", [False, True])
def test_kl_estimates_and_their_gradients(estimator: str, exact: bool) -> None:
    """verl's ``k3+`` is ``gradient: exact`` here. Away from verl's clamps of k3 at 10."""
    batch = ragged(0)
    logp, reference = moved(batch), batch.logp_ref
    assert reference is not None
    ours = kl_per_token(logp, reference, estimator=estimator, gradient="exact" if exact else "estimator")
    theirs = verl.kl_penalty(logp, reference, estimator + "+" * exact)
    torch.testing.assert_close(ours.detach(), theirs.detach(), **TOLERANCE)
    torch.testing.assert_close(gradient(ours.sum(), logp), gradient(theirs.sum(), logp), **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_value_loss(seed: int) -> None:
    """verl clips value predictions; ours does not: alike when its clip is out of reach."""
    batch = ragged(seed)
    targets, predictions = tokens_at_random(batch, seed), tokens_at_random(batch, seed + 50)
    assert batch.values is not None
    theirs, _ = verl.compute_value_loss(
        predictions, targets, batch.values, batch.action_mask.double(), cliprange_value=1e9
    )
    ours = squared_error(predictions, targets, layout(batch), "tokens", denominators(batch))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
