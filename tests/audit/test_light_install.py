"""The audit in an environment with the core dependencies only: no torch, no MLflow, no Snakemake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.audit.builders import outcomes

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "transformers", "peft", "safetensors", "bm25s", "snakemake")


def core() -> list[str]:
    """Names of the core dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.split(r"[<>=~\[; ]", requirement)[0] for requirement in project["dependencies"]]


def test_the_core_dependencies_are_light_and_locked() -> None:
    locked = {line.split("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert set(core()) <= locked
    assert not set(core()) & set(HEAVY)


class Light:
    """A virtual environment with turnscale and its core dependencies, and an empty folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *map(str, command)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip

    def turnscale(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(self.python.with_name("turnscale"), *arguments)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Light:
    folder = tmp_path_factory.mktemp("light")
    made = Light(folder)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=300)
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "configs", folder / "configs")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for arguments in (("-c", ROOT / "requirements.lock", *core()), ("--no-deps", "-e", source)):
        done = made.run(*pip, *arguments)
        if done.returncode and "No matching distribution" in done.stderr + done.stdout:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_nothing_heavy_came_along(light: Light, name: str) -> None:
    done = light.run("-c", f"import {name}")
    assert done.returncode == 1 and f"No module named '{name}'" in done.stderr


@pytest.mark.slow
def test_a_ledger_is_audited(light: Light) -> None:
    done = light.turnscale("audit", "configs/claims/mpo.yaml", "--out", "ledger")
    assert done.returncode == 0, done.stderr
    assert "not distinguishable" in done.stdout and "not testable" in done.stdout
    names = {path.name for path in (light.folder / "ledger").iterdir()}
    assert names == {f"audit_mpo.{form}" for form in ("md", "tex", "csv", "json", "png", "pdf")}


@pytest.mark.slow
def test_outcomes_are_audited(light: Light) -> None:
    outcomes({"A": [0.5, 0.52, 0.49], "B": [0.5, 0.48, 0.51]}).to_csv(
        light.folder / "outcomes.csv", index=False
    )
    done = light.turnscale("audit", "outcomes.csv")
    assert done.returncode == 0, done.stderr
    assert "the method retrained, on new tasks" in done.stdout
    assert any(verdict in done.stdout for verdict in ("supported", "not distinguishable"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grim", "69.90", "--n", "103"], "72 of 103"),
        (["power", "--sd", "2", "--gap", "4.33"], "5 seeds per arm for 80% power"),
        (["plan", "mpo", "--scale", "quick", "--gap", "5"], "Declared plan: 10 seeds per arm"),
        (["methods", "list"], "mpo"),
    ],
)  # fmt: skip
def test_the_other_commands_need_nothing_more(light: Light, arguments: list[str], said: str) -> None:
    done = light.turnscale(*arguments)
    assert done.returncode == 0, done.stderr
    assert said in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["reproduce", "mpo", "--scale", "smoke"], ["job", "tracking", "--out", "tracking.json"]]
)
def test_what_trains_says_what_is_missing(light: Light, arguments: list[str]) -> None:
    done = light.turnscale(*arguments)
    assert done.returncode == 2
    assert "which is not installed" in done.stderr and "[train]" in done.stderr
    assert "Traceback" not in done.stderr
