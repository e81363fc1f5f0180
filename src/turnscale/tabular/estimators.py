"""Bias, variance and direction of policy-gradient estimators, against the exact gradient of a small task.

The credits are the registered functions on `TurnBatch`, the ratios too; what multiplies a token's score is taken
from automatic differentiation of sum(ratio x advantage), so any registered ratio can be asked. Every estimator is a
mean over the rollouts of a sum over tokens, without clip and without whitening of the batch. Critics are exact: the
expected reward under the sampler given what is visible before the token.

Not all estimators aim at the gradient of the expected reward. Dividing by a group's standard deviation, or giving
the later turns of a tree more weight, aims elsewhere; for those the cosine between the mean estimate and the gradient
says what remains, and the bias in length is a matter of the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from turnscale.axes import RATIO
from turnscale.batch import TurnBatch
from turnscale.methods import Method
from turnscale.seeding import numpy_stream
from turnscale.tabular.exact import Enumerated, enumerate_task, midway, one_step_away
from turnscale.tabular.plan import ON_POLICY
from turnscale.tabular.task import Array
from turnscale.tabular.training import Design, design_of

BLOCKS = 20
"""Blocks of batches left out in turn by the jackknife behind every interval."""
LEVEL = 0.95

STATISTICS = (
    "cosine",
    "scale",
    "relative_bias",
    "relative_variance",
    "snr",
    "snr_per_100_calls",
    "batch_cosine",
    "dead_token_share",
    "dead_batch_share",
)
"""cosine: of the mean estimate with the gradient. scale: the mean estimate along the gradient, in lengths of the
gradient (1 if unbiased). relative_bias: |mean - gradient| / |gradient|. relative_variance: trace of the covariance
of one batch's estimate / |gradient|^2. snr: |mean| / sqrt(trace). snr_per_100_calls: the same for batches worth 100
environment calls. batch_cosine: mean cosine of one batch's estimate with the gradient (0 for a zero estimate).
dead_token_share: action tokens after the fork whose advantage is exactly 0. dead_batch_share: batches whose
estimate is exactly 0. Squared lengths are freed of the Monte-Carlo noise of the mean."""


@dataclass(frozen=True)
class Policy:
    """A policy at which the gradient is estimated.

    Attributes:
        logits: [P].
        token_logp: [N, L] of every trajectory.
        gradient: [P], exact.
    """

    logits: Array
    token_logp: Array
    gradient: Array


def policy_at(mdp: Enumerated, logits: Array) -> Policy:
    """The policy with its exact gradient."""
    return Policy(logits, mdp.token_logp(logits), mdp.gradient(logits))


@dataclass(frozen=True)
class Sample:
    """M batches of R rollouts drawn from an enumerated task.

    Attributes:
        mdp: the task.
        index: [M, R] trajectories.
        design: how rollouts share prefixes.
        batch: the rollouts [M R, L], each batch a task of its own; values are the exact critic's.
    """

    mdp: Enumerated
    index: Array
    design: Design
    batch: TurnBatch


def draw(
    mdp: Enumerated, sampler: Array, design: Design, batches: int, generator: np.random.Generator
) -> Sample:
    """Sample trajectories, forked where the design says so. sampler: [P] logits."""
    ends = np.cumsum(mdp.probability(sampler))
    ends /= ends[-1]
    starts = np.concatenate([[0.0], ends[:-1]])
    shape = (batches, len(design.forks), design.siblings)
    index: Array
    if design.copied:
        index = np.empty(shape, dtype=np.int64)
        for group, fork in enumerate(design.forks):
            base = np.searchsorted(ends, generator.random(batches), side="right")
            block = mdp.completions(fork)
            first = base // block * block
            low, high = starts[first], ends[first + block - 1]
            uniform = generator.random((batches, design.siblings))
            found = np.searchsorted(ends, low[:, None] + uniform * (high - low)[:, None], side="right")
            index[:, group] = np.clip(found, first[:, None], (first + block - 1)[:, None])
    else:
        index = np.searchsorted(ends, generator.random(shape), side="right")
    index = np.minimum(index, len(ends) - 1).reshape(batches, design.rollouts)
    return Sample(mdp, index, design, to_batch(mdp, sampler, index, design))


def to_batch(mdp: Enumerated, sampler: Array, index: Array, design: Design) -> TurnBatch:
    """The sampled trajectories as a batch in float64."""
    batches, rollouts = index.shape
    flat = index.reshape(-1)
    size, length = flat.size, len(mdp.counts)
    number = np.repeat(np.arange(batches), rollouts)
    group = np.repeat(np.arange(batches * len(design.forks)), design.siblings)
    states = np.array([mdp.rows[turn * mdp.tokens] for turn in range(mdp.task.turns)])
    offset = np.concatenate([[0], np.cumsum(states)])
    anchor = mdp.state[flat] + offset[:-1] + number[:, None] * offset[-1]
    values = torch.from_numpy(mdp.state_values(sampler)[flat])
    reward = torch.from_numpy(mdp.reward[flat])
    return TurnBatch(
        ids=torch.from_numpy(mdp.action[flat]),
        action_mask=torch.ones(size, length, dtype=torch.bool),
        turn=torch.from_numpy(mdp.turn).expand(size, length),
        logp_rollout=torch.from_numpy(mdp.token_logp(sampler)[flat]),
        length=torch.full((size,), length),
        reward=reward,
        success=reward > 0,
        truncated=torch.zeros(size, dtype=torch.bool),
        task=torch.from_numpy(number),
        group=torch.from_numpy(group),
        values=values,
        values_turn=values,
        anchor=torch.from_numpy(np.repeat(anchor, mdp.tokens, axis=1)),
        fork_turn=torch.from_numpy(np.tile(np.repeat(design.forks, design.siblings), batches)),
    )


def token_weights(batch: TurnBatch, advantages: torch.Tensor, logp: Array, ratio: Mapping[str, Any]) -> Array:
    """[B, L] what multiplies each token's score: d sum(ratio x advantage) / d logp.

    Args:
        batch: the rollouts, with the sampler's log-probabilities.
        advantages: [B, L].
        logp: [B, L] log-probabilities under the policy whose gradient is estimated.
        ratio: ``{"name": ..., parameters}`` of the ratio axis.
    """
    parameters = {key: value for key, value in ratio.items() if key != "name"}
    leaf = torch.from_numpy(logp).clone().requires_grad_()
    log_ratio = RATIO[ratio["name"]].load()(leaf, batch.logp_rollout, batch, **parameters)
    (log_ratio.exp() * advantages).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


@dataclass(frozen=True)
class Moments:
    """Sums over the batches of each of K blocks.

    Attributes:
        count: [K] batches.
        total: [K, P] estimates.
        square: [K] squared lengths.
        along: [K] inner products with the gradient.
        cosine: [K] cosines with the gradient.
        dead: [K] estimates that are exactly 0.
    """

    count: Array
    total: Array
    square: Array
    along: Array
    cosine: Array
    dead: Array


def moments(sample: Sample, policy: Policy, weights: Array) -> Moments:
    """The moments of the per-batch gradient estimates at a policy. weights: [M R, L] of the tokens' scores."""
    mdp = sample.mdp
    batches, rollouts = sample.index.shape
    flat = sample.index.reshape(-1)
    number = np.repeat(np.arange(batches), rollouts)
    block_of = np.arange(batches) * BLOCKS // batches
    square, along = np.zeros(batches), np.zeros(batches)
    parts = []
    tables = zip(mdp.log_policy(policy.logits), mdp.tables(policy.gradient), strict=True)
    for i, (log_policy, slope) in enumerate(tables):
        rows, count = log_policy.shape
        row, action, weight = mdp.row[flat, i], mdp.action[flat, i], weights[:, i] / rollouts
        # Rows of one batch that meet in one table row add up before their length is taken.
        keys, member = np.unique(number * rows + row, return_inverse=True)
        taken = np.bincount(member * count + action, weight, len(keys) * count).reshape(-1, count)
        where, table_row = np.divmod(keys, rows)
        step = taken - np.exp(log_policy[table_row]) * taken.sum(axis=1, keepdims=True)
        square += np.bincount(where, (step**2).sum(axis=1), batches)
        along += np.bincount(where, (step * slope[table_row]).sum(axis=1), batches)
        cell = (block_of[where] * rows + table_row)[:, None] * count + np.arange(count)
        parts.append(
            np.bincount(cell.reshape(-1), step.reshape(-1), BLOCKS * rows * count).reshape(BLOCKS, -1)
        )
    norm = float(np.linalg.norm(policy.gradient))
    dead = square == 0
    cosine = np.divide(along, norm * np.sqrt(square), out=np.zeros(batches), where=~dead)

    def by_block(values: Array) -> Array:
        return np.bincount(block_of, values, BLOCKS)

    return Moments(
        count=by_block(np.ones(batches)),
        total=np.concatenate(parts, axis=1),
        square=by_block(square),
        along=by_block(along),
        cosine=by_block(cosine),
        dead=by_block(dead.astype(float)),
    )


