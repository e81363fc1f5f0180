from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from turnscale.agent.adapter import Agent, base_weights_hash
from turnscale.agent.decode import Decoder, make_decoder, merged_model
from turnscale.errors import CheckpointError

Make = Callable[[str], Agent]
ROPE = {"rope_type": "default", "rope_theta": 500.0}
SMALL = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def llama(**changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).eval()


def feed(decoder: Decoder, ids: torch.Tensor) -> list[torch.Tensor]:
    """Logits after a chunk, single tokens, a compaction, another chunk and another token."""
    decoder.start(len(ids), ids.shape[1])
    out = [decoder.step(ids[:, :5])]
    out += [decoder.step(ids[:, p : p + 1]) for p in range(5, 8)]
    rows = torch.tensor([0, 2, 3])
    decoder.compact(rows)
    out.append(decoder.step(ids[rows, 8:11]))
    decoder.compact(torch.tensor([1, 2]))
    out.append(decoder.step(ids[[2, 3], 11:12]))
    return out


def expected(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """The same logits from one full forward."""
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float()
    singles = [logits[:, p] for p in range(5, 8)]
    return [logits[:, 4], *singles, logits[[0, 2, 3], 10], logits[[2, 3], 11]]


def largest_difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    assert [x.shape for x in a] == [y.shape for y in b]
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 30, (4, 12), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("adapter", ["policy", "critic", None])
def test_decoders_agree_with_each_other_and_with_the_full_forward(
    agent: Make, ids: torch.Tensor, kind: str, adapter: str | None
) -> None:
    made = agent(kind)
    base = base_weights_hash(made.model)
    full = expected(merged_model(made.model, adapter), ids)
    for decoder in ("fused", "hf", "hf-merged", *(["compiled"] if kind == "dense" else [])):
        assert largest_difference(feed(make_decoder(made.model, adapter, decoder), ids), full) < 1e-5
    assert base_weights_hash(made.model) == base


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: llama(tie_word_embeddings=True), id="tied"),
        pytest.param(
            lambda: llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True), id="biases"
        ),
        pytest.param(
            lambda: llama(head_dim=12, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
            id="rope",
        ),
        pytest.param(lambda: llama(num_key_value_heads=6), id="multi-head"),
        pytest.param(lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)).eval(), id="qwen2"),
        pytest.param(
            lambda: Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **SMALL,
                    head_dim=8,
                    num_experts=6,
                    num_experts_per_tok=3,
                    moe_intermediate_size=24,
                    norm_topk_prob=False,
                    mlp_only_layers=[0],
                )
            ).eval(),
            id="mixed layers",
        ),
    ],
)
def test_fused_equals_the_module_path_over_the_layout(
    model: Callable[[], PreTrainedModel], ids: torch.Tensor
) -> None:
    torch.manual_seed(1)
    made = model()
    for name, parameter in made.named_parameters():
        if "norm" in name or "bias" in name:  # fresh ones are 1 and 0 and would hide mistakes
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.normal_(0.0, 0.15)
    assert largest_difference(feed(make_decoder(made, None, "fused"), ids), expected(made, ids)) < 1e-5
    if "Moe" not in type(made).__name__:
        assert largest_difference(feed(make_decoder(made, None, "compiled"), ids), expected(made, ids)) < 1e-5


def test_a_decoder_is_a_snapshot_until_the_next_one_is_made(agent: Make, ids: torch.Tensor) -> None:
    made = agent("dense")
    decoder = make_decoder(made.model)
    first = feed(decoder, ids)
    for parameter in made.model.parameters():
        if parameter.requires_grad:
            parameter.data.mul_(1.5)
    assert largest_difference(feed(decoder, ids), first) == 0.0
    assert largest_difference(feed(make_decoder(made.model), ids), first) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"hidden_act": "gelu"},
    ],
)
def test_fused_refuses_what_it_does_not_know_and_auto_takes_the_plain_path(
    changes: dict[str, object], ids: torch.Tensor
) -> None:
    model = llama(**changes)
    with pytest.raises(CheckpointError, match="fused decoder does not know"):
        make_decoder(model, None, "fused")
    assert largest_difference(feed(make_decoder(model, None), ids), expected(model, ids)) < 1e-5


def test_other_architectures_take_the_plain_path(ids: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()
    assert largest_difference(feed(make_decoder(model, None), ids), expected(model, ids)) < 1e-5


def test_unknown_kinds_and_adapters_are_refused(agent: Make) -> None:
    made = agent("dense")
    with pytest.raises(CheckpointError, match="no decoder is called"):
        make_decoder(made.model, "policy", "turbo")
    with pytest.raises(CheckpointError, match="no adapter"):
        make_decoder(made.model, "teacher")


def test_bfloat16_decodes_close_to_float32(agent: Make, ids: torch.Tensor) -> None:
    made = agent("dense")
    wide = merged_model(made.model, "policy")
    narrow = merged_model(made.model, "policy").to(torch.bfloat16)
    exact = expected(wide, ids)
    for kind in ("fused", "hf"):
        got = feed(make_decoder(narrow, None, kind), ids)
        assert all(logits.dtype == torch.float32 for logits in got)
        scale = max(float(x.abs().max()) for x in exact)
        assert largest_difference(got, exact) < 0.1 * scale
