"""Rows with the same tokens are one line of the decoder, and that changes nothing but the time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.conftest import LIMITS, Chatter, tasks
from turnscale.agent.adapter import Agent
from turnscale.agent.decode import make_decoder
from turnscale.agent.episode import Prefix
from turnscale.agent.lines import Lines
from turnscale.agent.rollout import Rollouts, rollout

Make = Callable[[str], Agent]


class Forking(Chatter):
    """The scripted environment, with clones."""

    def clone(self) -> Forking:
        return copy.deepcopy(self)


@given(
    tokens=st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=1, max_size=9),
    ends=st.lists(st.integers(1, 8), min_size=9, max_size=9),
    compaction=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    share=st.booleans(),
    chunks=st.lists(st.integers(1, 3), min_size=8, max_size=8),
)
def test_every_line_holds_the_tokens_of_all_its_rows(
    tokens: list[list[int]], ends: list[int], compaction: float, share: bool, chunks: list[int]
) -> None:
    ids = np.array(tokens, dtype=np.int64)
    lines = Lines(len(ids), compaction, share)
    held: list[list[int]] = []  # what each line of the decoder has been fed
    position = 0
    for chunk in chunks:
        active = np.array([row for row in range(len(ids)) if ends[row] > position], dtype=np.int64)
        if not len(active) or position + chunk > 8:
            break
        coming = ids[:, position : position + chunk]
        kept = lines.arrange(active, coming)
        if kept is not None:
            held = [list(held[line]) for line in kept] if position else [[] for _ in lines.leader]
        held = [line + coming[leader].tolist() for line, leader in zip(held, lines.leader, strict=True)]
        position += chunk
        for row in active:
            assert held[lines.line[row]] == ids[row, :position].tolist()
        assert len(held) <= len(ids), "the cache has room for as many lines as rows"
        if compaction == 1.0:
            assert len(held) <= len(active)
        if not share:
            assert len(np.unique(lines.line[active])) == len(active)


def play(
    made: Agent,
    kind: str,
    share: bool,
    prefixes: Sequence[Prefix] | None = None,
    keep: bool = False,
    temperature: float = 1.0,
) -> Rollouts:
    """12 rows, 4 to a task and an environment seed; with prefixes as many rows as there are."""
    size = 12 if prefixes is None else len(prefixes)
    return rollout(
        make_decoder(made.model, "policy", kind),
        made.chat,
        Forking,
        tasks(size, 4),
        [row // 4 for row in range(size)],
        LIMITS,
        torch.Generator().manual_seed(2),
        temperature=temperature,
        prefixes=prefixes,
        keep_prefixes=keep,
        share=share,
    )


def assert_same(shared: Rollouts, plain: Rollouts) -> None:
    for name in ("ids", "action_mask", "turn", "length", "reward", "success", "truncated", "anchor"):
        assert torch.equal(getattr(shared.batch, name), getattr(plain.batch, name)), name
    assert (shared.batch.logp_rollout - plain.batch.logp_rollout).abs().max() < 2e-5
    assert shared.turns == plain.turns and shared.observations == plain.observations
    assert shared.row_tokens == plain.row_tokens and shared.env_calls == plain.env_calls


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("decoder", ["fused", "hf"])
def test_rollouts_of_one_prompt_read_it_once(agent: Make, kind: str, decoder: str) -> None:
    made = agent(kind)
    shared, plain = play(made, decoder, True), play(made, decoder, False)
    assert_same(shared, plain)
    prompts = int(plain.batch.action_mask.int().argmax(1)[::4].sum())
    assert plain.fed_tokens - shared.fed_tokens >= 3 * prompts * 0.8
    assert len({tuple(row) for row in plain.batch.ids.tolist()}) == 12, "the rows do differ"


@pytest.mark.parametrize("decoder", ["fused", "hf"])
def test_branches_of_one_prefix_read_it_once(agent: Make, decoder: str) -> None:
    made = agent("dense")
    stems = play(made, decoder, True, keep=True)
    forks = [kept[min(1, len(kept) - 1)] for kept in stems.prefixes[::4] for _ in range(6)]
    shared, plain = play(made, decoder, True, forks), play(made, decoder, False, forks)
    assert_same(shared, plain)
    longest = max(len(prefix.ids) for prefix in forks)
    assert plain.fed_tokens - shared.fed_tokens > 5 * longest
    starts = [len(prefix.ids) for prefix in forks]
    for row, (prefix, start) in enumerate(zip(forks, starts, strict=True)):
        assert shared.batch.ids[row, :start].tolist() == prefix.ids.tolist()


def test_greedy_rollouts_of_one_prompt_stay_one_line(agent: Make) -> None:
    made = agent("dense")
    shared, plain = play(made, "fused", True, temperature=0.0), play(made, "fused", False, temperature=0.0)
    assert_same(shared, plain)
    assert 4 * shared.fed_tokens <= plain.fed_tokens + 4 * LIMITS.max_tokens


def test_a_rollout_with_shared_lines_repeats_bit_for_bit(agent: Make) -> None:
    made = agent("dense")
    first, second = play(made, "fused", True), play(made, "fused", True)
    assert torch.equal(first.batch.logp_rollout, second.batch.logp_rollout)
    assert torch.equal(first.batch.ids, second.batch.ids) and first.fed_tokens == second.fed_tokens