def summarise(found: Moments, gradient: Array, calls: int) -> dict[str, tuple[float, float, float]]:
    """Name -> (value, lo, hi) for the names of ``STATISTICS`` but the share of dead tokens; jackknife over blocks."""
    whole = found.total.sum(axis=0)
    length = np.array([whole @ whole, *(np.square(whole - part).sum() for part in found.total)])
    keep = np.vstack([np.ones(BLOCKS), 1.0 - np.eye(BLOCKS)])
    count = keep @ found.count
    truth = float(gradient @ gradient)
    mean_square = length / count**2
    trace = (keep @ found.square / count - mean_square) * count / (count - 1)
    own = np.maximum(mean_square - trace / count, 0.0)
    along = keep @ found.along / count
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {
            "cosine": along / np.sqrt(truth * own),
            "scale": along / truth,
            "relative_bias": (mean_square - trace / count - 2 * along + truth) / truth,
            "relative_variance": trace / truth,
            "snr": np.sqrt(own / trace),
            "snr_per_100_calls": np.sqrt(own / trace * 100 / calls),
            "batch_cosine": keep @ found.cosine / count,
            "dead_batch_share": keep @ found.dead / count,
        }
    spread = float(student.ppf(0.5 + LEVEL / 2, BLOCKS - 1)) * np.sqrt((BLOCKS - 1) / BLOCKS)
    bounds = {
        "cosine": (-1.0, 1.0),
        "scale": (-np.inf, np.inf),
        "batch_cosine": (-1.0, 1.0),
        "dead_batch_share": (0.0, 1.0),
    }
    result = {}
    for name, (value, *left_out) in values.items():
        half = spread * np.sqrt(np.square(np.array(left_out) - np.mean(left_out)).sum())
        ends = np.array([value, value - half, value + half])
        if name == "relative_bias":  # a square until here, where freeing it of noise can make it negative
            ends = np.sqrt(np.maximum(ends, 0.0))
        low, high = bounds.get(name, (0.0, np.inf))
        middle, lo, hi = np.clip(ends, low, high).tolist()
        result[name] = (middle, lo, hi)
    return result


