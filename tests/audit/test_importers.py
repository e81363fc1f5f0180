"""Importers: a small file in each tool's real format, and a clear refusal of what cannot be an outcome."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.audit.builders import write
from turnscale.audit.importers import read_inspect, read_lm_eval, read_mlflow, read_trl, read_verl, read_wandb
from turnscale.audit.table import check_outcomes
from turnscale.errors import DataError, TrackingError

HERE = Path(__file__).with_name("fixtures")
LM_EVAL = HERE / "samples_gsm8k_2026-01-05T10-00-00.123456.jsonl"
WANDB = HERE / "wandb_export_2026-01-05T10_00_00.000+00_00.csv"


def cells(table: pd.DataFrame) -> dict[tuple[str, int], bool]:
    return {(row.task, row.attempt): bool(row.success) for row in table.itertuples()}


@pytest.mark.parametrize("name", ["inspect.eval", "inspect.json"])
def test_inspect(name: str) -> None:
    table = read_inspect(HERE / name, seed=3).table
    assert cells(table) == {
        ("1", 0): True, ("1", 1): False, ("2", 0): True, ("2", 1): True, ("3", 0): False, ("3", 1): False,
    }  # fmt: skip
    assert set(table["arm"]) == {"openai/demo"}
    assert set(table["benchmark"]) == {"arithmetic"}
    assert set(table["seed"]) == {3}
    check_outcomes(table, name)


def inspect_log(**changes: Any) -> dict[str, Any]:
    return {**json.loads((HERE / "inspect.json").read_text()), **changes}


def spoilt_sample(**changes: Any) -> dict[str, Any]:
    log = inspect_log()
    log["samples"][0] = {**log["samples"][0], **changes}
    return log


INSPECT = {
    "unfinished": (inspect_log(status="started"), "did not finish"),
    "failed": (inspect_log(status="error"), "status 'error'"),
    "header only": (inspect_log(samples=None), "no samples"),
    "no outcome": (inspect_log(samples=[]), "no outcome"),
    "failed sample": (spoilt_sample(error={"message": "timeout"}), "failed with an error"),
    "not scored": (spoilt_sample(scores=None), "no score"),
    "partial credit": (spoilt_sample(scores={"match": {"value": "P"}}), "'P' is not 0 or 1"),
    "graded": (spoilt_sample(scores={"model_graded": {"value": 0.7}}), "0.7 is not 0 or 1"),
    "two scorers": (
        spoilt_sample(scores={"a": {"value": "C"}, "b": {"value": "I"}}),
        "several scorers: a, b",
    ),
    "another JSON": ({"results": []}, "not an Inspect log"),
    "a list": ([1, 2], "not an Inspect log"),
}


@pytest.mark.parametrize("name", INSPECT)
def test_inspect_refusals(name: str, tmp_path: Path) -> None:
    log, words = INSPECT[name]
    path = write(tmp_path / "log.json", json.dumps(log))
    with pytest.raises(DataError, match=words) as caught:
        read_inspect(path, seed=0)
    assert caught.value.file == str(path)
    assert caught.value.remedy


def test_an_interrupted_or_broken_eval_archive(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", "{}")
    with pytest.raises(DataError, match=r"no header\.json"):
        read_inspect(path, seed=0)
    with pytest.raises(DataError, match=r"not a readable \.eval"):
        read_inspect(write(path, b"not a zip"), seed=0)
    with pytest.raises(DataError, match="no such file"):
        read_inspect(tmp_path / "none.eval", seed=0)


def test_lm_eval_with_the_filter_named() -> None:
    strict = read_lm_eval(LM_EVAL, seed=0, arm="MPO", filter_name="strict-match").table
    flexible = read_lm_eval(LM_EVAL, seed=0, arm="MPO", filter_name="flexible-extract").table
    assert list(strict["success"]) == [False, True, False]
    assert list(flexible["success"]) == [True, True, False]
    assert list(strict["task"]) == list(flexible["task"])
    assert set(strict["benchmark"]) == {"gsm8k"}


def test_lm_eval_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="several filters: flexible-extract, strict-match"):
        read_lm_eval(LM_EVAL, seed=0, arm="MPO")
    with pytest.raises(DataError, match="no filter 'none'"):
        read_lm_eval(LM_EVAL, seed=0, arm="MPO", filter_name="none")
    with pytest.raises(DataError, match="line 1: has no 'acc'"):
        read_lm_eval(LM_EVAL, seed=0, arm="MPO", metric="acc", filter_name="strict-match")
    row = json.loads(LM_EVAL.read_text().splitlines()[0])
    graded = write(tmp_path / "a.jsonl", json.dumps({**row, "exact_match": 0.4}))
    with pytest.raises(DataError, match=r"0\.4 is not 0 or 1"):
        read_lm_eval(graded, seed=0, arm="MPO")
    assert not read_lm_eval(graded, seed=0, arm="MPO", threshold=0.5).table["success"].any()
    two = write(tmp_path / "b.jsonl", json.dumps({**row, "metrics": ["acc", "acc_norm"]}))
    with pytest.raises(DataError, match="acc, acc_norm"):
        read_lm_eval(two, seed=0, arm="MPO")


def test_verl_uses_acc_and_numbers_attempts_by_prompt() -> None:
    imported = read_verl(HERE / "verl_100.jsonl", seed=1, arm="ppo")
    table = imported.table
    assert list(table["success"]) == [True, False, True, True]
    assert list(table["attempt"]) == [0, 1, 0, 1]
    assert table["task"].nunique() == 2
    assert set(table["checkpoint"]) == {"100"}
    assert "prompt" in imported.notes[0]


def test_verl_shaped_scores_need_a_threshold() -> None:
    path = HERE / "verl_100.jsonl"
    with pytest.raises(DataError, match=r"0\.9 is not 0 or 1.*--threshold"):
        read_verl(path, seed=1, arm="ppo", outcome="score")
    table = read_verl(path, seed=1, arm="ppo", outcome="score", threshold=0.5).table
    assert list(table["success"]) == [True, False, True, True]


def test_trl_rows_as_json_lines() -> None:
    table = read_trl(HERE / "trl_completions_00100.jsonl", seed=0, arm="grpo").table
    assert list(table["success"]) == [True, False, True, True]
    assert table["task"].nunique() == 2


def test_trl_parquet_with_two_rewards_needs_a_choice() -> None:
    path = HERE / "trl_completions_00100.parquet"
    with pytest.raises(DataError, match="accuracy_reward, format_reward"):
        read_trl(path, seed=0, arm="grpo")
    table = read_trl(path, seed=0, arm="grpo", outcome="accuracy_reward").table
    assert list(table["success"]) == [True, False, True, True]


def test_trl_without_rewards(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", json.dumps({"step": 1, "prompt": "q", "completion": "a"}))
    with pytest.raises(DataError, match="reward columns: none"):
        read_trl(path, seed=0, arm="grpo")


@pytest.mark.parametrize("read", [read_verl, read_trl])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('{"input": "a", "sc', "line 1: is not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "has no "),
    ],
    ids=["empty", "half a line", "list", "no fields"],
)
def test_broken_dumps(read: Any, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read(write(tmp_path / "1.jsonl", text), seed=0, arm="a")


def test_wandb_counts_the_runs_it_leaves_out() -> None:
    imported = read_wandb(WANDB, arm_column="method", seed_column="seed", score_column="eval/success")
    assert imported.table.to_dict("list") == {
        "arm": ["mpo", "mpo", "ppo", "ppo"], "seed": [0, 1, 0, 1], "score": [0.41, 0.44, 0.35, 0.37],
    }  # fmt: skip
    assert imported.notes == ("5 runs planned, 4 finished, 1 left out",)


def test_wandb_refusals(tmp_path: Path) -> None:
    text = WANDB.read_text()
    keys = {"arm_column": "method", "seed_column": "seed", "score_column": "eval/success"}
    with pytest.raises(DataError, match="no column 'reward'"):
        read_wandb(WANDB, **{**keys, "score_column": "reward"})
    with pytest.raises(DataError, match="no column 'State'"):
        read_wandb(write(tmp_path / "a.csv", text.replace('"State"', '"Tags"')), **keys)
    with pytest.raises(DataError, match="no run has finished"):
        read_wandb(write(tmp_path / "b.csv", text.replace("finished", "running")), **keys)
    with pytest.raises(DataError, match="has seed 0 twice"):
        read_wandb(write(tmp_path / "c.csv", text.replace('"mpo","1"', '"mpo","0"')), **keys)
    percent = write(tmp_path / "d.csv", text.replace("0.41", "41").replace("0.44", "44"))
    with pytest.raises(DataError, match="row 2, column score"):
        read_wandb(percent, **keys)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with one experiment: two finished runs with a score and a table, one that failed."""
    import mlflow

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("demo", artifact_location=(folder / "artifacts").as_uri())
    for arm, score, status in (("mpo", 0.4, "FINISHED"), ("ppo", 0.3, "FINISHED"), ("ppo", 0.0, "FAILED")):
        run = client.create_run(experiment).info.run_id
        client.log_param(run, "method", arm)
        client.set_tag(run, "seed", "0")
        client.log_metric(run, "success", score)
        table = write(
            folder / "outcomes.csv", f"arm,seed,task,attempt,success\n{arm},0,t1,0,1\n{arm},0,t2,0,0\n"
        )
        client.log_artifact(run, str(table))
        client.set_terminated(run, status)
    return uri


@pytest.mark.slow
def test_mlflow_scores_and_tables(store: str) -> None:
    scores = read_mlflow(store, "demo", metric="success")
    assert sorted(scores.table["score"]) == [0.3, 0.4]
    assert scores.notes == ("3 runs planned, 2 finished, 1 left out",)
    tables = read_mlflow(store, "demo", artifact="outcomes.csv")
    assert len(tables.table) == 4
    assert set(tables.table["arm"]) == {"mpo", "ppo"}


@pytest.mark.slow
def test_mlflow_refusals(store: str) -> None:
    with pytest.raises(TrackingError, match="no experiment 'other'"):
        read_mlflow(store, "other", metric="success")
    with pytest.raises(TrackingError, match="no finite metric 'reward'"):
        read_mlflow(store, "demo", metric="reward")
    with pytest.raises(TrackingError, match="neither a parameter nor a tag 'algo'"):
        read_mlflow(store, "demo", metric="success", arm_key="algo")
    with pytest.raises(TrackingError, match=r"no artifact 'none\.csv'"):
        read_mlflow(store, "demo", artifact="none.csv")
    with pytest.raises(TrackingError, match="not both"):
        read_mlflow(store, "demo")
