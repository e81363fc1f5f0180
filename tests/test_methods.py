"""Method rows: reading, overriding, refusing, documenting."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from turnscale.axes import AXES, TERMS, Choice
from turnscale.conventions import PRESETS, compare, example_batch, per_trajectory, side
from turnscale.conventions import advantages as example_advantages
from turnscale.errors import ConfigError
from turnscale.gates.batches import random_batch
from turnscale.method_commands import method_index, register
from turnscale.methods import list_methods, load_method

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[1]
EVERY: list[tuple[str, str, Choice]] = [
    (axis, name, choice)
    for axis, entries in [*AXES.items(), ("terms", TERMS)]
    for name, choice in entries.items()
]


def invoke(*args: str) -> Any:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["methods", *args])


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the rows to spoil."""
    for path in (ROOT / "configs" / "methods").glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    return tmp_path


@pytest.mark.parametrize(("axis", "name", "choice"), EVERY, ids=[f"{a}-{n}" for a, n, _ in EVERY])
def test_declared_parameters_are_the_functions_own(axis: str, name: str, choice: Choice) -> None:
    signature = inspect.signature(choice.load()).parameters.values()
    keywords = {p.name for p in signature if p.kind is p.KEYWORD_ONLY}
    if axis == "credit" and "values" in choice.needs:
        keywords.remove("lam_critic")
    assert keywords == set(choice.params)
    assert all(p.default is p.empty for p in signature if p.kind is p.KEYWORD_ONLY)


@pytest.mark.parametrize("name", list_methods())
def test_every_row_runs(name: str) -> None:
    method = load_method(name)
    assert method.documented()["credit"]["name"] == method.credit_choice["name"]
    assert json.loads(json.dumps(method.resolved())) == method.resolved()
    if method.train:
        batch = random_batch(1)
        credit = method.credit(batch)
        assert (credit.returns is not None) == method.needs_critic
        assert (credit.returns_turn is not None) == (method.critic.heads == 2)
        assert method.normalise(credit.advantages, batch).shape == batch.turn.shape


