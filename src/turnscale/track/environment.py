"""What produced a run: code revision, package versions, platform. No environment variables, users or host
names."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
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


def source_hash() -> str:
    """16 hex digits over the package's Python files: tells apart two runs of one dirty revision."""
    folder = Path(turnscale.__file__).parent
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def environment() -> dict[str, Any]:
    """Versions, platform and threads, as plain JSON."""
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
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        }
    return record
