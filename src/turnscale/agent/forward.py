"""Trainer-side log-probabilities and values: a right-padded forward, read at action positions only.

The hidden state at position p - 1 gives both the distribution of token p and the critic's value of the prefix
before it, so only action tokens reach the output matrix. Attention is causal and padding is on the right, so no
attention mask is needed. Rows of similar lengths go through the model together, so that little padding does.
Batches stay on the CPU: their token ids go to where the model is, and its numbers come back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from turnscale.agent import transformer
from turnscale.agent.adapter import CRITIC, ValueHead, activate, base_model, base_only, effective_weights
from turnscale.batch import TurnBatch
from turnscale.errors import CheckpointError

# Tokens, padding included, that go through the model at once. On a CPU so few that their activations stay in its
# cache. None is the plain path: all rows at once, padded to the longest.
GROUP_TOKENS: dict[str, int] | None = {"cpu": 1024}
ELSEWHERE = 16_384

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
    hidden, where, network = _action_hidden(model, batch, adapter)
    if network is None:
        scores = base_model(model).get_output_embeddings()(hidden).float()
    else:
        scores = transformer.logits(network, hidden)
    logp_all = torch.log_softmax(scores / (temperature or 1.0), dim=-1)
    tokens = batch.ids.flatten()[where].to(logp_all.device)
    logp = logp_all.gather(-1, tokens[:, None]).squeeze(-1)
    detached = logp_all.detach()
    entropy = -(detached.exp() * detached).sum(-1)
    return _scatter(batch, where, logp), _scatter(batch, where, entropy)


def critic_values(model: PeftModel, head: ValueHead, batch: TurnBatch) -> Tensor:
    """The critic's value before each action token: [B, T] float32, 0 elsewhere.

    A head with several outputs gives [outputs, B, T]. Differentiable in the critic's adapter and the head.
    """
    hidden, where, network = _action_hidden(model, batch, CRITIC)
    if network is not None:
        hidden = hidden * network.final_gain
    values = [_scatter(batch, where, column) for column in head(hidden).unbind(-1)]
    return values[0] if head.outputs == 1 else torch.stack(values)


def _action_hidden(
    model: PreTrainedModel | PeftModel, batch: TurnBatch, adapter: str | None
) -> tuple[Tensor, Tensor, transformer.Network | None]:
    """Hidden states [N, H] before the N action tokens, their places in the flat batch, and the network if fused."""
    if transformer.worthwhile(model.config):
        weights = effective_weights(model, adapter)
        network = transformer.build(transformer.shape_of(model.config), weights, batch.ids.shape[1])
        return *_read(partial(_run_fused, network), batch, model.device), network
    changed = [key for key in LOGIT_CHANGES if getattr(model.config, key, None) not in (None, 1, 1.0)]
    if changed:
        raise CheckpointError(
            f"the model rescales its logits ({changed[0]}), which gathered log-probabilities do not reproduce",
            remedy="use a model whose logits are the output matrix times the hidden state",
        )
    run = partial(_run, base_model(model).base_model)
    if isinstance(model, PeftModel) and adapter is None:
        with base_only(model):
            return *_read(run, batch, model.device), None
    if isinstance(model, PeftModel) and adapter is not None:
        activate(model, adapter)
    return *_read(run, batch, model.device), None


def _run(backbone: torch.nn.Module, ids: Tensor, read: Tensor) -> Tensor:
    """The plain path: all hidden states, of which those at ``read`` ([B, n] bool) are kept, [N, H]."""
    hidden: Tensor = backbone(ids, use_cache=False).last_hidden_state
    return hidden[read]


def _run_fused(network: transformer.Network, ids: Tensor, read: Tensor) -> Tensor:
    """As :func:`_run`; the last layer computes little more than what is read."""
    return transformer.hidden_states(network, ids, at=read.flatten().nonzero().squeeze(1))


def _read(
    run: Callable[[Tensor, Tensor], Tensor], batch: TurnBatch, device: torch.device
) -> tuple[Tensor, Tensor]:
    """[N, H] hidden states before the action tokens, group after group, and [N] the tokens' places in the batch."""
    width = batch.ids.shape[1]
    places = torch.arange(batch.ids.numel(), device=batch.ids.device).view(batch.ids.shape)
    hidden, where = [], []
    for rows in alike(batch.length, _most(batch, device)):
        longest = min(max(int(batch.length[rows].max()), 2), width)
        actions = batch.action_mask[rows, 1:longest]
        ids = batch.ids[rows, : longest - 1].to(device)
        hidden.append(run(ids, actions.to(device)))
        where.append(places[rows, 1:longest][actions])
    found = torch.cat(where)
    if len(found) != int(batch.action_mask[:, 1:].sum()):
        raise ValueError("action tokens beyond the length of their rows")
    return torch.cat(hidden), found


def _most(batch: TurnBatch, device: torch.device) -> int:
    if GROUP_TOKENS is None:
        return batch.size * batch.ids.shape[1]
    return GROUP_TOKENS.get(device.type, ELSEWHERE)


def alike(length: Tensor, most: int) -> list[Tensor]:
    """Indices of rows in groups of similar ``length`` ([B]), longest first, none above ``most`` padded tokens.

    A row longer than that is a group of its own.
    """
    groups: list[list[int]] = []
    width = 0
    order = length.argsort(descending=True, stable=True)
    for row, tokens in zip(order.tolist(), length[order].tolist(), strict=True):
        if not groups or (len(groups[-1]) + 1) * width > most:
            groups.append([])
            width = tokens
        groups[-1].append(row)
    return [torch.tensor(group, device=length.device) for group in groups]


def _scatter(batch: TurnBatch, where: Tensor, values: Tensor) -> Tensor:
    """[N] values of the action tokens at the places ``where`` -> [B, T] with 0 elsewhere."""
    full = torch.zeros(batch.ids.numel(), dtype=torch.float32, device=where.device)
    return full.index_copy(0, where, values.float().to(where.device)).view(batch.ids.shape)
