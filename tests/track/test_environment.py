"""What is recorded of the machine: GPUs by UUID where a job uses them, and never where it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from turnscale.study import Run, Spec
from turnscale.track.environment import environment, gpus, gpus_in_use, model_device
from turnscale.track.run import open_run
from turnscale.track.store import connect, init_tracking

UUIDS = ("0a1b2c3d-0000-1111-2222-333344445555", "9f8e7d6c-0000-1111-2222-333344445555")
GIB = 2**30


def lend(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    """Make torch see GPUs of these UUIDs (there is none here)."""
    seen = [SimpleNamespace(name="H200", uuid=uuid, total_memory=139 * GIB) for uuid in uuids]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(seen))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(seen))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)


def test_a_job_on_a_gpu_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch, UUIDS[0])
    expected = [{"name": "H200", "uuid": UUIDS[0], "memory_mb": 139 * 1024}]
    for device in ("cuda", "cuda:0"):
        assert environment(device)["torch"]["gpus"] == gpus(device) == expected
    assert gpus_in_use() == expected


def test_a_job_on_the_cpu_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch, *UUIDS)
    assert environment()["torch"]["gpus"] == gpus("cpu") == []
    lend(monkeypatch)
    assert gpus("cuda") == gpus_in_use() == []


def test_the_device_is_that_of_the_model() -> None:
    base = {"family": {"name": "search"}, "model": {"name": "big", "device": "cuda"}}
    assert model_device(base) == "cuda"
    assert model_device({"base": base, "model": "big", "critic": None}) == "cuda"
    assert model_device({"cell": "grouping", "lr": 0.1}) == "cpu"


def test_every_model_has_a_device() -> None:
    from turnscale.agent.config import ModelConfig

    for path in sorted(Path(__file__).parents[2].glob("configs/models/*.yaml")):
        model = ModelConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        assert model_device({"model": model.model_dump(mode="json")}) == model.device


def test_a_run_resumed_on_another_gpu_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    init_tracking(tmp_path)
    spec = {"base": {"model": {"device": "cuda"}}, "lr": 0.1}
    run = Run("s", "c", "f", "m", "cell", "grpo", 0, Spec("train", spec))
    for uuid in (*UUIDS, UUIDS[1]):
        lend(monkeypatch, uuid)
        with pytest.raises(KeyboardInterrupt), open_run(run, spec, root=tmp_path) as log:
            raise KeyboardInterrupt
    client, _ = connect(tmp_path)
    assert client.get_run(log.run_id).data.tags["turnscale.gpus"] == " ".join(UUIDS)
