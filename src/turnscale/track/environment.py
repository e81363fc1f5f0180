"""What produced a run: code revision, package versions, platform. No environment variables, users or host
names."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import turnscale

PACKAGES = (
    "turnscale",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "numba",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
    "safetensors",
    "mlflow",
    "snakemake",
    "pydantic",
    "bm25s",
    "matplotlib",
)


def code_revision(root: Path = Path()) -> str:
    """The git commit, with ``-dirty`` when tracked files differ from it; ``unversioned`` outside git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return f"{commit}-dirty" if git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return "unversioned"


def source_hash(*parts: str) -> str:
    """16 hex digits over the package's Python files: tells apart two runs of one dirty revision.

    Args:
        parts: folders and files of the package to look at, relative to it; all of it if there are none.
    """
    folder = Path(turnscale.__file__).parent
    places = [folder / part for part in parts] or [folder]
    files = {path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])}
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.relative_to(folder).as_posix().encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, platform, threads and, for a job on GPUs, which GPUs, as plain JSON.

    Args:
        device: where the job's model is: ``cpu``, ``cuda``, ``cuda:1``, ...
    """
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "packages": packages,
    }
    torch = sys.modules.get("torch")  # recorded when the job uses it, never loaded for this
    if torch is not None:
        record["torch"] = {
            "threads": torch.get_num_threads(),
            "cuda": torch.version.cuda,
            "device": device,
            "gpus": gpus(device),
        }
    return record


def model_device(spec: Mapping[str, Any]) -> str:
    """Where the model of a job's specification is: that of the ``base`` which a critic's or training's names."""
    model = spec.get("base", spec).get("model")
    return str(model.get("device", "cpu")) if isinstance(model, Mapping) else "cpu"


def gpus(device: str) -> list[dict[str, Any]]:
    """The GPUs that a job can see, one for a job to which the scheduler lent one; none for a job on the CPU.

    Returns:
        For each: ``name``; ``uuid`` as CUDA gives it, which nvidia-smi shows after ``GPU-``; ``memory_mb``.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [
        {"name": one.name, "uuid": str(one.uuid), "memory_mb": one.total_memory // 2**20} for one in found
    ]


def gpus_in_use() -> list[dict[str, Any]]:
    """`gpus` of a process that has worked on one."""
    torch = sys.modules.get("torch")
    return gpus("cuda") if torch is not None and torch.cuda.is_initialized() else []
