"""The axes a method chooses on, as data: every choice's function, parameters and needs.

This module imports no tensor library, so that methods can be read, checked and compared without one. The
functions are named by module path and loaded when first called; a test holds the declared parameters against
their signatures.
"""

from __future__ import annotations

import importlib
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _quoted(value: object) -> str:
    """A hint where a number was written as text."""
    return "; write it without quotes" if isinstance(value, str) else ""


@dataclass(frozen=True)
class Number:
    """A real parameter in [low, high], bounds excluded where ``open_low``/``open_high``."""

    low: float = float("-inf")
    high: float = float("inf")
    open_low: bool = False
    open_high: bool = False

    def check(self, value: object) -> float:
        """The value as a float.

        Raises:
            ValueError: not a number or out of range.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be a number, got {reprlib.repr(value)}{_quoted(value)}")
        number = float(value) if abs(value) < 1e300 else math.inf
        on_edge = (self.open_low and number == self.low) or (self.open_high and number == self.high)
        if not math.isfinite(number) or on_edge or not self.low <= number <= self.high:
            left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
            raise ValueError(f"{number} is outside {left}{self.low}, {self.high}{right}")
        return number


@dataclass(frozen=True)
class Integer:
    """A whole-number parameter in [low, high]."""

    low: int
    high: int

    def check(self, value: object) -> int:
        """The value as an int.

        Raises:
            ValueError: not a whole number or out of range.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, got {reprlib.repr(value)}{_quoted(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"{reprlib.repr(value)} is outside [{self.low}, {self.high}]")
        return value


@dataclass(frozen=True)
class OneOf:
    """A parameter with named choices."""

    choices: tuple[str, ...]

    def check(self, value: object) -> str:
        """The value itself.

        Raises:
            ValueError: not one of the choices.
        """
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError(f"{reprlib.repr(value)} is not one of {', '.join(self.choices)}")
        return value


Parameter = Number | Integer | OneOf


@dataclass(frozen=True)
class Choice:
    """One choice on an axis.

    Attributes:
        target: ``module:function``.
        about: one line on what it computes.
        params: its keyword parameters; all are required, so nothing about a method is implicit.
        needs: optional tensors of the batch it reads.
        facts: conventions that are fixed in the function rather than chosen, for the convention diff.
    """

    target: str
    about: str
    params: Mapping[str, Parameter] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)


UNIT = Number(0.0, 1.0)
BELOW_ONE = Number(0.0, 1.0, open_high=True)
POSITIVE = Number(0.0, open_low=True)
NONNEGATIVE = Number(0.0)
SINGLETON = OneOf(("zero", "raw", "forbid"))
GROUP_STATISTICS: dict[str, Parameter] = {
    "scale": OneOf(("std", "none")),
    "ddof": Integer(0, 1),
    "eps": NONNEGATIVE,
    "min_std": NONNEGATIVE,
    "singleton": SINGLETON,
}
SKIPS = {"observations": "skipped: no residual, no decay step"}
TRAJECTORY = {"credit unit": "trajectory"}
BOOTSTRAP = {**SKIPS, "value after a turn": "first value of the next turn, 0 after the last"}

