"""Conventions: what decides whether two methods of one name are the same thing, and which one makes a difference.

A method's conventions are its choices, their parameters and the facts fixed in their functions. A preset is what
is known of another implementation; what is not known of it is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.axes import AXES, TERMS
from turnscale.errors import ConfigError
from turnscale.methods import Method, list_methods, load_method

if TYPE_CHECKING:
    from turnscale.batch import TurnBatch


@dataclass(frozen=True)
class Preset:
    """What is known of an implementation's advantage.

    Attributes:
        about: whose it is.
        base: method row whose credit function computes it.
        overrides: its conventions, as overrides of that row.
        aliases: other names it goes by.
    """

    about: str
    base: str
    overrides: Mapping[str, Any]
    aliases: tuple[str, ...]


PRESETS: dict[str, Preset] = {
    "verl-grpo": Preset(
        "verl, estimator grpo",
        "grpo",
        {
            "credit.scale": "std",
            "credit.ddof": 1,
            "credit.eps": 1e-6,
            "credit.min_std": 0.0,
            "credit.singleton": "raw",
        },
        ("verl",),
    ),
    "trl-grpo": Preset(
        "TRL, GRPOTrainer",
        "grpo",
        {
            "credit.scale": "std",
            "credit.ddof": 1,
            "credit.eps": 1e-4,
            "credit.min_std": 0.0,
            "credit.singleton": "zero",
        },
        ("TRL",),
    ),
    "gigpo-mean-norm": Preset(
        "GiGPO, default mode mean_norm",
        "gigpo",
        {
            "credit.scale": "none",
            "credit.ddof": 1,
            "credit.eps": 1e-6,
            "credit.min_std": 0.0,
            "credit.singleton": "raw",
            "credit.step_singleton": "zero",
        },
        ("GiGPO default",),
    ),
    "grouping-toy": Preset(
        "the grouping comparison's synthetic task",
        "grouping-traj",
        {
            "credit.scale": "std",
            "credit.ddof": 0,
            "credit.eps": 0.0,
            "credit.min_std": 1e-6,
            "credit.singleton": "zero",
        },
        ("seed 004",),
    ),
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a method, and which of its conventions are known."""

    name: str
    method: Method
    known: dict[str, str]


@dataclass(frozen=True)
class Difference:
    """A convention in which two sides differ.

    Attributes:
        key: dotted key, or the name of a fixed fact.
        a, b: the two values, in words.
        effect: greatest change of a's advantage on the examples when this convention alone becomes b's; None
            where it cannot be exchanged alone, or does not act on advantages.
    """

    key: str
    a: str
    b: str
    effect: float | None


def conventions(method: Method) -> dict[str, str]:
    """Every convention of a method, dotted key or fact -> value in words."""
    table: dict[str, str] = {}
    for axis in AXES:
        section = method.section(axis)
        table[axis] = section["name"]
        table |= {f"{axis}.{key}": str(value) for key, value in section.items() if key != "name"}
        table |= dict(method.choice(axis).facts)
    for term, params in method.terms.items():
        table[f"terms.{term}"] = TERMS[term].about
        table |= {f"terms.{term}.{key}": str(value) for key, value in params.items()}
    for section_name in ("sampling", "critic"):
        values = getattr(method, section_name).model_dump()
        table |= {f"{section_name}.{key}": str(value) for key, value in values.items()}
    return table


def preset_names() -> str:
    """All presets with their aliases, for messages."""
    return ", ".join(f"{key} ({', '.join(preset.aliases)})" for key, preset in PRESETS.items())


def preset_name(name: str) -> str | None:
    """The key of ``PRESETS`` that a name or alias stands for, whatever its case and separators, or None."""

    def plain(text: str) -> str:
        return " ".join(text.casefold().replace("-", " ").replace("_", " ").split())

    spellings = {plain(n): key for key, preset in PRESETS.items() for n in (key, *preset.aliases)}
    return spellings.get(plain(name))


