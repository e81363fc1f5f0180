from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.agent.conftest import LIMITS, Chatter, tasks
from turnscale.agent import transformer
from turnscale.agent.adapter import Agent, ValueHead, activate, critic_parameters, policy_parameters
from turnscale.agent.decode import make_decoder
from turnscale.agent.forward import action_logprobs, critic_values
from turnscale.agent.privileged import exchange_prompts, teacher_logprobs
from turnscale.agent.rollout import rollout
from turnscale.batch import TurnBatch
from turnscale.errors import CheckpointError, TaskError

Make = Callable[[str], Agent]


def sampled(made: Agent) -> TurnBatch:
    generator = torch.Generator().manual_seed(0)
    return rollout(make_decoder(made.model), made.chat, Chatter, tasks(8), range(8), LIMITS, generator).batch


def naive(made: Agent, batch: TurnBatch, adapter: str | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Every logit of every position by the module path, with an attention mask and position ids."""
    positions = torch.arange(batch.ids.shape[1])
    inputs = {"input_ids": batch.ids, "attention_mask": (positions < batch.length[:, None]).long()}
    if adapter is None:
        with made.model.disable_adapter():
            logits = made.model(**inputs).logits
    else:
        activate(made.model, adapter)
        logits = made.model(**inputs).logits
    logp = torch.log_softmax(logits / temperature, -1)
    chosen = logp[:, :-1].gather(-1, batch.ids[:, 1:, None]).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1)[:, :-1]
    pad = torch.zeros(batch.size, 1)
    mask = batch.action_mask
    return torch.cat([pad, chosen], 1) * mask, torch.cat([pad, entropy], 1) * mask


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("width", [0, 512], ids=["modules", "fused"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gathered_log_probabilities_equal_the_naive_ones(
    agent: Make, monkeypatch: pytest.MonkeyPatch, kind: str, width: int, temperature: float
) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
    made = agent(kind)
    batch = sampled(made)
    for adapter in ("policy", "critic", None):
        logp, entropy = action_logprobs(made.model, batch, adapter, temperature)
        full_logp, full_entropy = naive(made, batch, adapter, temperature)
        assert torch.allclose(logp, full_logp, atol=2e-5)
        assert torch.allclose(entropy, full_entropy, atol=2e-5)
        assert not entropy.requires_grad


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_gradients_of_both_paths_agree_and_reach_only_their_adapter(
    agent: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = agent(kind)
    batch = sampled(made)
    weights = torch.randn(batch.ids.shape, generator=torch.Generator().manual_seed(1))
    parameters = [*policy_parameters(made), *critic_parameters(made)]
    assert made.head is not None
    grads: dict[str, list[Tensor | None]] = {}
    for path, width in (("modules", 0), ("fused", 512)):
        monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
        for which in ("policy", "critic"):
            for parameter in parameters:
                parameter.grad = None
            if which == "policy":
                (action_logprobs(made.model, batch)[0] * weights).sum().backward()
            else:
                (critic_values(made.model, made.head, batch) * weights).sum().backward()
            grads[f"{path} {which}"] = [None if p.grad is None else p.grad.clone() for p in parameters]
    count = len(policy_parameters(made))
    for which in ("policy", "critic"):
        for index, (a, b) in enumerate(zip(grads[f"modules {which}"], grads[f"fused {which}"], strict=True)):
            if (index < count) == (which == "policy"):
                assert a is not None and b is not None
                assert a.abs().max() > 0
                assert (a - b).abs().max() <= 2e-4 * a.abs().max() + 1e-6
            else:
                assert (a is None or not a.any()) and (b is None or not b.any())


@pytest.mark.parametrize("width", [0, 512], ids=["modules", "fused"])
def test_values_read_the_hidden_state_before_the_token(
    agent: Make, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
    made = agent("dense")
    batch = sampled(made)
    assert made.head is not None
    values = critic_values(made.model, made.head, batch)
    activate(made.model, "critic")
    hidden = made.model.get_base_model().model(input_ids=batch.ids).last_hidden_state
    expected = torch.zeros(batch.ids.shape)
    for row, position in batch.action_mask.nonzero().tolist():
        expected[row, position] = made.head(hidden[row, position - 1])
    assert torch.allclose(values, expected, atol=2e-5)
    changed = batch.ids.clone()
    first = batch.action_mask.int().argmax(1)
    changed[torch.arange(batch.size), first] = 6
    moved = critic_values(made.model, made.head, batch.with_(ids=changed))
    assert torch.equal(moved[torch.arange(batch.size), first], values[torch.arange(batch.size), first])
    assert not torch.equal(moved, values)


def test_a_fresh_head_values_everything_at_zero_and_two_heads_give_two(agent: Make) -> None:
    made = agent("dense")
    batch = sampled(made)
    assert not critic_values(made.model, ValueHead(64), batch).any()
    head = ValueHead(64, outputs=2)
    torch.nn.init.normal_(head.linear.weight, generator=torch.Generator().manual_seed(0))
    both = critic_values(made.model, head, batch)
    assert both.shape == (2, *batch.ids.shape)
    single = ValueHead(64)
    single.linear.weight.data.copy_(head.linear.weight.data[1:])
    assert torch.allclose(both[1], critic_values(made.model, single, batch), atol=1e-5)


def test_splitting_the_batch_or_padding_it_changes_nothing(agent: Make) -> None:
    made = agent("moe")
    batch = sampled(made)
    whole, _ = action_logprobs(made.model, batch)
    for rows in torch.arange(batch.size).split(3):
        part, _ = action_logprobs(made.model, batch.rows(rows))
        assert torch.allclose(part, whole[rows, : part.shape[1]], atol=1e-5)
    padded = batch.with_(
        **{
            name: torch.nn.functional.pad(getattr(batch, name), (0, 20), value=fill)
            for name, fill in (("ids", 0), ("action_mask", False), ("turn", -1), ("logp_rollout", 0.0))
        }
    )
    longer, _ = action_logprobs(made.model, padded)
    assert (
        torch.allclose(longer[:, : whole.shape[1]], whole, atol=1e-5)
        and not longer[:, whole.shape[1] :].any()
    )


@pytest.mark.parametrize("width", [0, 512], ids=["modules", "fused"])
def test_scoring_the_base_freezes_no_adapter(
    agent: Make, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", width)
    made = agent("dense")
    batch = sampled(made)
    logp, _ = action_logprobs(made.model, batch)
    reference, _ = action_logprobs(made.model, batch, None)
    assert not reference.requires_grad and not torch.allclose(logp, reference, atol=1e-3)
    assert all(p.requires_grad for p in [*policy_parameters(made), *critic_parameters(made)])
    logp.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in policy_parameters(made))


def test_models_that_rescale_their_logits_are_refused(agent: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "FUSED_WIDTH", 0)
    made = agent("dense")
    batch = sampled(made)
    made.model.config.final_logit_softcapping = 30.0
    with pytest.raises(CheckpointError, match="final_logit_softcapping"):
        action_logprobs(made.model, batch)


def test_the_teacher_scores_the_same_tokens_under_another_prompt(agent: Make) -> None:
    made = agent("dense")
    batch = sampled(made)
    first = batch.action_mask.int().argmax(1).tolist()
    own = [batch.ids[row, :end].tolist() for row, end in enumerate(first)]
    logp, _ = action_logprobs(made.model, batch)
    same = teacher_logprobs(made.model, batch, own)
    assert torch.allclose(same, logp, atol=1e-5) and not same.requires_grad
    hint = made.chat.encode("w1 w2 w3")
    told = [[prompt[0], *hint[: row % 4], *prompt[1:]] for row, prompt in enumerate(own)]
    teacher = teacher_logprobs(made.model, batch, told)
    assert teacher.shape == batch.ids.shape and not teacher[~batch.action_mask].any()
    for row, prompt in enumerate(told):
        ids = torch.tensor([[*prompt, *batch.ids[row, first[row] : int(batch.length[row])].tolist()]])
        activate(made.model, "policy")
        with torch.no_grad():
            table = torch.log_softmax(made.model(input_ids=ids).logits, -1)[0]
        shift = len(prompt) - first[row]
        for position in batch.action_mask[row].nonzero().flatten().tolist():
            expected = table[position + shift - 1, batch.ids[row, position]]
            assert abs(float(teacher[row, position] - expected)) < 2e-5


def test_exchanging_prompts_moves_every_tensor_with_its_token(agent: Make) -> None:
    made = agent("dense")
    batch = sampled(made)
    moved = exchange_prompts(batch, [[5, 6, 7]] * batch.size)
    assert (moved.ids[:, :3] == torch.tensor([5, 6, 7])).all()
    for name in ("ids", "logp_rollout", "turn", "anchor"):
        assert torch.equal(getattr(moved, name)[moved.action_mask], getattr(batch, name)[batch.action_mask])
    with pytest.raises(TaskError, match="one prompt per row"):
        exchange_prompts(batch, [[5]])
