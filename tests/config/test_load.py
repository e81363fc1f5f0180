"""Reading YAML: what is refused, and with which words."""

from pathlib import Path

import pytest

from turnscale.config.load import read_yaml
from turnscale.errors import ConfigError
from turnscale.methods import load_method


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seeds: 3\nmodels: [a]\nseeds: 5\n", 3),
        ("train:\n  lr: 1.0\n  steps: 2\n  lr: 2.0\n", 4),
        ("cells:\n- {name: a, lr: 1, lr: 2}\n", 2),
    ],
    ids=["top", "nested", "in a list"],
)
def test_a_key_written_twice_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "scale.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"line {line}.*written twice"):
        read_yaml(path)


def test_a_merged_key_may_be_overridden_and_an_alias_may_be_used_twice(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n", encoding="utf-8")
    assert read_yaml(path)["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n- b\n", "3\n", "a: 1\n---\nb: 2\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"study\.yaml"):
        read_yaml(path)


def test_a_method_row_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: grpo\nset: {a: 1}\nset: {b: 1}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'set' is written twice"):
        load_method(str(path))


def test_a_file_without_a_mapping_points_to_a_page_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    page = str(caught.value.remedy).removeprefix("see ").removesuffix(".")
    assert (Path(__file__).parents[2] / page).is_file()


@pytest.mark.parametrize("levels", [101, 250, 900])
def test_deep_nesting_is_refused_before_anything_follows_it(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("a: " + "[" * levels + "]" * levels, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"levels deep|nesting depth"):
        read_yaml(path)
