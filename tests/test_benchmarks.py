"""The table of benchmarks says what its results say; no benchmark runs here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/run.py``."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("run", "rows", "workers"):
        sys.modules.pop(name, None)
    import run

    return run


def result(run: ModuleType, **row: object) -> dict[str, object]:
    from rows import Row

    made = Row(**{"name": "a step", "unit": "rows/s", "ours": 12345.6, **row})
    return {"command": "python x", "seconds": 3, "machine": "m", "rows": [vars(made)]}


@pytest.mark.parametrize(
    ("ratio", "target", "verdict"),
    [
        (3.0, 3.0, "met"),
        (2.99, 3.0, "missed"),
        (9.0, None, "-"),
        (None, None, "-"),
        (float("nan"), 1.0, "missed"),
    ],
)
def test_a_target_is_met_or_missed(
    run: ModuleType, ratio: float | None, target: float | None, verdict: str
) -> None:
    from rows import Row

    assert Row("x", "s", 1.0, 2.0, ratio, target).verdict == verdict


def test_a_miss_stands_in_both_tables(run: ModuleType) -> None:
    found = {"step_trl": result(run, peer=10000.0, ratio=1.23, target=3.0, note="why")}
    full, short = run.table(found, "full"), run.table(found, "short")
    assert "| a step | 12,346 rows/s | 10,000 rows/s | 1.23 | 3 | missed | why |" in full
    assert "| a step | 1.23 | 3 | missed |" in short
    assert "`python x`: 3 s on m" in full


def test_a_reason_stands_beside_a_miss_and_nowhere_else(run: ModuleType) -> None:
    row = {"name": "rollout, single-turn, batch 8", "peer": 1.0, "target": 3.0, "note": "noted"}
    missed, met = (run.table({"rollout": result(run, **row, ratio=ratio)}, "full") for ratio in (2.0, 4.0))
    assert "| noted; generate with merged weights" in missed
    assert "| noted |" in met


def test_every_miss_on_file_has_a_reason(run: ModuleType) -> None:
    from rows import Row

    rows = [Row(**row) for result in run.load().values() for row in result["rows"]]
    reasons = json.loads(run.REASONS.read_text(encoding="utf-8"))
    for row in rows:
        assert row.verdict != "missed" or any(map(row.name.startswith, reasons)), row.name


def test_the_short_table_holds_what_had_a_target(run: ModuleType) -> None:
    assert "a step" not in run.table({"dag": result(run)}, "short")


def test_the_pages_show_the_results_on_file(run: ModuleType) -> None:
    results = run.load()
    for kind, path in run.PAGES.items():
        page = path.read_text(encoding="utf-8")
        assert run.with_table(page, run.table(results, kind)) == page, "python benchmarks/run.py --table"


def test_every_benchmark_has_a_script_that_takes_rows(run: ModuleType) -> None:
    for benchmark in run.BENCHMARKS:
        text = (FOLDER / f"{benchmark.name}.py").read_text(encoding="utf-8")
        assert '"--rows"' in text, benchmark.name


def test_only_missing_results_are_measured_again(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def measure(benchmark: object, source: str) -> dict[str, object]:
        measured.append(benchmark.name)  # type: ignore[attr-defined]
        return {**result(run), "source": source}

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "renew", lambda results: None)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(run, "peers", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "credit"])
    run.main()
    monkeypatch.setattr(sys, "argv", ["run.py"])
    run.main()
    without_peers = [b.name for b in run.BENCHMARKS if b.peers == "no"]
    assert measured[0] == "credit"
    assert sorted(measured) == sorted(without_peers)
