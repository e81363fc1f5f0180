"""Families by configuration: the shipped files load, bad ones name file, key and remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnscale.envs.registry import FamilyConfig, load_family, read_family, read_family_config
from turnscale.errors import ConfigError

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "families").glob("*.yaml"))
GOOD = {"name": "s", "kind": "search", "limits": {"max_turns": 1, "max_turn_tokens": 1, "max_tokens": 1}}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_shipped_families_load_and_name_their_splits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem.startswith("textworld"):
        pytest.importorskip("textworld_express", reason="needs turnscale[textworld]")
        if shutil.which("java") is None:
            pytest.skip("needs Java")
    monkeypatch.chdir(ROOT)
    family = read_family(path)
    assert family.name == path.stem
    for split in ("train", "validation", *family.benchmarks):
        task = family.task(split, 0)
        assert (task.family, task.split, task.hash) == (family.name, split, family.task(split, 0).hash)


def test_config_and_mapping_build_the_same_tasks() -> None:
    assert load_family(GOOD).task("train", 0) == load_family(FamilyConfig.model_validate(GOOD)).task(
        "train", 0
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"kind": "chess"}, "kind"),
        ({"name": "Not A Name"}, "name"),
        ({"limits": {"max_turns": 0, "max_turn_tokens": 1, "max_tokens": 1}}, "limits.max_turns"),
        ({"limits": {"max_turns": 1}}, "limits.max_turn_tokens"),
        ({"colour": "red"}, "colour"),
        ({"kind": "textworld"}, "parameters.game"),
        ({"kind": "qa", "parameters": {"corpus": "c"}}, "parameters.benchmarks"),
    ],
)
def test_errors_name_file_key_and_remedy(change: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_family({**GOOD, **change}, "f.yaml")
    assert (caught.value.file, caught.value.key) == ("f.yaml", key)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "just words"])
def test_files_that_are_no_family_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_family_config(path)
    assert caught.value.file == str(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_family_config(tmp_path / "none.yaml")
