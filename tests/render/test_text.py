"""Numbers as printed, and strings that try to be markup."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.render.text import PARTS, latex, markdown, metric_label, p_value, plot, points, with_interval

HOSTILE = "a_b & <script> \\input{x} $y^2$ 100% #1 ~ [z] * | `q`"


def test_points_and_intervals():
    assert points(0.4808) == "48.1" and points(-0.00001) == "0.0" and points(math.nan) == "–"
    assert points(-0.031, signed=True) == "−3.1" and points(0.031, signed=True) == "+3.1"
    assert with_interval(0.5, 0.4, 0.6) == "50.0 ± 10.0"
    assert with_interval(0.95, 0.85, 1.0) == "95.0 [85.0, 100.0]"
    assert with_interval(0.5, math.nan, math.nan) == "50.0"
    assert with_interval(-0.05, -0.15, 0.05, signed=True) == "−5.0 ± 10.0"
    assert p_value(0.0) == "<0.001" and p_value(0.04) == "0.040" and p_value(math.nan) == "–"
    assert metric_label("pass_hat_3") == "pass^3" and metric_label("auc") == "validation AUC"


def test_latex_prints_every_special_character():
    text = latex(HOSTILE)
    assert r"a\_b \& \textless{}script\textgreater{} \textbackslash{}input\{x\}" in text
    assert r"\$y\textasciicircum{}2\$ 100\% \#1 \textasciitilde{} {[}z{]} {*} \textbar{}" in text
    assert latex("a--b") == "a-{}-b" and latex("1 ± 2†") == r"1 $\pm$ 2$^{\dagger}$"
    assert latex("two\nlines\x00") == "two lines "


@given(st.text(st.characters() | st.sampled_from([*HOSTILE, *PARTS])))
def test_latex_leaves_no_command_of_the_user(text):
    rest = re.sub("|".join(re.escape(printed) for printed in PARTS.values()), "", latex(text))
    assert not re.search(r"[\\$&#_%~^<>|\n]", rest)
    assert rest.count("{") == rest.count("}")


@given(st.text())
def test_markdown_leaves_no_markup_and_one_line(text):
    out = markdown(text)
    assert "<" not in out and ">" not in out and "\n" not in out
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*_]", out)


@given(st.text())
def test_plot_labels_are_one_printable_line(text):
    assert all(char.isprintable() for char in plot(text))


@pytest.mark.parametrize("escape", [latex, markdown])
def test_plain_text_stays(escape):
    assert escape("MPO w/ token IS, beta 0.5") == "MPO w/ token IS, beta 0.5"
