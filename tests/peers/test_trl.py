"""Our GRPO, GSPO and RLOO against TRL's trainers, at 1e-6 in float64.

TRL has no functions for its losses: the trainers' own methods run here on a trainer without a model, whose
rollouts, rewards and log-probabilities are given. Where the two differ by convention, the test names the
convention and holds the difference to what it implies.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
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
    without_actions,
)
from turnscale.batch import TurnBatch
from turnscale.conventions import side
from turnscale.credit.group import group, leave_one_out
from turnscale.objective.terms import kl_per_token

trl = pytest.importorskip("trl", reason="TRL or a package it imports is absent: see benchmarks/README.md")
torch.set_num_threads(1)


def stand_in(kind: str, batch: TurnBatch, folder: Path, logp: Tensor | None = None, **settings: Any) -> Any:
    """TRL's trainer of a kind with everything but its mathematics given.

    Args:
        kind: ``GRPO`` or ``RLOO``.
        batch: gives rollouts, rewards and masks.
        folder: for the configuration.
        logp: [B, T] what the model says of the batch's tokens.
        settings: of TRL's configuration.
    """
    from accelerate import Accelerator

    size = settings.setdefault("num_generations", 4)
    options = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none"} | settings
    rows = batch.size
    args = getattr(trl, f"{kind}Config")(per_device_train_batch_size=rows, **options)

    class Given(getattr(trl, f"{kind}Trainer")):  # type: ignore[misc]
        """The trainer with what surrounds its mathematics replaced."""

        def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
            ids = [[7] * int(n) for n in batch.length]
            if kind == "RLOO":
                return [[1]] * rows, ids, ["-"] * rows
            return [[1]] * rows, ids, None, ["-"] * rows, None, {}, None, []

        def _calculate_rewards(self, *_: Any) -> Tensor:
            return batch.reward[:, None]

        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Any, ...]:
            entropy = torch.zeros(batch.ids.shape, dtype=torch.float64)
            return logp, entropy, None

    trainer = Given.__new__(Given)
    trainer.__dict__ |= vars(args) | {
        "args": args,
        "accelerator": Accelerator(cpu=True),
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "ref_model": None,
        "processing_class": None,
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "eos_token_ids": [2],
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "aux_loss_enabled": False,
        "use_vllm": False,
        "off_policy_mask_threshold": None,
        "_entropy_bonus_enabled": False,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "reward_clip_range": None,
        "num_generations": size,
        "reward_weights": torch.ones(1, dtype=torch.float64),
        "reward_funcs": [None],
        "reward_func_names": ["reward"],
        "current_gradient_accumulation_steps": 1,
        "state": SimpleNamespace(num_input_tokens_seen=0),
        "_metrics": {"train": defaultdict(list)},
        "_logs": {"prompt": [], "completion": [], "rewards": {"reward": []}, "advantages": [], "images": []},
        "_pending_extra_logs": defaultdict(list),
        "_pending_metrics": defaultdict(list),
    }
    return trainer


def their_advantages(kind: str, batch: TurnBatch, folder: Path, **settings: Any) -> Tensor:
    """[B] the advantage of each trajectory by TRL."""
    trainer = stand_in(kind, batch, folder, torch.zeros(batch.ids.shape, dtype=torch.float64), **settings)
    return trainer._generate_and_score_completions([{"prompt": "-"} for _ in range(batch.size)])["advantages"]


def their_loss(
    batch: TurnBatch, logp: Tensor, rows: Tensor, folder: Path, **settings: Any
) -> tuple[Tensor, Tensor]:
    """(loss, its gradient [B, T]) by TRL, observations masked as it masks the results of tools."""
    inputs = {
        "prompt_ids": torch.zeros(batch.size, 0, dtype=torch.long),
        "prompt_mask": torch.zeros(batch.size, 0, dtype=torch.long),
        "completion_ids": batch.ids,
        "completion_mask": (torch.arange(batch.ids.shape[1]) < batch.length[:, None]).long(),
        "tool_mask": batch.action_mask.long(),
        "advantages": rows,
        "old_per_token_logps": batch.logp_rollout,
        "ref_per_token_logps": batch.logp_ref,
        "num_items_in_batch": batch.action_mask.sum(),
    }
    trainer = stand_in("GRPO", batch, folder, logp, **settings)
    loss = trainer._compute_loss(trainer.model, inputs)
    return loss.detach(), gradient(loss, logp)


def per_row(advantages: Tensor, batch: TurnBatch) -> Tensor:
    """[B] the advantage all action tokens of a row have."""
    return torch.stack([advantages[row][batch.action_mask[row]][0] for row in range(batch.size)])


def on_tokens(rows: Tensor, batch: TurnBatch) -> Tensor:
    """[B, T] each trajectory's advantage on its action tokens."""
    return torch.where(batch.action_mask, rows[:, None], 0.0)


# Advantages


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_advantages(seed: int, tmp_path: Path) -> None:
    """The preset's conventions are TRL's: ddof 1, eps 1e-4."""
    batch = ragged(seed)
    theirs = their_advantages("GRPO", batch, tmp_path, beta=0.0)
    ours = per_row(side("TRL").method.credit(batch).advantages, batch)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    verl_like = per_row(side("verl").method.credit(batch).advantages, batch)
    assert float((verl_like - theirs).abs().max()) > 1e-5, "eps 1e-6 would go unnoticed"


