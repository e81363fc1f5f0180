"""Runs in the tracking store: resumed, complete, and honest about how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnscale.errors import TrackingError
from turnscale.study import Run, Spec
from turnscale.track import claim, retry
from turnscale.track.run import BATCH, flatten, open_run
from turnscale.track.store import connect, init_tracking, tracking_uri

SPEC = Spec(
    "train", {"method": {"name": "ppo", "clip": {"low": 0.2, "high": 0.28}}, "training": {"steps": 3}}
)
RUN = Run("mpo", "smoke", "search", "qwen3-tiny", "ppo", "ppo", 0, SPEC)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    init_tracking(folder)
    return folder


def arm(cell: str, seed: int = 0) -> Run:
    return Run("mpo", "smoke", "search", "qwen3-tiny", cell, "ppo", seed, SPEC)


def stored(root: Path, run: Run) -> list[Any]:
    client, experiment = connect(root)
    return list(client.search_runs([experiment], filter_string=f"tags.`turnscale.key` = '{run.key}'"))


def test_a_finished_run_holds_its_record_metrics_and_artifacts(root: Path, tmp_path: Path) -> None:
    table = tmp_path / "metrics.parquet"
    table.write_bytes(b"table")
    with open_run(RUN, SPEC.value, {"panels": "abc"}, root) as log:
        for step in range(3):
            log.metrics(step, {"reward": step / 2, "pass_at_1": 0.5})
        log.artifact(table)
        log.artifact(tmp_path, "copy")
        record = log.finish({"checkpoint": "adapter"})
    (found,) = stored(root, RUN)
    assert found.info.status == "FINISHED"
    assert found.info.run_id == record["run_id"]
    assert found.data.tags["turnscale.complete"] == "1"
    assert found.data.tags["turnscale.panels"] == "abc"
    assert found.data.params["method.clip.low"] == "0.2"
    assert found.data.metrics == {"reward": 1.0, "pass_at_1": 0.5}
    assert set(record["artifacts"]) == {"metrics.parquet", "copy/metrics.parquet"}
    assert record["checkpoint"] == "adapter"
    client, _ = connect(root)
    saved = Path(client.download_artifacts(found.info.run_id, "record.json", str(tmp_path)))
    assert json.loads(saved.read_text()) == record
    config = Path(client.download_artifacts(found.info.run_id, "config.json", str(tmp_path)))
    assert json.loads(config.read_text()) == SPEC.value


def test_a_resumed_run_is_the_same_run_and_repeated_rows_are_dropped(root: Path) -> None:
    run = arm("resumed")
    with pytest.raises(RuntimeError, match="broken"), open_run(run, SPEC.value, {}, root) as log:
        log.metrics(0, {"reward": 0.25})
        log.metrics(1, {"reward": 0.5})
        raise RuntimeError("broken")
    (failed,) = stored(root, run)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["turnscale.reason"] == "RuntimeError"
    assert failed.data.tags["turnscale.error"] == "RuntimeError: broken"
    with open_run(run, SPEC.value, {}, root) as log:
        assert log.attempt == 2
        assert log.run_id == failed.info.run_id
        log.metrics(1, {"reward": 0.5})
        log.metrics(2, {"reward": 0.75})
        log.finish()
    (found,) = stored(root, run)
    client, _ = connect(root)
    history = client.get_metric_history(found.info.run_id, "reward")
    assert sorted((row.step, row.value) for row in history) == [(0, 0.25), (1, 0.5), (2, 0.75)]
    assert found.data.tags["turnscale.reason"] == ""


def test_leaving_without_finish_is_an_error(root: Path) -> None:
    run = arm("unfinished")
    with pytest.raises(RuntimeError, match="without finish"), open_run(run, SPEC.value, {}, root):
        pass
    assert stored(root, run)[0].info.status == "FAILED"


def test_a_second_run_of_one_key_is_superseded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "SETTLE", 0.0)  # their creators are dead
    run = arm("twice")
    client, experiment = connect(root)
    for start in (1, 2):
        client.create_run(experiment, start_time=start, tags={"turnscale.key": run.key})
    with open_run(run, SPEC.value, {}, root) as log:
        log.finish()
    first, second = sorted(stored(root, run), key=lambda found: found.info.start_time)
    assert log.run_id == first.info.run_id
    assert second.data.tags["turnscale.superseded"] == first.info.run_id
    assert second.info.status == "KILLED", "nothing is left open"


def test_a_run_that_was_made_but_not_answered_for_is_not_made_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(retry, "PAUSES", (0.0, 0.0, 0.0))
    run = arm("unanswered")
    create = MlflowClient.create_run
    calls = []

    def cut_off(*arguments: Any, **named: Any) -> Any:
        made = create(*arguments, **named)
        calls.append(1)
        if len(calls) == 1:
            raise OSError("connection reset by peer")
        return made

    monkeypatch.setattr(MlflowClient, "create_run", cut_off)
    with open_run(run, SPEC.value, {}, root) as log:
        log.finish()
    (found,) = stored(root, run)
    assert (found.info.run_id, found.info.status, log.attempt) == (log.run_id, "FINISHED", 1)


def test_a_lost_race_is_settled_where_a_user_may_write_but_not_delete(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes search together and both create a run; the loser may not remove its own."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    def denied(self: MlflowClient, run_id: str) -> None:
        raise MlflowException("API request failed with error code 403 != 200.", error_code=PERMISSION_DENIED)

    run, find, looks = arm("race"), claim.find, []

    def first_sees_nothing(client: MlflowClient, experiment: str, key: str) -> list[Any]:
        looks.append(key)
        return [] if len(looks) == 1 else find(client, experiment, key)

    client, experiment = connect(root)
    winner = client.create_run(experiment, tags={"turnscale.key": run.key, claim.TICKET: "1"}).info.run_id
    monkeypatch.setattr(claim, "find", first_sees_nothing)
    monkeypatch.setattr(MlflowClient, "delete_run", denied)
    with open_run(run, SPEC.value, {}, root) as log:
        log.finish()
    assert log.run_id == winner
    superseded = {found.info.run_id: found.data.tags.get(claim.SUPERSEDED) for found in stored(root, run)}
    assert superseded.pop(winner) is None
    assert list(superseded.values()) == [winner]


def test_changed_params_under_one_key_are_refused(root: Path) -> None:
    run = arm("changed")
    with open_run(run, SPEC.value, {}, root) as log:
        log.finish()
    with pytest.raises(TrackingError), open_run(run, {"training": {"steps": 4}}, {}, root):
        pass


@pytest.mark.parametrize("name", ["pass@1", "pass^3", "", "1st", "a b", "a/b"])
def test_illegal_metric_names_are_refused(root: Path, name: str) -> None:
    with (
        pytest.raises(ValueError, match="legal metric name"),
        open_run(arm("names"), SPEC.value, {}, root) as log,
    ):
        log.metrics(0, {name: 1.0})


def test_a_store_that_is_away_never_stops_training_but_stops_finish(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "PAUSES", (0.0, 0.0, 0.0))
    run = arm("away")
    calls = []
    with open_run(run, SPEC.value, {}, root) as log:
        real = log._client.log_batch

        def refuse(*arguments: Any, **named: Any) -> None:
            calls.append(1)
            raise OSError("database is locked")

        monkeypatch.setattr(log._client, "log_batch", refuse)
        for step in range(BATCH + 200):
            log.metrics(step, {"reward": 1.0})
        assert len(calls) == 1, "one try, not one for every step"
        assert not log.flush()
        assert "database is locked" in caplog.text
        with pytest.raises(TrackingError, match="database is locked"):
            log.finish()
        monkeypatch.setattr(log._client, "log_batch", real)
        log.finish()
    client, _ = connect(root)
    assert len(client.get_metric_history(log.run_id, "reward")) == BATCH + 200


def test_sigterm_marks_the_run_killed(root: Path) -> None:
    run = arm("terminated")
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from turnscale.study import Run, Spec
        from turnscale.track.run import open_run
        spec = Spec("train", {SPEC.value!r})
        run = Run("mpo", "smoke", "search", "qwen3-tiny", "terminated", "ppo", 0, spec)
        with open_run(run, spec.value, {{}}, Path({str(root)!r})) as log:
            print("open", flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert stored(root, run)[0].info.status == "KILLED"


def test_no_store_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="does not exist yet"):
        connect(tmp_path)


def test_the_store_lies_outside_results_and_its_address_is_absolute(tmp_path: Path) -> None:
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path.resolve()}/mlflow/mlflow.db"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=900),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=300), json_values, max_size=4))
def test_flattened_params_are_within_the_limits(value: dict[str, Any]) -> None:
    for name, text in flatten(value).items():
        assert len(name) <= 250
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /")
        assert len(text) <= 500
