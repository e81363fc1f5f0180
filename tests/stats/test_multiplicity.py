"""Holm and Benjamini-Hochberg: reference values, defining properties, declared families."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.errors import DataError
from turnscale.stats.multiplicity import Family, benjamini_hochberg, holm

from .helpers import REFERENCE

p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_reference():
    assert holm(REFERENCE["holm"]["p"]) == pytest.approx(REFERENCE["holm"]["adj"])
    assert benjamini_hochberg(REFERENCE["bh"]["p"]) == pytest.approx(REFERENCE["bh"]["adj"])


@given(p_lists, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_bonferroni_bounds(p, random):
    order = random.sample(range(len(p)), len(p))
    shuffled = np.array(p)[order]
    for adjust in (holm, benjamini_hochberg):
        np.testing.assert_allclose(adjust(shuffled), adjust(p)[order])
        assert np.all(adjust(p) >= np.array(p) - 1e-15)
    assert np.all(benjamini_hochberg(p) <= holm(p) + 1e-12)
    assert np.all(holm(p) <= np.minimum(1, len(p) * np.array(p)) + 1e-12)


@given(p_lists, st.floats(0.001, 0.999))
def test_rejections_are_those_of_the_step_procedures(p, alpha):
    values = np.sort(p)
    m = len(values)
    step_down = 0
    while step_down < m and values[step_down] * (m - step_down) <= alpha:
        step_down += 1
    assert int((holm(p) <= alpha).sum()) == step_down
    below = np.flatnonzero(values * m / np.arange(1, m + 1) <= alpha)
    assert int((benjamini_hochberg(p) <= alpha).sum()) == (below[-1] + 1 if below.size else 0)


def test_a_family_cannot_shrink_or_grow():
    family = Family("headline", ("a", "b", "c"))
    assert family.adjust({"a": 0.01, "b": 0.02, "c": 0.5}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.5})
    with pytest.raises(DataError, match="'c' is missing"):
        family.adjust({"a": 0.01, "b": 0.02})
    with pytest.raises(DataError, match="'d' is undeclared"):
        family.adjust({"a": 0.01, "b": 0.02, "c": 0.5, "d": 0.001})


def test_an_untestable_claim_still_counts():
    family = Family("headline", ("a", "b", "c"), "bh")
    assert family.adjust({"a": 0.01, "b": None, "c": 0.02}) == pytest.approx(
        {"a": 0.03, "b": None, "c": 0.03}
    )


@pytest.mark.parametrize("bad", [[], [0.1, 1.2], [-0.1], [float("nan")], [[0.1]]])
def test_impossible_p_values(bad):
    with pytest.raises(DataError):
        holm(bad)


def test_families_are_checked():
    for members, method in (((), "holm"), (("a", "a"), "holm"), (("a",), "bonferroni")):
        with pytest.raises(DataError):
            Family("f", members, method)