CREDIT: dict[str, Choice] = {
    "none": Choice("turnscale.credit.none:none", "0 everywhere; the extra terms do the learning"),
    "group": Choice(
        "turnscale.credit.group:group",
        "reward relative to its group, on the whole trajectory",
        GROUP_STATISTICS,
        facts=TRAJECTORY,
    ),
    "leave_one_out": Choice(
        "turnscale.credit.group:leave_one_out",
        "reward minus the mean of the other members of the group",
        {"singleton": SINGLETON},
        facts=TRAJECTORY,
    ),
    "token_gae": Choice(
        "turnscale.credit.token_gae:token_gae",
        "GAE over action tokens",
        {"lam": UNIT},
        ("values",),
        {"credit unit": "token", **BOOTSTRAP},
    ),
    "length_adaptive_gae": Choice(
        "turnscale.credit.token_gae:length_adaptive_gae",
        "token GAE with lambda = clamp(1 - 1 / (alpha l), 0, 1)",
        {"alpha": POSITIVE},
        ("values",),
        {"credit unit": "token", **BOOTSTRAP},
    ),
    "turn_gae": Choice(
        "turnscale.credit.turn_gae:turn_gae",
        "GAE over turns, broadcast to their tokens",
        {"lam": UNIT, "read": OneOf(("first", "last"))},
        ("values",),
        {"credit unit": "turn", **SKIPS},
    ),
    "multiscale": Choice(
        "turnscale.credit.multiscale:multiscale",
        "turn GAE plus a mean-preserving trace inside the turn",
        {"lam": UNIT, "lam_intra": UNIT, "beta": NONNEGATIVE},
        ("values",),
        {"credit unit": "turn, refined by token", "turn value read at": "first token", **BOOTSTRAP},
    ),
    "two_head": Choice(
        "turnscale.credit.two_head:two_head",
        "turn GAE of a turn head plus mean-preserving token GAE of a token head",
        {"lam_turn": UNIT, "lam_token": UNIT, "alpha": NONNEGATIVE, "trace": OneOf(("turn", "trajectory"))},
        ("values", "values_turn"),
        {"credit unit": "turn, refined by token", "turn value read at": "first token", **BOOTSTRAP},
    ),
    "utterance": Choice(
        "turnscale.credit.utterance:utterance",
        "value of state and turn minus value of the state",
        {"gamma": UNIT},
        ("values", "values_turn"),
        {"credit unit": "turn", "turn value read at": "first token", **SKIPS},
    ),
    "mixed": Choice(
        "turnscale.credit.mixed:mixed",
        "weighted sum of turn GAE and token GAE",
        {"alpha": UNIT, "lam_turn": UNIT, "lam_token": UNIT, "read": OneOf(("first", "last"))},
        ("values",),
        {"credit unit": "turn and token", **BOOTSTRAP},
    ),
    "bilevel": Choice(
        "turnscale.credit.bilevel:bilevel",
        "GAE over turn ends pays GAE inside the turn",
        {"lam_turn": UNIT, "lam_token": UNIT, "ends": OneOf(("rewarded", "turn"))},
        ("values",),
        {"credit unit": "token", "turn value read at": "last token", **SKIPS},
    ),
    "anchor": Choice(
        "turnscale.credit.anchor:anchor",
        "a turn's return relative to turns that began in the same state",
        {"discount": UNIT, **GROUP_STATISTICS},
        ("anchor",),
        {"credit unit": "turn"},
    ),
    "gigpo": Choice(
        "turnscale.credit.anchor:gigpo",
        "episode group plus omega times anchor group",
        {"omega": NONNEGATIVE, "discount": UNIT, **GROUP_STATISTICS, "step_singleton": SINGLETON},
        ("anchor",),
        {"credit unit": "trajectory and turn"},
    ),
    "tree": Choice(
        "turnscale.credit.tree:tree",
        "relative reward from the fork on, a rule for the shared prefix",
        {"baseline": OneOf(("fork", "task")), "prefix": OneOf(("none", "mean")), **GROUP_STATISTICS},
        ("fork_turn",),
        {"credit unit": "trajectory from its fork on"},
    ),
    "belief": Choice(
        "turnscale.credit.belief:belief",
        "group advantage stretched by how far each unit moves the belief in success",
        {
            "lam": UNIT,
            "b": BELOW_ONE,
            "gamma": UNIT,
            "eps0": Number(0.0, 0.5, open_low=True),
            "level": OneOf(("turn", "token")),
            **GROUP_STATISTICS,
        },
        ("logp_teacher",),
        {"credit unit": "trajectory, stretched by unit", "prior": "success rate of the group"},
    ),
    "token_weighted": Choice(
        "turnscale.credit.distillation:token_weighted",
        "group advantage weighted by the teacher's opinion of each token",
        {"mix": UNIT, "width": BELOW_ONE, **GROUP_STATISTICS},
        ("logp_teacher",),
        {"credit unit": "trajectory, weighted by token"},
    ),
    "step_added": Choice(
        "turnscale.credit.distillation:step_added",
        "group advantage plus the teacher's opinion of each turn",
        {"coef": NONNEGATIVE, "bound": POSITIVE, **GROUP_STATISTICS},
        ("logp_teacher",),
        {"credit unit": "trajectory and turn"},
    ),
}

