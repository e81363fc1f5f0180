"""Everything a person can get wrong: one clear error that names the file, the row or key, and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.audit.builders import CSV, LEDGER, outcomes, write
from turnscale.audit.from_outcomes import audit_outcomes
from turnscale.audit.ledger import load_ledger
from turnscale.audit.panels import panels
from turnscale.audit.table import check_outcomes, check_scores, read_table
from turnscale.errors import ConfigError, DataError, TurnscaleError
from turnscale.stats.passk import Metric

Spoil = Callable[[str], str | bytes]


def swap(old: str, new: str) -> Spoil:
    def spoil(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return spoil


def add(line: str, after: str = "    family: main\n") -> Spoil:
    return swap(after, after + line)


LEDGERS: dict[str, tuple[Spoil, str, str]] = {  # name: (what is spoilt, key the error must name, words in it)
    "empty file": (lambda _: "", "", "is empty"),
    "only blanks": (lambda _: " \n\n", "", "is empty"),
    "only a comment": (lambda _: "# claims\n", "", "mapping"),
    "a list": (lambda _: "- 1\n- 2\n", "", "mapping"),
    "a sentence": (lambda _: "MPO is better", "", "mapping"),
    "not YAML": (lambda _: "a: [1, 2\nb: }", "", "not valid YAML"),
    "tabs": (swap("    arm_a: A", "\tarm_a: A"), "", "not valid YAML"),
    "latin-1": (lambda t: t.replace("a paper", "un papier r\u00e9el").encode("latin-1"), "line", "not UTF-8"),
    "utf-16": (lambda t: t.encode("utf-16"), "", "UTF-16"),
    "binary": (lambda _: b"PK\x03\x04\x00\x00", "", "NUL"),
    "key twice": (add("    gap: 5.0\n"), "line", "written twice"),
    "unknown key": (add("    p_value: 0.01\n"), "claims[0] (first).p_value", "unknown key"),
    "unknown top key": (lambda t: t + "verdict: supported\n", "verdict", "unknown key"),
    "no claims": (lambda t: t[: t.index("claims:")] + "claims: []\n", "claims", "at least 1"),
    "no study": (swap("study: demo\n", ""), "study", "required"),
    "newer schema": (swap("schema_version: 1", "schema_version: 2"), "schema_version", "1"),
    "NaN gap": (swap("gap: 4.33", "gap: .nan"), "claims[0] (first).gap", "inite"),
    "infinite level": (swap("48.08", ".inf"), "claims[0] (first).level_a", "inite"),
    "101 percent": (swap("level_a: 48.08", "level_a: 101"), "claims[0] (first).level_a", "100"),
    "minus 3 percent": (swap("level_a: 48.08", "level_a: -3.0"), "claims[0] (first).level_a", "below 0"),
    "gap of 433": (swap("gap: 4.33", "gap: 433"), "claims[0] (first).gap", "100"),
    "comma decimal": (swap("gap: 4.33", "gap: 4,33"), "claims[0] (first).gap", "valid number"),
    "percent sign": (swap("48.08", "48.08%"), "claims[0] (first).level_a", "valid number"),
    "quoted number": (swap("4.33", '"4.33"'), "claims[0] (first).gap", "valid number"),
    "fractions": (swap("gap: 4.33\n    level_a: 48.08\n    level_b: 43.75",
                       "gap: 0.0433\n    level_a: 0.4808\n    level_b: 0.4375"),
                  "claims[0] (first).level_a", "fractions"),
    "negative k": (swap("k: 1\n", "k: -1\n"), "claims[0] (first).k", "1"),
    "k of zero": (swap("k: 1\n", "k: 0\n"), "claims[0] (first).k", "1"),
    "k above rollouts": (swap("k: 1\n", "k: 8\n"), "claims[0] (first).k", "more than the 4 rollouts"),
    "k is missing": (swap("    k: 1\n", ""), "claims[0] (first).k", "needs k"),
    "k on a score": (swap("metric: pass_at", "metric: score"), "claims[0] (first).k", "has no k"),
    "fractional k": (swap("k: 1\n", "k: 1.5\n"), "claims[0] (first).k", "integer"),
    "unknown metric": (swap("metric: pass_at", "metric: accuracy"), "claims[0] (first).metric", "pass_at"),
    "unknown arm": (swap("arm_b: B", "arm_b: PPO"), "claims[0] (first).arm_b", "unknown arm 'PPO'"),
    "arm against itself": (swap("arm_b: B", "arm_b: A"), "claims[0] (first).arm_b", "itself"),
    "one arm only": (swap("arms: [A, B, C]", "arms: [A]"), "arms", "at least 2"),
    "arm listed twice": (swap("arms: [A, B, C]", "arms: [A, B, A]"), "arms", "twice"),
    "unknown benchmark": (swap("benchmark: bench", "benchmark: gaia"), "claims[0] (first).benchmark", "unknown"),
    "zero seeds": (swap("runs_a: 1", "runs_a: 0"), "claims[0] (first).runs_a", "1"),
    "boolean seeds": (swap("runs_a: 1", "runs_a: true"), "claims[0] (first).runs_a", "integer"),
    "huge tasks": (swap("n_tasks: [100]", "n_tasks: [100000000000000000000]"), "benchmarks.bench.n_tasks[0]", ""),
    "no tasks": (swap("n_tasks: [100]", "n_tasks: [0]"), "benchmarks.bench.n_tasks[0]", "1"),
    "empty sizes": (swap("n_tasks: [100]", "n_tasks: []"), "benchmarks.bench.n_tasks", "at least 1"),
    "icc of one": (swap("icc: 0.5", "icc: 1.0"), "benchmarks.bench.heterogeneity.icc", "less than 1"),
    "icc and levels": (swap("icc: 0.5", "icc: 0.5, k: 32"), "benchmarks.bench.heterogeneity", "icc, k"),
    "pass@k below pass@1": (swap("icc: 0.5", "pass_at_1: 50.0, pass_at_k: 40.0, k: 4"),
                            "benchmarks.bench.heterogeneity", "50.0 < pass_at_k = 40.0"),
    "claim id twice": (lambda t: t + t[t.index("  - id"):], "claims", "twice"),
    "id with blanks": (swap("id: first", "id: the first"), "claims[0] (the first).id", "small letters"),
    "conflict with nobody": (add("    conflicts_with: [second]\n"), "first.conflicts_with", "'second'"),
    "conflict with itself": (add("    conflicts_with: [first]\n"), "first.conflicts_with", "'first'"),
    "derived without arithmetic": (swap("status: exact", "status: derived"), "claims[0] (first).derivation", ""),
    "no gap, no reason": (swap("    gap: 4.33\n", ""), "claims[0] (first).gap", "no gap and no note"),
    "seed sd of one run": (add("    seed_sd_a: 1.0\n    seed_sd_b: 1.0\n    seed_sd_basis: x\n"),
                           "claims[0] (first).seed_sd_a", "no spread"),
    "seed sd of one arm": (add("    seed_sd_a: 1.0\n"), "claims[0] (first).seed_sd_b", "only one arm"),
    "date as source": (swap("source: table 1", "source: 2026-10-26"), "line", "read as a date"),
    "pattern on nothing": (lambda t: t + "patterns: [{id: p, statement: s, source: s, expect: growing, claims: [x]}]",
                           "p.claims", "'x'"),
    "plan that ends early": (lambda t: t + "plan: {seeds_per_arm: 10, looks: [3, 5], rule: obrien_fleming}\n",
                             "plan.looks", "end at seeds_per_arm"),
    "local arm nobody has": (lambda t: t + "local: {study: s, arms: {Z: z}, benchmarks: {}, models: {}}\n",
                             "local.arms", "'Z'"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEDGERS)
def test_malformed_ledgers(name: str, tmp_path: Path) -> None:
    spoil, key, words = LEDGERS[name]
    path = write(tmp_path / "claims.yaml", spoil(LEDGER))
    with pytest.raises(ConfigError) as caught:
        load_ledger(path)
    check(caught.value, path, key, words)


def check(error: TurnscaleError, path: Path, key: str, words: str) -> None:
    assert error.file == str(path)
    assert key in (error.key or "")
    assert words in error.problem
    assert error.remedy


def test_the_good_ledger_loads(tmp_path: Path) -> None:
    assert load_ledger(write(tmp_path / "claims.yaml", LEDGER)).claims[0].gap == 4.33


@pytest.mark.parametrize(
    "spoil", [lambda t: b"\xef\xbb\xbf" + t.encode(), lambda t: t.replace("\n", "\r\n")], ids=["BOM", "CRLF"]
)
def test_a_ledger_from_a_windows_editor_just_works(spoil: Spoil, tmp_path: Path) -> None:
    assert load_ledger(write(tmp_path / "claims.yaml", spoil(LEDGER))) == load_ledger(
        write(tmp_path / "plain.yaml", LEDGER)
    )


def test_levels_that_really_are_below_one_percent(tmp_path: Path) -> None:
    text = LEDGER.replace("48.08", "0.8").replace("43.75", "0.5").replace("4.33", "0.3")
    text = text.replace("    family: main\n", "    family: main\n    below_one_percent: true\n")
    assert load_ledger(write(tmp_path / "claims.yaml", text)).claims[0].level_a == 0.8


def test_a_document_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "claims.yaml", "study: &a [*a]\n")
    with pytest.raises(ConfigError):
        load_ledger(path)


TABLES: dict[str, tuple[Spoil, str, str]] = {
    "empty file": (lambda _: "", "", "is empty"),
    "header only": (lambda t: t.splitlines()[0] + "\n", "", "no rows"),
    "no success column": (swap("success", "score2"), "success", "no column 'success'"),
    "no arm column": (swap("arm,", "algorithm,"), "arm", "no column 'arm'"),
    "column twice": (swap("attempt,success", "success,success"), "success", "twice"),
    "semicolons": (swap(",", ";"), "line 1", "separates its columns by ;"),
    "tabs": (swap(",", "\t"), "line 1", "separates its columns by tab"),
    "comma decimals": (swap("A,0,t1,0,1\n", "A,0,t1,0,0,5\n"), "line 2", "has 6 cells"),
    "rate for success": (swap("A,0,t1,0,1", "A,0,t1,0,0.5"), "row 2, column success", "'0.5' is not 0 or 1"),
    "percent for success": (swap("A,0,t1,0,1", "A,0,t1,0,48.08"), "row 2, column success", "not 0 or 1"),
    "two for success": (swap("A,0,t1,0,1", "A,0,t1,0,2"), "row 2, column success", "not 0 or 1"),
    "NaN for success": (swap("A,0,t1,0,1", "A,0,t1,0,nan"), "row 2, column success", "not 0 or 1"),
    "blank success": (swap("A,0,t2,0,1", "A,0,t2,0,"), "row 4, column success", "not 0 or 1"),
    "word for seed": (
        swap("B,0,t1,0", "B,first,t1,0"),
        "row 6, column seed",
        "'first' is not a whole number",
    ),
    "negative seed": (swap("B,0,t1,0", "B,-1,t1,0"), "row 6, column seed", "'-1'"),
    "fractional seed": (swap("B,0,t1,0", "B,0.5,t1,0"), "row 6, column seed", "'0.5'"),
    "infinite attempt": (swap("A,0,t1,0,1", "A,0,t1,inf,1"), "row 2, column attempt", "'inf'"),
    "huge attempt": (swap("A,0,t1,0,1", "A,0,t1,99999999999999999999,1"), "row 2, column attempt", "2^53"),
    "blank task": (swap("A,0,t1,0,1", "A,0,,0,1"), "row 2, column task", "empty"),
    "blank arm": (swap("A,0,t1,0,1", ",0,t1,0,1"), "row 2, column arm", "empty"),
    "attempt twice": (swap("A,0,t1,1,0", "A,0,t1,0,0"), "attempt", "attempt 0 of arm 'A', seed 0, task 't1'"),
    "attempt missing": (swap("A,0,t1,1,0\n", ""), "attempt", "task 't1' has 1 attempts where most have 2"),
    "task missing": (
        swap("B,0,t2,0,1\nB,0,t2,1,0\n", ""),
        "task",
        "no attempt for arm 'B', seed 0, task 't2'",
    ),
    "other panel": (swap("B,0,t2", "B,0,t9"), "task", "no attempt for arm"),
    "one arm": (swap("B,0", "A,1"), "arm", "only the arm 'A'"),
    "open quote": (swap("A,0,t1,0,1", 'A,0,"t1,0,1'), "line", "not a regular table"),
    "short row": (swap("A,0,t2,0,1", "A,0,t2,0"), "line 4", "has 4 cells"),
    "latin-1": (lambda t: t.replace("t1", "t\u00e9").encode("latin-1"), "line 2", "not UTF-8"),
    "utf-16": (lambda t: t.encode("utf-16"), "", "UTF-16"),
    "binary": (lambda _: b"PK\x03\x04\x00\x00\x00", "", "NUL"),
}


def audit_csv(path: Path) -> None:
    table = check_outcomes(read_table(path), path)
    audit_outcomes(panels(table, path, checkpoint=None), [Metric("pass_at", 1)], path)


@pytest.mark.parametrize("name", TABLES)
def test_malformed_tables(name: str, tmp_path: Path) -> None:
    spoil, key, words = TABLES[name]
    path = write(tmp_path / "outcomes.csv", spoil(CSV))
    with pytest.raises(DataError) as caught:
        audit_csv(path)
    check(caught.value, path, key, words)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: b"\xef\xbb\xbf" + t.encode(),
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace(",1\n", ",TRUE\n").replace(",0\n", ",false\n"),
        lambda t: t.replace(",", ", "),
        lambda t: t.replace("arm,", "cell,"),
        lambda t: "\n" + t.replace("\nB", "\n\nB") + "\n\n",
    ],
    ids=["BOM", "CRLF", "words", "blanks", "cell for arm", "blank lines"],
)
def test_tables_that_just_work(spoil: Spoil, tmp_path: Path) -> None:
    audit_csv(write(tmp_path / "outcomes.csv", spoil(CSV)))


def test_a_missing_file_an_odd_suffix_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path / "none.parquet", write(tmp_path / "a.xlsx", "x"), tmp_path):
        with pytest.raises(DataError) as caught:
            read_table(path)
        assert caught.value.remedy


def test_what_is_neither_a_ledger_nor_outcomes_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is no claims ledger.*Remedy: name a file like those in configs/claims"
    ):
        load_ledger(Path(__file__).parents[2] / "configs/studies/mpo.yaml")
    with pytest.raises(
        DataError, match=r"ending '\.txt': outcomes are in \.csv, \.tsv or \.parquet, claims in \.yaml"
    ):
        read_table(write(tmp_path / "a.txt", "x"))
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a readable parquet"):
        read_table(write(tmp_path / "outcomes.parquet", b"PAR1 nothing here PAR1"))


def test_a_null_in_parquet_is_named(tmp_path: Path) -> None:
    frame = outcomes({"A": [0.5], "B": [0.4]}, n_tasks=3, attempts=1).astype({"success": object})
    frame.loc[1, "success"] = None
    frame.to_parquet(tmp_path / "outcomes.parquet")
    with pytest.raises(DataError, match="row 2, column success"):
        audit_csv(tmp_path / "outcomes.parquet")


def test_several_checkpoints_need_a_choice(tmp_path: Path) -> None:
    frame = outcomes({"A": [0.5], "B": [0.4]}, n_tasks=4, attempts=1)
    both = pd.concat([frame.assign(checkpoint="100"), frame.assign(checkpoint="200")])
    table = check_outcomes(both.astype(str), "outcomes.csv")
    with pytest.raises(DataError, match="has 2 checkpoints"):
        panels(table, "outcomes.csv", checkpoint=None)
    with pytest.raises(DataError, match="no checkpoint '300'"):
        panels(table, "outcomes.csv", checkpoint="300")
    assert len(panels(table, "outcomes.csv", checkpoint="200")[0].rows) == 8


def test_a_task_in_two_clusters() -> None:
    frame = outcomes({"A": [0.5], "B": [0.4]}, n_tasks=4, attempts=1)
    frame["cluster"] = [f"c{i}" for i in range(len(frame))]
    table = check_outcomes(frame, "outcomes.csv")
    with pytest.raises(DataError, match="two clusters"):
        audit_outcomes(panels(table, "outcomes.csv", checkpoint=None), [Metric("pass_at", 1)], "outcomes.csv")


SCORES = {
    "percentages": ("arm,seed,score\nA,0,48.1\n", "row 2, column score", "not a fraction"),
    "comma": ('arm,seed,score\nA,0,"0,48"\n', "row 2, column score", "not a number"),
    "seed twice": ("arm,seed,score\nA,0,0.4\nA,0,0.5\n", "row 3", "has seed 0 twice"),
    "no seed": ("arm,score\nA,0.4\n", "seed", "no column 'seed'"),
}


@pytest.mark.parametrize("name", SCORES)
def test_malformed_seed_scores(name: str, tmp_path: Path) -> None:
    text, key, words = SCORES[name]
    path = write(tmp_path / "scores.csv", text)
    with pytest.raises(DataError) as caught:
        check_scores(read_table(path), path)
    check(caught.value, path, key, words)


def test_the_command_line_says_it_in_one_line_and_exits_with_2(tmp_path: Path) -> None:
    from turnscale.cli import main

    for name, text in (
        ("claims.yaml", LEDGER.replace("4.33", ".nan")),
        ("outcomes.csv", CSV.replace("A,0,t1,0,1", "x")),
    ):
        path = write(tmp_path / name, text)
        code, words = run_cli(main, ["audit", str(path)])
        assert code == 2
        assert str(path) in words
        assert "Remedy:" in words
        assert "Traceback" not in words
        assert len(words.strip().splitlines()) == 1


def run_cli(main: Callable[[], object], arguments: list[str]) -> tuple[int, str]:
    import contextlib
    import io
    import sys
    from unittest import mock

    err = io.StringIO()
    with mock.patch.object(sys, "argv", ["turnscale", *arguments]), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), err.getvalue()
    return 0, err.getvalue()


def test_there_are_at_least_forty_ways_to_be_wrong() -> None:
    assert len(LEDGERS) + len(TABLES) + len(SCORES) >= 80
