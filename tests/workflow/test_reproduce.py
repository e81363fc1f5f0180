"""``turnscale reproduce`` ends when everything planned is there, whatever Snakemake says."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from tests.workflow.conftest import Project
from turnscale.progress import reproduce
from turnscale.workflow import Products

STAND_IN = """#!{python}
import pathlib
calls = pathlib.Path("calls")
calls.write_text((calls.read_text() if calls.exists() else "") + "|")
made = pathlib.Path("to-make").read_text().splitlines()
for path in made[: int(len(made) * {share} * len(calls.read_text()))]:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).touch()
"""


@pytest.mark.parametrize("share, calls, status", [(1.0, 1, 0), (0.5, 2, 0), (0.0, 2, 1)])
def test_it_goes_on_while_something_is_missing(
    project: Project, monkeypatch: pytest.MonkeyPatch, share: float, calls: int, status: int
) -> None:
    plan = project.plan()
    program = project.root / "bin" / "snakemake"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, share=share), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (project.root / "to-make").write_text("\n".join(Products(plan).missing), encoding="utf-8")
    said = io.StringIO()
    assert reproduce(plan, "1", [], Console(file=said, width=200)) == status
    assert (project.root / "calls").read_text(encoding="utf-8") == "|" * calls
    assert ("outputs are missing" in said.getvalue()) == bool(status)
