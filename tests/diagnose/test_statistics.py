"""Statistics of one trajectory: worked answers, closed forms, and an independent loop over tokens."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnscale.diagnose.statistics import spans, trajectory_statistics
from turnscale.diagnose.values import make

NAN = math.nan

# values, turn lengths, share by tokens, share by turns, jump, spans, squared change at boundaries and in all
WORKED = [
    ([0, 0, 1, 1], [2, 2], 1, 1, 1, [0, 0], 1, 1),
    ([0, 1, 0, 1], [2, 2], 0, 0, 1, [0.9, 0.9], 1, 3),
    ([0, 1, 2, 3], [2, 2], 0.8, 0.8, 1, [0.9, 0.9], 1, 3),
    ([*range(9)], [3, 3, 3], 0.9, 0.9, 1, [1.8, 1.8, 1.8], 2, 8),
    ([0, 0, 0, 1, 1, 3], [3, 2, 1], 1, 1, 1.5, [0, 0, 0], 5, 5),
    ([0.2, 0.4, 0.6], [3], NAN, NAN, NAN, [0.36], 0, 0.08),
    ([0.5] * 4, [2, 2], NAN, NAN, 0, [0, 0], 0, 0),
    ([0, 2, 4, 6, 8, 10, 12, 14], [1] * 8, 1, 1, 2, [0] * 8, 28, 28),
]


def one(values, lengths):
    return trajectory_statistics(make([(values, lengths)])).iloc[0]


@pytest.mark.parametrize("case", WORKED)
def test_worked_answers(case):
    values, lengths, tokens, turns, jump, span, boundary, total = case
    row = one(values, lengths)
    found = [row["share_token"], row["share_turn"], row["jump"], row["boundary_square"], row["total_square"]]
    assert found == pytest.approx([tokens, turns, jump, boundary, total], abs=1e-12, nan_ok=True)
    assert spans(make([(values, lengths)])) == pytest.approx(span, abs=1e-12)
    assert row["span"] == pytest.approx(np.mean(span), abs=1e-12)
    assert row["boundary_share"] == pytest.approx(
        boundary / total if total and len(lengths) > 1 else NAN, nan_ok=True
    )


def test_between_and_within_by_hand():
    row = one([0, 0, 0, 1, 1, 3], [3, 2, 1])
    assert row["between"] == pytest.approx(41 / 36) and row["within"] == 0


def brute(values, lengths):
    """The definitions again, with loops and numpy's percentile."""
    v = np.asarray(values, dtype=float)
    parts = np.split(v, np.cumsum(lengths)[:-1])
    n, k = len(v), len(parts)
    mu = sum(len(p) * p.mean() for p in parts) / n
    between = sum(len(p) / n * (p.mean() - mu) ** 2 for p in parts)
    within = sum(len(p) / n * p.var() for p in parts)
    even = np.mean([p.mean() for p in parts])
    between_turn = np.mean([(p.mean() - even) ** 2 for p in parts])
    within_turn = np.mean([p.var() for p in parts])
    jumps = [b[0] - a[-1] for a, b in itertools.pairwise(parts)]
    steps = [b - a for a, b in itertools.pairwise(v)]
    constant = max(v) == min(v)
    defined = k > 1 and not constant
    return {
        "between": between,
        "within": within,
        "share_token": between / (between + within) if defined else NAN,
        "share_turn": between_turn / (between_turn + within_turn) if defined else NAN,
        "jump": np.mean(np.abs(jumps)) if k > 1 else NAN,
        "span": np.mean([np.percentile(p, 95) - np.percentile(p, 5) for p in parts]),
        "boundary_square": sum(j * j for j in jumps),
        "boundary_change": sum(jumps),
        "total_square": sum(s * s for s in steps),
        "turns": k,
        "tokens": n,
        "one_token_turns": sum(len(p) == 1 for p in parts),
        "value": v.sum(),
        "value_square": (v * v).sum(),
    }


