"""Credit by plain loops over Python lists, written from the definitions and sharing no code with the package."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from turnscale.batch import TurnBatch

Turns = list[list[int]]


def turns_of(batch: TurnBatch, row: int) -> Turns:
    """Columns of each turn's action tokens."""
    out: Turns = []
    previous = None
    for column in range(batch.turn.shape[1]):
        index = int(batch.turn[row, column])
        if index < 0:
            continue
        if index != previous:
            out.append([])
            previous = index
        out[-1].append(column)
    return out


def per_row(batch: TurnBatch, rule: Callable[[Turns, list[float], float], dict[int, float]]) -> Tensor:
    """Apply ``rule(turns, values by column, reward)`` to each row."""
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        values = [float(v) for v in batch.values[row]] if batch.values is not None else []
        for column, value in rule(turns_of(batch, row), values, float(batch.reward[row])).items():
            out[row, column] = value
    return out


def gae(values: list[float], reward: float, lam: float) -> list[float]:
    """Textbook GAE over a list of steps, discount 1, terminal reward."""
    out, carry, following = [], 0.0, 0.0
    for index in reversed(range(len(values))):
        paid = reward if index == len(values) - 1 else 0.0
        carry = paid + following - values[index] + lam * carry
        following = values[index]
        out.append(carry)
    return out[::-1]


def token_gae(batch: TurnBatch, lam: float) -> Tensor:
    def rule(turns: Turns, values: list[float], reward: float) -> dict[int, float]:
        columns = [c for t in turns for c in t]
        return dict(zip(columns, gae([values[c] for c in columns], reward, lam), strict=True))

    return per_row(batch, rule)


def length_adaptive(batch: TurnBatch, alpha: float) -> Tensor:
    def rule(turns: Turns, values: list[float], reward: float) -> dict[int, float]:
        columns = [c for t in turns for c in t]
        lam = min(max(1 - 1 / (alpha * len(columns)), 0.0), 1.0)
        return dict(zip(columns, gae([values[c] for c in columns], reward, lam), strict=True))

    return per_row(batch, rule)


def turn_gae(batch: TurnBatch, lam: float, place: int) -> Tensor:
    def rule(turns: Turns, values: list[float], reward: float) -> dict[int, float]:
        each = gae([values[t[place]] for t in turns], reward, lam)
        return {c: a for t, a in zip(turns, each, strict=True) for c in t}

    return per_row(batch, rule)


def trace(turns: Turns, values: list[float], reward: float, lam: float) -> dict[int, float]:
    """Within-turn trace, cut at the turn's end, bootstrapping from the next turn's first value."""
    out = {}
    for number, turn in enumerate(turns):
        final = number == len(turns) - 1
        after = 0.0 if final else values[turns[number + 1][0]]
        for i in range(len(turn)):
            total = 0.0
            for j in range(i, len(turn)):
                last = j == len(turn) - 1
                nxt = after if last else values[turn[j + 1]]
                paid = reward if last and final else 0.0
                total += lam ** (j - i) * (paid + nxt - values[turn[j]])
            out[turn[i]] = total
    return out


def centred(turns: Turns, each: list[float], signal: dict[int, float], beta: float) -> dict[int, float]:
    out = {}
    for turn, advantage in zip(turns, each, strict=True):
        mean = sum(signal[c] for c in turn) / len(turn)
        out.update({c: advantage + beta * (signal[c] - mean) for c in turn})
    return out


def multiscale(batch: TurnBatch, lam: float, lam_intra: float, beta: float) -> Tensor:
    def rule(turns: Turns, values: list[float], reward: float) -> dict[int, float]:
        each = gae([values[t[0]] for t in turns], reward, lam)
        return centred(turns, each, trace(turns, values, reward, lam_intra), beta)

    return per_row(batch, rule)


def two_head(batch: TurnBatch, lam_turn: float, lam_token: float, alpha: float, cut: bool) -> Tensor:
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        turns, reward = turns_of(batch, row), float(batch.reward[row])
        token = [float(v) for v in batch.values[row]]
        each = gae([float(batch.values_turn[row, t[0]]) for t in turns], reward, lam_turn)
        if cut:
            signal = trace(turns, token, reward, lam_token)
        else:
            columns = [c for t in turns for c in t]
            signal = dict(zip(columns, gae([token[c] for c in columns], reward, lam_token), strict=True))
        for column, value in centred(turns, each, signal, alpha).items():
            out[row, column] = value
    return out


def bilevel_turn(batch: TurnBatch, lam_turn: float, lam_token: float) -> Tensor:
    def rule(turns: Turns, values: list[float], reward: float) -> dict[int, float]:
        upper = gae([values[t[-1]] for t in turns], reward, lam_turn)
        out = {}
        for turn, advantage in zip(turns, upper, strict=True):
            pay = advantage + values[turn[-1]]
            out.update(dict(zip(turn, gae([values[c] for c in turn], pay, lam_token), strict=True)))
        return out

    return per_row(batch, rule)


