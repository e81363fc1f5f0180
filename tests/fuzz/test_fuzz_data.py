"""Spoilt outcomes, logs of other tools, published values, look logs, panels and records."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from tests.audit.builders import CSV, outcomes
from tests.fuzz.harness import fuzz
from tests.fuzz.mutate import SCALARS
from turnscale.audit.importers import read_inspect, read_lm_eval, read_trl, read_verl, read_wandb
from turnscale.audit.looks_report import looks_words
from turnscale.audit.run import audit_tables, write_table
from turnscale.audit.table import check_outcomes, read_table
from turnscale.config.schema import Published
from turnscale.diagnose.published import read_published
from turnscale.envs.panels import load_panels, make_panels
from turnscale.envs.registry import read_family
from turnscale.errors import TurnscaleError
from turnscale.estimates.published import published_values
from turnscale.jobs import read_spec
from turnscale.study import Spec, resolve
from turnscale.tabular.plan import resolve_tabular
from turnscale.tabular.results import published_values as tabular_values
from turnscale.track.records import read_record

PROJECT = Path(__file__).parents[2]
FIXTURES = PROJECT / "tests" / "audit" / "fixtures"


def audit(path: Path, out: Path | None) -> None:
    console = Console(file=io.StringIO(), width=140)
    audit_tables(
        [path], console, out, None, metrics=["pass_at_1", "pass_hat_2"], reference=None, untrained=[],
        checkpoint=None, intersect=False, ragged=False,
    )  # fmt: skip


def test_outcomes_as_csv_through_the_audit(tmp_path: Path) -> None:
    fuzz(tmp_path / "outcomes.csv", CSV.encode(), "text", lambda path: audit(path, None))


def test_a_refused_table_writes_no_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path = tmp_path / "outcomes.csv"
    path.write_text(CSV.replace("B,0,t2,1,0\n", ""), encoding="utf-8")
    with pytest.raises(TurnscaleError):
        audit(path, out)
    assert not list(out.iterdir())


def test_outcomes_as_parquet_bytes(tmp_path: Path) -> None:
    good = io.BytesIO()
    outcomes({"A": [0.5, 0.6], "B": [0.4, 0.3]}, n_tasks=5, attempts=2).to_parquet(good)
    fuzz(tmp_path / "outcomes.parquet", good.getvalue(), "text", lambda path: audit(path, None))


def test_outcomes_with_wrong_values_in_good_parquet(tmp_path: Path) -> None:
    frame = outcomes({"A": [0.5, 0.6], "B": [0.4, 0.3]}, n_tasks=4, attempts=2).astype(object)
    path = tmp_path / "outcomes.parquet"
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        spoilt = frame.copy()
        column = rng.choice(list(frame.columns))
        value = rng.choice(
            [v for v in SCALARS if not isinstance(v, (int, dict, list)) or abs(int(bool(v))) < 2]
        )
        spoilt[column] = [value] * len(frame) if rng.random() < 0.5 else spoilt[column]
        spoilt.iat[rng.randrange(len(frame)), rng.randrange(5)] = value
        try:
            spoilt.to_parquet(path)
        except (TypeError, ValueError, OverflowError, pd.errors.ParserError):
            spoilt.astype(str).to_parquet(path)
        try:
            audit(path, None)
        except TurnscaleError:
            refused += 1
    assert refused > 20


def imported(read: object, path: Path, **options: object) -> None:
    table = read(path, **options).table  # type: ignore[operator]
    assert len(table)
    write_table(table, path.with_name("imported.csv"))
    if "success" in table.columns:
        check_outcomes(read_table(path.with_name("imported.csv")), path)


@pytest.mark.parametrize(
    ("name", "kind", "read", "options"),
    [
        ("verl_100.jsonl", "text", read_verl, {"seed": 0, "arm": "A"}),
        ("trl_completions_00100.jsonl", "text", read_trl, {"seed": 0, "arm": "A", "outcome": "accuracy_reward"}),
        ("trl_completions_00100.parquet", "text", read_trl, {"seed": 0, "arm": "A", "outcome": "accuracy_reward"}),
        ("samples_gsm8k_2026-01-05T10-00-00.123456.jsonl", "text", read_lm_eval,
         {"seed": 0, "arm": "A", "filter_name": "strict-match"}),
        ("inspect.json", "json", read_inspect, {"seed": 0}),
        ("inspect.eval", "text", read_inspect, {"seed": 0}),
        ("wandb_export_2026-01-05T10_00_00.000+00_00.csv", "text", read_wandb,
         {"arm_column": "method", "seed_column": "seed", "score_column": "eval/success"}),
    ],
)  # fmt: skip
def test_logs_of_other_tools(
    tmp_path: Path, name: str, kind: str, read: object, options: dict[str, object]
) -> None:
    fuzz(tmp_path / name, (FIXTURES / name).read_bytes(), kind, lambda path: imported(read, path, **options))


@pytest.mark.parametrize("field", ["input", "score", "step", "acc"])
def test_rows_of_a_rollout_dump(tmp_path: Path, field: str) -> None:
    """One row a file, spoilt as data rather than as text."""
    row = (FIXTURES / "verl_100.jsonl").read_bytes().splitlines()[0]
    fuzz(tmp_path / "one.jsonl", row, "json", lambda path: imported(read_verl, path, seed=0, arm=field))


def test_published_values(tmp_path: Path) -> None:
    study = resolve("mpo", "quick", root=PROJECT).study
    declaration = study.tables["mpo_main"].published
    assert declaration is not None
    methods = {cell.cell: cell.method for cell in resolve("mpo", "quick", root=PROJECT).cells}
    good = (PROJECT / declaration.file).read_bytes()
    mine = Published.model_validate({**declaration.model_dump(), "file": "values.csv"})
    fuzz(
        tmp_path / "values.csv",
        good,
        "text",
        lambda path: published_values(mine, methods, "mpo", path.parent),
    )


def test_published_critic_statistics(tmp_path: Path) -> None:
    good = (PROJECT / "configs/published/mpo_critic_diagnostic.csv").read_bytes()
    fuzz(tmp_path / "values.csv", good, "text", lambda path: read_published("values.csv", path.parent))


def test_published_grouping_values(tmp_path: Path) -> None:
    good = (PROJECT / "configs/published/grouping_toy.csv").read_bytes()
    plan = resolve_tabular("grouping", "grouping5", root=PROJECT)
    published = plan.study.published.model_copy(update={"file": "values.csv"})
    mine = replace(plan, study=plan.study.model_copy(update={"published": published}), root=tmp_path)
    fuzz(tmp_path / "values.csv", good, "text", lambda _: tabular_values(mine))


def test_log_of_looks(tmp_path: Path) -> None:
    good = (PROJECT / "looks/quick/mpo.jsonl").read_bytes()
    fuzz(tmp_path / "looks.jsonl", good, "text", lambda path: looks_words(path, None, None, None))


def test_panels(tmp_path: Path) -> None:
    family = read_family(PROJECT / "configs/families/search.yaml")
    sizes = {"train": 3, "validation": 2} | dict.fromkeys(family.benchmarks, 2)
    path = tmp_path / "panels.json"
    make_panels(family, sizes).save(path)
    fuzz(path, path.read_bytes(), "json", lambda file: load_panels(file, family))


def test_records_and_specifications(tmp_path: Path) -> None:
    spec: Spec = resolve("mpo", "smoke", root=PROJECT).cells[1].train
    path = tmp_path / f"train-{spec.hash}.json"
    from turnscale.files import write_json

    write_json(spec.value, path)
    fuzz(path, path.read_bytes(), "json", lambda file: read_spec(file, "train"))
    with pytest.raises(TurnscaleError):
        read_record(tmp_path / "absent.json")
