"""The published calibration tables are what the benchmark prints."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_page_holds_the_output_of_its_command():
    done = subprocess.run(
        [sys.executable, "benchmarks/calibration.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    page = (ROOT / "docs/calibration.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 30
    assert [row for row in rows if row not in page] == []