def standardise(
    scores: list[float], keys: list[int], scale: str, ddof: int, eps: float, min_std: float, singleton: str
) -> list[float]:
    buckets = defaultdict(list)
    for score, key in zip(scores, keys, strict=True):
        buckets[key].append(score)
    out = []
    for score, key in zip(scores, keys, strict=True):
        members = buckets[key]
        if len(members) == 1:
            out.append(score if singleton == "raw" else 0.0)
            continue
        std = statistics.stdev(members) if ddof else statistics.pstdev(members)
        if len(set(members)) == 1 or std <= min_std:
            out.append(0.0)
        else:
            centre = score - statistics.fmean(members)
            out.append(centre / (std + eps) if scale == "std" else centre)
    return out


def group(batch: TurnBatch, **rules: object) -> list[float]:
    return standardise(batch.reward.tolist(), batch.group.tolist(), **rules)  # type: ignore[arg-type]


def spread(batch: TurnBatch, each: list[float]) -> Tensor:
    return torch.where(batch.action_mask, torch.tensor(each, dtype=torch.float64)[:, None], 0.0)


def leave_one_out(batch: TurnBatch) -> Tensor:
    rewards, groups = batch.reward.tolist(), batch.group.tolist()
    each = []
    for i, mine in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if j != i and groups[j] == groups[i]]
        each.append(mine - statistics.fmean(others) if others else 0.0)
    return spread(batch, each)


def anchor(batch: TurnBatch, discount: float, **rules: object) -> Tensor:
    places, scores, keys = [], [], []
    for row in range(batch.size):
        turns = turns_of(batch, row)
        for number, turn in enumerate(turns):
            places.append((row, turn))
            scores.append(float(batch.reward[row]) * discount ** (len(turns) - 1 - number))
            keys.append(int(batch.anchor[row, turn[0]]))
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for (row, turn), value in zip(places, standardise(scores, keys, **rules), strict=True):  # type: ignore[arg-type]
        out[row, turn] = value
    return out


def tree(batch: TurnBatch, baseline: str, prefix: str, **rules: object) -> Tensor:
    keys = (batch.group if baseline == "fork" else batch.task).tolist()
    each = standardise(batch.reward.tolist(), keys, **rules)  # type: ignore[arg-type]
    groups = batch.group.tolist()
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        siblings = [a for a, g in zip(each, groups, strict=True) if g == groups[row]]
        shared = statistics.fmean(siblings) if prefix == "mean" else 0.0
        for turn in turns_of(batch, row):
            early = int(batch.turn[row, turn[0]]) < int(batch.fork_turn[row])
            out[row, turn] = shared if early else each[row]
    return out


def belief(
    batch: TurnBatch, lam: float, b: float, gamma: float, eps0: float, level: str, **rules: object
) -> Tensor:
    each = group(batch, **rules)
    groups = batch.group.tolist()
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        fellows = [bool(s) for s, g in zip(batch.success, groups, strict=True) if g == groups[row]]
        prior = min(max(sum(fellows) / len(fellows), eps0), 1 - eps0)
        turns = turns_of(batch, row)
        units = turns if level == "turn" else [[c] for t in turns for c in t]
        sign = (each[row] > 0) - (each[row] < 0)
        carried, last, moves = 0.0, prior, []
        for unit in units:
            gap = sum(float(batch.logp_teacher[row, c] - batch.logp_rollout[row, c]) for c in unit)
            carried = gamma * carried + gap
            now = 1 / (1 + math.exp(-(math.log(prior / (1 - prior)) + carried)))
            moves.append(sign * (now - last))
            last = now
        mean, std = statistics.fmean(moves), statistics.pstdev(moves)
        for unit, move in zip(units, moves, strict=True):
            weight = min(max(1 + b * (move - mean) / (std + eps0), 1 - b), 1 + b)
            out[row, unit] = each[row] * ((1 - lam) + lam * weight)
    return out


def token_weighted(batch: TurnBatch, mix: float, width: float, **rules: object) -> Tensor:
    each = group(batch, **rules)
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        sign = (each[row] > 0) - (each[row] < 0)
        for column in (c for t in turns_of(batch, row) for c in t):
            gap = float(batch.logp_teacher[row, column] - batch.logp_rollout[row, column])
            weight = min(max(math.exp(sign * gap), 1 - width), 1 + width)
            out[row, column] = each[row] * ((1 - mix) + mix * weight)
    return out


def step_added(batch: TurnBatch, coef: float, bound: float, **rules: object) -> Tensor:
    each = group(batch, **rules)
    out = torch.zeros(batch.turn.shape, dtype=torch.float64)
    for row in range(batch.size):
        for turn in turns_of(batch, row):
            gap = sum(float(batch.logp_teacher[row, c] - batch.logp_rollout[row, c]) for c in turn)
            out[row, turn] = each[row] + coef * min(max(gap, -bound), bound)
    return out


def utterance(batch: TurnBatch, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """ArCHer: Q - V of each turn at its tokens, and the one-step targets of V and of Q."""
    advantages, states, actions = (torch.zeros(batch.turn.shape, dtype=torch.float64) for _ in range(3))
    for row in range(batch.size):
        turns = turns_of(batch, row)
        for number, turn in enumerate(turns):
            value = float(batch.values[row, turn[0]])
            action = float(batch.values_turn[row, turn[0]])
            if number == len(turns) - 1:
                target = float(batch.reward[row])
            else:
                target = gamma * float(batch.values[row, turns[number + 1][0]])
            for column in turn:
                advantages[row, column] = action - value
                states[row, column] = action
                actions[row, column] = target
    return advantages, states, actions
