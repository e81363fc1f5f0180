"""Runs of an MLflow experiment: an outcomes table logged as an artifact, or one metric as the score of a seed."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from turnscale.audit.importers.common import Imported
from turnscale.audit.table import check_outcomes, check_scores, read_table
from turnscale.errors import TrackingError
from turnscale.track.address import check_address


def read_mlflow(
    tracking_uri: str,
    experiment: str,
    *,
    arm_key: str = "method",
    seed_key: str = "seed",
    metric: str | None = None,
    artifact: str | None = None,
) -> Imported:
    """Every finished run of an experiment. ``arm_key`` and ``seed_key`` name a parameter or a tag of the run.

    Give ``metric`` (its last value, a fraction, becomes the seed's score) or ``artifact`` (an outcomes table each run
    has logged). Runs that did not finish are left out and counted in the notes. Raises TrackingError when the store,
    the experiment, a key or a value is missing.
    """
    if (metric is None) == (artifact is None):
        raise TrackingError("give a metric or an artifact, not both.", key="metric", remedy="choose one.")
    runs = _runs(tracking_uri, experiment)
    finished = [run for run in runs if run.info.status == "FINISHED"]
    if not finished:
        raise TrackingError("no run has finished.", key=experiment, remedy="wait for the runs to end.")
    frames = []
    for run in finished:
        arm, seed = _value(run, arm_key), _value(run, seed_key)
        if metric is not None:
            value = run.data.metrics.get(metric)
            if value is None or not math.isfinite(value):
                raise TrackingError(
                    f"run {run.info.run_id} has no finite metric {metric!r}.",
                    key=metric,
                    remedy=f"it has {', '.join(sorted(run.data.metrics))[:200] or 'no metrics'}.",
                )
            frames.append(pd.DataFrame({"arm": [arm], "seed": [seed], "score": [value]}))
        else:
            assert artifact is not None
            frames.append(_artifact(tracking_uri, run, artifact).assign(arm=arm, seed=seed))
    table = pd.concat(frames, ignore_index=True)
    check = check_scores if metric is not None else check_outcomes
    note = f"{len(runs)} runs planned, {len(finished)} finished, {len(runs) - len(finished)} left out"
    return Imported(check(table, f"MLflow experiment {experiment}"), (note,))


def _runs(tracking_uri: str, experiment: str) -> list[Any]:
    check_address(tracking_uri, "file")
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = ", ".join(sorted(e.name for e in client.search_experiments()))
            raise TrackingError(
                f"no experiment {experiment!r}.", key=experiment, remedy=f"use one of {names}."
            )
        runs: list[Any] = []
        token = None
        while True:
            page = client.search_runs([found.experiment_id], max_results=1000, page_token=token)
            runs.extend(page)
            token = page.token
            if not token:
                return runs
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as problem:
        words = (str(problem).strip() or type(problem).__name__).splitlines()[0][:160]
        raise TrackingError(
            f"the store cannot be read: {words}.", key="file", remedy="check the tracking URI."
        ) from None


def _value(run: Any, key: str) -> str:
    value = run.data.params.get(key, run.data.tags.get(key))
    if value is None:
        raise TrackingError(
            f"run {run.info.run_id} has neither a parameter nor a tag {key!r}.",
            key=key,
            remedy=f"it has {', '.join(sorted(run.data.params))[:200] or 'no parameters'}.",
        )
    return str(value)


def _artifact(tracking_uri: str, run: Any, artifact: str) -> pd.DataFrame:
    import mlflow
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = mlflow.artifacts.download_artifacts(
                run_id=run.info.run_id, artifact_path=artifact, dst_path=folder, tracking_uri=tracking_uri
            )
        except (MlflowException, OSError):
            raise TrackingError(
                f"run {run.info.run_id} has no artifact {artifact!r}.",
                key=artifact,
                remedy="log the outcomes table with every run.",
            ) from None
        frame = read_table(Path(path))
        if "arm" not in frame.columns and "cell" in frame.columns:
            frame = frame.drop(columns="cell")
        return frame
