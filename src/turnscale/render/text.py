"""Numbers and user strings as printed text: points, intervals, and escaping for each kind of output."""

from __future__ import annotations

import html
import math
import re

MISSING = "–"
PARTS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
    "≤": r"$\leq$",
    "Δ": r"$\Delta$",
    "σ": r"$\sigma$",
    "×": r"$\times$",
    "≥": r"$\geq$",
}
"""Character -> LaTeX: the ten special ones, those that fonts map elsewhere, those that a row end would take for its
argument, and the symbols that tables print."""


def latex(text: str) -> str:
    """Any string as LaTeX text that prints it; control characters become spaces."""
    return "".join(PARTS.get(char, char) for char in _plain(text).replace("--", "-\u2060-")).replace(
        "\u2060", "{}"
    )


def markdown(text: str) -> str:
    """Any string as text of one Markdown table cell; control characters become spaces."""
    escaped = html.escape(_plain(text), quote=False)
    return re.sub(r"([\\`*_\[\]|$~^])", r"\\\1", escaped)


def plot(text: str) -> str:
    """Any string as one line of plain text in a figure (figures never read mathematics)."""
    return _plain(text)


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """A fraction in points, with a true minus sign; a missing one is a dash."""
    if not math.isfinite(value):
        return MISSING
    number = round(100 * value, digits) + 0.0  # no negative zero
    return f"{number:{'+' if signed and number else ''}.{digits}f}".replace("-", "−")


def with_interval(value: float, lo: float, hi: float, digits: int = 1, *, signed: bool = False) -> str:
    """``mean ± half-width`` in points, or ``mean [lo, hi]`` where the interval is not symmetric."""
    text = points(value, digits, signed=signed)
    if not (math.isfinite(value) and math.isfinite(lo) and math.isfinite(hi)):
        return text
    if math.isclose(hi - value, value - lo, rel_tol=1e-6, abs_tol=1e-9):
        return f"{text} ± {points((hi - lo) / 2, digits)}"
    return f"{text} [{points(lo, digits, signed=signed)}, {points(hi, digits, signed=signed)}]"


def p_value(p: float) -> str:
    """Three decimals, and never "0.000"."""
    if not math.isfinite(p):
        return MISSING
    return "<0.001" if p < 0.001 else f"{min(p, 1.0):.3f}"


def metric_label(metric: str) -> str:
    """Printed form of a stored metric name."""
    if metric == "auc":
        return "validation AUC"
    if metric == "pass_at_k":
        return "pass@k"
    return metric.replace("pass_at_", "pass@").replace("pass_hat_", "pass^")


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
