"""Scores of the student's own tokens under a prompt that tells more: the teacher of self-distillation methods.

The tokens of the turns and observations stay exactly as sampled; only the prompt before them is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from turnscale.agent.forward import action_logprobs
from turnscale.batch import TurnBatch
from turnscale.errors import TaskError


def exchange_prompts(batch: TurnBatch, prompts: Sequence[Sequence[int]]) -> TurnBatch:
    """The batch with row i's prompt (everything before its first action token) replaced by ``prompts[i]``.

    Per-token tensors move with their tokens; those of the new prompt are those of any context token.
    """
    if len(prompts) != batch.size:
        raise TaskError(f"got {len(prompts)} prompts for {batch.size} rows", remedy="give one prompt per row")
    old = batch.action_mask.int().argmax(1).tolist()
    length = [
        len(prompt) + int(total) - start
        for prompt, total, start in zip(prompts, batch.length.tolist(), old, strict=True)
    ]
    width = max(length)
    empty = {"action_mask": False, "turn": -1, "anchor": -1}
    changes: dict[str, Tensor | None] = {"length": torch.tensor(length, device=batch.length.device)}
    for name in ("ids", "action_mask", "turn", "logp_rollout", "values", "values_turn", "anchor", "logp_ref"):
        source = getattr(batch, name)
        if source is None:
            continue
        moved = source.new_full((batch.size, width), empty.get(name, 0))
        for row, (prompt, start) in enumerate(zip(prompts, old, strict=True)):
            if name == "ids":
                moved[row, : len(prompt)] = torch.tensor(list(prompt), device=source.device)
            moved[row, len(prompt) : length[row]] = source[row, start : int(batch.length[row])]
        changes[name] = moved
    return batch.with_(logp_teacher=None, **changes)


@torch.no_grad()
def teacher_logprobs(
    model: PreTrainedModel | PeftModel,
    batch: TurnBatch,
    prompts: Sequence[Sequence[int]],
    adapter: str | None = "policy",
    temperature: float = 1.0,
) -> Tensor:
    """Log-probabilities of the batch's action tokens given the other prompts: [B, T], aligned with the batch.

    Args:
        prompts: [B] prompt ids, for instance ``chat.prompt_ids(skill + " " + user_text)``.
        adapter: the policy itself, or None for the frozen base as the teacher.
    """
    shifted = exchange_prompts(batch, prompts)
    logp, _ = action_logprobs(model, shifted, adapter, temperature)
    aligned = torch.zeros(batch.ids.shape, dtype=torch.float32, device=logp.device)
    return aligned.masked_scatter(batch.action_mask, logp[shifted.action_mask])
