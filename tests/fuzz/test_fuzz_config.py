"""Spoilt configuration files of every kind, and spoilt ledgers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.audit.builders import LEDGER
from tests.fuzz.harness import fuzz
from tests.fuzz.mutate import DOCUMENTS
from turnscale.agent.config import ModelConfig
from turnscale.audit.document import to_latex, to_markdown
from turnscale.audit.ledger import load_ledger
from turnscale.audit.ledger_report import audit_ledger, document
from turnscale.config.load import read_yaml, validate
from turnscale.envs.registry import read_family_config
from turnscale.errors import ConfigError
from turnscale.methods import load_method
from turnscale.study import resolve
from turnscale.tabular.plan import is_tabular, resolve_tabular
from turnscale.workflow import Products

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    return tmp_path


def plan_of(root: Path, study: str, scale: str) -> None:
    """What the Snakefile does with a study, up to the first rule."""
    if is_tabular(study, root):
        plan = resolve_tabular(study, scale, root=root)
        assert plan.runs
        return
    resolved = resolve(study, scale, root=root)
    products = Products(resolved)
    assert products.definition_hash("tables") and products.definition_hash("figures")
    assert products.study_hash and products.published_files is not None


@pytest.mark.parametrize(
    ("folder", "name", "study", "scale"),
    [
        ("studies", "mpo", "mpo", "smoke"),
        ("studies", "grouping", "grouping", "grouping5"),
        ("scales", "smoke", "mpo", "smoke"),
        ("scales", "grouping5", "grouping", "grouping5"),
    ],
)
def test_studies_and_scales(root: Path, folder: str, name: str, study: str, scale: str) -> None:
    path = root / "configs" / folder / f"{name}.yaml"
    fuzz(
        path,
        path.read_bytes(),
        "yaml",
        lambda _: plan_of(root, study, scale),
        watched=root / "configs" / "claims",
    )


@pytest.mark.parametrize("name", ["mpo", "dapo", "archer"])
def test_methods(root: Path, name: str) -> None:
    path = root / "configs" / "methods" / f"{name}.yaml"

    def read(path: Path) -> None:
        method = load_method(name, directory=path.parent)
        method.resolved()
        method.check(group_size=4, action_tokens=20)

    fuzz(path, path.read_bytes(), "yaml", read)


@pytest.mark.parametrize("name", ["qwen3-moe-tiny", "smollm2-135m"])
def test_models(root: Path, name: str) -> None:
    path = root / "configs" / "models" / f"{name}.yaml"
    fuzz(path, path.read_bytes(), "yaml", lambda file: validate(ModelConfig, read_yaml(file), file))


@pytest.mark.parametrize("name", ["search", "textworld-coin", "qa-jsonl"])
def test_families(root: Path, name: str) -> None:
    path = root / "configs" / "families" / f"{name}.yaml"
    fuzz(path, path.read_bytes(), "yaml", read_family_config)


def test_committed_ledger(tmp_path: Path) -> None:
    good = (PROJECT / "configs" / "claims" / "grouping.yaml").read_bytes()
    fuzz(tmp_path / "claims.yaml", good, "yaml", load_ledger)


def test_ledger_through_its_audit(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        report = document(audit_ledger(load_ledger(path), []), reasons=True)
        assert to_markdown(report).isprintable() or "\n" in to_markdown(report)
        to_latex(report).encode()

    fuzz(tmp_path / "claims.yaml", LEDGER.encode(), "yaml", read)


@pytest.mark.parametrize("data", DOCUMENTS, ids=[repr(d[:24]) for d in DOCUMENTS])
def test_documents_that_trouble_parsers_are_refused_everywhere(root: Path, data: bytes) -> None:
    for folder, name in (("scales", "smoke"), ("methods", "mpo"), ("families", "search"), ("claims", "mpo")):
        path = root / "configs" / folder / f"{name}.yaml"
        path.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            {
                "scales": lambda: plan_of(root, "mpo", "smoke"),
                "methods": lambda p=path: load_method("mpo", directory=p.parent),
                "families": lambda p=path: read_family_config(p),
                "claims": lambda p=path: load_ledger(p),
            }[folder]()
        assert name in str(caught.value)
        shutil.copy(PROJECT / path.relative_to(root), path)


def test_a_folder_a_pipe_and_a_device_are_no_files(root: Path) -> None:
    path = root / "configs" / "scales" / "smoke.yaml"
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        plan_of(root, "mpo", "smoke")
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a file"):
        plan_of(root, "mpo", "smoke")
    with pytest.raises(ConfigError, match="is not a file"):
        read_yaml(Path("/dev/zero"))
