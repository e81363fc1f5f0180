"""Policies decoded together see what they see alone: to the bit on the fused path, to rounding on a trunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.agent.conftest import stir
from turnscale.agent.adapter import Agent, attach
from turnscale.agent.checkpoint import Checkpoint
from turnscale.agent.decode import Decoder, make_decoder
from turnscale.agent.lockstep import Strand, run_together
from turnscale.agent.stack import StackedDecoder, step_together
from turnscale.agent.trunk import Trunk, TrunkDecoder, share

SIZES = (5, 3, 8)
WIDTH = 40


def agents(checkpoint: Checkpoint) -> list[Agent]:
    return [stir(attach(share(checkpoint), seed, value_heads=0), seed + 1) for seed in range(len(SIZES))]


def play(decoder: Decoder, seed: int) -> list[Tensor]:
    """Steps of several lengths with rows dropped in between; the policies differ in where and how many."""
    generator = torch.Generator().manual_seed(seed)
    rows = SIZES[seed]
    seen = []
    decoder.start(rows, WIDTH)
    for step, length in enumerate((6 + seed, 1, 1, 2 if seed == 1 else 1, 1, 1, 3 - seed, 1)):
        if step in (3, 5 + seed % 2):
            kept = torch.arange(rows)[:: 1 if rows < 3 else 2]
            decoder.compact(kept)
            rows = len(kept)
        seen.append(decoder.step(torch.randint(30, (rows, length), generator=generator)))
    decoder.start(rows, WIDTH)  # a second rollout by the same decoder
    seen.append(decoder.step(torch.randint(30, (rows, 4), generator=generator)))
    return seen


def alone(found: list[Agent], kind: str) -> list[list[Tensor]]:
    return [play(make_decoder(agent.model, "policy", kind), seed) for seed, agent in enumerate(found)]


@pytest.mark.parametrize(("model", "kind"), [("dense", "compiled"), ("dense", "fused"), ("moe", "fused")])
def test_stacked_decoding_gives_the_bits_of_decoding_alone(
    checkpoint: Callable[[str], Checkpoint], model: str, kind: str
) -> None:
    found = agents(checkpoint(model))

    def together(seed: int) -> Callable[[Strand], list[Tensor]]:
        return lambda strand: play(StackedDecoder(strand, found[seed].model, "policy", kind), seed)

    joint: list[int] = []

    def answer(asked: list[object]) -> dict[int, Tensor]:
        answers = step_together(asked)
        joint.append(len(answers))
        return answers

    outcomes = run_together([together(seed) for seed in range(len(SIZES))], answer)
    for seen, outcome in zip(alone(found, kind), outcomes, strict=True):
        assert outcome.error is None
        assert all(torch.equal(*pair) for pair in zip(seen, outcome.result, strict=True))
    assert max(joint) == 3, "the policies went together at all"


def test_a_trunk_gives_what_decoding_alone_gives_but_for_rounding(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    base = checkpoint("dense")
    found = agents(base)
    trunk = Trunk(base)

    def together(seed: int) -> Callable[[Strand], list[Tensor]]:
        return lambda strand: play(TrunkDecoder(strand, trunk, found[seed].model), seed)

    forwards: list[int] = []

    def answer(asked: list[object]) -> dict[int, Tensor]:
        forwards.append(len(asked))
        return trunk.answer(asked)

    outcomes = run_together([together(seed) for seed in range(len(SIZES))], answer)
    for seen, outcome in zip(alone(found, "hf"), outcomes, strict=True):
        assert outcome.error is None, outcome.error
        for expected, given in zip(seen, outcome.result, strict=True):
            torch.testing.assert_close(given, expected, rtol=2e-5, atol=2e-5)
    steps = sum(len(outcome.result) for outcome in outcomes)
    assert len(forwards) < 0.75 * steps, "rows of several policies shared forwards"


def test_a_row_named_twice_goes_on_as_two(checkpoint: Callable[[str], Checkpoint]) -> None:
    base = checkpoint("dense")
    (agent,) = agents(base)[:1]
    trunk = Trunk(base)

    def branching(decoder: Decoder) -> Tensor:
        decoder.start(4, WIDTH)
        decoder.step(torch.tensor([[3, 4, 5], [6, 7, 8]]))
        decoder.compact(torch.tensor([1, 0, 1]))
        return decoder.step(torch.tensor([[1], [2], [3]]))

    (outcome,) = run_together(
        [lambda strand: branching(TrunkDecoder(strand, trunk, agent.model))], trunk.answer
    )
    expected = branching(make_decoder(agent.model, "policy", "hf"))
    torch.testing.assert_close(outcome.result, expected, rtol=2e-5, atol=2e-5)


def test_models_over_one_base_share_its_memory(checkpoint: Callable[[str], Checkpoint]) -> None:
    base = checkpoint("dense")
    other = share(base)
    pairs = zip(base.model.parameters(), other.model.parameters(), strict=True)
    assert all(one.data_ptr() == two.data_ptr() for one, two in pairs)
    assert replace(other, model=base.model) == base