RATIO: dict[str, Choice] = {
    "token": Choice("turnscale.objective.ratio:token", "each token's own ratio"),
    "turn": Choice(
        "turnscale.objective.ratio:turn",
        "product over the turn's tokens",
        {"gradient": OneOf(("own", "shared", "shared_mean"))},
    ),
    "sequence": Choice(
        "turnscale.objective.ratio:sequence", "geometric mean over the trajectory's action tokens"
    ),
    "rollout": Choice("turnscale.objective.ratio:rollout", "each token's ratio to the sampler's probability"),
}

CLIP: dict[str, Choice] = {
    "decoupled": Choice(
        "turnscale.objective.clip:decoupled", "[1 - low, 1 + high]", {"low": UNIT, "high": NONNEGATIVE}
    ),
    "log_symmetric": Choice(
        "turnscale.objective.clip:log_symmetric", "[1 / (1 + eps), 1 + eps]", {"eps": POSITIVE}
    ),
    "hard_mask": Choice(
        "turnscale.objective.clip:hard_mask",
        "0 outside (1 - low, 1 + high), whatever the sign",
        {"low": UNIT, "high": NONNEGATIVE},
    ),
    "none": Choice("turnscale.objective.clip:none", "no clip"),
}

AGGREGATION: dict[str, Choice] = {
    "token_mean": Choice("turnscale.objective.aggregate:token_mean", "mean over the minibatch's tokens"),
    "sequence_mean": Choice(
        "turnscale.objective.aggregate:sequence_mean", "token mean per trajectory, then over trajectories"
    ),
    "turn_mean": Choice("turnscale.objective.aggregate:turn_mean", "token mean per turn, then over turns"),
    "fixed": Choice(
        "turnscale.objective.aggregate:fixed",
        "token sum over a constant, mean over trajectories",
        {"divisor": POSITIVE},
    ),
}

NORMALISATION: dict[str, Choice] = {
    "none": Choice("turnscale.objective.normalise:none", "advantages as they are"),
    "whiten": Choice(
        "turnscale.objective.normalise:whiten",
        "(A - mean) / sqrt(var + eps)",
        {"ddof": Integer(0, 1), "eps": NONNEGATIVE},
        facts={"whitening population": "action tokens of the whole batch"},
    ),
}

TERMS: dict[str, Choice] = {
    "kl": Choice(
        "turnscale.objective.terms:kl",
        "KL to the reference policy",
        {
            "coef": NONNEGATIVE,
            "estimator": OneOf(("k1", "k2", "k3")),
            "gradient": OneOf(("exact", "estimator")),
        },
        ("logp_ref",),
    ),
    "positive_nll": Choice(
        "turnscale.objective.terms:positive_nll",
        "negative log-likelihood of successful trajectories",
        {"coef": NONNEGATIVE},
    ),
    "distill_reverse": Choice(
        "turnscale.objective.terms:distill_reverse",
        "reverse KL to the privileged teacher, sampled tokens",
        {"coef": NONNEGATIVE},
        ("logp_teacher",),
    ),
    "distill_forward": Choice(
        "turnscale.objective.terms:distill_forward",
        "forward KL to the privileged teacher, importance weights",
        {"coef": NONNEGATIVE, "highest": POSITIVE},
        ("logp_teacher",),
    ),
    "distill_gated": Choice(
        "turnscale.objective.terms:distill_gated",
        "gated log-ratio to the privileged teacher",
        {"coef": NONNEGATIVE, "sharpness": NONNEGATIVE},
        ("logp_teacher",),
    ),
}

SHAPING: dict[str, Choice] = {
    "none": Choice("turnscale.credit.shaping:none", "the environment's reward"),
    "soft_overlong": Choice(
        "turnscale.credit.shaping:soft_overlong",
        "penalty rising to 1 over the last action tokens of the budget",
        {"limit": Integer(1, 10**7), "buffer": Integer(1, 10**7)},
    ),
}

AXES: dict[str, dict[str, Choice]] = {
    "shaping": SHAPING,
    "credit": CREDIT,
    "ratio": RATIO,
    "clip": CLIP,
    "aggregation": AGGREGATION,
    "normalisation": NORMALISATION,
}
"""The axes with exactly one choice each; extra terms (``TERMS``) are any number of choices."""
