"""Machines that share a tracking server make what they have in common once, and each can make the whole tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.conftest import Machines
from turnscale.study import Plan
from turnscale.track.records import read_record

pytestmark = pytest.mark.slow


def products(plan: Plan) -> dict[str, bytes]:
    """Every table, and every figure's data."""
    found = {}
    for folder in ("paper_tables", "figures"):
        for path in sorted((plan.root / folder / "loopback").iterdir()):
            if path.suffix in (".csv", ".md", ".tex"):
                found[f"{folder}/{path.name}"] = path.read_bytes()
    return found


def log(plan: Plan, pattern: str) -> str:
    """The one job log whose name matches."""
    (path,) = (plan.root / "logs/loopback").glob(pattern)
    return path.read_text()


def test_each_machine_trains_its_own_seeds(machines: Machines) -> None:
    assert machines.trained == ({0}, {1})
    assert [said.count("rule train:") for said in machines.said] == [2, 1], "an untrained base is seed 0's"


def test_the_second_machine_takes_panels_and_base_from_the_store(machines: Machines) -> None:
    first, second = machines.plans
    cell = first.cells[0]
    for pattern in ("panels/*.log", "base/*.log"):
        assert "taken from the tracking store" not in log(first, pattern)
        assert "taken from the tracking store" in log(second, pattern)
    path = first.panels_path(cell)
    assert (first.root / path).read_bytes() == (second.root / path).read_bytes()
    records = [read_record(plan.root / plan.base_path(cell)) for plan in machines.plans]
    assert records[0] == records[1], "one run in the store, the same checksums"
    for name in records[0]["artifacts"]:
        files = [plan.root / plan.base_path(cell).parent / name for plan in machines.plans]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_either_machine_renders_the_whole_study_and_trains_nothing_more(machines: Machines) -> None:
    for said in machines.said_at_the_end:
        for rule in ("train", "evaluate", "base", "panels"):
            assert f"rule {rule}:" not in said
    first, second = map(products, machines.plans)
    assert first and first == second
    table = Path(machines.plans[0].root / "paper_tables/loopback/loopback_main.md").read_text()
    assert "2/2/0/0" in table, "both seeds of the trained cell"
