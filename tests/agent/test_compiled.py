"""The compiled decoder equals the plain one, and fails where that one does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numba.core import caching
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tests.agent.conftest import LIMITS, Chatter, tasks
from turnscale.agent import compiled, compiled_step
from turnscale.agent.adapter import Agent
from turnscale.agent.compiled import MOST_COLUMNS, CompiledDecoder
from turnscale.agent.decode import FusedDecoder, HFDecoder, best_kind, make_decoder, merged_model
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.errors import CheckpointError, NumericalError

Make = Callable[[str], Agent]


def model(seed: int) -> PreTrainedModel:
    """A dense model of odd sizes: grouped or single queries, norms of queries and keys, biases, tied or not."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    sizes = {
        "vocab_size": int(rng.integers(31, 60)),
        "hidden_size": kv_heads * group * int(rng.integers(1, 12)),  # what Llama insists on
        "intermediate_size": int(rng.integers(1, 90)),
        "num_hidden_layers": int(rng.integers(1, 4)),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * int(rng.integers(1, 20)),
        "attention_bias": bool(rng.integers(2)),
        "tie_word_embeddings": bool(rng.integers(2)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    }
    made = (
        Qwen3ForCausalLM(Qwen3Config(**sizes))
        if seed % 2
        else LlamaForCausalLM(LlamaConfig(**sizes, mlp_bias=bool(rng.integers(2))))
    )
    for name, parameter in made.named_parameters():
        if "norm" in name or "bias" in name:  # fresh ones are 1 and 0 and would hide mistakes
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.normal_(0.0, 0.15)
    return made.eval()


@torch.inference_mode()
def differences(made: PreTrainedModel, rows: int, seed: int) -> list[float]:
    """Largest differences of logits between the compiled and the plain decoder, over chunks, single tokens and
    choices of rows (fewer, other orders, one twice) up to the greatest length."""
    generator = torch.Generator().manual_seed(seed)
    chunks = (7, 1, 1, 20, 1, 1, 3, 1)
    decoders = [make_decoder(made, None, kind) for kind in ("compiled", "fused")]
    for decoder in decoders:
        decoder.start(rows, sum(chunks))
    found = []
    count = rows
    for number, n in enumerate(chunks):
        if number in (2, 4, 6):
            chosen = torch.randint(count, (max(1, count - 2 if number < 6 else rows),), generator=generator)
            for decoder in decoders:
                decoder.compact(chosen)
            count = len(chosen)
        tokens = torch.randint(made.config.vocab_size, (count, n), generator=generator)
        one, two = (decoder.step(tokens) for decoder in decoders)
        assert one.shape == two.shape == (count, made.config.vocab_size)
        assert one.dtype == torch.float32
        found.append(float((one - two).abs().max()))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_it_equals_the_plain_path_over_random_shapes(seed: int) -> None:
    rows = (1, 5, 16, 17, 33, 70)[seed % 6]
    assert max(differences(model(seed), rows, seed)) < 2e-5


def test_a_chunk_longer_than_fits_at_once_is_taken_in_parts() -> None:
    made = model(1)
    n = 2 * MOST_COLUMNS // 64 + 3
    tokens = torch.randint(made.config.vocab_size, (60, n), generator=torch.Generator().manual_seed(0))
    seen = []
    for kind in ("compiled", "fused"):
        decoder = make_decoder(made, None, kind)
        decoder.start(60, n)
        seen.append(decoder.step(tokens))
    torch.testing.assert_close(*seen, rtol=0, atol=2e-5)


def test_a_row_gives_the_same_bits_whatever_it_is_decoded_with() -> None:
    made = model(3)
    tokens = torch.randint(30, (40, 12), generator=torch.Generator().manual_seed(0))

    def alone(chunks: tuple[int, ...], rows: list[int]) -> Tensor:
        decoder = make_decoder(made, None, "compiled")
        decoder.start(len(rows), 12)
        return torch.stack([part[rows.index(7)] for part in map(decoder.step, tokens[rows].split(chunks, 1))])

    every, some = list(range(40)), [3, 7, 11]
    reference = alone((1,) * 12, every)
    assert torch.equal(alone((1,) * 12, some), reference)
    assert torch.equal(alone((4, 1, 5, 2), every), reference[[3, 4, 9, 11]])
    assert torch.equal(alone((12,), some), reference[[11]])