trajectories = st.lists(
    st.lists(
        st.lists(st.floats(-50, 50).map(lambda x: round(x, 4)), min_size=1, max_size=6),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(trajectories)
def test_agrees_with_a_loop(turns):
    cases = [([x for part in item for x in part], [len(part) for part in item]) for item in turns]
    table = trajectory_statistics(make(cases))
    for (_, row), case in zip(table.iterrows(), cases, strict=True):
        expected = brute(*case)
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-7, abs=1e-8, nan_ok=True), name


@settings(max_examples=40, deadline=None)
@given(trajectories, st.floats(-100, 100), st.floats(0.1, 20))
def test_shares_do_not_depend_on_level_and_scale(turns, level, scale):
    cases = [([x for part in item for x in part], [len(part) for part in item]) for item in turns]
    moved = [([level + scale * round(x, 1) for x in values], lengths) for values, lengths in cases]
    cases = [([round(x, 1) for x in values], lengths) for values, lengths in cases]
    names = ["share_token", "share_turn", "boundary_share"]
    one, other = (trajectory_statistics(make(item))[names] for item in (cases, moved))
    assert one.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-7, nan_ok=True)


@pytest.mark.parametrize(("turns", "length"), [(2, 2), (3, 3), (8, 40), (5, 1)])
def test_drift_has_its_closed_form(turns, length):
    row = one(list(range(turns * length)), [length] * turns)
    expected = (turns**2 - 1) * length**2 / (turns**2 * length**2 - 1)
    assert row["share_token"] == pytest.approx(expected, rel=1e-12)


def test_white_noise_has_the_share_of_its_degrees_of_freedom():
    rng = np.random.default_rng(0)
    table = trajectory_statistics(make([(list(rng.normal(size=60)), [10, 20, 30]) for _ in range(4000)]))
    share = table["between"] / (table["between"] + table["within"])
    assert share.mean() == pytest.approx(2 / 59, abs=4 * share.std() / np.sqrt(len(share)))


def test_a_random_walk_has_one_minus_one_over_k_in_expectation():
    rng = np.random.default_rng(1)
    walks = rng.normal(size=(3000, 160)).cumsum(axis=1)
    table = trajectory_statistics(make([(list(walk), [40] * 4) for walk in walks]))
    between, within = table["between"].mean(), table["within"].mean()
    assert between / (between + within) == pytest.approx(3 / 4, abs=0.015)


def test_steps_at_boundaries_have_a_share_of_one():
    rng = np.random.default_rng(2)
    levels = rng.normal(size=(50, 6)).cumsum(axis=1)
    values = np.repeat(levels, 30, axis=1) + rng.normal(scale=1e-3, size=(50, 180))
    table = trajectory_statistics(make([(list(row), [30] * 6) for row in values]))
    assert (table["share_token"] > 0.99).all() and (table["jump"] > table["span"]).all()


@pytest.mark.parametrize(
    ("values", "lengths"), [([0.7], [1]), ([0.1] * 3, [2, 1]), ([1e8 + 0.1] * 5, [1, 3, 1])]
)
def test_constant_values_have_no_share_even_after_rounding(values, lengths):
    row = one(values, lengths)
    assert math.isnan(row["share_token"]) and math.isnan(row["share_turn"]) and math.isnan(row["share_long"])
    assert math.isnan(row["boundary_share"])


def test_one_token_turns_are_left_out_of_the_long_share():
    row = one([5.0, 0, 1, 9.0, 2, 3], [1, 2, 1, 2])
    assert row["one_token_turns"] == 2
    assert row["share_long"] == pytest.approx(one([0, 1, 2, 3], [2, 2])["share_token"])
    assert math.isnan(one([0, 1, 2], [1, 2])["share_long"])
    assert math.isnan(one([0.0, 0.1, 0.1, 0.1, 0.1, 0.1], [1, 3, 2])["share_long"])


def test_observations_before_the_first_turn_are_no_boundary():
    table = trajectory_statistics(make([([0, 0, 2, 5], [2, 1, 1])], gaps=[[100, 4, 6]]))
    row = table.iloc[0]
    assert (row["gap"], row["gap_square"], row["gap_boundary_square"]) == (10, 52, 4 * 4 + 6 * 9)