def test_unscaled_grpo_advantages(tmp_path: Path) -> None:
    batch = ragged(0)
    theirs = their_advantages("GRPO", batch, tmp_path, beta=0.0, scale_rewards="none")
    ours = group(batch, scale="none", ddof=1, eps=0.0, min_std=0.0, singleton="zero").advantages
    ours = per_row(ours, batch)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_advantages(seed: int, tmp_path: Path) -> None:
    batch = ragged(seed)
    theirs = their_advantages("RLOO", batch, tmp_path, beta=0.0)
    ours = per_row(leave_one_out(batch, singleton="zero").advantages, batch)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


# Losses

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"name": "sequence_mean"},
    "bnpo": {"name": "token_mean"},
    "dapo": {"name": "token_mean"},
    "dr_grpo": {"name": "fixed", "divisor": 98.0},
}
CLIP = {"name": "decoupled", "low": 0.2, "high": 0.28}


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_loss_and_its_gradient(seed: int, loss_type: str, tmp_path: Path) -> None:
    """``dr_grpo`` divides by ``max_completion_length`` and the number of rows: ``fixed`` with that divisor."""
    batch = ragged(seed)
    logp, rows = moved(batch, seed=seed), rows_at_random(batch, seed)
    theirs, their_slope = their_loss(
        batch, logp, rows, tmp_path, beta=0.0, loss_type=loss_type, max_completion_length=98
    )
    overrides = {"clip": CLIP, "aggregation": LOSSES[loss_type]}
    ours, slope, metrics = our_loss("grpo", overrides, batch, logp, on_tokens(rows, batch))
    assert metrics["clip_fraction"] > 0
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    torch.testing.assert_close(slope, their_slope, **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_loss_with_kl_to_the_reference(seed: int, tmp_path: Path) -> None:
    """TRL differentiates k3 itself: ``gradient: estimator`` here. Its ratio weights of the KL are set off."""
    batch = ragged(seed)
    logp, rows = moved(batch, seed=seed), rows_at_random(batch, seed)
    theirs, their_slope = their_loss(
        batch, logp, rows, tmp_path, beta=0.04, loss_type="grpo", use_bias_correction_kl=False
    )
    kl = {"kl": {"coef": 0.04, "estimator": "k3", "gradient": "estimator"}}
    ours, slope, metrics = our_loss("grpo", {"clip": CLIP, "terms": kl}, batch, logp, on_tokens(rows, batch))
    assert metrics["term_kl"] > 1e-4
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    torch.testing.assert_close(slope, their_slope, **TOLERANCE)


def test_trl_may_weight_the_kl_by_the_ratio_and_we_do_not(tmp_path: Path) -> None:
    """``use_bias_correction_kl``: k3 times the token's ratio to the old policy. The excess is (r - 1) k3."""
    batch = ragged(0)
    logp, rows = moved(batch), rows_at_random(batch)
    settings = {"beta": 0.04, "loss_type": "bnpo"}
    plain, _ = their_loss(batch, logp, rows, tmp_path, use_bias_correction_kl=False, **settings)
    weighted, _ = their_loss(batch, logp, rows, tmp_path, use_bias_correction_kl=True, **settings)
    assert batch.logp_ref is not None
    k3 = kl_per_token(logp.detach(), batch.logp_ref, estimator="k3", gradient="estimator")
    excess = ((logp.detach() - batch.logp_rollout).exp() - 1.0) * k3
    expected = 0.04 * excess[batch.action_mask].mean()
    assert float(expected.abs()) > 1e-5
    torch.testing.assert_close(weighted - plain, expected, **TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_loss_and_its_gradient(seed: int, tmp_path: Path) -> None:
    """TRL's gradient runs through the mean log-ratio, ours through each token's own: the same at A per row."""
    batch = ragged(seed)
    logp, rows = moved(batch, seed=seed), rows_at_random(batch, seed)
    theirs, their_slope = their_loss(
        batch, logp, rows, tmp_path, beta=0.0, loss_type="grpo", importance_sampling_level="sequence"
    )
    ours, slope, _ = our_loss("gspo", {"clip": CLIP}, batch, logp, on_tokens(rows, batch))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    torch.testing.assert_close(slope, their_slope, **TOLERANCE)


def test_trl_counts_rows_without_action_tokens_and_we_do_not(tmp_path: Path) -> None:
    """TRL's mean over trajectories divides by all 12 rows, ours (and verl's) by the 11 that acted."""
    batch = without_actions(ragged(0), 2)
    logp, rows = moved(batch), rows_at_random(batch)
    theirs, _ = their_loss(batch, logp, rows, tmp_path, beta=0.0, loss_type="grpo")
    ours, _, _ = our_loss("grpo", {"clip": CLIP}, batch, logp, on_tokens(rows, batch))
    torch.testing.assert_close(ours, theirs * 12 / 11, **TOLERANCE)
    assert float((ours - theirs).abs()) > 1e-4
