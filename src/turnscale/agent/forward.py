"""Trainer-side log-probabilities and values: one right-padded forward, read at action positions only.

The hidden state at position p - 1 gives both the distribution of token p and the critic's value of the prefix
before it, so only action tokens reach the output matrix. Attention is causal and padding is on the right, so no
attention mask is needed.
"""

from __future__ import annotations

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from turnscale.agent import transformer
from turnscale.agent.adapter import CRITIC, ValueHead, activate, base_model, base_only, effective_weights
from turnscale.batch import TurnBatch
from turnscale.errors import CheckpointError

# Configuration keys of models whose logits are not simply head(hidden).
LOGIT_CHANGES = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


def action_logprobs(
    model: PreTrainedModel | PeftModel,
    batch: TurnBatch,
    adapter: str | None = "policy",
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the action tokens, [B, T] float32 each, 0 elsewhere.

    Both are of softmax(logits / temperature), the distribution the sampler drew from (temperature 0, greedy, is
    scored at 1 as the sampler does). Differentiable in the adapter; the entropy is detached. ``adapter`` None
    scores with the frozen base.
    """
    hidden, network = _action_hidden(model, batch, adapter)
    if network is None:
        scores = base_model(model).get_output_embeddings()(hidden).float()
    else:
        scores = transformer.logits(network, hidden)
    logp_all = torch.log_softmax(scores / (temperature or 1.0), dim=-1)
    tokens = batch.ids[:, 1:][batch.action_mask[:, 1:]]
    logp = logp_all.gather(-1, tokens[:, None]).squeeze(-1)
    detached = logp_all.detach()
    entropy = -(detached.exp() * detached).sum(-1)
    return _scatter(batch, logp), _scatter(batch, entropy)


def critic_values(model: PeftModel, head: ValueHead, batch: TurnBatch) -> Tensor:
    """The critic's value before each action token: [B, T] float32, 0 elsewhere.

    A head with several outputs gives [outputs, B, T]. Differentiable in the critic's adapter and the head.
    """
    hidden, network = _action_hidden(model, batch, CRITIC)
    if network is not None:
        hidden = hidden * network.final_gain
    values = [_scatter(batch, column) for column in head(hidden).unbind(-1)]
    return values[0] if head.outputs == 1 else torch.stack(values)


def _action_hidden(
    model: PreTrainedModel | PeftModel, batch: TurnBatch, adapter: str | None
) -> tuple[Tensor, transformer.Network | None]:
    """[N, H] hidden states before the N action tokens in row-major order, and the network if it was fused."""
    before = batch.action_mask[:, 1:]
    ids = batch.ids[:, :-1]
    if transformer.worthwhile(model.config):
        weights = effective_weights(model, adapter)
        network = transformer.build(transformer.shape_of(model.config), weights, ids.shape[1])
        return transformer.hidden_states(network, ids)[before], network
    changed = [key for key in LOGIT_CHANGES if getattr(model.config, key, None) not in (None, 1, 1.0)]
    if changed:
        raise CheckpointError(
            f"the model rescales its logits ({changed[0]}), which gathered log-probabilities do not reproduce",
            remedy="use a model whose logits are the output matrix times the hidden state",
        )
    backbone = base_model(model).base_model
    if isinstance(model, PeftModel) and adapter is None:
        with base_only(model):
            return _run(backbone, ids)[before], None
    if isinstance(model, PeftModel) and adapter is not None:
        activate(model, adapter)
    return _run(backbone, ids)[before], None


def _run(backbone: torch.nn.Module, ids: Tensor) -> Tensor:
    hidden: Tensor = backbone(ids, use_cache=False).last_hidden_state
    return hidden


def _scatter(batch: TurnBatch, values: Tensor) -> Tensor:
    """[N] values of the action tokens in row-major order -> [B, T] with 0 elsewhere."""
    full = torch.zeros(batch.ids.shape, dtype=torch.float32, device=values.device)
    return full.masked_scatter(batch.action_mask, values.float())
