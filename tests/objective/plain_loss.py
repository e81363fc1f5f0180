"""The loss of any method by plain loops, with what a method holds fixed taken at a given point.

Shares no code with the package; differentiating it by finite differences in ``logp`` while ``fixed`` stays put
gives the gradient that stop-gradients are meant to produce.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turnscale.batch import TurnBatch
from turnscale.methods import Method


def groups_of(batch: TurnBatch) -> list[list[list[tuple[int, int]]]]:
    """Positions as [row][turn][token]."""
    out = []
    for row in range(batch.size):
        turns: dict[int, list[tuple[int, int]]] = {}
        for column in range(batch.turn.shape[1]):
            index = int(batch.turn[row, column])
            if index >= 0:
                turns.setdefault(index, []).append((row, column))
        out.append(list(turns.values()))
    return out


def plain_loss(
    method: Method, logp: Tensor, fixed: Tensor, batch: TurnBatch, advantages: Tensor, old: Tensor
) -> float:
    """The loss at ``logp``, stop-gradients evaluated at ``fixed``. All [B, T] float64."""
    rows = groups_of(batch)
    tokens = sum(len(turn) for row in rows for turn in row)
    turns = sum(len(row) for row in rows)
    total = 0.0
    weight = {}
    for row in rows:
        length = sum(len(turn) for turn in row)
        for turn in row:
            for at in turn:
                match method.aggregation["name"]:
                    case "token_mean":
                        weight[at] = 1 / tokens
                    case "sequence_mean":
                        weight[at] = 1 / length / sum(1 for r in rows if r)
                    case "turn_mean":
                        weight[at] = 1 / len(turn) / turns
                    case "fixed":
                        weight[at] = 1 / method.aggregation["divisor"] / sum(1 for r in rows if r)
                base = batch.logp_rollout if method.ratio["name"] == "rollout" else old

                def summed(source: Tensor, places: list, base: Tensor = base) -> float:
                    return sum(float(source[p] - base[p]) for p in places)

                own = float(logp[at] - fixed[at])
                match method.ratio:
                    case {"name": "turn", "gradient": "own"}:
                        log_ratio = summed(fixed, turn) + own
                    case {"name": "turn", "gradient": "shared"}:
                        log_ratio = summed(logp, turn)
                    case {"name": "turn", "gradient": "shared_mean"}:
                        held = summed(fixed, turn)
                        log_ratio = held + (summed(logp, turn) - held) / len(turn)
                    case {"name": "sequence"}:
                        everything = [p for t in row for p in t]
                        log_ratio = summed(fixed, everything) / length + own
                    case _:
                        log_ratio = float(logp[at] - base[at])
                ratio, a = math.exp(log_ratio), float(advantages[at])
                match method.clip:
                    case {"name": "decoupled", "low": low, "high": high}:
                        gain = min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
                    case {"name": "log_symmetric", "eps": eps}:
                        gain = min(ratio * a, min(max(ratio, 1 / (1 + eps)), 1 + eps) * a)
                    case {"name": "hard_mask", "low": low, "high": high}:
                        gain = ratio * a if 1 - low < ratio < 1 + high else 0.0
                    case _:
                        gain = ratio * a
                total -= weight[at] * gain
    return total + sum(
        plain_term(name, params, logp, fixed, batch, weight, tokens) for name, params in method.terms.items()
    )


def plain_term(
    name: str, params: dict, logp: Tensor, fixed: Tensor, batch: TurnBatch, weight: dict, tokens: int
) -> float:
    """One extra term by loops."""
    total = 0.0
    happy = sum(1 for row, _ in weight if batch.success[row])
    for at, w in weight.items():
        now, held = float(logp[at]), float(fixed[at])
        if name == "kl":
            ref = float(batch.logp_ref[at])
            value = {
                "k1": lambda x, ref=ref: x - ref,
                "k2": lambda x, ref=ref: (x - ref) ** 2 / 2,
                "k3": lambda x, ref=ref: math.exp(ref - x) - 1 + x - ref,
            }
            if params["gradient"] == "estimator":
                total += w * value[params["estimator"]](now)
            else:
                total += w * (value[params["estimator"]](held) + value["k2"](now) - value["k2"](held))
        elif name == "positive_nll":
            total -= now / max(happy, 1) if batch.success[at[0]] else 0.0
        else:
            teacher = float(batch.logp_teacher[at])
            if name == "distill_reverse":
                total += ((held - teacher) + ((now - teacher) ** 2 - (held - teacher) ** 2) / 2) / tokens
            elif name == "distill_forward":
                total -= min(math.exp(teacher - held), params["highest"]) * now / tokens
            elif name == "distill_gated":
                gate = 1 / (1 + math.exp(-params["sharpness"] * (teacher - held)))
                total += gate * (teacher - now) / tokens
            else:
                raise AssertionError(name)
    return params["coef"] * total


def table_logp(theta: Tensor, state: Tensor, token: Tensor) -> Tensor:
    """[B, T]: log-probabilities of a tabular softmax policy. theta: [states, tokens]."""
    return torch.log_softmax(theta, dim=1)[state, token]
