"""Identity edges: settings under which two registered methods must be the same method.

Each edge is data: two methods with overrides, the batches on which they must agree, and how closely. An
estimator that breaks an edge is wrong before any run has shown it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.methods import Method, load_method

if TYPE_CHECKING:
    from torch import Tensor

    from turnscale.batch import TurnBatch


@dataclass(frozen=True)
class Edge:
    """Two methods that must agree.

    Attributes:
        name: identity of the edge, listed in the ``identities`` of the methods it concerns.
        a, b: method rows.
        a_overrides, b_overrides: dotted keys to set.
        condition: name of the batch generator in ``turnscale.gates.batches``.
        compare: ``credit`` (normalised advantages) or ``loss`` (also the loss and its gradient).
        tolerance: greatest absolute difference; 0 is bit for bit.
    """

    name: str
    a: str
    b: str
    a_overrides: Mapping[str, Any] = field(default_factory=dict)
    b_overrides: Mapping[str, Any] = field(default_factory=dict)
    condition: str = "any_shape"
    compare: str = "loss"
    tolerance: float = 1e-6


PLAIN = {"normalisation": {"name": "none"}}
NO_SPREAD = {"credit.scale": "none"}

EDGES: tuple[Edge, ...] = (
    Edge("mpo-beta-0", "mpo", "turn-ppo", {"credit.beta": 0.0}, {"credit.lam": 0.8}, compare="credit"),
    Edge("mpo-beta-0", "mpo", "mpo-beta0", {"credit.beta": 0.0}, tolerance=0.0),
    Edge("one-token-turns-mpo", "mpo", "ppo", {}, {"credit.lam": 0.8}, "one_token_turns"),
    Edge(
        "one-token-turns-turn-ppo",
        "turn-ppo",
        "ppo",
        condition="one_token_turns",
    ),
    Edge("one-token-turns-ppo", "ppo", "turn-ppo", condition="one_token_turns", compare="credit"),
    Edge("one-token-turns-ratio", "mpo", "mpo-token-is", condition="one_token_turns"),
    Edge("one-token-turns-belief", "agentopsd", "agentopsd-token", condition="one_token_turns"),
    Edge("bandit", "ppo", "grpo", PLAIN, NO_SPREAD, "one_token_episodes"),
    Edge("bandit", "ppo-lam1", "grpo", PLAIN, NO_SPREAD, "one_token_episodes"),
    Edge("bandit", "mpo", "grpo", PLAIN, NO_SPREAD, "one_token_episodes"),
    Edge("vetta-tied", "vetta", "mpo-token-is", condition="tied_heads"),
    Edge(
        "vetta-tied-uncut",
        "vetta",
        "mpo-token-is",
        {"credit.trace": "trajectory", "credit.lam_token": 1.0},
        {"credit.lam_intra": 1.0},
        "tied_heads",
    ),
    Edge("bilevel-rewarded", "bilevel", "ppo"),
    Edge(
        "bilevel-turn-lambda-1",
        "bilevel",
        "ppo-lam1",
        {"credit.ends": "turn", "credit.lam_turn": 1.0, "credit.lam_token": 1.0},
    ),
    Edge("hygae-alpha-0", "hygae", "ppo", {"credit.alpha": 0.0}),
    Edge(
        "hygae-alpha-1", "hygae", "turn-ppo", {"credit.alpha": 1.0}, {"credit.read": "last"}, compare="credit"
    ),
    Edge(
        "vapo-short-episodes", "vapo", "vc-ppo", {"credit.alpha": 1e-6}, {"credit.lam": 0.0}, compare="credit"
    ),
    Edge("gspo-one-token", "gspo", "grpo", {}, {"clip.low": 3e-4, "clip.high": 4e-4}, "one_token_episodes"),
    Edge(
        "gigpo-omega-0",
        "gigpo",
        "grpo",
        {"credit.omega": 0.0},
        {"credit.scale": "none", "credit.singleton": "raw"},
        "with_singletons",
        tolerance=0.0,
    ),
    Edge("agentopsd-lambda-0", "agentopsd", "grpo-agent", {"credit.lam": 0.0}, tolerance=0.0),
    Edge("agentopsd-b-0", "agentopsd", "grpo-agent", {"credit.b": 0.0}, tolerance=0.0),
    Edge("rlsd-mix-0", "rlsd", "grpo-agent", {"credit.mix": 0.0}, tolerance=0.0),
    Edge("stepopsd-coef-0", "stepopsd", "grpo-agent", {"credit.coef": 0.0}, tolerance=0.0),
    Edge("tree-root-fork", "arpo", "grpo", tolerance=0.0),
    Edge("tree-root-fork-toy", "grouping-tree", "grouping-traj", tolerance=0.0),
    Edge(
        "archer-bellman",
        "archer",
        "turn-ppo",
        {},
        {**PLAIN, "credit.lam": 0.0},
        "consistent_critics",
        compare="credit",
    ),
    Edge("sao-on-policy", "sao", "sao", {}, {"ratio": {"name": "token"}}),
)


@dataclass(frozen=True)
class GateResult:
    """What a gate found.

    Attributes:
        name: of the gate.
        passed: whether it holds.
        difference: the greatest absolute difference seen.
        tolerance: what was allowed.
        detail: what was compared, in words.
    """

    name: str
    passed: bool
    difference: float
    tolerance: float
    detail: str


def outcome(method: Method, batch: TurnBatch, drift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised advantages [B, T], loss and its gradient [B, T] with the policy moved by ``drift``."""
    import torch

    from turnscale.objective import denominators, policy_loss

    advantages = method.normalise(method.credit(batch).advantages, batch)
    logp = (batch.logp_rollout + drift).requires_grad_(True)
    loss, _ = policy_loss(method, logp, batch, advantages, batch.logp_rollout, denominators(batch))
    (gradient,) = torch.autograd.grad(loss, logp)
    return advantages, loss.detach(), gradient


def check_edge(edge: Edge, seeds: range, directory: Path | None = None) -> GateResult:
    """Compare the two sides of an edge on one random batch per seed."""
    import torch

    from turnscale.gates.batches import CONDITIONS

    a = load_method(edge.a, edge.a_overrides, directory=directory)
    b = load_method(edge.b, edge.b_overrides, directory=directory)
    worst = 0.0
    for seed in seeds:
        batch = CONDITIONS[edge.condition](seed)
        noise = torch.randn(
            batch.turn.shape, generator=torch.Generator().manual_seed(seed), dtype=batch.reward.dtype
        )
        drift = torch.where(batch.action_mask, 0.2 * noise, 0.0)
        parts = 1 if edge.compare == "credit" else 3
        for left, right in zip(
            outcome(a, batch, drift)[:parts], outcome(b, batch, drift)[:parts], strict=True
        ):
            worst = max(worst, float((left - right).abs().max()))
    sides = [
        name + "".join(f" {key}={value}" for key, value in overrides.items())
        for name, overrides in ((edge.a, edge.a_overrides), (edge.b, edge.b_overrides))
    ]
    return GateResult(
        name=edge.name,
        passed=worst <= edge.tolerance,
        difference=worst,
        tolerance=edge.tolerance,
        detail=f"{sides[0]} = {sides[1]} ({edge.compare}, {edge.condition}, {len(seeds)} batches)",
    )


def run_identity_gates(seeds: range = range(5), directory: Path | None = None) -> list[GateResult]:
    """Every edge, checked on one random batch per seed."""
    return [check_edge(edge, seeds, directory) for edge in EDGES]