def dead_tokens(sample: Sample, advantages: torch.Tensor) -> tuple[float, float, float]:
    """Share of action tokens after the fork with an advantage of exactly 0, and its interval over batches."""
    own = torch.from_numpy(sample.mdp.turn)[None, :] >= sample.batch.fork_turn[:, None]  # type: ignore[index]
    batches, rollouts = sample.index.shape
    zero = ((advantages == 0) & own).sum(dim=1).reshape(batches, rollouts).sum(dim=1).double()
    share = (zero / own.sum(dim=1).reshape(batches, rollouts).sum(dim=1)).numpy()
    half = float(student.ppf(0.5 + LEVEL / 2, batches - 1)) * share.std(ddof=1) / np.sqrt(batches)
    mean = float(share.mean())
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def audit(
    credits: Mapping[str, Method],
    ratios: Mapping[str, Mapping[str, Any]],
    *,
    turns: Sequence[int],
    tokens: Sequence[int],
    group_sizes: Sequence[int],
    off_policy_kl: float,
    batches: int,
) -> Iterator[dict[str, Any]]:
    """Every estimator on every task, one row per statistic.

    Off the policy (`off_policy_kl` nats from the sampler) every ratio is asked, except the turn ratio where turns are
    one token and it is the token ratio; on it they are all the same.

    Yields:
        ``turns, tokens, group_size, credit, ratio, metric, value, lo, hi, rollouts, calls, batches, expected_reward,
        kl``.
    """
    for length in tokens:
        for count in turns:
            mdp = enumerate_task(count, length)
            sampler = midway(mdp)
            moved = one_step_away(mdp, sampler, off_policy_kl)
            policies = policy_at(mdp, sampler), policy_at(mdp, moved)
            expected = mdp.value(sampler)
            for size in group_sizes:
                samples: dict[Design, Sample] = {}
                for name, method in credits.items():
                    design = design_of(method, count, size) if method.sampling.scheme != "fork" else Design(
                        tuple(range(count)), size, copied=True
                    )  # fmt: skip
                    if design not in samples:
                        stream = numpy_stream(0, "estimators", count, length, size, str(design.copied))
                        samples[design] = draw(mdp, sampler, design, batches, stream)
                    rows = _estimators(name, method, samples[design], policies, ratios, length)
                    for row in rows:
                        yield {
                            "turns": count,
                            "tokens": length,
                            "group_size": size,
                            **row,
                            "rollouts": design.rollouts,
                            "calls": design.calls(count),
                            "batches": batches,
                            "expected_reward": expected,
                            "kl": 0.0 if row["ratio"] == ON_POLICY else off_policy_kl,
                        }


def _estimators(
    name: str,
    method: Method,
    sample: Sample,
    policies: tuple[Policy, Policy],
    ratios: Mapping[str, Mapping[str, Any]],
    tokens: int,
) -> Iterator[dict[str, Any]]:
    mdp, flat = sample.mdp, sample.index.reshape(-1)
    advantages = method.credit(sample.batch).advantages
    dead = dead_tokens(sample, advantages)
    here, moved = policies
    cases = [(ON_POLICY, here, {"name": "token"})]
    cases += [
        (label, moved, dict(ratio))
        for label, ratio in ratios.items()
        if tokens > 1 or ratio["name"] != "turn"
    ]
    calls = sample.design.calls(mdp.task.turns)
    for label, policy, ratio in cases:
        weights = token_weights(sample.batch, advantages, policy.token_logp[flat], ratio)
        found = summarise(moments(sample, policy, weights), policy.gradient, calls)
        found["dead_token_share"] = dead
        for metric in STATISTICS:
            value, lo, hi = found[metric]
            yield {"credit": name, "ratio": label, "metric": metric, "value": value, "lo": lo, "hi": hi}