def play(made: Agent, kind: str, temperature: float) -> Rollouts:
    generator = torch.Generator().manual_seed(3)
    return rollout(
        make_decoder(made.model, "policy", kind), made.chat, Chatter, tasks(24), range(24), LIMITS, generator,
        temperature=temperature,
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rollouts_are_those_of_the_plain_path(agent: Make, temperature: float) -> None:
    made = agent("dense")
    one, two = (play(made, kind, temperature) for kind in ("compiled", "fused"))
    assert torch.equal(one.batch.ids, two.batch.ids)
    assert one.turns == two.turns
    assert (one.batch.logp_rollout - two.batch.logp_rollout).abs().max() < 3e-5


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "weight", ["embed_tokens.weight", "q_proj.weight", "down_proj.weight", "norm.weight"]
)
def test_numbers_that_are_not_finite_are_noticed(weight: str, broken: float) -> None:
    made = model(4)
    for name, parameter in made.named_parameters():
        if name.endswith(weight):
            parameter.data.fill_(broken)
    decoder = make_decoder(made, None, "compiled")
    decoder.start(3, 4)
    for _ in range(2):
        logits = decoder.step(torch.ones(3, 2, dtype=torch.long))
    assert not torch.isfinite(logits).any(1).any()


def test_a_rollout_of_broken_weights_stops(agent: Make) -> None:
    made = agent("dense")
    for name, parameter in made.model.named_parameters():
        if "layers.1" in name and "lora_B.policy" in name and "down_proj" in name:
            parameter.data.fill_(float("nan"))
    with pytest.raises(NumericalError):
        play(made, "compiled", 1.0)


def test_the_exponential_is_right_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    found = np.array([compiled_step.exponential(value) for value in x[::7]], dtype=np.float32)
    exact = np.exp(x[::7].astype(np.float64))
    assert np.abs(found / exact - 1).max() < 2 * np.finfo(np.float32).eps
    assert compiled_step.exponential(np.float32(-1e30)) < 1e-37
    assert compiled_step.exponential(-np.float32(np.inf)) < 1e-37
    assert compiled_step.exponential(np.float32(np.inf)) > 1e38
    assert np.isnan(compiled_step.exponential(np.float32(np.nan)))


def test_the_kind_follows_from_configuration_dtype_and_device(agent: Make) -> None:
    dense, moe = agent("dense").model, agent("moe").model
    assert [best_kind(dense), best_kind(moe)] == ["compiled", "fused"]
    assert isinstance(make_decoder(dense), CompiledDecoder)
    assert isinstance(make_decoder(moe), FusedDecoder)
    narrow = merged_model(dense, "policy").to(torch.bfloat16)
    assert best_kind(narrow) == "fused"
    with torch.device("meta"):
        wide = LlamaForCausalLM(LlamaConfig(hidden_size=1024, num_hidden_layers=1))
        elsewhere = LlamaForCausalLM(LlamaConfig(hidden_size=64, num_hidden_layers=1))
    assert [best_kind(wide), best_kind(elsewhere)] == ["hf", "fused"]
    assert isinstance(make_decoder(wide), HFDecoder)
    for refused, reason in ((moe, "experts"), (narrow, "bfloat16"), (elsewhere, "device meta")):
        with pytest.raises(CheckpointError, match=reason):
            make_decoder(refused, None, "compiled")


def test_it_refuses_what_would_lie_outside_its_arrays() -> None:
    made = model(5)
    decoder = make_decoder(made, None, "compiled")
    decoder.start(4, 6)
    with pytest.raises(ValueError, match="do not fit"):
        decoder.step(torch.zeros(5, 1, dtype=torch.long))
    decoder.step(torch.zeros(4, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="do not fit"):
        decoder.step(torch.zeros(4, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="a cache of 4"):
        decoder.compact(torch.tensor([0, 4]))
    decoder.start(4, 6)
    for token in (-1, made.config.vocab_size):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            decoder.step(torch.full((4, 1), token))


def test_without_a_folder_for_machine_code_it_is_compiled_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x: int) -> int:
        return 2 * x

    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        made = compiled_step.machine_code()(twice)
    assert made(3) == 6


PROGRAM = """
import sys, numpy as np, torch
from tests.agent.test_compiled import model
from turnscale.agent.compiled import CompiledDecoder
decoder = CompiledDecoder(model(1), None)
decoder.start(3, 8)
logits = torch.stack([decoder.step(torch.full((3, 2), token)) for token in (1, 2, 3)])
sys.stdout.buffer.write(logits.numpy().tobytes())
"""


@pytest.mark.slow
def test_processes_may_compile_at_once_and_another_takes_what_they_kept(tmp_path: Path) -> None:
    source = Path(compiled.__file__).parents[2]
    env = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": f"{source}:{source.parent}",
        "OMP_NUM_THREADS": "1",
    }

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM], env=env, stdout=-1
        )

    together = [start() for _ in range(3)]
    outputs = [process.communicate(timeout=300)[0] for process in together]
    assert [process.returncode for process in together] == [0, 0, 0]
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert any(name.startswith("compiled_step.forward") for name in kept)
    outputs.append(start().communicate(timeout=300)[0])
    assert len(set(outputs)) == 1
    assert len(outputs[0]) == 3 * 3 * 4 * model(1).config.vocab_size
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == kept