def test_reading_methods_imports_no_tensor_library() -> None:
    code = (
        "import sys; from turnscale.methods import *; import turnscale.method_commands\n"
        "from turnscale.gates.identities import EDGES\n"
        "[load_method(n).check(group_size=4, action_tokens=60) for n in list_methods()]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_override_changes_value_source_and_nothing_else() -> None:
    plain, changed = load_method("mpo"), load_method("mpo", {"credit.beta": 0.5})
    assert changed.credit_choice["beta"] == 0.5
    assert changed.sources["credit.beta"] == "set by the study"
    expected = plain.resolved()
    expected["credit"]["beta"] = 0.5
    assert changed.resolved() == expected != plain.resolved()


def test_override_can_replace_a_section() -> None:
    method = load_method("mpo", {"ratio": {"name": "token"}, "sampling.group_size": 6})
    assert method.resolved() == load_method("mpo-token-is", {"sampling.group_size": 6}).resolved()


def test_prose_is_not_part_of_the_identity(folder: Path) -> None:
    text = (folder / "mpo.yaml").read_text().replace("title: MPO", "title: Other  # a comment")
    write(folder, "mpo", text)
    assert load_method("mpo", directory=folder).resolved() == load_method("mpo").resolved()


@pytest.mark.parametrize(
    ("name", "overrides", "key", "says"),
    [
        ("mpoo", {}, None, "did you mean mpo"),
        ("mpo", {"credit.betta": 1}, "credit.betta", "its keys are"),
        ("mpo", {"credit.beta": -1}, "credit.beta", "outside"),
        ("mpo", {"credit.beta": float("nan")}, "credit.beta", "outside"),
        ("mpo", {"credit.beta": "big"}, "credit.beta", "must be a number"),
        ("mpo", {"credit.beta": True}, "credit.beta", "must be a number"),
        ("mpo", {"ratio.gradient": "none"}, "ratio.gradient", "not one of own"),
        ("mpo", {"ratio": {"name": "product"}}, "ratio.name", "one of token"),
        ("mpo", {"ratio": {"name": "turn"}}, "ratio.gradient", "write it"),
        ("mpo", {"title": "x"}, "title", "method itself"),
        ("mpo", {"critic.heads": 0}, "critic.heads", "needs a critic"),
        ("mpo", {"critic.layers": 2}, "critic.layers", "unknown key"),
        ("grpo", {"critic.heads": 1}, "critic.heads", "needs a critic of 0"),
        ("vetta", {"critic.heads": 1}, "critic.heads", "2 head"),
        ("gspo", {"aggregation": {"name": "token_mean"}}, "aggregation.name", "sequence_mean"),
        ("gspo", {"aggregation": {"name": "fixed", "divisor": 9}}, "aggregation.name", "sequence_mean"),
        ("grpo", {"sampling.group_size": 1}, "sampling.group_size", "at least 2"),
        ("grpo", {"normalisation": {"name": "whiten", "ddof": 0, "eps": 0}}, "normalisation.name", "twice"),
        ("grpo", {"sampling.scheme": "fork", "sampling.fork": "entropy"}, "sampling.scheme", "tree credit"),
        ("arpo", {"sampling.scheme": "independent"}, "sampling.scheme", "tree credit"),
        ("arpo", {"sampling.fork": None}, "sampling.fork", "every_turn"),
        ("opsd", {"terms": {}}, "credit.name", "nothing to learn"),
        ("grpo-agent", {"terms.kl.coef": -0.1}, "terms.kl.coef", "outside"),
    ],
)
def test_impossible_settings_are_refused(
    name: str, overrides: dict[str, Any], key: str | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_method(name, overrides)
    assert caught.value.key == key
    assert caught.value.file and caught.value.file.endswith(f"{name}.yaml")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("extends: mpo\ncredit: {beta: 0.5}\nsources: {clip.eps: x}\n", "sources.clip.eps", "not there"),
        ("extends: mpo\nclip: {name: log_symmetric, eps: 0.8}\n", "sources.clip.eps", "no source"),
        ("extends: odd\n", "extends", "circle"),
        ("extends: mpo\nnovelty: 1\n", "novelty", "unknown key"),
        ("extends: mpo\ncredit: 3\n", "credit", "mapping with a name"),
        ("title: [\n", "line 2", "not valid YAML"),
        ("- a\n", None, "mapping of keys"),
        ("title: x\n", "summary", "required"),
    ],
)
def test_spoilt_rows_are_refused(folder: Path, text: str, key: str | None, says: str) -> None:
    write(folder, "odd", text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_method("odd", directory=folder)
    assert caught.value.key == key
    assert caught.value.file and caught.value.file.endswith("odd.yaml")


def test_setting_checks() -> None:
    with pytest.raises(ConfigError, match="turn index"):
        load_method("mpo").check(has_turns=False)
    with pytest.raises(ConfigError, match="group of one"):
        load_method("grpo").check(group_size=1)
    assert load_method("sao").check(group_size=1, action_tokens=60) == []
    (warning,) = load_method("vapo").check(action_tokens=20)
    assert "lambda is 0" in warning and "0.05" in warning
    assert load_method("vapo", {"credit.alpha": 0.5}).check(action_tokens=20) == []
    assert load_method("vapo").check(action_tokens=400) == []


def test_vapo_lambda_is_reported() -> None:
    metrics = load_method("vapo").credit(random_batch(0)).metrics
    assert metrics["lambda_zero_share"] > 0.4
    assert 0 <= metrics["lambda_mean"] < 1


def test_soft_overlong_penalty() -> None:
    shaping = {"name": "soft_overlong", "limit": 20, "buffer": 10}
    method = load_method("dapo", {"shaping": shaping, "credit.scale": "none", "sampling.group_size": 2})
    batch = random_batch(0, rows=2, group_size=2, turns=(1, 1), turn_length=(5, 5))
    wide = random_batch(0, rows=2, group_size=2, turns=(1, 1), turn_length=(15, 15))
    tied = torch.ones(2, dtype=torch.float64)
    assert not method.credit(batch.with_(reward=tied)).advantages.any()
    from turnscale.credit.shaping import soft_overlong

    assert soft_overlong(wide.with_(reward=tied), limit=20, buffer=10).tolist() == [0.5, 0.5]
    assert soft_overlong(wide.with_(reward=tied), limit=8, buffer=4).tolist() == [0.0, 0.0]


def test_presets_reach_the_known_values() -> None:
    batch = example_batch([[0.0, 1.0], [1.0]])
    got = {
        name: per_trajectory(example_advantages(side(name).method, batch), batch)
        for name in ("verl-grpo", "trl-grpo", "grouping-toy")
    }
    assert got["verl-grpo"] == pytest.approx([-0.70711, 0.70711, 1.0], abs=1e-5)
    assert got["trl-grpo"] == pytest.approx([-0.70701, 0.70701, 0.0], abs=1e-5)
    assert got["grouping-toy"] == pytest.approx([-1.0, 1.0, 0.0], abs=1e-9)


def test_diff_names_the_convention_that_explains() -> None:
    lone = compare(side("verl-grpo"), side("grouping-toy"), example_batch([[0.0, 1.0], [1.0]]))
    assert lone[0][0].key == "credit.singleton" and lone[0][0].effect == pytest.approx(1.0)
    pair = compare(side("verl-grpo"), side("grouping-toy"), example_batch([[0.0, 1.0]]))
    assert pair[0][0].key == "credit.ddof" and pair[1] == pytest.approx(1 - 0.70711, abs=1e-4)
    assert compare(side("verl-grpo"), side("verl-grpo")) == ([], 0.0)
    found, _ = compare(side("mpo"), side("ppo"))
    assert {"credit", "ratio", "credit unit"} <= {d.key for d in found}
    with pytest.raises(ConfigError, match="neither a method nor a preset"):
        side("veril")


@pytest.mark.parametrize(
    ("typed", "preset"),
    [
        ("verl", "verl-grpo"),
        ("VERL", "verl-grpo"),
        ("TRL", "trl-grpo"),
        ("trl", "trl-grpo"),
        ("GiGPO default", "gigpo-mean-norm"),
        ("gigpo-default", "gigpo-mean-norm"),
        ("seed 004", "grouping-toy"),
        ("Grouping-Toy", "grouping-toy"),
    ],
)
def test_diff_knows_presets_by_other_names(typed: str, preset: str) -> None:
    row = load_method(PRESETS[preset].base).name
    by_alias, by_name = invoke("diff", row, typed), invoke("diff", row, preset)
    assert by_alias.exit_code == by_name.exit_code == 0
    assert by_alias.output == by_name.output and f"\n{preset}: advantage" in by_alias.output
    assert typed not in list_methods()


def test_diff_of_our_grpo_and_verl_says_which_convention_makes_the_difference() -> None:
    pair = invoke("diff", "grpo", "verl", "--rewards", "0,1")
    assert pair.exit_code == 0 and not re.search(r"credit\.(ddof|scale)", pair.output)
    assert "credit.singleton  forbid | raw" in pair.output
    lone = invoke("diff", "grpo", "verl", "--rewards", "0,1;1")
    assert "greatest difference of advantages on the example groups: 1" in lone.output
    assert "explained first by credit.singleton: forbid against raw" in lone.output
    toy = invoke("diff", "verl", "seed 004", "--rewards", "0,1")
    assert "explained first by credit.ddof: 1 against 0" in toy.output


def test_commands() -> None:
    listed = invoke("list")
    assert listed.exit_code == 0 and all(name in listed.output for name in list_methods())
    shown = invoke("show", "mpo", "--set", "credit.beta=0.5")
    assert "credit.beta" in shown.output and "set by the study" in shown.output
    assert "not trained" in invoke("show", "skill-prompt").output
    diff = invoke("diff", "verl-grpo", "grouping-toy", "--rewards", "0,1")
    assert "explained first by credit.ddof: 1 against 0" in diff.output
    assert "-0.7071 +0.7071" in diff.output and "-1.0000 +1.0000" in diff.output
    for bad in (("show", "nothing"), ("show", "mpo", "--set", "credit"), ("diff", "mpo", "x")):
        assert isinstance(invoke(*bad).exception, ConfigError)
    assert isinstance(invoke("diff", "mpo", "ppo", "--rewards", "a").exception, ConfigError)


def test_index_of_methods_is_up_to_date(tmp_path: Path) -> None:
    assert (ROOT / "docs" / "methods.md").read_text() == method_index(ROOT / "configs" / "methods")
    assert invoke("index", "--write", str(tmp_path / "m.md")).exit_code == 0
    assert (tmp_path / "m.md").read_text() == method_index()
