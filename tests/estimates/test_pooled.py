"""The equal-weight mean over benchmarks: agreement with the one-benchmark estimators, weights and coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.estimates.pooled import Pooled, pooled, pooled_parts
from turnscale.stats.curves import Curve, curve
from turnscale.stats.intervals import compare, estimate
from turnscale.stats.outcomes import Counts
from turnscale.stats.passk import Metric
from turnscale.stats.question import Comparison, Estimate, NotEstimable, Question
from turnscale.stats.spread import combine

P1 = Metric("pass_at", 1)


def make(rng, seeds, tasks, n=8, name="arm", untrained=False):
    p = rng.beta(1.5, 1.5, (seeds, tasks))
    return Counts(
        name,
        tuple(range(seeds)),
        tuple(f"t{i}" for i in range(tasks)),
        rng.binomial(n, p).astype(np.int64),
        np.full((seeds, tasks), n, dtype=np.int64),
        untrained=untrained,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(Question)), st.integers(2, 5), st.sampled_from([1, 3]))
def test_one_benchmark_is_the_plain_estimate(seed, question, seeds, k):
    rng = np.random.default_rng(seed)
    arm, metric = make(rng, seeds, 12), Metric("pass_at", k)
    one, plain = pooled([{"b": arm}], [metric], question), estimate(arm, metric, question)
    if isinstance(plain, NotEstimable):
        assert isinstance(one, NotEstimable) and one.value == pytest.approx(plain.value)
        return
    assert isinstance(one, Pooled) and isinstance(plain, Estimate)
    got = (one.value[0], one.lo[0], one.hi[0], one.mde[0])
    assert got == pytest.approx((plain.value, plain.lo, plain.hi, plain.mde), rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(Question)))
def test_one_benchmark_is_the_plain_comparison(seed, question):
    rng = np.random.default_rng(seed)
    a, b = make(rng, 3, 12, name="a"), make(rng, 4, 12, name="b")
    one, plain = pooled([{"b": a}, {"b": b}], [P1], question), compare(a, b, P1, question)
    if isinstance(plain, NotEstimable):
        assert isinstance(one, NotEstimable) and one.value == pytest.approx(plain.value)
        return
    assert isinstance(one, Pooled) and isinstance(plain, Comparison)
    got = (one.value[0], one.lo[0], one.hi[0], one.p[0])
    assert got == pytest.approx((plain.difference, plain.lo, plain.hi, plain.p), rel=1e-10)


def test_one_benchmark_is_the_plain_band():
    arm = make(np.random.default_rng(3), 4, 20)
    metrics = [Metric("pass_at", k) for k in (1, 2, 3, 4)]
    question = Question.METHOD_NEW_TASKS
    one = pooled([{"b": arm}], metrics, question, band=np.random.default_rng(7))
    plain = curve([arm], [1, 2, 3, 4], "pass_at", question, rng=np.random.default_rng(7))
    assert isinstance(one, Pooled) and isinstance(plain, Curve)
    assert one.lo == pytest.approx(plain.lo) and one.hi == pytest.approx(plain.hi)


def test_benchmarks_weigh_alike_however_many_tasks_they_have():
    one = Counts("a", (0, 1), ("x",), np.array([[8], [4]]), np.full((2, 1), 8))
    other = Counts("a", (0, 1), ("u", "v", "w"), np.array([[0, 2, 4], [2, 2, 2]]), np.full((2, 3), 8))
    result = pooled([{"x": one, "y": other}], [P1], Question.METHOD_RETRAINED)
    assert isinstance(result, Pooled)
    # seed 0: (1 + 1/4) / 2, seed 1: (1/2 + 1/4) / 2; spread over two seeds, t(0.975, 1) = 12.7062
    assert result.value[0] == pytest.approx((0.625 + 0.375) / 2)
    se, df, _ = combine(pooled_parts(Question.METHOD_RETRAINED, [{"x": one, "y": other}], [P1]))
    assert se[0] == pytest.approx(0.125) and df[0] == pytest.approx(1)


def test_task_variance_by_hand_does_not_include_differences_between_benchmarks():
    easy = Counts("a", (0,), ("a", "b"), np.array([[8, 6]]), np.full((1, 2), 8))
    hard = Counts("a", (0,), ("c", "d"), np.array([[0, 2]]), np.full((1, 2), 8))
    se, _, _ = combine(pooled_parts(Question.TASKS_LIKE_THESE, [{"e": easy, "h": hard}], [P1]))
    # each benchmark: var(1, .75) / 2 = 1/64; their mean: (1/64 + 1/64) / 4
    assert se[0] ** 2 == pytest.approx(2 / 64 / 4)


def test_covers_new_seeds_and_tasks():
    rng = np.random.default_rng(0)
    truth, hits, trials = {"x": 0.7, "y": 0.35}, 0, 400
    for _ in range(trials):
        effect = rng.normal(0, 0.05, (5, 1))
        arm = {}
        for name, level in truth.items():
            p = np.clip(level + effect + rng.normal(0, 0.15, (1, 40)), 0, 1)
            c = rng.binomial(4, p).astype(np.int64)
            tasks = tuple(f"{name}{i}" for i in range(40))
            arm[name] = Counts("a", tuple(range(5)), tasks, c, np.full((5, 40), 4, dtype=np.int64))
        result = pooled([arm], [P1], Question.METHOD_NEW_TASKS)
        assert isinstance(result, Pooled)
        hits += bool(result.lo[0] <= 0.525 <= result.hi[0])
    assert 0.92 <= hits / trials <= 1.0


def test_one_seed_says_nothing_about_a_method_and_gives_the_tolerance():
    rng = np.random.default_rng(1)
    a, b = make(rng, 1, 60, name="a"), make(rng, 1, 60, name="b")
    b = Counts("b", b.seeds, b.tasks, np.minimum(b.c, 1), b.n)
    single = pooled([{"x": a, "y": a}], [P1], Question.METHOD_NEW_TASKS)
    assert isinstance(single, NotEstimable) and single.value == pytest.approx(float(a.scores(P1).mean()))
    pair = pooled([{"x": a, "y": a}, {"x": b, "y": b}], [P1], Question.METHOD_NEW_TASKS)
    assert isinstance(pair, NotEstimable)
    assert pair.seed_sd_tolerance is not None and pair.seed_sd_tolerance > 0
    one = compare(a, b, P1, Question.METHOD_NEW_TASKS)
    alone = pooled([{"x": a}, {"x": b}], [P1], Question.METHOD_NEW_TASKS)
    assert isinstance(one, NotEstimable) and isinstance(alone, NotEstimable)
    assert alone.seed_sd_tolerance == pytest.approx(one.seed_sd_tolerance)
