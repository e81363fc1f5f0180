"""Inert knobs: parameters of a method that can be turned without moving its advantages, critic
targets, loss or gradient.

A knob that does nothing is either declared so by the row (``inert``, with the reason) or a mistake: the study
would sweep it and find no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnscale.axes import AXES, TERMS, Integer, Number, OneOf, Parameter
from turnscale.gates.identities import outcome
from turnscale.methods import Method, load_method

if TYPE_CHECKING:
    from torch import Tensor

    from turnscale.batch import TurnBatch


def knobs(method: Method) -> Iterator[tuple[str, Any, Parameter]]:
    """(dotted key, value, kind) of every parameter of every choice the method makes."""
    for axis in AXES:
        for name, kind in method.choice(axis).params.items():
            yield f"{axis}.{name}", method.section(axis)[name], kind
    for term, params in method.terms.items():
        for name, kind in TERMS[term].params.items():
            yield f"terms.{term}.{name}", params[name], kind


def other_values(value: Any, kind: Parameter) -> list[Any]:
    """Legal values away from the present one, on both sides where the range allows."""
    if isinstance(kind, OneOf):
        return [choice for choice in kind.choices if choice != value]
    candidates: list[Any]
    if isinstance(kind, Integer):
        candidates = [value - 1, value + 1]
    else:
        assert isinstance(kind, Number)
        candidates = [value + 0.3, value - 0.3, value * 0.5, value * 0.05, value * 2 + 0.01]
    legal = []
    for candidate in candidates:
        try:
            kind.check(candidate)
        except ValueError:
            continue
        legal.append(candidate)
    return legal


def effects(method: Method, batch: TurnBatch, drift: Tensor) -> tuple[Tensor, ...]:
    """All a method's parameters can move: :func:`outcome` and the critic's targets [B, T], where it has one."""
    credit = method.credit(batch)
    targets = [values for values in (credit.returns, credit.returns_turn) if values is not None]
    return (*outcome(method, batch, drift), *targets)


def inert_knobs(
    name: str,
    *,
    seeds: range = range(3),
    directory: Path | None = None,
    overrides: dict[str, Any] | None = None,
) -> list[str]:
    """Dotted keys that change nothing on random batches whatever legal value they are given.

    The batches have groups of four and of one, several forks, graded rewards and a moved policy. Rows that
    forbid groups of one are given none.

    Args:
        name: method row.
        seeds: one batch each.
        directory: where rows are looked up.
        overrides: dotted keys set beforehand.
    """
    import torch

    from turnscale.gates.batches import random_batch

    given = dict(overrides or {})
    base = load_method(name, given, directory=directory)
    rows = 12 if base.credit_choice.get("singleton") == "forbid" else 13
    scenes = []
    for seed in seeds:
        batch = random_batch(seed, rows=rows, graded=True)
        near_constant = torch.where(batch.group == 0, 0.5 + 1e-2 * batch.reward, batch.reward)
        batch = batch.with_(reward=near_constant, fork_turn=batch.group % 3, task=batch.group // 2)
        noise = torch.randn(batch.turn.shape, generator=torch.Generator().manual_seed(seed))
        scenes.append((batch, torch.where(batch.action_mask, 0.6 * noise.double(), 0.0)))
    before = [effects(base, *scene) for scene in scenes]
    inert = []
    for key, value, kind in knobs(base):
        if value == "forbid":
            continue
        moved = False
        for candidate in other_values(value, kind):
            if candidate == "forbid":
                continue
            changed = load_method(name, {**given, key: candidate}, directory=directory)
            after = [effects(changed, *scene) for scene in scenes]
            moved = any(
                not torch.equal(left, right)
                for old, new in zip(before, after, strict=True)
                for left, right in zip(old, new, strict=True)
            )
            if moved:
                break
        if not moved:
            inert.append(key)
    return inert