def side(name: str, directory: Path | None = None) -> Side:
    """A method row or a preset, by name or alias; the side has the preset's full name.

    Raises:
        ConfigError: neither.
    """
    key = preset_name(name)
    if key is not None and name not in list_methods(directory):
        preset = PRESETS[key]
        method = load_method(preset.base, preset.overrides, directory=directory)
        known = {convention: str(value) for convention, value in preset.overrides.items()}
        return Side(key, method, {"credit": method.credit_choice["name"], **known})
    if name.endswith((".yaml", ".yml")) or name in list_methods(directory):
        method = load_method(name, directory=directory)
        return Side(name, method, conventions(method))
    raise ConfigError(
        f"{name!r} is neither a method nor a preset.",
        key="name",
        remedy=f"presets: {preset_names()}; for methods see `turnscale methods list`.",
    )


EXAMPLE_GROUPS = ((0.0, 1.0), (1.0,), (0.5, 0.5), (0.0, 0.0, 1.0, 1.0))
"""Rewards, group by group, that tell group conventions apart: a pair, a lone success, a tie, a four."""


def example_batch(groups: Sequence[Sequence[float]] = EXAMPLE_GROUPS) -> TurnBatch:
    """Short trajectories with the given rewards, group by group; a reward of at least 1 is a success."""
    import torch

    from turnscale.gates.batches import random_batch

    reward = torch.tensor([r for members in groups for r in members], dtype=torch.float64)
    group = torch.tensor([index for index, members in enumerate(groups) for _ in members])
    batch = random_batch(7, rows=len(reward), turns=(2, 3), turn_length=(1, 3))
    return batch.with_(reward=reward, group=group, task=group, success=reward >= 1)


def per_trajectory(advantages: Any, batch: TurnBatch) -> list[float]:
    """Mean advantage of each trajectory's action tokens. advantages: [B, T]."""
    return (advantages.sum(dim=1) / batch.action_mask.sum(dim=1)).tolist()


def advantages(method: Method, batch: TurnBatch) -> Any:
    """[B, T] as the loss would use them; groups of one, where the method forbids them, get 0 here."""
    if method.credit_choice.get("singleton") == "forbid":
        relaxed = {**method.credit_choice, "singleton": "zero"}
        method = method.model_copy(update={"credit_choice": relaxed})
    return method.normalise(method.credit(batch).advantages, batch)


def compare(a: Side, b: Side, batch: TurnBatch | None = None) -> tuple[list[Difference], float]:
    """The conventions in which two sides differ, and the greatest difference of their advantages.

    Args:
        a, b: the sides.
        batch: examples to compute advantages on; ``example_batch()`` by default.

    Returns:
        Differences over conventions known of both sides, those that explain most first; and the greatest
        absolute difference of the two sides' advantages on the examples.
    """
    examples = example_batch() if batch is None else batch
    before = advantages(a.method, examples)
    total = float((before - advantages(b.method, examples)).abs().max())
    partial_knowledge = a.name in PRESETS or b.name in PRESETS
    keys = a.known.keys() & b.known.keys() if partial_knowledge else a.known.keys() | b.known.keys()
    found = []
    for key in sorted(keys):
        left, right = a.known.get(key, "-"), b.known.get(key, "-")
        if left != right:
            found.append(Difference(key, left, right, exchange(a.method, b.method, key, examples, before)))
    found.sort(key=lambda d: -1.0 if d.effect is None else -d.effect - 1.0)
    return found, total


def exchange(a: Method, b: Method, key: str, batch: TurnBatch, before: Any) -> float | None:
    """The effect on a's advantages of taking one convention from b, None where it cannot be taken alone."""
    axis, _, param = key.partition(".")
    if axis not in {"shaping", "credit", "normalisation"}:
        return None
    field = "credit_choice" if axis == "credit" else axis
    if not param:
        if axis == "credit":
            return None
        changed = a.model_copy(update={field: b.section(axis)})
    elif a.section(axis)["name"] == b.section(axis)["name"]:
        changed = a.model_copy(update={field: {**a.section(axis), param: b.section(axis)[param]}})
    else:
        return None
    return float((before - advantages(changed, batch)).abs().max())
