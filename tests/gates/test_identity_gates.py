"""The identity edges hold, can fail, and are declared by the methods they concern."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from turnscale.gates.identities import EDGES, check_edge, run_identity_gates
from turnscale.gates.inert import inert_knobs
from turnscale.methods import list_methods, load_method

torch.set_num_threads(1)


def test_every_edge_holds() -> None:
    results = run_identity_gates()
    assert len(results) == len(EDGES)
    assert [r for r in results if not r.passed] == []


BREAKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpo-beta-0": ("a", {"credit.beta": 0.5}),
    "one-token-turns-mpo": ("b", {"credit.lam": 0.7}),
    "one-token-turns-turn-ppo": ("condition", {}),
    "one-token-turns-ppo": ("condition", {}),
    "one-token-turns-ratio": ("condition", {}),
    "one-token-turns-belief": ("condition", {}),
    "bandit": ("condition", {}),
    "vetta-tied": ("condition", {}),
    "vetta-tied-uncut": ("a", {"credit.trace": "trajectory", "credit.lam_token": 0.9}),
    "bilevel-rewarded": ("a", {"credit.ends": "turn"}),
    "bilevel-turn-lambda-1": ("a", {"credit.ends": "turn", "credit.lam_turn": 0.9, "credit.lam_token": 1.0}),
    "hygae-alpha-0": ("a", {"credit.alpha": 0.1}),
    "hygae-alpha-1": ("b", {"credit.read": "first"}),
    "vapo-short-episodes": ("a", {"credit.alpha": 0.5}),
    "gspo-one-token": ("condition", {}),
    "gigpo-omega-0": ("a", {"credit.omega": 0.1}),
    "agentopsd-lambda-0": ("a", {"credit.lam": 0.1}),
    "agentopsd-b-0": ("a", {"credit.b": 0.1}),
    "rlsd-mix-0": ("a", {"credit.mix": 0.1}),
    "stepopsd-coef-0": ("a", {"credit.coef": 0.1}),
    "tree-root-fork": ("b", {"credit.ddof": 0}),
    "tree-root-fork-toy": ("b", {"credit.ddof": 1}),
    "archer-bellman": ("condition", {}),
    "sao-on-policy": ("b", {"clip.low": 0.1}),
}


@pytest.mark.parametrize("edge", EDGES, ids=[f"{e.name}-{i}" for i, e in enumerate(EDGES)])
def test_every_edge_can_fail(edge: Any) -> None:
    side, overrides = BREAKS[edge.name]
    if side == "condition":
        broken = replace(edge, condition="any_shape")
    elif side == "a":
        broken = replace(edge, a_overrides=overrides)
    else:
        broken = replace(edge, b_overrides=overrides)
    result = check_edge(broken, range(5))
    assert not result.passed and result.difference > 1e-5


def test_methods_declare_their_edges() -> None:
    for name in list_methods():
        concerned = {edge.name for edge in EDGES if name in (edge.a, edge.b)}
        assert set(load_method(name).identities) == concerned, name


@pytest.mark.parametrize("name", [n for n in list_methods() if load_method(n).train])
def test_inert_knobs_are_declared(name: str) -> None:
    assert set(inert_knobs(name)) == set(load_method(name).inert)


def test_an_undeclared_inert_knob_is_found() -> None:
    assert "credit.lam_intra" in inert_knobs("mpo", overrides={"credit.beta": 0.0})
