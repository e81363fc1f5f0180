"""Rows of similar lengths go through the model together: the same numbers with less padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.agent.conftest import LIMITS, Chatter, tasks
from turnscale.agent import forward, transformer
from turnscale.agent.adapter import (
    Agent,
    base_model,
    critic_parameters,
    effective_weights,
    policy_parameters,
)
from turnscale.agent.decode import make_decoder
from turnscale.agent.forward import action_logprobs, alike, critic_values
from turnscale.agent.rollout import rollout
from turnscale.batch import TurnBatch

Make = Callable[[str], Agent]


def sampled(made: Agent, size: int = 10) -> TurnBatch:
    generator = torch.Generator().manual_seed(0)
    decoder = make_decoder(made.model)
    return rollout(decoder, made.chat, Chatter, tasks(size), range(size), LIMITS, generator).batch


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30), most=st.integers(1, 200))
def test_groups_take_every_row_once_within_the_budget(lengths: list[int], most: int) -> None:
    length = torch.tensor(lengths)
    groups = alike(length, most)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    assert torch.cat([length[group] for group in groups]).diff().le(0).all()
    for group in groups:
        assert len(group) == 1 or len(group) * int(length[group].max()) <= most


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("width", [0, 512], ids=["modules", "fused"])
def test_values_and_gradients_equal_those_of_the_padded_batch(
    agent: Make, monkeypatch: pytest.MonkeyPatch, kind: str, width: int
) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
    made = agent(kind)
    batch = sampled(made)
    assert made.head is not None
    weights = torch.randn(batch.ids.shape, generator=torch.Generator().manual_seed(1))
    parameters = [*policy_parameters(made), *critic_parameters(made)]
    fed = 0
    name = "_run" if width == 0 else "_run_fused"
    run = getattr(forward, name)

    def counting(first: object, ids: Tensor, read: Tensor) -> Tensor:
        nonlocal fed
        fed += ids.numel()
        return run(first, ids, read)  # type: ignore[no-any-return]

    monkeypatch.setattr(forward, name, counting)
    found = []
    for groups in (None, {"cpu": 120}):
        monkeypatch.setattr(forward, "GROUP_TOKENS", groups)
        fed = 0
        logp, entropy = action_logprobs(made.model, batch)
        values = critic_values(made.model, made.head, batch)
        for parameter in parameters:
            parameter.grad = None
        ((logp + values) * weights).sum().backward()
        found.append((logp, entropy, values, [p.grad for p in parameters], fed))
    (logp, entropy, values, grads, padded), (*parted, parted_grads, trimmed) = found
    for one, other in zip((logp, entropy, values), parted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    for one_grad, other_grad in zip(grads, parted_grads, strict=True):
        assert one_grad is not None and other_grad is not None and one_grad.any()
        assert (one_grad - other_grad).abs().max() <= 2e-5 * one_grad.abs().max() + 1e-7
    assert trimmed < 0.9 * padded
    assert padded == 2 * batch.size * (batch.ids.shape[1] - 1)


@pytest.mark.parametrize("width", [0, 512], ids=["modules", "fused"])
def test_only_positions_before_action_tokens_reach_the_output_matrix(
    agent: Make, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
    made = agent("dense")
    batch = sampled(made)
    seen: list[int] = []
    head = base_model(made.model).get_output_embeddings()
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:-1].numel()))
    plain = transformer.logits
    monkeypatch.setattr(
        transformer, "logits", lambda net, hidden: (seen.append(len(hidden)), plain(net, hidden))[1]
    )
    action_logprobs(made.model, batch)
    assert seen == [int(batch.action_mask.sum())]


def test_no_position_by_vocabulary_tensor_is_kept_for_the_backward_pass(agent: Make) -> None:
    made = agent("dense")
    batch = sampled(made)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        action_logprobs(made.model, batch)
    vocabulary, actions = int(made.model.config.vocab_size), int(batch.action_mask.sum())
    wide = {t.data_ptr(): tuple(t.shape) for t in kept if vocabulary in t.shape and max(t.shape) >= actions}
    assert list(wide.values()) == [(actions, vocabulary)], "the log-probabilities, once"


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_places_asked_for_are_those_of_the_whole_pass(agent: Make, kind: str) -> None:
    made = agent(kind)
    ids = sampled(made).ids
    weights = effective_weights(made.model, "policy")
    network = transformer.build(transformer.shape_of(made.model.config), weights, ids.shape[1])
    at = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(0))[:17]
    found, whole = transformer.hidden_states(network, ids, at=at), transformer.hidden_states(network, ids)
    assert torch.allclose(found, whole.flatten(0, 1)[at], atol=1e-6)
    probe = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    parameters = policy_parameters(made)
    grads = torch.autograd.grad((found * probe).sum(), parameters, retain_graph=True)
    expected = torch.autograd.grad((whole.flatten(0, 1)[at] * probe).sum(), parameters)
    for one, other in zip(grads, expected, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max() + 1e-7
